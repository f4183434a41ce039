"""The log cleaner and markers: they go some time after the last record of their transaction, and not before."""

from __future__ import annotations

import shutil
from pathlib import Path

from raylog.storage.batch.cleaned import horizon_of
from raylog.storage.batch.header import BatchHeader, iter_headers
from raylog.storage.batch.marker import decode_marker, is_marker
from raylog.storage.cleaner.cleaning import clean
from raylog.storage.cleaner.log_cleaning import LogCleaning
from raylog.storage.log.config import CompactionRules
from raylog.storage.log.partition_log import PartitionLog
from tests.unit.storage.cleaner.test_cleaner import Killed, killed_after, put
from tests.unit.storage.cleaner.test_cleaner_transactions import P, Q, end, rows, send, written
from tests.unit.storage.logs import NOW, open_log

RETENTION = 1000
RULES = CompactionRules(min_cleanable_dirty_ratio=0.0, delete_retention_ms=RETENTION)


def clean_at(log: PartitionLog, now_ms: int) -> None:
    """Clean all sealed segments, whether or not they are clean."""
    log.sync()
    log.cleaned_to = 0
    order = LogCleaning(log).order_cleaning(log.log_end_offset, now_ms, RULES)
    assert order is not None
    assert LogCleaning(log).take_cleaned(clean(order), now_ms)


def drop_snapshots(log: PartitionLog) -> None:
    for path in log.folder.glob("*.snapshot"):
        path.unlink()


def markers(log: PartitionLog) -> dict[int, BatchHeader]:
    found: dict[int, BatchHeader] = {}
    offset = 0
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 20, log.log_end_offset)
        for position, header in iter_headers(data):
            offset = header.next_offset
            if is_marker(header):
                assert decode_marker(data, position, header).coordinator_epoch == 1
                found[header.base_offset] = header
    return found


def two_transactions(folder: Path) -> PartitionLog:
    """At 0 a record and at 1 its marker; then those of the same producer that supersede it, and of another one."""
    log = open_log(folder, segment_bytes=1, file_delete_delay_ms=0)
    send(log, P, 0, 0, a=b"old")  # 0
    end(log, P, 1, committed=True)  # 1
    send(log, P, 1, 0, a=b"new")  # 2
    end(log, P, 2, committed=True)  # 3
    send(log, Q, 0, 0, b=b"aborted")  # 4
    end(log, Q, 1, committed=False)  # 5
    send(log, Q, 1, 0, b=b"committed")  # 6
    end(log, Q, 2, committed=True)  # 7
    put(log, 1, c=b"active")  # 8
    return log


def test_a_marker_goes_when_its_time_has_come(tmp_path: Path) -> None:
    log = two_transactions(tmp_path / "t-0")
    drop_snapshots(log)
    clean_at(log, NOW)
    stated = {offset: horizon_of(header) for offset, header in markers(log).items()}
    assert stated == {1: NOW + RETENTION, 3: None, 5: NOW + RETENTION, 7: None}
    before = rows(log)
    clean_at(log, NOW + RETENTION - 1)
    assert {offset: horizon_of(header) for offset, header in markers(log).items()} == stated
    clean_at(log, NOW + RETENTION)
    assert set(markers(log)) == {3, 7}
    assert rows(log) == before == [(b"a", b"new"), (b"b", b"committed"), (b"c", b"active")]
    log.close()


def test_a_known_producer_keeps_its_last_marker_only(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=1)
    for epoch in range(3):
        send(log, P, epoch, 0, a=b"%d" % epoch)
        end(log, P, epoch + 1, committed=False)
    put(log, 1, c=b"active")
    drop_snapshots(log)
    clean_at(log, NOW)
    clean_at(log, NOW + RETENTION)
    assert set(markers(log)) == {5}
    log.producers.expire(NOW + 1, idle_ms=1)
    clean_at(log, NOW + RETENTION)
    assert markers(log) == {}
    log.close()


def test_a_marker_stays_while_its_transaction_keeps_a_record(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=1)
    send(log, P, 0, 0, a=b"kept")  # 0
    send(log, P, 0, 1, b=b"old")  # 1
    end(log, P, 1, committed=True)  # 2
    for epoch in (1, 2):
        send(log, P, epoch, 0, b=b"%d" % epoch)  # 3, 5
        end(log, P, epoch + 1, committed=True)  # 4, 6
    put(log, 1, c=b"active")  # 7
    drop_snapshots(log)
    for later in range(3):
        clean_at(log, NOW + later * RETENTION)
    assert set(markers(log)) == {2, 6}
    put(log, 1, a=b"new")  # 8
    put(log, 1, c=b"active")  # 9
    drop_snapshots(log)
    for later in range(3, 6):
        clean_at(log, NOW + later * RETENTION)
    assert set(markers(log)) == {6}
    log.close()


def test_a_marker_stays_while_a_snapshot_needs_it(tmp_path: Path) -> None:
    log = two_transactions(tmp_path / "t-0")
    drop_snapshots(log)
    whole = two_transactions(tmp_path / "whole")
    whole.truncate_to(5, NOW)
    assert set(whole.producers.transactions.open) == {Q}
    log.checkpoints.write_snapshot(5, whole.producers, durable=True)
    whole.close()
    for later in range(3):
        clean_at(log, NOW + later * RETENTION)
    assert set(markers(log)) == {3, 5, 7}
    log._write_recovery_point(5)
    shutil.copytree(log.folder, tmp_path / "left")
    again = open_log(tmp_path / "left", segment_bytes=1)
    assert not again.has_open_transactions
    assert rows(again) == rows(log)
    again.close()
    log.close()


def test_no_marker_with_a_time_is_listed_after_a_crash(tmp_path: Path) -> None:
    """A reader skips the batches of a listed producer up to a marker, so that one must not go."""
    steps, is_done = 0, False
    while not is_done:
        log = written(tmp_path / f"{steps}")
        log.sync()
        try:
            with killed_after(steps):
                clean_at(log, NOW)
                is_done = True
        except Killed:
            pass
        left = tmp_path / f"left-{steps}"
        shutil.copytree(log.folder, left)
        log.close()
        again = open_log(left, segment_bytes=200, file_delete_delay_ms=0)
        known = markers(again)
        listed = [entry.last_offset for segment in again.segments for entry in segment.aborted()]
        assert [offset for offset in listed if horizon_of(known[offset]) is not None] == [], f"killed at call {steps}"
        again.close()
        for folder in (left, tmp_path / f"{steps}"):
            shutil.rmtree(folder)
        steps += 2
    assert steps > 20
