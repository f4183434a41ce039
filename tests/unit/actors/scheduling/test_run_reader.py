"""Runs are read out of a real log page by page, and no byte that was changed on disk is taken for true."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raylog.actors.scheduling.rows import decode_key, encode_key, encode_row
from raylog.actors.scheduling.run_reader import RunReader
from raylog.core.scheduling import names as naming
from raylog.core.scheduling.events import RowRead
from raylog.core.scheduling.keys import key_of
from raylog.core.scheduling.machine import SchedulerMachine
from raylog.core.scheduling.names import Names
from raylog.core.scheduling.pending import Pending
from raylog.core.scheduling.rows import RunWritten, sealed
from raylog.core.scheduling.runs import PAGE_BYTES, Run
from raylog.core.scheduling.settings import SchedulerSettings
from raylog.storage.errors import LogDamaged
from raylog.storage.log.config import LogConfig
from raylog.storage.log.partition_log import PartitionLog

KEYS = 20_000


class Counted:
    """A log that counts the bytes read of it."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.bytes_read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.log, name)

    def read(self, offset: int, max_bytes: int, upper: int) -> bytes:
        found = self.log.read(offset, max_bytes, upper)
        self.bytes_read += len(found)
        return found

    def read_part(self, offset: int, start: int, size: int) -> bytes:
        found = self.log.read_part(offset, start, size)
        self.bytes_read += len(found)
        return found


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    config = LogConfig(max_message_bytes=32 << 20)
    found = PartitionLog.open(
        tmp_path / "__scheduled-0", config, topic_id="t", topic="__scheduled", partition=0, now_ms=0
    )
    yield found
    found.close()


def named_run(seed: int) -> tuple[RunWritten, bytes, dict[int, int]]:
    """A run's row, its bytes, and the names of its keys."""
    chance = random.Random(seed)
    keys = sorted(key_of(chance.randrange(1 << 40), seed * KEYS + offset) for offset in range(KEYS))
    names = {key: chance.getrandbits(128) for key in keys}
    return *sealed(keys, names), names


def appended(log: PartitionLog, row: RunWritten, data: bytes) -> int:
    return log.append_as_leader(encode_row(row, 0, value=data), 0, 0).first_offset


def opened(reader: RunReader, offset: int, row: RunWritten) -> Run:
    return Run.read(offset, reader.directory(offset, row.facts), row.facts)


def flip(log: PartitionLog, needle: bytes) -> None:
    """Change the first byte of some bytes of the log, on disk."""
    path = log.segments[0].path
    data = bytearray(path.read_bytes())
    at = data.index(needle)
    data[at] ^= 1
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data[at : at + 1])


def test_every_part_of_a_run_is_read_as_it_was_written(log: PartitionLog) -> None:
    row, data, _ = named_run(1)
    offset = appended(log, row, data)
    reader = RunReader(log)
    run = opened(reader, offset, row)
    assert run.size == len(data)
    chance = random.Random(3)
    for _ in range(200):
        start = chance.randrange(run.size)
        end = min(run.size, start + chance.choice([1, 20, 5_000, PAGE_BYTES, 100_000]))
        assert reader.part(run, start, end) == data[start:end]


def test_a_new_owner_reads_a_small_part_of_a_run(log: PartitionLog) -> None:
    row, data, names = named_run(1)
    offset = appended(log, row, data)
    counted = Counted(log)
    reader = RunReader(counted)
    run = opened(reader, offset, row)
    run.block(7, reader.part)
    assert counted.bytes_read < 4 * PAGE_BYTES < len(data) / 5
    key, name = next(iter(names.items()))
    before = counted.bytes_read
    assert run.may_name(name, reader.part)
    assert run.key_of(name, reader.part) == key
    assert counted.bytes_read - before < 25 * PAGE_BYTES


def test_a_page_that_was_changed_on_disk_is_noticed(log: PartitionLog) -> None:
    row, data, _ = named_run(1)
    offset = appended(log, row, data)
    run = opened(RunReader(log), offset, row)
    flip(log, data[run.names_at : run.names_at + 40])
    reader = RunReader(log)
    opened(reader, offset, row)
    assert reader.part(run, 0, 100) == data[:100], "other pages are right"
    with pytest.raises(LogDamaged):
        reader.part(run, run.names_at, run.names_at + 8)


@pytest.mark.parametrize("part", ["directory", "sums"])
def test_a_beginning_that_was_changed_on_disk_is_noticed(log: PartitionLog, part: str) -> None:
    row, data, _ = named_run(1)
    offset = appended(log, row, data)
    sums = row.sums
    flip(log, data[20:60] if part == "directory" else sums[:40])
    with pytest.raises(LogDamaged):
        RunReader(log).directory(offset, row.facts)


@pytest.mark.parametrize("filters_bytes", [0, 70_000, 1 << 20])
def test_names_are_found_with_any_number_of_filters_in_memory(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch, filters_bytes: int
) -> None:
    monkeypatch.setattr(naming, "FILTERS_BYTES", filters_bytes)
    reader = RunReader(log)
    pending = Pending(reader.part)
    known: dict[int, int] = {}
    for seed in range(1, 6):
        row, data, names = named_run(seed)
        pending.add_run(Run.read(appended(log, row, data), data, row.facts))
        known |= dict(random.Random(seed).sample(sorted(names.items()), 20))
    found = Names(pending, reader.part)
    for key, name in known.items():
        assert found.find(name) == key
        assert found.find(name ^ 1 << 100) is None
        assert found._filters_bytes == sum(map(len, found._filters.values())) <= filters_bytes
    newest = sorted(pending.runs)[len(pending.runs) - len(found._filters) :]
    assert sorted(found._filters) == newest, "those of the newest runs are kept"


def test_a_checkpoint_has_the_checks_of_its_runs() -> None:
    row, data, _ = named_run(1)
    machine = SchedulerMachine(lambda _, start, end: data[start:end], SchedulerSettings())
    machine.step(RowRead(offset=2, row=row, size_bytes=len(data), value=data))
    checkpoint = machine.checkpoint()
    (run,), (check,) = checkpoint.runs, checkpoint.checks
    assert row.facts.check
    assert (run.offset, run.facts(check)) == (2, row.facts)
    assert decode_key(encode_key(checkpoint)) == checkpoint
