"""Whether an opened log holds what it must; each claim has the number of a rule.

S1 synced batches are there; S2 nothing is invented or changed; S3 the log start stays where it was set;
S4 leader epochs are as assigned; S5 producer state follows from the batches; S6 a look-up agrees with a scan;
S7 the persisted high watermark is at most the committed end and the log end; S8 damage below the synced end is
reported; S9 opening always succeeds, and succeeds again; S10 an error leaves the log unchanged, and no other error is
raised; S11 a removed partition folder does not come back, and no other one vanishes; S12 segments begin and go as
configured; S13 what must not be appended is refused; S14 a cleaner keeps the last record of each key,
and stays below what is committed and on disk; S15 readers of committed records get what they may get
(`transactions/checks`); S16 a scrub finds what readers would meet, and nothing else (`scrubs`).
"""

from __future__ import annotations

import random

from raylog.storage import filesystem
from raylog.storage.batch.cleaned import horizon_of
from raylog.storage.batch.header import iter_headers, parse_header
from raylog.storage.batch.records import decode_batch
from raylog.storage.cleaner.rules import Cleanable
from raylog.storage.errors import CorruptBatch, LogDamaged
from raylog.storage.files import read_bytes
from raylog.storage.log.config import FileSlice, LogConfig
from raylog.storage.log.kept_watermark import KeptWatermark
from raylog.storage.log.partition_log import PartitionLog
from tests.simulation.storage.model import Model, Stored
from tests.simulation.storage.payloads import BATCHES_KNOWN
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
    was_left = end == model.end and log.producers.producers  # it was empty before, up to what its producers sent
    if end == model.restart and not log.size_bytes and not was_left:
        model.epochs_begun = model.epochs
        model.restarted(end)
    require(end >= model.floor, "S1", f"the log ends at {end}, and everything below {model.floor} was synced")
    starts = {model.start, model.durable_start, *([] if model.start_wanted is None else [model.start_wanted])}
    if model.restart is not None:
        starts.add(model.restart)
    lowest, highest = min(*starts, end), max(starts)
    require(lowest <= start <= highest, "S3", f"the log starts at {start}, not between {lowest} and {highest}")
    model.batches += model.tail
    model.sent += model.tail
    model.start = model.durable_start = start
    if model.cleanings:
        hidden = any(batches[0].base < start for batches in model.cleanings)
        below = [segment.read(0, segment.size) for segment in log.segments if hidden and segment.base_offset < start]
        model.take_cleaned(b"".join([*below, read_all(log)]))
    if model.ghosts:
        model.take_ghosts(read_all(log))
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
    """The state of each producer is that of its last batches in the log."""
    known = log.producers.producers
    in_files = log.segments[0].base_offset
    for producer in {batch.producer for batch in model.batches} | set(known):
        turn = model.turn_of(producer) if producer >= 0 else []
        if turn and model.may_have_forgotten(turn[-1]):
            continue
        sequences = [batch for batch in turn if batch.first_sequence >= 0]  # the others end transactions
        expected: list[tuple[int, ...]] = [
            (batch.first_sequence, batch.last_sequence, batch.base, batch.end, max(batch.timestamps))
            for batch in sequences
        ]
        entry = known.get(producer)
        found = [] if entry is None else [tuple(batch) for batch in entry.batches]
        claim = f"producer {producer} is known by {found}, its last batches are {expected[-BATCHES_KNOWN:]}"
        since = max(in_files, model.known_from.get(producer, 0))
        least = min(BATCHES_KNOWN, sum(batch.base >= max(since, model.cleaned_to) for batch in sequences))
        if since < model.cleaned_to and sequences and sequences[-1].base >= since:
            least = max(least, 1)
        require(least <= len(found) <= BATCHES_KNOWN and _ends_with(expected, found, model.cleaned_to), "S5", claim)
        require(
            not found or entry is None or entry.epoch == turn[-1].producer_epoch, "S5", f"{claim}, in another epoch"
        )


def _ends_with(expected: list[tuple[int, ...]], found: list[tuple[int, ...]], cleaned_to: int) -> bool:
    """Whether these are the last ones. Of those that were cleaned some may be missing, and records with their times."""
    whole, known = ([batch for batch in batches if batch[2] >= cleaned_to] for batches in (expected, found))
    thinned, rest = ([batch[:4] for batch in batches if batch[2] < cleaned_to] for batches in (expected, found))
    if known != whole[len(whole) - len(known) :] or (rest and len(known) < len(whole)):
        return False
    is_rising = rest == sorted(rest, key=lambda batch: batch[2])
    is_last_there = bool(known) or rest[-1:] in ([], thinned[-1:])
    return set(rest) <= set(thinned) and is_rising and is_last_there


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
    upper = log.log_end_offset
    for _ in range(2):
        offset, upper = draw.randint(model.start, model.end), draw.randint(model.start, model.end)
        room, expected = draw.choice((1, 700, 5000)), list[Stored]()
        for batch in batches:
            if batch.end > offset:
                if batch.end > upper or (expected and sum(len(b.data) for b in (*expected, batch)) > room):
                    break
                expected.append(batch)
        twin = b"".join(batch.data for batch in expected)
        require(log.read(offset, room, upper) == twin, "S6", f"reading {room} bytes at {offset} below {upper}")
        _check_slices(log.slices(offset, room, upper), twin, expected)
    _check_times(log, [batch for batch in batches if batch.end <= upper], model.start, upper, draw)
    _check_times(log, batches, model.start, log.log_end_offset, draw)
    _check_columns(draw.choice(batches))


def _check_slices(slices: list[FileSlice], twin: bytes, expected: list[Stored]) -> None:
    """Places in files hold the same bytes."""
    found = b""
    for place in slices:
        status = filesystem.stat(place.path)
        found += read_bytes(place.path)[place.position : place.position + place.length]
        require((place.device, place.inode) == (status.st_dev, status.st_ino), "S6", f"{place} is another file")
    require(found == twin, "S6", f"{slices} are not the {len(expected)} batches from {expected[:1]} on")
    end = expected[-1].end if expected else -1
    require(not slices or slices[-1].next_offset == end, "S6", f"{slices} do not end at {end}")


def _check_times(log: PartitionLog, batches: list[Stored], start: int, upper: int, draw: random.Random) -> None:
    """The first record from a time on, and the youngest one."""
    records = [(row[0], row[1]) for batch in batches for row in batch.rows() if row[0] >= start]
    moment = (draw.choice(records)[1] if records else 0) + draw.choice((0, 0, -1, 1))
    expected = next((record for record in records if record[1] >= moment), None)
    found = log.offset_for_timestamp(moment, upper)
    require(found == expected, "S6", f"time {moment} is found at {found} below {upper}, it is at {expected}")
    youngest = max(records, key=lambda record: (record[1], -record[0]), default=None)
    found = log.max_timestamp(upper)
    require(found == youngest, "S6", f"the youngest record below {upper} is found at {found}, it is at {youngest}")


def _check_columns(batch: Stored) -> None:
    """A consumer gets what a producer has sent."""
    if batch.offsets is not None:
        return  # it was made of what is compared here
    columns = decode_batch(batch.data, 0, parse_header(batch.data))
    times, keys, values, headers = batch.records
    sent = [times, *(_absent(column) for column in (keys, values)), headers]
    found = [columns.timestamps, _absent(columns.keys), _absent(columns.values), columns.headers]
    offsets = columns.offsets
    require(list(offsets) == list(range(batch.base, batch.end)), "S2", f"offsets {offsets} of a batch at {batch.base}")
    require(sent == found, "S2", f"the batch at {batch.base} is decoded as {found}, and not as {sent}")


def _absent(column: list[bytes | None] | None) -> list[bytes | None] | None:
    return None if column is None or not any(value is not None for value in column) else column


def start_after_retention(log: PartitionLog, model: Model, config: LogConfig, now_ms: int, watermark: int) -> int:
    """Where the first segment must begin after retention: the rules in the order of their description."""
    bounds = [(segment.base_offset, segment.next_offset) for segment in log.segments]
    held = [[batch for batch in model.batches if base <= batch.base < end] for base, end in bounds]
    left = sum(len(batch.data) for batches in held for batch in batches)
    for (base, end), batches in zip(bounds, held, strict=True):
        if end > watermark or not batches:
            return base
        size = sum(len(batch.data) for batch in batches)
        newest = max(batch.newest for batch in batches)
        if newest < 0:  # markers alone: as old as their segment
            newest = next(segment.created_ms for segment in log.segments if segment.base_offset == base)
        is_old = config.retention_ms >= 0 and now_ms - newest > config.retention_ms
        is_surplus = config.retention_bytes >= 0 and left - size >= config.retention_bytes
        is_active = (base, end) == bounds[-1]
        if not (is_old or ((is_surplus or end <= model.start) and not is_active)):
            return base
        left -= size
    return model.end


def check_age(log: PartitionLog, model: Model, found: Cleanable) -> None:
    """What a cleaner may work on is as old as its first dirty record that has a time: markers and fillers have none."""
    dirty = [segment.base_offset for segment in log.segments[:-1] if segment.next_offset > log.cleaned_to]
    if not dirty or dirty[0] < model.start:
        return  # batches below the start may be there and are in no model
    times = [batch.newest for batch in model.batches if dirty[0] <= batch.base < log.segments[-1].base_offset]
    dated = [moment for moment in times if moment > 0] if found.dirty_bytes else []
    since_ms = dated[0] if dated else 0
    require(
        found.dirty_since_ms == since_ms, "S14", f"dirty since {found.dirty_since_ms}, the records since {since_ms}"
    )


def check_cleaned(
    before: list[Stored], after: list[Stored], whole: list[Stored], producers: frozenset[int], times: tuple[int, int]
) -> None:
    """One cleaned segment: `after` in the place of `before`. `whole`: all batches that were cleaned together.

    `times`: now, and how long records without a value stay. The last record of each key is there, unchanged, and no
    other record that has one; a record without a value goes once its time has come. Batches leave no gap, and their
    leader epochs stay where they were.
    """
    now_ms, keep_ms = times
    last = {row[2]: row[0] for batch in whole for row in batch.rows()}
    last_of = {batch.producer: batch.base for batch in whole}
    rows = [row for batch in before for row in batch.rows() if row[2] is None or last[row[2]] == row[0]]
    dead = {row[0] for batch in before if _is_past(batch, now_ms) for row in batch.rows() if row[3] is None}
    found = [row for batch in after for row in batch.rows()]
    require(found == [row for row in rows if row[0] not in dead], "S14", f"{found} is left of {before}")
    bounds = [(batch.base, batch.end) for batch in after]
    ends = [before[0].base, *(end for _, end in bounds)]
    require([base for base, _ in bounds] == ends[:-1] and ends[-1] == before[-1].end, "S14", f"{bounds} have gaps")
    epochs = {batch.end - 1: batch.epoch for batch in before}
    for batch in after:
        require(epochs[batch.end - 1] == batch.epoch, "S14", f"another epoch is stated for {batch}")
        inside = {epoch for end, epoch in epochs.items() if batch.base <= end < batch.end}
        require(inside == {batch.epoch}, "S14", f"a batch spans the epochs {inside}")
    for batch in before:
        if batch.producer in producers and batch.base == last_of[batch.producer]:
            same = [left for left in after if (left.base, left.end) == (batch.base, batch.end)]
            known = [(left.producer, left.producer_epoch, left.first_sequence) for left in same]
            expected = [(batch.producer, batch.producer_epoch, batch.first_sequence)]
            require(known == expected, "S14", f"the last batch {expected} of a producer is stated as {known}")
    for batch in after:
        header = parse_header(batch.data)
        if header.is_control and header.record_count:
            continue  # a marker has a time of its own
        horizon_ms = horizon_of(header)
        has_tombstones = any(row[3] is None for row in batch.rows())
        require((horizon_ms is not None) == has_tombstones, "S14", f"the time of {batch} is {horizon_ms}")
        met = [horizon_of(parse_header(old.data)) for old in before if old.base == batch.base]
        until_ms = next((moment for moment in met if moment is not None), now_ms + keep_ms)
        require(horizon_ms in (None, until_ms), "S14", f"{batch} is kept until {horizon_ms}, and not until {until_ms}")


def _is_past(batch: Stored, now_ms: int) -> bool:
    horizon_ms = horizon_of(parse_header(batch.data))
    return horizon_ms is not None and now_ms >= horizon_ms


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
