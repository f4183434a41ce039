"""A follower that has to cut its log: the machine believes what the log is afterwards, and nothing else."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from raylog.storage.batch.records import encode_batch
from raylog.storage.cleaner.cleaning import clean
from raylog.storage.cleaner.log_cleaning import LogCleaning
from raylog.storage.errors import DiskFull
from raylog.storage.log.checkpoints import Checkpoints
from raylog.storage.log.config import CompactionRules, LogConfig
from raylog.storage.log.partition_log import PartitionLog
from tests.unit.actors.replica.following import OTHER, STARTED_MS, Clocks, Following, opened

RULES = CompactionRules(min_cleanable_dirty_ratio=0.01)
CONFIG = LogConfig(segment_bytes=1_500, compaction=RULES)
SHARED = 13
"""Records that the next leader has; the rest is the follower's alone."""


def record(number: int) -> bytearray:
    return bytearray(encode_batch([b"k"], [b"value %03d" % number + bytes(60)], [STARTED_MS]))


@pytest.fixture
def parted(tmp_path: Path) -> Iterator[tuple[Following, PartitionLog]]:
    """A follower that has cleaned what it has, and a leader of epoch 2 that had a few of these records."""
    clocks = Clocks()
    before, leader = (opened(tmp_path / name / "t-0", CONFIG, clocks) for name in ("before", "leader"))
    mine = Following(tmp_path / "mine", CONFIG, clocks)
    mine.state(OTHER, 1)
    for number in range(60):
        before.append_as_leader(record(number), 1, STARTED_MS)
        if number < SHARED:
            leader.append_as_leader(record(number), 1, STARTED_MS)
    mine.replicate(before, most_bytes=300)
    mine.log.sync()
    assert mine.runner.machine is not None
    order = LogCleaning(mine.log).order_cleaning(mine.runner.machine.high_watermark, STARTED_MS + 10, RULES)
    assert order is not None
    assert LogCleaning(mine.log).take_cleaned(clean(order), STARTED_MS + 10)
    leader.assign_leader_epoch(2, SHARED)
    for number in range(5):
        leader.append_as_leader(record(100 + number), 2, STARTED_MS)
    mine.state(OTHER, 2, isr=(OTHER,))
    yield mine, leader
    for log in (before, leader, mine.log):
        log.close()


def values_of(log: PartitionLog, start: int) -> bytes:
    return bytes(log.read(start, 1 << 20, log.log_end_offset))


def test_a_cut_within_a_filler_goes_on_where_the_log_ends(parted: tuple[Following, PartitionLog]) -> None:
    mine, leader = parted
    mine.part(2, SHARED, 1)
    machine = mine.runner.machine
    assert machine is not None
    assert machine.log_end_offset == mine.log.log_end_offset == mine.fetches[-1].fetch_offset < SHARED
    mine.replicate(leader, 2, most_bytes=300)
    assert machine.log_end_offset == mine.log.log_end_offset == leader.log_end_offset
    assert values_of(mine.log, SHARED) == values_of(leader, SHARED)
    assert mine.log.epochs.entries == leader.epochs.entries == machine._log.epochs.entries


def test_a_cut_before_the_log_start_takes_the_start_back(parted: tuple[Following, PartitionLog]) -> None:
    """Records within a filler were deleted: a log that is cut there has no such start any more."""
    mine, leader = parted
    mine.log.advance_log_start(SHARED - 1)
    mine.runner._log_start_moved("delete_records")
    mine.part(2, SHARED, 1)
    machine = mine.runner.machine
    assert machine is not None
    machine.validate()
    assert machine._log.start == mine.log.log_start_offset <= machine.log_end_offset
    mine.replicate(leader, 2, most_bytes=300)
    assert machine.log_end_offset == mine.log.log_end_offset == leader.log_end_offset


@pytest.mark.parametrize("what", ["truncate_to", "truncate_fully_and_start_at"])
def test_a_cut_that_a_full_disk_refuses_comes_again(
    parted: tuple[Following, PartitionLog], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, leader = parted
    before, full = mine.log.log_end_offset, True
    carry_out = getattr(mine.log, what)

    def cut(offset: int, now_ms: int) -> None:
        if full:
            raise DiskFull("write", OSError(errno.ENOSPC, "No space left on device"))
        carry_out(offset, now_ms)

    monkeypatch.setattr(mine.log, what, cut)
    at = SHARED if what == "truncate_to" else 0
    if at == 0:
        mine.log.advance_log_start(2)
        mine.runner._log_start_moved("delete_records")
        at = 1
    machine = mine.runner.machine
    assert machine is not None
    for _ in range(3):
        before_it = len(mine.fetches)
        mine.part(2, at, 1)
        assert machine.log_end_offset == mine.log.log_end_offset == before
        assert len(mine.fetches) == before_it, "it waits a moment"
        mine.pass_time(100, tick_ms=20)
        assert len(mine.fetches) == before_it + 1
    assert not mine.fatal
    full = False
    mine.part(2, at, 1)
    assert machine.log_end_offset == mine.log.log_end_offset <= at
    mine.replicate(leader, 2, most_bytes=300)
    assert mine.log.log_end_offset == leader.log_end_offset


def test_a_reset_on_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(tmp_path / "t-0", LogConfig(), Clocks())
    log.append_as_leader(record(1), 1, STARTED_MS)
    log.sync()

    def full(*_: object) -> None:
        raise DiskFull("write", OSError(errno.ENOSPC, "No space left on device"))

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "write_recovery_point", full)
        with pytest.raises(DiskFull):
            log.truncate_fully_and_start_at(9, STARTED_MS)
    assert not log.is_closed
    assert (log.log_start_offset, log.log_end_offset) == (0, 1)
    log.truncate_fully_and_start_at(9, STARTED_MS)
    assert (log.log_start_offset, log.log_end_offset) == (9, 9)
    log.close()


def test_a_first_append_within_a_batch_that_fails_closes_the_log(tmp_path: Path) -> None:
    """It began again before the batch, where its machine does not know it."""
    clocks = Clocks()
    leader = opened(tmp_path / "1" / "t-0", LogConfig(), clocks)
    leader.append_as_leader(bytearray(encode_batch(None, [b"a", b"b", b"c"], [STARTED_MS] * 3)), 1, STARTED_MS)
    leader.advance_log_start(2)
    log = opened(tmp_path / "2" / "t-0", LogConfig(), clocks)
    log.truncate_fully_and_start_at(2, STARTED_MS)
    records = leader.read(2, 1 << 20, 3)
    with pytest.MonkeyPatch.context() as patch:

        def full(*_: object) -> None:
            raise DiskFull("write", OSError(errno.ENOSPC, "No space left on device"))

        patch.setattr(log, "advance_log_start", full)
        with pytest.raises(DiskFull):
            log.append_as_follower(records, STARTED_MS)
    assert log.is_closed
    log.close()
    again = opened(tmp_path / "2" / "t-0", LogConfig(), clocks)
    assert (again.log_start_offset, again.log_end_offset) == (0, 3)
    again.close()
    leader.close()
