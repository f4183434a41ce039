"""The log cleaner by examples: every step of a swap is a place to crash, epochs stay apart, damage stops it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from raylog.storage import filesystem
from raylog.storage.batch.compression import ZSTD
from raylog.storage.batch.header import MAGIC_COLUMNS, iter_headers, parse_header, stamp_all
from raylog.storage.batch.records import BatchMeta, assemble_batch, decode_batch, encode_batch
from raylog.storage.cleaner import cleaning
from raylog.storage.cleaner.cleaning import SPILL, CleaningAborted, clean
from raylog.storage.cleaner.log_cleaning import LogCleaning
from raylog.storage.errors import LogClosed, LogDamaged, NoRoomToClean, TooManyToClean
from raylog.storage.log.config import CompactionRules
from raylog.storage.log.partition_log import PartitionLog
from raylog.storage.segments.replacing import CLEANED
from tests.unit.storage.logs import NOW, open_log

AT_ONCE = CompactionRules(min_cleanable_dirty_ratio=0.0)
CHANGING = ("open", "pwrite", "ftruncate", "fdatasync", "fsync", "replace", "unlink")


class Killed(Exception):
    """The process ends here."""


@contextmanager
def killed_after(calls: int) -> Iterator[None]:
    """End the process at the call of this number that may change the disk."""
    left = [calls]

    def counting(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return original(*args)

        return call

    patches: dict[str, Any] = {name: counting(getattr(filesystem, name)) for name in CHANGING}
    with patch.multiple(filesystem, **patches):
        yield


def put(log: PartitionLog, epoch: int, **pairs: bytes | None) -> None:
    keys: list[bytes | None] = [key.encode() for key in pairs]
    log.append_as_leader(encode_batch(keys, list(pairs.values()), [NOW] * len(keys), None, BatchMeta()), epoch, NOW)


def written(folder: Path) -> PartitionLog:
    """A log of a dozen small segments, in which most records are superseded."""
    log = open_log(folder, segment_bytes=250)
    for number in range(9):
        put(log, 0, a=b"%d" % number, **{f"k{number % 3}": b"%d" % number})
    log.sync()
    return log


def clean_once(log: PartitionLog) -> bool:
    order = LogCleaning(log).order_cleaning(log.log_end_offset, NOW, AT_ONCE)
    return order is not None and LogCleaning(log).take_cleaned(clean(order), NOW)


def table(log: PartitionLog) -> dict[int, tuple[bytes | None, bytes | None]]:
    """Key and value of every record, by its offset."""
    found: dict[int, tuple[bytes | None, bytes | None]] = {}
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1000, log.log_end_offset)
        for position, header in iter_headers(data):
            assert header.base_offset == offset
            offset = header.next_offset
            if not header.is_control:
                columns = decode_batch(data, position, header)
                assert columns.keys is not None
                assert columns.values is not None
                found.update(zip(columns.offsets, zip(columns.keys, columns.values, strict=True), strict=True))
    return found


def test_a_process_may_be_killed_at_every_step(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole")
    before = table(whole)
    assert clean_once(whole)
    after = table(whole)
    whole.close()
    assert len(after) < len(before)
    steps, is_done = 0, False
    while not is_done:
        log = written(tmp_path / f"{steps}")
        try:
            with killed_after(steps):
                is_done = clean_once(log)
        except Killed:
            pass
        left = tmp_path / f"left-{steps}"
        shutil.copytree(log.folder, left)
        log.close()
        again = open_log(left, segment_bytes=250)
        found = table(again)
        assert after.items() <= found.items() <= before.items(), f"killed at call {steps}"
        clean_once(again)
        assert table(again) == after
        again.close()
        assert {path.suffix for path in left.iterdir()} & {".cleaned", ".swap", ".tmp"} == set()
        steps += 1
    assert steps > 20


def test_what_is_left_of_two_leader_epochs_stays_apart(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=10_000)
    for epoch in (0, 1, 2):
        log.assign_leader_epoch(epoch, log.log_end_offset)
        put(log, epoch, a=b"1")
        put(log, epoch, a=b"2")
    put(log, 2, a=b"last")
    log.roll(NOW)
    log.sync()
    assert clean_once(log)
    data = log.read(0, 10_000, log.log_end_offset)
    found = [
        (header.base_offset, header.next_offset, header.partition_leader_epoch) for _, header in iter_headers(data)
    ]
    assert found == [(0, 2, 0), (2, 4, 1), (4, 6, 2), (6, 7, 2)]
    log.close()


def test_a_follower_behind_gets_the_rest_of_a_gap(tmp_path: Path) -> None:
    leader = open_log(tmp_path / "leader", segment_bytes=10_000)
    follower = open_log(tmp_path / "follower")
    for number in range(4):
        put(leader, 0, a=b"%d" % number)
    follower.append_as_follower(leader.read(0, 1, 4), NOW)
    leader.roll(NOW)
    leader.sync()
    assert clean_once(leader)
    follower.append_as_follower(leader.read(1, 1000, 4), NOW)
    assert follower.log_end_offset == 4
    assert table(follower) == {0: (b"a", b"0"), 3: (b"a", b"3")}
    leader.close()
    follower.close()


def test_a_log_that_was_cut_meanwhile_keeps_its_own_segments(tmp_path: Path) -> None:
    log = written(tmp_path / "t-0")
    order = LogCleaning(log).order_cleaning(log.log_end_offset, NOW, AT_ONCE)
    assert order is not None
    cleaned = clean(order)
    log.truncate_to(14, NOW)
    before = table(log)
    assert not LogCleaning(log).take_cleaned(cleaned, NOW)
    cleaned.discard()
    assert table(log) == before
    assert not list(log.folder.glob("*.cleaned"))
    log.close()


@pytest.mark.parametrize("cut", [PartitionLog.truncate_to, PartitionLog.truncate_fully_and_start_at])
def test_the_next_life_takes_nothing_for_clean_that_follows_a_cut(
    tmp_path: Path, cut: Callable[[PartitionLog, int, int], None]
) -> None:
    log = written(tmp_path / "t-0")
    assert clean_once(log)
    assert log.cleaned_to > 5
    cut(log, 5, NOW)
    assert log.cleaned_to <= 5
    known = log.cleaned_to
    log.close()
    again = open_log(tmp_path / "t-0", segment_bytes=250)
    assert again.cleaned_to == known
    again.close()


def test_a_segment_that_retention_removes_ends_a_cleaning(tmp_path: Path) -> None:
    log = written(tmp_path / "t-0")
    order = LogCleaning(log).order_cleaning(log.log_end_offset, NOW, AT_ONCE)
    assert order is not None
    order.segments[1].path.unlink()
    with pytest.raises(CleaningAborted):
        clean(order)
    assert not list(log.folder.glob("*.cleaned"))


def test_damage_ends_a_cleaning_and_is_not_copied(tmp_path: Path) -> None:
    log = written(tmp_path / "t-0")
    order = LogCleaning(log).order_cleaning(log.log_end_offset, NOW, AT_ONCE)
    assert order is not None
    data = bytearray(order.segments[1].path.read_bytes())
    data[80] ^= 1
    order.segments[1].path.write_bytes(data)
    with pytest.raises(LogDamaged):
        clean(order)
    assert not list(log.folder.glob("*.cleaned"))
    log.close()


def test_keys_that_do_not_fit_into_memory_go_to_a_file_and_back(tmp_path: Path) -> None:
    log = written(tmp_path / "t-0")
    other = written(tmp_path / "t-1")
    for each, memory_bytes in ((log, 1), (other, 1 << 20)):
        order = LogCleaning(each).order_cleaning(each.log_end_offset, NOW, AT_ONCE)
        assert order is not None
        assert LogCleaning(each).take_cleaned(clean(order, memory_bytes=memory_bytes), NOW)
    assert table(log) == table(other)
    assert not list(log.folder.glob("*.tmp"))
    log.close()
    other.close()


@contextmanager
def full_disk(call: str, suffix: str) -> Iterator[None]:
    """Refuse this call, for files of this suffix, as a disk without space does."""
    original: Callable[..., Any] = getattr(filesystem, call)

    def refusing(at: Any, *others: Any) -> Any:
        path = os.readlink(f"/proc/self/fd/{at}") if isinstance(at, int) else str(at)
        if path.endswith(suffix):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(at, *others)

    with patch.object(filesystem, call, refusing):
        yield


@pytest.mark.parametrize("call", ["open", "pwrite"])
@pytest.mark.parametrize("suffix", [SPILL, CLEANED])
def test_a_full_disk_ends_a_cleaning_and_the_next_look_repeats_it(tmp_path: Path, call: str, suffix: str) -> None:
    log = written(tmp_path / "t-0")
    before = table(log)
    order = LogCleaning(log).order_cleaning(log.log_end_offset, NOW, AT_ONCE)
    assert order is not None
    with full_disk(call, suffix), pytest.raises(NoRoomToClean, match=r"No space left .* move partitions .* unchanged"):
        clean(order, memory_bytes=1)
    assert table(log) == before
    assert not [path for path in log.folder.iterdir() if path.suffix in (".cleaned", ".tmp", ".swap")]
    assert clean_once(log)
    assert len(table(log)) < len(before)
    log.close()


def test_a_recovery_finishes_a_swap_that_a_full_disk_has_ended(tmp_path: Path) -> None:
    log = written(tmp_path / "t-0")
    before = table(log)
    with full_disk("fsync", "t-0"), pytest.raises(NoRoomToClean, match="No space left"):
        clean_once(log)
    with pytest.raises(LogClosed, match="the swap of a cleaned segment failed halfway"):
        log.read(0, 1, 1)
    log.close()
    again = open_log(tmp_path / "t-0", segment_bytes=250)
    found = table(again)
    assert found.items() < before.items()
    assert dict(found.values()) == dict(before.values())
    assert not [path for path in again.folder.iterdir() if path.suffix in (".cleaned", ".swap", ".tmp")]
    assert clean_once(again)
    assert dict(table(again).values()) == dict(before.values())
    again.close()


def test_more_records_than_a_cleaning_takes_are_cleaned_in_parts(tmp_path: Path) -> None:
    log = written(tmp_path / "t-0")
    before = table(log)
    ends: list[int] = []
    with patch.object(cleaning, "RECORDS_MAX", 8):
        while log.cleaned_to < log.segments[-1].base_offset:
            assert clean_once(log)
            ends.append(log.cleaned_to)
    assert len(ends) > 1
    left = table(log)
    keys = [key for offset, (key, _) in left.items() if offset < log.cleaned_to]
    assert sorted(keys, key=lambda key: key or b"") == [b"a", b"k0", b"k1", b"k2"]
    assert dict(left.values()) == dict(before.values())
    log.close()


def test_records_that_stay_may_be_too_many_for_a_cleaning(tmp_path: Path) -> None:
    log = written(tmp_path / "t-0")
    before = table(log)
    with (
        patch.object(cleaning, "RECORDS_MAX", 1),
        pytest.raises(TooManyToClean, match=r"more than 1 records.* more partitions"),
    ):
        clean_once(log)
    assert table(log) == before
    log.close()


def test_a_key_of_any_size_is_cleaned(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=10_000, max_message_bytes=1_000_000)
    large = b"k" * 999_000
    for value in (b"old", b"new"):
        log.append_as_leader(encode_batch([large], [value], [NOW], None, BatchMeta()), 0, NOW)
    put(log, 0, a=b"in the open segment")
    log.sync()
    order = LogCleaning(log).order_cleaning(log.log_end_offset, NOW, AT_ONCE)
    assert order is not None
    assert LogCleaning(log).take_cleaned(clean(order, memory_bytes=1000), NOW)
    assert log.size_bytes < 1_100_000
    assert log.read(0, 1 << 21, log.log_end_offset).count(large) == 1
    log.close()


@pytest.mark.parametrize("opened_again", [False, True])
def test_tombstones_go_from_a_log_to_which_nothing_is_written(tmp_path: Path, opened_again: bool) -> None:
    rules = CompactionRules(min_cleanable_dirty_ratio=0.01, delete_retention_ms=1_000)
    log = open_log(tmp_path / "t-0", segment_bytes=250)
    for number in range(6):
        put(log, 0, **{f"k{number}": b"v"})
    for number in range(6):
        put(log, 0, **{f"k{number}": None})
    log.roll(NOW)
    log.sync()

    def records_in(log: PartitionLog) -> int:
        data = log.read(0, 1 << 20, log.log_end_offset)
        return sum(header.record_count for _, header in iter_headers(data) if not header.is_control)

    def cleaned_at(moment_ms: int) -> bool:
        order = LogCleaning(log).order_cleaning(log.log_end_offset, moment_ms, rules)
        return order is not None and LogCleaning(log).take_cleaned(clean(order), moment_ms)

    assert cleaned_at(NOW)
    assert records_in(log) == 6
    if opened_again:
        log.close()
        log = open_log(tmp_path / "t-0", segment_bytes=250)
    assert not cleaned_at(NOW + 999)
    assert cleaned_at(NOW + 1_000)
    assert records_in(log) == 0
    assert not cleaned_at(NOW + 86_400_000), "there is nothing left to wait for"
    log.close()


def test_a_body_that_does_not_open_stays_and_ends_no_cleaning(tmp_path: Path) -> None:
    """Of a topic that was made compact later: a leader of then has stored it."""
    log = open_log(tmp_path / "t-0", segment_bytes=250)
    broken = assemble_batch(MAGIC_COLUMNS, b"no zstd", [NOW, NOW], compression=ZSTD)
    put(log, 0, a=b"before")
    log.append_as_follower(bytes(stamp_all_at(broken, log.log_end_offset)), NOW)
    for number in range(9):
        put(log, 0, a=b"%d" % number, **{f"k{number % 3}": b"%d" % number})
    log.sync()
    assert clean_once(log)
    kept, offset = [], 0
    while offset < log.log_end_offset:
        data = log.read(offset, 1, log.log_end_offset)
        header = parse_header(data)
        if header.record_count and data[61:] == b"no zstd":
            kept.append((header.base_offset, header.record_count))
        offset = header.next_offset
    assert kept == [(1, 2)]
    log.close()


def stamp_all_at(batch: bytes, offset: int) -> bytes:
    data = bytearray(batch)
    stamp_all(memoryview(data), [(0, parse_header(batch))], offset, 0)
    return bytes(data)
