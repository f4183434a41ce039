"""The log cleaner and transactions: it stays below the stable end, and what was aborted goes at once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from raylog.storage.batch.header import TRANSACTIONAL_BIT
from raylog.storage.batch.marker import TxnMarker
from raylog.storage.batch.records import BatchMeta, encode_batch
from raylog.storage.cleaner.cleaning import CleaningOrder
from raylog.storage.cleaner.log_cleaning import LogCleaning
from raylog.storage.log.config import CompactionRules
from raylog.storage.log.partition_log import PartitionLog
from tests.simulation.storage.transactions.reader import committed_rows
from tests.unit.storage.cleaner.test_cleaner import Killed, clean_once, killed_after, put, table
from tests.unit.storage.logs import NOW, open_log

P, Q = 7, 8
LAG_MS = 1_000
BY_AGE = CompactionRules(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=LAG_MS)
"""Nothing is cleaned before a record has waited for a second."""


def send(log: PartitionLog, producer: int, epoch: int, sequence: int, **pairs: bytes | None) -> None:
    meta = BatchMeta(producer, epoch, sequence, attributes=TRANSACTIONAL_BIT)
    keys: list[bytes | None] = [key.encode() for key in pairs]
    log.append_as_leader(encode_batch(keys, list(pairs.values()), [NOW] * len(keys), None, meta), 1, NOW)


def end(log: PartitionLog, producer: int, epoch: int, *, committed: bool) -> None:
    log.append_marker(TxnMarker(producer, epoch, 1, committed), 1, NOW)


def written(folder: Path) -> PartitionLog:
    """Four transactions over a dozen small segments, of which the first and the third are aborted."""
    log = open_log(folder, segment_bytes=200, file_delete_delay_ms=0)
    put(log, 1, a=b"first", b=b"first")
    for epoch in range(4):
        send(log, P, epoch, 0, a=b"%d" % epoch)
        put(log, 1, c=b"%d" % epoch)
        send(log, P, epoch, 1, b=b"%d" % epoch)
        end(log, P, epoch + 1, committed=epoch in (1, 3))
    put(log, 1, d=b"last")
    log.sync()
    return log


def rows(log: PartitionLog) -> list[tuple[bytes | None, bytes | None]]:
    upper = log.last_stable_offset(log.log_end_offset)
    return [(row.key, row.value) for row in committed_rows(log, log.log_start_offset, upper, 1 << 20)]


def test_aborted_records_go_and_supersede_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=1)
    put(log, 1, a=b"kept")  # 0
    send(log, P, 0, 0, a=b"aborted", b=b"aborted")  # 1, 2
    end(log, P, 1, committed=False)  # 3
    send(log, P, 1, 0, b=b"kept")  # 4
    end(log, P, 2, committed=True)  # 5
    put(log, 1, c=b"active")  # 6
    log.sync()
    assert clean_once(log)
    assert table(log) == {0: (b"a", b"kept"), 4: (b"b", b"kept"), 6: (b"c", b"active")}
    log.close()


def test_nothing_is_cleaned_behind_the_first_record_of_an_open_one(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=1)
    put(log, 1, a=b"old")  # 0
    put(log, 1, a=b"new")  # 1
    send(log, P, 0, 0, a=b"open")  # 2
    put(log, 1, a=b"newest")  # 3
    put(log, 1, b=b"active")  # 4
    log.sync()
    assert clean_once(log)
    assert set(table(log)) == {1, 2, 3, 4}
    end(log, P, 1, committed=False)
    put(log, 1, b=b"active")
    log.sync()
    assert clean_once(log)
    assert set(table(log)) == {3, 4, 6}
    log.close()


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_producer_stays_known_without_its_aborted_batches(tmp_path: Path, is_clean: bool) -> None:
    log = written(tmp_path / "log")
    assert clean_once(log)
    known = log.active_producers()
    shutil.copytree(log.folder, tmp_path / "copy")
    log.close()
    for path in (tmp_path / ("log" if is_clean else "copy")).glob("*.snapshot"):
        path.unlink()
    again = open_log(tmp_path / ("log" if is_clean else "copy"), segment_bytes=200)
    found = again.active_producers()
    assert [entry[:2] for entry in found] == [entry[:2] for entry in known] == [(P, 4)]
    assert (again.producers.transactions.open, again.producers.transactions.coordinator_epochs) == ({}, {P: 1})
    again.close()


def test_committed_readers_see_the_same_table_after_any_killed_cleaning(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole")
    before = dict(rows(whole))
    assert clean_once(whole)
    after = rows(whole)
    whole.close()
    assert dict(after) == before == {b"a": b"3", b"b": b"3", b"c": b"3", b"d": b"last"}
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
        again = open_log(left, segment_bytes=200, file_delete_delay_ms=0)
        assert dict(rows(again)) == before, f"killed at call {steps}"
        clean_once(again)
        assert rows(again) == after
        again.close()
        for folder in (left, tmp_path / f"{steps}"):
            shutil.rmtree(folder)
        steps += 3


def with_something_clean(folder: Path) -> PartitionLog:
    """A log with a segment that is clean, and a transaction open at its end."""
    log = open_log(folder)
    put(log, 1, a=b"0")
    log.roll(NOW)
    log.sync()
    assert clean_once(log)
    send(log, P, 0, 0, b=b"0")
    return log


def ordered(log: PartitionLog, age_ms: int) -> CleaningOrder | None:
    """What is to be cleaned when the log's records have this age."""
    log.sync()
    return LogCleaning(log).order_cleaning(log.log_end_offset, NOW + age_ms, BY_AGE)


def test_the_lag_counts_from_the_first_record_behind_markers(tmp_path: Path) -> None:
    log = with_something_clean(tmp_path / "t-0")
    log.roll(NOW)
    end(log, P, 1, committed=True)
    put(log, 1, a=b"1")
    log.cleaned_to = log.segments[-1].base_offset
    assert ordered(log, LAG_MS - 1) is None
    order = ordered(log, LAG_MS)
    assert order is not None
    assert order.next_offset == log.log_end_offset
    log.close()


def test_a_segment_of_markers_does_not_hide_the_age_of_the_next_one(tmp_path: Path) -> None:
    log = with_something_clean(tmp_path / "t-0")
    log.roll(NOW)
    log.cleaned_to = log.log_end_offset
    end(log, P, 1, committed=True)
    log.roll(NOW)
    put(log, 1, a=b"1")
    log.roll(NOW)
    assert ordered(log, LAG_MS - 1) is None
    order = ordered(log, LAG_MS)
    assert order is not None
    assert order.next_offset == log.log_end_offset
    log.close()


def test_markers_alone_have_no_age(tmp_path: Path) -> None:
    log = with_something_clean(tmp_path / "t-0")
    log.roll(NOW)
    log.cleaned_to = log.log_end_offset
    dirty = [LogCleaning(log).has_dirty_records]
    end(log, P, 1, committed=True)
    dirty.append(LogCleaning(log).has_dirty_records)
    assert ordered(log, 1000 * LAG_MS) is None
    put(log, 1, a=b"1")
    dirty.append(LogCleaning(log).has_dirty_records)
    assert dirty == [False, False, True]
    log.close()


def test_a_log_that_was_cut_forgets_the_age_of_what_was_cut(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    put(log, 1, a=b"old")
    assert ordered(log, LAG_MS - 1) is None
    log.truncate_to(0, NOW)
    later_ms = NOW + LAG_MS
    log.append_as_leader(encode_batch([b"a"], [b"new"], [later_ms], None, BatchMeta()), 1, later_ms)
    assert ordered(log, LAG_MS) is None
    assert ordered(log, 2 * LAG_MS) is not None
    log.close()
