"""Laws of the log cleaner: for any log and any crash, the last record of each key stays, at its offset."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.storage import filesystem
from raylog.storage.batch.header import iter_headers
from raylog.storage.batch.records import BatchMeta, Header, decode_batch, encode_batch, encode_kafka_batch
from raylog.storage.cleaner import cleaning
from raylog.storage.cleaner.cleaning import clean
from raylog.storage.cleaner.log_cleaning import LogCleaning
from raylog.storage.cleaner.survivors import RANGE_RECORDS
from raylog.storage.errors import TooManyToClean
from raylog.storage.log.config import CompactionRules
from raylog.storage.log.partition_log import LogConfig, PartitionLog
from tests.property.storage import in_memory

NOW_MS = 1_700_000_000_000
RETENTION_MS = 1_000
AT_ONCE = CompactionRules(min_cleanable_dirty_ratio=0.0, delete_retention_ms=RETENTION_MS)
KEYS = (None, b"", b"a", b"b", b"c", b"d")
PRODUCERS = (-1, 5, 6)


class Row(NamedTuple):
    """A record with all that a reader can see of it."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Any


class Batch(NamedTuple):
    """A batch to write."""

    rows: list[tuple[bytes | None, bytes | None, int]]
    producer: int
    compression: int
    is_kafka: bool
    is_new_epoch: bool


batches = st.builds(
    Batch,
    st.lists(
        st.tuples(st.sampled_from(KEYS), st.sampled_from((None, b"x", b"\xc0yz" * 9)), st.integers(0, 50)),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(PRODUCERS),
    st.sampled_from((0, 0, 1)),
    st.booleans(),
    st.booleans(),
)
rounds = st.lists(st.lists(batches, min_size=1, max_size=12), min_size=1, max_size=3)
segment_sizes = st.sampled_from((150, 400, 5_000))


def open_log(folder: Path, segment_bytes: int = 400) -> PartitionLog:
    config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=100, file_delete_delay_ms=0)
    return PartitionLog.open(folder, config, topic_id="id", topic="t", partition=0, now_ms=NOW_MS)


class Writer:
    """Appends drawn batches as their producers would."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.epoch = 0
        self.sequences = dict.fromkeys(PRODUCERS, 0)

    def write(self, drawn: list[Batch]) -> None:
        for batch in drawn:
            if batch.is_new_epoch:
                self.epoch += 1
                self.log.assign_leader_epoch(self.epoch, self.log.log_end_offset)
            keys, values, ages = (list(column) for column in zip(*batch.rows, strict=True))
            meta = BatchMeta()
            if batch.producer >= 0:
                meta = BatchMeta(batch.producer, 0, self.sequences[batch.producer])
                self.sequences[batch.producer] += len(keys)
            encode = encode_kafka_batch if batch.is_kafka else encode_batch
            headers: list[list[Header] | None] = [[("age", b"%d" % age)] if age > 40 else None for age in ages]
            moments = [NOW_MS + age for age in ages]
            payload = encode(keys, values, moments, headers, meta, compression=batch.compression)
            self.log.append_as_leader(payload, self.epoch, NOW_MS)
        self.log.sync()


def rows_of(log: PartitionLog) -> list[Row]:
    """Read the log as a consumer would, from its start, each batch beginning where the one before ends."""
    found: list[Row] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1000, log.log_end_offset)
        for position, header in iter_headers(data):
            assert header.base_offset == offset
            offset = header.next_offset
            if header.is_control:
                assert header.record_count == 0
                continue
            columns = decode_batch(data, position, header)
            nothing = [None] * len(columns.offsets)
            found += map(
                Row,
                columns.offsets,
                columns.keys or nothing,
                columns.values or nothing,
                columns.timestamps,
                columns.headers or nothing,
            )
    return found


def expected(rows: list[Row], upto: int) -> list[Row]:
    """What may be left at least: below the point the last record of each key, and all of those without one."""
    last = {row.key: row.offset for row in rows if row.offset < upto}
    return [row for row in rows if row.offset >= upto or row.key is None or last[row.key] == row.offset]


def alive(rows: list[Row], upto: int) -> list[Row]:
    return [row for row in rows if row.value is not None or row.offset >= upto]


def clean_once(log: PartitionLog, now_ms: int, memory_bytes: int = 1 << 20, range_records: int = RANGE_RECORDS) -> int:
    """Clean what may be cleaned; returns up to where."""
    order = LogCleaning(log).order_cleaning(log.log_end_offset, now_ms, AT_ONCE)
    if order is None:
        return log.cleaned_to
    assert LogCleaning(log).take_cleaned(clean(order, memory_bytes=memory_bytes, range_records=range_records), now_ms)
    return order.next_offset


@contextmanager
def folder_of_its_own() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=in_memory.FOLDER) as name:
        yield Path(name) / "t-0"


@settings(max_examples=40, deadline=None)
@given(rounds, segment_sizes, st.sampled_from((1, 1 << 20)), st.sampled_from((1, 5, 8, RANGE_RECORDS)))
def test_the_last_record_of_each_key_stays_and_no_other(
    drawn: list[list[Batch]], size: int, memory: int, range_records: int
) -> None:
    with folder_of_its_own() as folder:
        log = open_log(folder, size)
        writer = Writer(log)
        for batches_drawn in drawn:
            writer.write(batches_drawn)
            before, end, epochs = rows_of(log), log.log_end_offset, list(log.epochs.entries)
            upto = clean_once(log, NOW_MS, memory, range_records)
            assert rows_of(log) == expected(before, upto)
            assert (log.log_end_offset, log.epochs.entries) == (end, epochs)
            log.close()
            log = writer.log = open_log(folder, size)
            assert rows_of(log) == expected(before, upto)
        log.close()


@settings(max_examples=40, deadline=None)
@given(st.lists(batches, min_size=3, max_size=20), segment_sizes, st.sampled_from((4, 9, 20, 40)))
def test_more_records_than_a_cleaning_takes_are_cleaned_in_parts(drawn: list[Batch], size: int, limit: int) -> None:
    with folder_of_its_own() as folder, patch.object(cleaning, "RECORDS_MAX", limit):
        log = open_log(folder, size)
        Writer(log).write(drawn)
        before, upto = rows_of(log), log.segments[-1].base_offset
        wanted = expected(before, upto)
        while (order := LogCleaning(log).order_cleaning(log.log_end_offset, NOW_MS, AT_ONCE)) is not None:
            try:
                cleaned = clean(order)
            except TooManyToClean:
                break  # what is clean, and the next segment, are too many together
            assert log.cleaned_to < cleaned.order.next_offset <= order.next_offset
            assert LogCleaning(log).take_cleaned(cleaned, NOW_MS)
            found = rows_of(log)
            assert [row for row in found if row in wanted] == wanted
            assert [row for row in found if row not in before] == []
        else:
            assert rows_of(log) == wanted
        log.close()


@settings(max_examples=40, deadline=None)
@given(st.lists(batches, min_size=3, max_size=15), segment_sizes)
def test_a_tombstone_goes_when_its_time_has_come(drawn: list[Batch], size: int) -> None:
    with folder_of_its_own() as folder:
        log = open_log(folder, size)
        writer = Writer(log)
        writer.write(drawn)
        before = rows_of(log)
        upto = clean_once(log, NOW_MS)
        writer.write(drawn)
        middle = rows_of(log)
        later = clean_once(log, NOW_MS + RETENTION_MS - 1)
        assert rows_of(log) == expected(middle, later)
        writer.write(drawn)
        end = rows_of(log)
        last = clean_once(log, NOW_MS + RETENTION_MS)
        kept = expected(end, last)
        left = rows_of(log)
        assert alive(left, last) == alive(kept, last)
        old = {row.offset for row in before if row.offset < upto}
        assert not [row for row in left if row.value is None and row.offset in old and row.key is not None]
        log.close()


@settings(max_examples=40, deadline=None)
@given(st.lists(batches, min_size=3, max_size=15), segment_sizes)
def test_producers_are_known_after_their_batches_were_cleaned(drawn: list[Batch], size: int) -> None:
    with folder_of_its_own() as folder:
        log = open_log(folder, size)
        writer = Writer(log)
        writer.write(drawn)
        clean_once(log, NOW_MS)
        log.close()
        for path in folder.glob("*.snapshot"):
            path.unlink()
        (folder / "clean-shutdown").unlink(missing_ok=True)
        log = open_log(folder, size)
        for producer, sequence in writer.sequences.items():
            entry = log.producers.producers.get(producer)
            if producer >= 0 and sequence:
                assert entry is not None
                assert entry.batches[-1].last_sequence == sequence - 1
        log.close()


class Killed(Exception):
    """The process ends here."""


CHANGING = ("open", "pwrite", "ftruncate", "fdatasync", "fsync", "replace", "unlink")


@contextmanager
def killed_after(calls: int) -> Iterator[list[int]]:
    """End the process at the call of this number that may change the disk; yields the calls so far."""
    seen = [0]

    def counting(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if seen[0] >= calls:
                raise Killed
            seen[0] += 1
            return original(*args)

        return call

    patches: dict[str, Any] = {name: counting(getattr(filesystem, name)) for name in CHANGING}
    with patch.multiple(filesystem, **patches):
        yield seen


@settings(max_examples=40, deadline=None)
@given(st.lists(batches, min_size=3, max_size=12), segment_sizes, st.integers(0, 60))
def test_a_crash_at_any_step_loses_nothing(drawn: list[Batch], size: int, calls: int) -> None:
    with folder_of_its_own() as folder:
        log = open_log(folder, size)
        Writer(log).write(drawn)
        before = rows_of(log)
        upto = log.segments[-1].base_offset
        try:
            with killed_after(calls):
                clean_once(log, NOW_MS)
        except Killed:
            pass
        left = folder.parent / "left"
        shutil.copytree(folder, left)
        log.close()
        again = open_log(left, size)
        found = rows_of(again)
        wanted = {row.offset: row for row in expected(before, upto)}
        assert {row.offset: row for row in found if row.offset in wanted} == wanted
        assert [row for row in found if row not in before] == []
        clean_once(again, NOW_MS)
        assert rows_of(again) == list(wanted.values())
        assert not [path for path in left.iterdir() if path.suffix in (".cleaned", ".swap", ".tmp")]
        again.close()


@settings(max_examples=40, deadline=None)
@given(st.lists(batches, min_size=4, max_size=15), segment_sizes, st.data())
def test_a_follower_behind_gets_every_record_that_is_left(drawn: list[Batch], size: int, data: st.DataObject) -> None:
    with folder_of_its_own() as folder:
        leader = open_log(folder / "leader", size)
        follower = open_log(folder / "follower", 10_000)
        Writer(leader).write(drawn)
        offset = 0
        for _ in range(data.draw(st.integers(0, len(drawn)))):
            follower.append_as_follower(leader.read(offset, 1, leader.log_end_offset), NOW_MS)
            offset = follower.log_end_offset
        before = rows_of(leader)
        upto = clean_once(leader, NOW_MS)
        while follower.log_end_offset < leader.log_end_offset:
            follower.append_as_follower(leader.read(follower.log_end_offset, 300, leader.log_end_offset), NOW_MS)
        assert follower.epochs.entries == leader.epochs.entries
        left = {row.offset: row for row in rows_of(follower)}
        wanted = expected(before, upto)
        assert [left.get(row.offset) for row in wanted] == wanted
        leader.close()
        follower.close()
