"""The cleaner of a replica: what it counts, that errors leave the log as it was, and that it ends with its replica."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import patch

import pytest

from raylog.actors.metrics.counters import ReplicaCounters
from raylog.actors.replica.cleaner import LOCK, TOO_MANY_PAUSE_MS, Cleaner, Throttle
from raylog.actors.settings import CleanerPace
from raylog.storage.batch.header import TRANSACTIONAL_BIT
from raylog.storage.batch.marker import TxnMarker
from raylog.storage.batch.records import BatchMeta, encode_batch
from raylog.storage.cleaner import cleaning
from raylog.storage.cleaner.cleaning import CleaningAborted
from raylog.storage.folder_lock import FolderLock
from raylog.storage.log.config import CompactionRules
from raylog.storage.log.partition_log import PartitionLog
from tests.unit.storage.logs import NOW, open_log

FAST = CleanerPace(backoff_ms=100, bytes_per_s=1 << 40)


AS_BY_DEFAULT = CompactionRules()


def written(folder: Path, rules: CompactionRules = AS_BY_DEFAULT) -> PartitionLog:
    """A log of three sealed segments, in which one key is written again and again."""
    log = open_log(folder, segment_bytes=300, compaction=rules)
    for number in range(12):
        log.append_as_leader(encode_batch([b"k"], [b"%d" % number], [NOW], None, BatchMeta()), 0, NOW)
    log.sync()
    return log


def cleaner_of(log: PartitionLog, pace: CleanerPace = FAST) -> Cleaner:
    return Cleaner(log, log.folder.parent, "t-0", pace, ReplicaCounters())


async def turn(cleaner: Cleaner, now_ms: int, wall_ms: int = NOW, watermark: int | None = None) -> None:
    """One tick, and what it has begun."""
    cleaner.tick(now_ms, wall_ms, cleaner.log.log_end_offset if watermark is None else watermark)
    if cleaner._task is not None:
        async with asyncio.timeout(20):
            await asyncio.wait((cleaner._task,))


def stays_awake(cleaner: Cleaner) -> bool:
    return cleaner.is_busy


def test_a_cleaning_is_counted_and_seen_in_the_figures(tmp_path: Path) -> None:
    log = written(tmp_path / "t-0")
    cleaner = cleaner_of(log)
    before = log.size_bytes
    asyncio.run(turn(cleaner, 0))
    counters, figures = cleaner.counters, cleaner.figures()
    assert counters.cleanings == 1
    assert counters.cleaner_bytes_read - counters.cleaner_bytes_written == before - log.size_bytes > 0
    assert counters.cleaner_records_removed > 5
    assert figures is not None
    assert (figures.dirty_ratio, figures.last_run_ms, figures.is_failing) == (0.0, NOW, False)
    assert counters.to_wire()["counters"]["cleanings"] == 1  # type: ignore[index]
    log.close()


def test_a_log_that_is_not_compacted_has_no_figures(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    cleaner = cleaner_of(log)
    asyncio.run(turn(cleaner, 0))
    assert cleaner.figures() is None
    assert "cleanings" not in cleaner.counters.to_wire()["counters"]  # type: ignore[operator]
    log.close()


def test_an_error_is_counted_and_the_next_try_ends_it(tmp_path: Path) -> None:
    log = written(tmp_path / "t-0")
    cleaner = cleaner_of(log)
    path = log.segments[0].path
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[70] ^= 1
    path.write_bytes(damaged)
    asyncio.run(turn(cleaner, 0))
    figures = cleaner.figures()
    assert figures is not None
    assert figures.is_failing
    assert figures.dirty_ratio == 1.0
    assert (cleaner.counters.cleaner_failures, cleaner.counters.cleanings) == (1, 0)
    path.write_bytes(whole)
    asyncio.run(turn(cleaner, 50))
    assert cleaner.counters.cleanings == 0, "the next look is not due yet"
    asyncio.run(turn(cleaner, 100))
    assert cleaner.counters.cleanings == 1
    figures = cleaner.figures()
    assert figures is not None
    assert not figures.is_failing
    log.close()


def test_two_logs_of_a_data_directory_are_not_cleaned_at_once(tmp_path: Path) -> None:
    log = written(tmp_path / "t-0")
    cleaner = cleaner_of(log)
    lock = FolderLock(tmp_path, tmp_path / LOCK, wait_s=0)
    asyncio.run(turn(cleaner, 0))
    assert (cleaner.counters.cleanings, cleaner.counters.cleaner_failures) == (0, 0)
    assert stays_awake(cleaner), "it is to be cleaned later"
    lock.release()
    asyncio.run(turn(cleaner, 100))
    assert cleaner.counters.cleanings == 1
    log.close()


def test_a_log_is_cleaned_though_another_is_cleaned_at_each_of_its_times(tmp_path: Path) -> None:
    log = written(tmp_path / "t-0")
    cleaner = cleaner_of(log)
    for now_ms in range(0, 20 * FAST.backoff_ms, 5):
        is_locked = now_ms % FAST.backoff_ms < 0.7 * FAST.backoff_ms
        lock = FolderLock(tmp_path, tmp_path / LOCK, wait_s=0) if is_locked else None
        asyncio.run(turn(cleaner, now_ms))
        if lock is not None:
            lock.release()
    assert cleaner.counters.cleanings == 1
    log.close()


def test_a_replica_stays_awake_until_closed_segments_were_looked_at(tmp_path: Path) -> None:
    log = written(tmp_path / "t-0")
    cleaner = cleaner_of(log)
    assert stays_awake(cleaner)
    asyncio.run(turn(cleaner, 0, watermark=1))
    assert stays_awake(cleaner), "the last closed segment was not committed at the last look"
    asyncio.run(turn(cleaner, 200))
    assert cleaner.counters.cleanings == 1
    assert not stays_awake(cleaner)
    log.append_as_leader(encode_batch([b"k"], [b"in the open segment"], [NOW], None, BatchMeta()), 0, NOW)
    assert not stays_awake(cleaner)
    log.close()


def test_a_replica_stays_awake_while_records_have_a_deadline(tmp_path: Path) -> None:
    log = written(tmp_path / "t-0", CompactionRules(max_compaction_lag_ms=1_000))
    cleaner = cleaner_of(log)
    asyncio.run(turn(cleaner, 0))
    assert stays_awake(cleaner), "the open segment has records"
    log.sync()
    asyncio.run(turn(cleaner, 200, NOW + 1_000))
    assert log.cleaned_to == log.log_end_offset
    assert not stays_awake(cleaner)
    log.close()


def test_a_replica_does_not_stay_awake_for_markers(tmp_path: Path) -> None:
    log = written(tmp_path / "t-0", CompactionRules(max_compaction_lag_ms=1_000))
    meta = BatchMeta(7, 0, 0, attributes=TRANSACTIONAL_BIT)
    log.append_as_leader(encode_batch([b"k"], [b"of a transaction"], [NOW], None, meta), 0, NOW)
    log.roll(NOW)
    log.append_marker(TxnMarker(7, 1, 1, True), 0, NOW)
    log.sync()
    cleaner = cleaner_of(log)
    assert stays_awake(cleaner)
    asyncio.run(turn(cleaner, 0, NOW + 1_000))
    assert log.cleaned_to == log.log_end_offset - 1, "the marker is in the open segment"
    assert not stays_awake(cleaner)
    log.append_as_leader(encode_batch([b"k"], [b"behind the marker"], [NOW + 1_000], None, BatchMeta()), 0, NOW)
    log.sync()
    assert stays_awake(cleaner)
    asyncio.run(turn(cleaner, 200, NOW + 2_000))
    assert log.cleaned_to == log.log_end_offset
    assert not stays_awake(cleaner)
    log.close()


def test_a_log_with_too_many_records_fails_and_is_not_read_again_soon(tmp_path: Path) -> None:
    log = written(tmp_path / "t-0")
    cleaner = cleaner_of(log)
    with patch.object(cleaning, "RECORDS_MAX", 1):
        asyncio.run(turn(cleaner, 0))
        figures = cleaner.figures()
        assert figures is not None
        assert figures.is_failing
        asyncio.run(turn(cleaner, TOO_MANY_PAUSE_MS))
        assert cleaner.counters.cleaner_failures == 1
        asyncio.run(turn(cleaner, TOO_MANY_PAUSE_MS + 100))
        assert cleaner.counters.cleaner_failures == 2
    log.close()


async def stopped_at_once(log: PartitionLog) -> ReplicaCounters:
    cleaner = cleaner_of(log, CleanerPace(backoff_ms=100, bytes_per_s=1))
    cleaner.tick(0, NOW, log.log_end_offset)
    async with asyncio.timeout(20):
        await cleaner.stop()
    assert cleaner._task is None
    return cleaner.counters


def test_a_throttled_cleaning_ends_when_its_replica_stops(tmp_path: Path) -> None:
    log = written(tmp_path / "t-0")
    before = log.size_bytes
    counters = asyncio.run(stopped_at_once(log))
    assert (counters.cleanings, counters.cleaner_failures, log.size_bytes) == (0, 0, before)
    assert not list(log.folder.glob("*.cleaned"))
    log.close()


def test_a_throttle_that_has_ended_lets_nothing_pass() -> None:
    throttle = Throttle(1 << 40)
    throttle.pace(1000)
    throttle.end()
    with pytest.raises(CleaningAborted):
        throttle.pace(1)
