"""Reads at a log's end: from memory where they may be, always the bytes of the file, never those that were cut."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from raylog.actors.replica.tail_cache import KEPT_BYTES, TailCache
from raylog.base.errors import OffsetOutOfRange
from raylog.storage.log.partition_log import PartitionLog
from tests.unit.storage.logs import NOW, batch, open_log


class CountedLog:
    """A log that counts its reads."""

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.reads = 0

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.log.log_end_offset

    def read(self, offset: int, max_bytes: int, upper: int) -> bytes:
        self.reads += 1
        return self.log.read(offset, max_bytes, upper)


@pytest.fixture
def counted(tmp_path: Path) -> Iterator[CountedLog]:
    log = open_log(tmp_path / "t-0")
    yield CountedLog(log)
    log.close()


@pytest.fixture
def tail(counted: CountedLog) -> TailCache:
    return TailCache(counted)  # type: ignore[arg-type]


def append(counted: CountedLog, tail: TailCache, *values: bytes) -> None:
    append_batches(counted, tail, batch(*values))


def append_batches(counted: CountedLog, tail: TailCache, *batches: bytes) -> None:
    payload = memoryview(bytearray(b"".join(batches)))
    done = counted.log.append_as_leader(payload, 1, NOW)
    tail.appended(done.first_offset, done.end_offset, payload)


def test_what_was_appended_last_is_read_from_memory_as_the_file_has_it(counted: CountedLog, tail: TailCache) -> None:
    append(counted, tail, b"a")
    append(counted, tail, b"b", b"c")
    assert bytes(tail.read(1, 1 << 20, 3)) == counted.log.read(1, 1 << 20, 3)
    assert counted.reads == 0


def test_records_behind_an_earlier_leaderships_append_are_read_too(counted: CountedLog, tail: TailCache) -> None:
    append(counted, tail, b"a")
    counted.log.append_as_follower(batch(b"b", base_offset=1, partition_leader_epoch=1), NOW)
    assert bytes(tail.read(0, 1 << 20, 1)) == counted.log.read(0, 1 << 20, 1)
    assert bytes(tail.read(0, 1 << 20, 2)) == counted.log.read(0, 1 << 20, 2)


def test_nothing_is_given_above_the_upper_offset_or_over_the_bytes_wanted(counted: CountedLog, tail: TailCache) -> None:
    append(counted, tail, b"a")
    append(counted, tail, b"b", b"c")
    assert tail.read(1, 1 << 20, 1) == b""
    assert tail.read(1, 1, 3) == counted.log.read(1, 1, 3)
    assert counted.reads == 2


def test_the_same_read_gets_the_same_bytes(counted: CountedLog, tail: TailCache) -> None:
    append(counted, tail, b"a")
    append(counted, tail, b"b")
    assert tail.read(0, 1 << 20, 2) == tail.read(0, 1 << 20, 2) == counted.log.read(0, 1 << 20, 2)
    assert counted.reads == 1


def test_after_a_cut_other_records_at_the_same_offsets_are_read(counted: CountedLog, tail: TailCache) -> None:
    append(counted, tail, b"a")
    append(counted, tail, b"old")
    before = bytes(tail.read(1, 1 << 20, 2))
    tail.read(0, 1 << 20, 2)
    counted.log.truncate_to(1, NOW)
    tail.forget()
    counted.log.append_as_leader(batch(b"new"), 2, NOW)
    assert tail.read(1, 1 << 20, 2) == counted.log.read(1, 1 << 20, 2) != before
    assert tail.read(0, 1 << 20, 2) == counted.log.read(0, 1 << 20, 2)


def test_what_was_deleted_is_refused_also_if_it_is_still_in_memory(counted: CountedLog, tail: TailCache) -> None:
    append(counted, tail, b"a")
    assert tail.read(0, 1 << 20, 1)
    counted.log.advance_log_start(1)
    with pytest.raises(OffsetOutOfRange):
        tail.read(0, 1 << 20, 1)


def test_large_appends_and_reads_are_not_kept(counted: CountedLog, tail: TailCache) -> None:
    append(counted, tail, b"a")
    append_batches(counted, tail, batch(b"v" * (KEPT_BYTES // 2)), batch(b"w" * (KEPT_BYTES // 2)))
    for _ in range(2):
        assert tail.read(1, 1 << 22, 3) == counted.log.read(1, 1 << 22, 3)
    assert counted.reads == 2


def test_only_the_last_append_is_known_to_be_small(counted: CountedLog, tail: TailCache) -> None:
    append(counted, tail, b"a")
    append(counted, tail, b"b")
    size = len(tail.read(1, 1 << 20, 2))
    assert tail.is_small(1, size + 1)
    assert not tail.is_small(1, size)
    assert not tail.is_small(0, size + 1)
    tail.forget()
    assert not tail.is_small(1, size + 1)
