"""The partition log: appending, reading, epochs, idempotence, syncing, closing."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from raylog.base.errors import (
    DuplicateSequence,
    InvalidProducerEpoch,
    OffsetOutOfRange,
    OutOfOrderSequence,
    RecordTooLarge,
)
from raylog.storage.batch.header import iter_headers
from raylog.storage.errors import CorruptBatch, LogClosed, WrongTopicId
from raylog.storage.log import partition_log
from raylog.storage.log.checkpoints import RECOVERY_POINT
from raylog.storage.log.partition_log import CHECKPOINT_SECONDS, PartitionLog
from raylog.storage.segments.segment import Segment
from tests.unit.storage.logs import NOW, batch, crashed, open_files_below, open_log, produced, values_of, whole


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    log = open_log(tmp_path / "t-0")
    yield log
    log.close()
    assert open_files_below(tmp_path) == []


def test_a_new_log_is_empty_and_says_that_it_is_new(log: PartitionLog, tmp_path: Path) -> None:
    assert log.created
    assert (log.log_start_offset, log.log_end_offset, log.synced_end_offset) == (0, 0, 0)
    assert log.read(0, 1000, 0) == b""
    log.close()
    again = open_log(tmp_path / "t-0")
    assert not again.created
    again.close()


def test_a_leader_stamps_offsets_and_epoch_and_keeps_every_other_byte(log: PartitionLog) -> None:
    log.append_as_leader(batch(b"a", b"b"), 3, NOW)
    sent = batch(b"c") + batch(b"d", b"e")
    info = log.append_as_leader(memoryview(bytearray(sent)), 4, NOW)
    assert (info.first_offset, info.end_offset, info.batches, info.duplicate) == (2, 5, 2, False)
    assert info.epochs == ((4, 2),)
    data = log.read(2, 1 << 20, 5)
    assert [(h.base_offset, h.partition_leader_epoch) for _, h in iter_headers(data)] == [(2, 4), (3, 4)]
    assert data[16 : len(batch(b"c"))] == sent[16 : len(batch(b"c"))]
    assert values_of(data) == [(2, b"c"), (3, b"d"), (4, b"e")]


def test_a_follower_takes_the_leaders_bytes_and_epochs_as_they_are(log: PartitionLog, tmp_path: Path) -> None:
    log.append_as_leader(batch(b"a", b"b"), 3, NOW)
    log.append_as_leader(batch(b"c"), 5, NOW)
    follower = open_log(tmp_path / "f-0")
    info = follower.append_as_follower(log.read(0, 1 << 20, 3), NOW)
    assert info.epochs == ((3, 0), (5, 2))
    assert whole(follower) == whole(log)
    assert follower.epochs == log.epochs
    for wrong in (log.read(0, 1, 3), batch(b"x", base_offset=4, partition_leader_epoch=5)):
        with pytest.raises(CorruptBatch, match="goes on at 3"):
            follower.append_as_follower(wrong, NOW)
    follower.close()


def test_an_append_of_an_older_epoch_is_refused(log: PartitionLog) -> None:
    log.append_as_leader(batch(b"a"), 5, NOW)
    log.append_as_leader(batch(b"b"), 5, NOW)
    with pytest.raises(ValueError, match="epoch 4 cannot append"):
        log.append_as_leader(batch(b"c"), 4, NOW)
    assert log.epochs.entries == [(5, 0)]


@pytest.mark.parametrize("position", [0, 1])
def test_one_bad_batch_in_a_request_keeps_all_of_it_out(log: PartitionLog, position: int) -> None:
    batches = [bytearray(batch(b"good")), bytearray(batch(b"good"))]
    batches[position][-1] ^= 1
    for payload in (b"".join(batches), b"", batch(b"x")[:-1], batch(b"x") + b"tail"):
        with pytest.raises(CorruptBatch):
            log.append_as_leader(payload, 1, NOW)
    assert (log.log_end_offset, log.size_bytes, log.epochs.entries) == (0, 0, [])


def test_a_batch_over_the_limit_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", max_message_bytes=200)
    with pytest.raises(RecordTooLarge):
        log.append_as_leader(batch(bytes(200)), 1, NOW)
    log.close()


def test_a_read_gives_whole_batches_and_at_least_one(log: PartitionLog) -> None:
    for value in (b"a", b"b", b"c"):
        log.append_as_leader(batch(value, value), 1, NOW)
    size = len(batch(b"a", b"a"))
    assert values_of(log.read(1, 1, 6)) == [(0, b"a"), (1, b"a")]
    assert len(log.read(0, 2 * size + 1, 6)) == 2 * size
    assert values_of(log.read(2, 1000, 5)) == [(2, b"b"), (3, b"b")]
    assert log.read(4, 1000, 5) == b""
    assert log.read(6, 1000, 6) == b""
    for offset in (-1, 7):
        with pytest.raises(OffsetOutOfRange):
            log.read(offset, 1000, 6)


def test_slices_name_the_same_bytes_as_read(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=300)
    for number in range(20):
        log.append_as_leader(batch(b"value-%d" % number), 1, NOW)
    found = log.slices(3, 1 << 20, 17)
    assert len(found) > 2
    joined = b"".join(each.path.read_bytes()[each.position :][: each.length] for each in found)
    assert [each.next_offset for each in found[:-1]] == [int(each.path.stem) for each in found[1:]]
    assert found[-1].next_offset == 17
    assert all((each.device, each.inode) == (os.stat(each.path).st_dev, os.stat(each.path).st_ino) for each in found)
    assert joined == log.read(3, 1 << 20, 17)
    assert [offset for offset, _ in values_of(joined)] == list(range(3, 17))
    log.close()


def test_a_retry_is_answered_with_the_first_offset_and_not_stored_again(log: PartitionLog) -> None:
    first = log.append_as_leader(produced(0, 3), 1, NOW)
    log.append_as_leader(produced(3, 2), 1, NOW)
    again = log.append_as_leader(produced(0, 3), 2, NOW)
    assert again.duplicate
    assert (again.first_offset, again.end_offset) == (first.first_offset, first.end_offset)
    assert log.log_end_offset == 5
    with pytest.raises(OutOfOrderSequence):
        log.append_as_leader(produced(6), 1, NOW)
    with pytest.raises(DuplicateSequence):
        log.append_as_leader(produced(3, 2) + produced(5), 1, NOW)
    both = log.append_as_leader(produced(0, 3) + produced(3, 2), 1, NOW)
    assert (both.first_offset, both.end_offset, both.duplicate) == (0, 5, True)
    log.append_as_leader(produced(0, epoch=1), 1, NOW)
    with pytest.raises(InvalidProducerEpoch):
        log.append_as_leader(produced(5), 1, NOW)


def test_several_batches_of_one_producer_in_a_request_follow_each_other(log: PartitionLog) -> None:
    log.append_as_leader(produced(0) + produced(1) + produced(0, producer=8), 1, NOW)
    with pytest.raises(OutOfOrderSequence):
        log.append_as_leader(produced(2) + produced(4), 1, NOW)
    assert log.log_end_offset == 3


def test_retries_are_known_after_a_clean_close_a_crash_and_a_truncation(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=400)
    for sequence in range(12):
        log.append_as_leader(produced(sequence), 1, NOW)
    log.sync()
    crash = open_log(crashed(log, tmp_path / "crash"), segment_bytes=400)
    clean = open_log(tmp_path / "t-0", segment_bytes=400)
    assert (clean.recovered.clean, crash.recovered.clean) == (True, False)
    for opened in (clean, crash):
        assert opened.append_as_leader(produced(9), 1, NOW)[:3] == (9, 10, True)
        opened.truncate_to(8, NOW)
        assert opened.append_as_leader(produced(7), 1, NOW)[:3] == (7, 8, True)
        assert opened.append_as_leader(produced(8), 1, NOW)[:3] == (8, 9, False)
        opened.close()


def test_sync_moves_the_synced_end_and_may_run_beside_appends(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=2000)
    log.append_as_leader(batch(b"a"), 1, NOW)
    assert log.synced_end_offset == 0
    assert log.sync() == log.synced_end_offset == 1
    done = threading.Event()
    seen: list[int] = []

    def keep_syncing() -> None:
        while not done.is_set():
            seen.append(log.sync())

    worker = threading.Thread(target=keep_syncing)
    worker.start()
    for number in range(500):
        log.append_as_leader(batch(b"%d" % number), 1, NOW)
    done.set()
    worker.join(timeout=30)
    assert not worker.is_alive()
    assert seen == sorted(seen)
    assert log.sync() == 501
    assert len(log.segments) > 10
    log.close()


def test_the_recovery_point_is_written_some_time_after_a_sync_or_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(partition_log, "time", SimpleNamespace(monotonic=lambda: now_s))
    log = open_log(tmp_path / "t-0")
    noted = tmp_path / "t-0" / RECOVERY_POINT

    def appended_and_synced() -> None:
        log.append_as_leader(batch(b"a"), 1, NOW)
        log.sync()

    now_s += 1000
    appended_and_synced()
    assert not noted.exists(), "the time counts from the first sync behind it"
    now_s += CHECKPOINT_SECONDS
    appended_and_synced()
    assert noted.read_text().split()[1] == "2"
    appended_and_synced()
    log.checkpoint()
    assert noted.read_text().split()[1] == "2"
    log.checkpoint(early=True)
    assert noted.read_text().split()[1] == "3"
    log.close()


def test_a_closed_log_refuses_every_call(log: PartitionLog) -> None:
    log.close()
    log.close()
    for call in (
        lambda: log.append_as_leader(batch(b"a"), 1, NOW),
        lambda: log.append_as_follower(batch(b"a"), NOW),
        lambda: log.read(0, 1, 1),
        lambda: log.sync(),
        lambda: log.truncate_to(0, NOW),
        lambda: log.assign_leader_epoch(1, 0),
    ):
        with pytest.raises(LogClosed):
            call()


def test_a_topic_created_again_is_another_topic(log: PartitionLog, tmp_path: Path) -> None:
    with pytest.raises(WrongTopicId) as caught:
        open_log(tmp_path / "t-0", topic_id="another")
    assert caught.value.expected == "another"


def test_an_assigned_epoch_is_there_after_a_crash_without_any_record(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    log.append_as_leader(batch(b"a"), 1, NOW)
    log.sync()
    log.assign_leader_epoch(4, 1)
    again = open_log(crashed(log, tmp_path / "crash"))
    assert again.epochs.entries == [(1, 0), (4, 1)]
    again.close()


def test_segments_roll_by_size_and_by_age(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=300, segment_ms=1000)
    for number in range(6):
        log.append_as_leader(batch(b"%d" % number), 1, NOW)
    assert len(log.segments) == 2
    log.append_as_leader(batch(b"late"), 1, NOW + 1000)
    assert [segment.base_offset for segment in log.segments] == [0, 4, 6]
    assert sorted(path.name for path in (tmp_path / "t-0").glob("*.log"))[1] == "00000000000000000004.log"
    log.close()


def test_segments_roll_before_an_offset_is_too_far_for_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_log, "RELATIVE_OFFSET_MAX", len(batch(b"a")) + 2)
    log = open_log(tmp_path / "t-0")
    for _ in range(7):
        log.append_as_leader(batch(b"a"), 1, NOW)
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6]
    log.close()


def test_only_a_bounded_number_of_files_stays_open(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=1)
    for number in range(60):
        log.append_as_leader(batch(b"%d" % number), 1, NOW)
    log.sync()
    assert len(whole(log)) == log.size_bytes
    assert log.offset_for_timestamp(NOW, 60) == (0, NOW)
    assert len(open_files_below(tmp_path)) <= 17
    log.close()


def test_the_middle_of_a_truncated_batch_goes_with_it_and_epochs_follow(log: PartitionLog) -> None:
    log.append_as_leader(batch(b"a", b"b", b"c"), 1, NOW)
    log.append_as_leader(batch(b"d", b"e"), 2, NOW)
    log.sync()
    log.truncate_to(4, NOW)
    assert (log.log_end_offset, log.synced_end_offset) == (3, 3)
    assert log.epochs.entries == [(1, 0)]
    log.append_as_leader(batch(b"x"), 3, NOW)
    assert values_of(whole(log)) == [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"x")]


def test_truncation_at_the_end_forgets_an_epoch_that_wrote_nothing(log: PartitionLog) -> None:
    log.append_as_leader(batch(b"a"), 1, NOW)
    log.assign_leader_epoch(2, 1)
    log.truncate_to(1, NOW)
    assert log.epochs.entries == [(1, 0)]
    assert log.log_end_offset == 1


def test_a_full_truncation_starts_anywhere_and_survives_a_crash(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=200)
    for number in range(9):
        log.append_as_leader(batch(b"%d" % number), 1, NOW)
    log.truncate_fully_and_start_at(100, NOW)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes, log.epochs.entries) == (100, 100, 0, [])
    log.append_as_leader(batch(b"new"), 7, NOW)
    again = open_log(crashed(log, tmp_path / "crash"))
    assert (again.log_start_offset, values_of(whole(again))) == (100, [(100, b"new")])
    again.close()


def test_a_full_truncation_that_fails_halfway_is_finished_when_reopened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=200)
    for number in range(9):
        log.append_as_leader(batch(b"%d" % number), 1, NOW)
    log.sync()

    def remove_files(segment: Segment) -> None:
        if segment.base_offset == 0:
            raise CorruptBatch("any error")

    monkeypatch.setattr(Segment, "remove_files", remove_files)
    with pytest.raises(CorruptBatch, match="any error"):
        log.truncate_fully_and_start_at(100, NOW)
    monkeypatch.undo()
    with pytest.raises(LogClosed, match="halfway"):
        log.sync()
    again = open_log(crashed(log, tmp_path / "crash"))
    assert (again.log_start_offset, again.log_end_offset, again.epochs.entries) == (100, 100, [])
    again.close()


def test_a_follower_begins_within_a_batch_at_the_leaders_log_start(log: PartitionLog) -> None:
    log.truncate_fully_and_start_at(5, NOW)
    values = [b"3", b"4", b"5", b"6", b"7"]
    log.append_as_follower(batch(*values, base_offset=3, partition_leader_epoch=1), NOW)
    assert (log.log_start_offset, log.log_end_offset) == (5, 8)
    assert values_of(log.read(5, 1, 8))[0] == (3, b"3")


def test_a_file_that_has_grown_since_a_clean_close_is_recovered(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    log.append_as_leader(batch(b"a"), 1, NOW)
    log.close()
    with (tmp_path / "t-0" / "00000000000000000000.log").open("ab") as file:
        file.write(b"torn")
    again = open_log(tmp_path / "t-0")
    assert (again.recovered.clean, again.recovered.bytes_cut) == (False, len(b"torn"))
    assert values_of(whole(again)) == [(0, b"a")]
    again.close()


def test_timestamps_are_found_across_segments(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", segment_bytes=300)
    for number in range(12):
        log.append_as_leader(batch(b"a", b"b", timestamps=[number * 10, number * 10 + 5]), 1, NOW)
    assert log.offset_for_timestamp(-5, 24) == (0, 0)
    assert log.offset_for_timestamp(46, 24) == (10, 50)
    assert log.offset_for_timestamp(45, 24) == (9, 45)
    assert log.offset_for_timestamp(116, 24) is None
    assert log.offset_for_timestamp(100, 20) is None
    assert log.max_timestamp(24) == (23, 115)
    assert log.max_timestamp(20) == (19, 95)
    assert log.max_timestamp(0) is None
    log.close()


def test_the_last_append_is_found_without_the_index_until_a_cut(log: PartitionLog) -> None:
    for number in range(400):
        log.append_as_leader(batch(b"%d" % number), 0, NOW)
    segment = log.segments[-1]
    assert segment.position_of(399) is not None
    assert segment.position_of(0) is None
    for offset in (0, 100, 150, 399):
        for upper in (offset + 1, 300, 400):
            expected = [(number, b"%d" % number) for number in range(offset, upper)]
            assert offset >= upper or values_of(log.read(offset, 1 << 30, upper)) == expected
    log.truncate_to(200, NOW)
    assert segment.position_of(150) is None
    log.append_as_leader(batch(b"new"), 1, NOW)
    assert values_of(log.read(200, 1 << 20, 201)) == [(200, b"new")]
