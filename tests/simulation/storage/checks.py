"""Whether an opened log holds what it must; each claim has the number of a rule.

S1 synced batches are there; S2 nothing is invented or changed; S3 the log start stays where it was set;
S4 leader epochs are as assigned; S5 producer state follows from the batches; S6 a look-up agrees with a scan;
S7 the persisted high watermark is at most the committed end and the log end; S8 damage below the synced end is
reported; S9 opening always succeeds, and succeeds again; S10 an error leaves the log unchanged, and no other error is
raised; S11 a removed partition folder does not come back, and no other one vanishes.
"""

from __future__ import annotations

import random

from raylog.storage.batch.header import iter_headers
from raylog.storage.errors import CorruptBatch, LogDamaged
from raylog.storage.log.kept_watermark import KeptWatermark
from raylog.storage.log.partition_log import PartitionLog
from tests.simulation.storage.model import Model, Stored
from tests.simulation.world import Violation


def require(holds: bool, rule: str, claim: str) -> None:
    """Raise Violation unless it holds."""
    if not holds:
        raise Violation(rule, claim)


def read_all(log: PartitionLog) -> bytes:
    """Every byte from the log start."""
    parts, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 20, log.log_end_offset)
        if not data:
            raise Violation("S6", f"nothing can be read at {offset}, and the log ends at {log.log_end_offset}")
        parts.append(data)
        offset = [header for _, header in iter_headers(data)][-1].next_offset
    return b"".join(parts)


def check_opened(log: PartitionLog, model: Model) -> None:
    """Compare a just opened log with the model, then continue the model from the log's state."""
    end, start = log.log_end_offset, log.log_start_offset
    if model.restart is not None and not log.size_bytes:
        model.epochs_begun = model.epochs
        model.restarted(end)
    require(end >= model.floor, "S1", f"the log ends at {end}, and everything below {model.floor} was synced")
    starts = {model.start, model.durable_start, *([] if model.start_wanted is None else [model.start_wanted])}
    if model.restart is not None:
        starts.add(model.restart)
    lowest, highest = min(*starts, end), max(starts)
    require(lowest <= start <= highest, "S3", f"the log starts at {start}, not between {lowest} and {highest}")
    model.batches += model.tail
    model.start = model.durable_start = start
    check_content(log, model, end)
    check_epochs(log, model, end)
    model.ends_at(end)
    model.epochs = list(log.epochs.entries)
    model.settled()
    check_producers(log, model)


def check_content(log: PartitionLog, model: Model, end: int) -> None:
    """Readable batches are the appended ones, byte for byte."""
    expected = model.readable(end)
    last = expected[-1].end if expected else end
    require(last == end, "S2", f"the log ends at {end}, the last batch that was appended before it at {last}")
    found = read_all(log)
    require(found == b"".join(batch.data for batch in expected), "S2", f"{len(found)} bytes are not what was appended")


def check_epochs(log: PartitionLog, model: Model, end: int) -> None:
    """Every epoch assigned before the end is there, and no other."""
    latest = log.epochs.latest
    known = [entry for entry in model.epochs if entry[1] < (model.floor if model.cutting else model.floor + 1)]
    if known and model.restart is None:
        claim = f"epoch {known[-1][0]} was assigned at {known[-1][1]}, the latest that is known is {latest}"
        require(latest >= known[-1][0], "S4", claim)
    possible = {epoch for epoch, _ in (*model.epochs, *model.epochs_begun)} | {batch.epoch for batch in model.batches}
    for epoch, offset in log.epochs.entries:
        require(epoch in possible and offset <= end, "S4", f"epoch {epoch} at {offset} was never assigned")


def check_producers(log: PartitionLog, model: Model) -> None:
    """The state of each producer is that of its last batch in the log."""
    known = log.producers.producers
    in_files = log.segments[0].base_offset
    for producer in {batch.producer for batch in model.batches} | set(known):
        last = model.last_of(producer) if producer >= 0 else None
        entry = known.get(producer)
        if entry is not None and entry.batches:
            found = entry.batches[-1]
            right = last is not None and (found.last_sequence, found.end_offset) == (last.last_sequence, last.end)
            require(right, "S5", f"producer {producer} is known by {found}, its last batch is {_place(last)}")
        elif last is not None:
            require(last.base < in_files, "S5", f"producer {producer} is forgotten, its last batch is {_place(last)}")


def _place(batch: Stored | None) -> str:
    return "none" if batch is None else f"[{batch.base}, {batch.end}) to sequence {batch.last_sequence}"


def check_watermark(kept: KeptWatermark, model: Model, end: int) -> None:
    """The file's watermark is committed, and within the log."""
    offset = kept.offset
    require(offset <= min(end, model.committed), "S7", f"{offset} is kept, {model.committed} of {end} are committed")
    require(offset >= min(model.kept, end), "S7", f"{offset} is kept, {model.kept} was written durably")


def check_lookups(log: PartitionLog, model: Model, draw: random.Random) -> None:
    """Reads from the middle and by time, against the list."""
    batches = model.readable(log.log_end_offset)
    if not batches:
        return
    for _ in range(2):
        offset, upper = draw.randint(model.start, model.end), draw.randint(model.start, model.end)
        room, twin = draw.choice((1, 700, 5000)), b""
        for batch in batches:
            if batch.end > offset:
                if batch.end > upper or (twin and len(twin) + len(batch.data) > room):
                    break
                twin += batch.data
        require(log.read(offset, room, upper) == twin, "S6", f"reading {room} bytes at {offset} below {upper}")
    moment = draw.choice(batches).timestamps[0]
    expected = (
        next(
            (batch.base + place, found)
            for batch in batches
            for place, found in enumerate(batch.timestamps)
            if found >= moment and batch.base + place >= model.start
        )
        if any(t >= moment and b.base + p >= model.start for b in batches for p, t in enumerate(b.timestamps))
        else None
    )
    found = log.offset_for_timestamp(moment, log.log_end_offset)
    require(found == expected, "S6", f"time {moment} is found at {found}, it is at {expected}")


def check_damaged(log: PartitionLog, model: Model, floor: int) -> None:
    """A log that opens despite damage has truncated nothing below `floor`, and returns no wrong data."""
    require(log.log_end_offset >= floor, "S8", f"cut at {log.log_end_offset}, everything below {floor} was synced")
    for batch in model.readable(log.log_end_offset):
        if batch.base < log.log_start_offset:
            continue
        try:
            data = log.read(batch.base, 1, log.log_end_offset)
        except (LogDamaged, CorruptBatch):
            continue
        require(data == batch.data, "S8", f"the batch at {batch.base} is given out although it is damaged")
