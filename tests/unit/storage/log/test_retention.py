"""Retention and delete_records: what goes, when, and what is left after a crash."""

from pathlib import Path
from typing import Any

import pytest

from raylog.base.errors import OffsetOutOfRange
from raylog.storage.log.partition_log import PartitionLog
from tests.unit.storage.logs import NOW, batch, crashed, open_log, values_of, whole


def filled(folder: Path, **config: Any) -> PartitionLog:
    log = open_log(folder, segment_bytes=200, **config)
    for number in range(10):
        log.append_as_leader(batch(b"%d" % number, timestamps=[NOW + number]), 1 + number // 4, NOW)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4, 6, 8]
    return log


def test_old_segments_go_and_only_below_the_high_watermark(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0", retention_ms=100)
    assert log.apply_retention(NOW + 104, high_watermark=3) == [0]
    assert log.apply_retention(NOW + 104, high_watermark=10) == [2]
    assert (log.log_start_offset, log.epochs.entries[0]) == (4, (2, 4))
    with pytest.raises(OffsetOutOfRange):
        log.read(3, 1, 10)
    assert values_of(whole(log))[0] == (4, b"4")
    log.close()


def test_a_log_of_old_records_keeps_an_empty_segment_and_its_end(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0", retention_ms=100)
    assert len(log.apply_retention(NOW + 1000, high_watermark=10)) == 5
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (10, 10, 0)
    log.append_as_leader(batch(b"next"), 9, NOW)
    log.sync()
    again = open_log(crashed(log, tmp_path / "crash"), segment_bytes=200)
    assert values_of(whole(again)) == [(10, b"next")]
    again.close()


def test_retention_by_size_keeps_at_least_that_much(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0", retention_ms=-1, retention_bytes=300)
    log.apply_retention(NOW, high_watermark=10)
    assert 300 <= log.size_bytes < 300 + 200
    log.close()


def test_the_active_segment_goes_by_age_only(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0", retention_ms=-1, retention_bytes=0)
    log.advance_log_start(10)
    assert log.apply_retention(NOW, high_watermark=10) == [0, 2, 4, 6]
    assert [segment.base_offset for segment in log.segments] == [8]
    log.close()


def test_removed_files_are_unlinked_after_the_delay_and_a_restart(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0", retention_ms=100, file_delete_delay_ms=50)
    log.apply_retention(NOW + 102, high_watermark=10)
    folder = tmp_path / "t-0"
    assert (folder / "00000000000000000000.log.deleted").exists()
    assert not (folder / "00000000000000000000.log").exists()
    assert log.purge_deleted(NOW + 103) == 0
    log.close()
    log = open_log(folder, file_delete_delay_ms=50)
    assert log.log_start_offset == 2
    assert log.purge_deleted(NOW + 49) == 0
    assert log.purge_deleted(NOW + 50) == 3
    assert not list(folder.glob("*.deleted"))
    log.close()


def test_deleted_records_stay_deleted_after_a_crash_and_their_segments_go(tmp_path: Path) -> None:
    log = filled(tmp_path / "t-0", retention_ms=-1)
    log.advance_log_start(5)
    log.advance_log_start(3)
    assert log.log_start_offset == 5
    with pytest.raises(OffsetOutOfRange):
        log.read(4, 1, 10)
    with pytest.raises(OffsetOutOfRange):
        log.advance_log_start(11)
    log.sync()
    again = open_log(crashed(log, tmp_path / "crash"), segment_bytes=200, retention_ms=-1)
    assert again.log_start_offset == 5
    assert values_of(whole(again))[0] == (5, b"5")
    assert again.apply_retention(NOW, high_watermark=10) == [0, 2]
    again.close()


def test_the_largest_timestamp_is_that_of_records_that_are_left(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    log.append_as_leader(batch(b"a", b"b", timestamps=[900, 10]), 1, NOW)
    log.append_as_leader(batch(b"c", timestamps=[5]), 1, NOW)
    log.advance_log_start(1)
    assert log.max_timestamp(3) == (1, 10)
    assert log.offset_for_timestamp(8, 3) == (1, 10)
    log.close()
