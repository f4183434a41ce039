"""The case `pending`: what a leader of `__scheduled` needs to begin with many pending records.

A log with the runs and the checkpoint of so many records is generated, and a few that are due now. Another process
opens the log and does what a new leader does: reads the checkpoint, opens the runs, takes what is due, reads the
records. Time counts from the opened log; memory is what the process has grown by, at its peak.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.peers.processes import own_memory
from raylog.actors.scheduling.decoded_batches import Bodies, bodies_of
from raylog.actors.scheduling.role import CHECKPOINT_TIME
from raylog.actors.scheduling.rows import encode_row, read_batches
from raylog.actors.scheduling.run_reader import RunReader
from raylog.core.scheduling.events import RowRead
from raylog.core.scheduling.keys import first_after, key_of
from raylog.core.scheduling.machine import SchedulerMachine
from raylog.core.scheduling.rows import Checkpoint, Frontier, Keys, RunState, sealed
from raylog.core.scheduling.settings import SchedulerSettings
from raylog.storage.batch.records import BatchMeta, encode_batch
from raylog.storage.log.config import LogConfig
from raylog.storage.log.partition_log import PartitionLog

RUN_KEYS: Final = 100_000
DUE_NOW: Final = 1_000
SPAN_MS: Final = 40 * 86_400_000
NOW_MS: Final = 1_800_000_000_000
PAST_KEYS: Final = RUN_KEYS // 10
"""Keys of each run that were delivered before: the frontier is in the midst of it."""
OPEN: Final[dict[str, Any]] = {"topic_id": "bench", "topic": "__scheduled", "partition": 0, "now_ms": NOW_MS}
CONFIG: Final = LogConfig(max_message_bytes=32 << 20)


def run(records: int, folder: Path, *, named: bool = True) -> dict[str, Any]:
    """Generate the log, where each record has a schedule id or none has, and have another process begin with it."""
    began = time.monotonic()
    covers = _generate(records, folder, named=named)
    generated_s = time.monotonic() - began
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    command = [sys.executable, "-m", "benchmarks.delays.pending", str(folder), str(covers)]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {"records": records, "generated_s": round(generated_s, 1), "log_mb": size >> 20, **found}


def _generate(records: int, folder: Path, *, named: bool) -> int:
    """Write the log; return the offset of the checkpoint."""
    log = PartitionLog.open(folder / "__scheduled-0", CONFIG, **OPEN)
    chance = random.Random(1)
    body = encode_batch(
        [b"key"] * DUE_NOW, [bytes(100)] * DUE_NOW, [NOW_MS] * DUE_NOW, [[("h", b"1")]] * DUE_NOW, BatchMeta(7, 0, 0)
    )
    log.append_as_leader(body, 0, NOW_MS)
    runs = []
    for number in range(-(-records // RUN_KEYS)):
        keys = list(_keys(chance, min(RUN_KEYS, records - number * RUN_KEYS), number))
        row, data = sealed(keys, dict(zip(keys, _names(chance, len(keys)), strict=True)) if named else {})
        runs.append((log.append_as_leader(encode_row(row, NOW_MS, value=data), 0, NOW_MS).first_offset, row))
    empty = SchedulerMachine(lambda *_: b"", SchedulerSettings()).checkpoint()
    checkpoint = msgspec.structs.replace(
        empty,
        covers=log.log_end_offset,
        producer_id=7,
        runs=tuple(
            RunState(at, row.lowest_offset, row.highest_offset, row.has_tombstones, row.names) for at, row in runs
        ),
        checks=tuple(row.check for _, row in runs),
        frontier=Frontier([first_after(NOW_MS - 1) - 1]),
        fresh=Keys(key_of(NOW_MS, offset) for offset in range(DUE_NOW)),
        count=records,
    )
    at = log.append_as_leader(encode_row(checkpoint, CHECKPOINT_TIME + 1), 0, NOW_MS).first_offset
    log.close()
    return at


def _names(chance: random.Random, count: int) -> Iterator[int]:
    """Yield names: each record has a schedule id."""
    return (chance.getrandbits(128) for _ in range(count))


def _keys(chance: random.Random, count: int, run_number: int) -> Iterator[int]:
    """Yield the sorted keys of one run, some of them of the past."""
    base = 10_000 + run_number * RUN_KEYS  # places of records that are not due for long
    dues = sorted(NOW_MS + 1 + chance.randrange(SPAN_MS) for _ in range(count - PAST_KEYS))
    past = sorted(NOW_MS - 1 - chance.randrange(SPAN_MS) for _ in range(PAST_KEYS))
    offsets = list(range(base, base + count))
    chance.shuffle(offsets)
    return (key_of(due, offset) for due, offset in zip([*past, *dues], offsets, strict=True))


def begin(folder: Path, at: int) -> dict[str, Any]:
    """Begin as a new leader does, with the checkpoint at an offset."""
    log = PartitionLog.open(folder / "__scheduled-0", CONFIG, **OPEN)
    before, began, busy = own_memory("VmRSS"), time.monotonic(), time.process_time()
    runs = RunReader(log)
    machine = SchedulerMachine(runs.part, SchedulerSettings())
    (event,) = read_batches(log.read(at, 1, log.log_end_offset), at)
    assert isinstance(event, RowRead) and isinstance(event.row, Checkpoint)  # noqa: PT018  # one claim
    machine.restore(event.row, runs.directory)
    machine.pending.align()
    restored_s = time.monotonic() - began
    keys = machine.pending.take_due(NOW_MS, DUE_NOW)
    bodies = bodies_of(Bodies(log, machine.space.row_of), keys)
    first_s, busy_s = time.monotonic() - began, time.process_time() - busy
    assert len(bodies) == DUE_NOW
    after = own_memory("VmRSS")
    searches = _searches(machine)
    taking = time.monotonic()
    more = 0
    horizon_ms = NOW_MS
    while more < 50_000 and time.monotonic() - taking < 30:
        horizon_ms += SPAN_MS // 20_000
        more += len(machine.pending.take_due(horizon_ms, 4_096))
    rate = more / (time.monotonic() - taking)
    return {
        "restored_ms": round(restored_s * 1000),
        "first_due_ms": round(first_s * 1000),
        "processor_ms": round(busy_s * 1000),
        "memory_mb": round((after - before) / 1e6, 1),
        "memory_peak_mb": round((own_memory("VmHWM") - before) / 1e6, 1),
        "taken_per_second": round(rate),
        **searches,
    }


def _searches(machine: SchedulerMachine) -> dict[str, float]:
    """Time what requests need: two names that were never sent, and a record in the last run, by its key."""
    found = {}
    chance = random.Random(2)
    for label in ("first_search_ms", "search_ms"):
        began = time.monotonic()
        assert machine.names.find(chance.getrandbits(128)) is None
        found[label] = round((time.monotonic() - began) * 1000, 1)
    key = next(reversed(machine.pending.runs.values())).firsts[-1]
    began = time.monotonic()
    assert machine.pending.holds(key)
    found["held_ms"] = round((time.monotonic() - began) * 1000, 1)
    return found


if __name__ == "__main__":
    print(json.dumps(begin(Path(sys.argv[1]), int(sys.argv[2]))))
