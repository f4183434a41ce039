"""Checkers have bugs too: each gets one correct history, and one hand-made history per anomaly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from raylog.base.ids import NO_LEADER, BrokerId, LeaderEpoch, PartitionEpoch, TopicPartition
from raylog.core.partition import PartitionState
from tests.simulation.checks.checkers import (
    AckedIsKept,
    CommittedOnce,
    LogMatching,
    MetadataLine,
    NoCutBelow,
    OneLeader,
    WatermarkEarned,
    WatermarkMonotone,
)
from tests.simulation.partition.disk import NO_PRODUCER_ID, Entry, chained
from tests.simulation.world import Violation


def log_of(*values: int, epoch: int = 1, producer: int = NO_PRODUCER_ID) -> list[Entry]:
    """A log of these values in order; with a producer, the values are its sequences."""
    entries: list[Entry] = []
    chain = 0
    for value in values:
        chain = chained(chain, epoch, value)
        entries.append(Entry(epoch, value, producer, value if producer != NO_PRODUCER_ID else -1, chain))
    return entries


def at(entries: list[Entry]) -> Callable[[int], Entry | None]:
    return lambda offset: entries[offset] if 0 <= offset < len(entries) else None


def anomaly(rule: str) -> pytest.RaisesExc[Violation]:
    return pytest.raises(Violation, check=lambda found: found.rule == rule)


STATE = PartitionState(
    topic_id="t",
    partition=TopicPartition("orders", 0),
    replicas=(BrokerId(1), BrokerId(2)),
    isr=(BrokerId(1), BrokerId(2)),
    leader=BrokerId(1),
    leader_epoch=LeaderEpoch(3),
    partition_epoch=PartitionEpoch(7),
)


class TestAckedIsKept:
    def test_a_later_leader_with_everything_is_fine(self) -> None:
        checker = AckedIsKept()
        checker.acknowledged(1, 0, 70)
        checker.acknowledged(1, 1, 71)
        checker.led(2, 0, at(log_of(70, 71, 72)))
        checker.finally_read(0, log_of(70, 71, 72))

    def test_a_lost_write_at_a_later_leader(self) -> None:
        checker = AckedIsKept()
        checker.acknowledged(1, 1, 71)
        with anomaly("I1"):
            checker.led(2, 0, at(log_of(70)))

    def test_another_value_in_its_place(self) -> None:
        checker = AckedIsKept()
        checker.acknowledged(1, 1, 71)
        with anomaly("I1"):
            checker.led(2, 0, at(log_of(70, 99)))

    def test_a_leader_of_an_older_epoch_owes_nothing(self) -> None:
        checker = AckedIsKept()
        checker.acknowledged(5, 1, 71)
        checker.led(4, 0, at([]))

    def test_a_repeat_of_what_a_new_log_never_saw_is_forgiven_and_no_other(self) -> None:
        checker = AckedIsKept()
        checker.acknowledged(1, 4, 71)
        checker.acknowledged(2, 9, 71, forgotten_below=5)
        with anomaly("I11"):
            checker.acknowledged(2, 10, 71, forgotten_below=4)

    def test_what_retention_dropped_is_not_missed(self) -> None:
        checker = AckedIsKept()
        checker.acknowledged(1, 0, 70)
        checker.led(2, 1, at([]))
        checker.finally_read(1, [])

    def test_a_write_missing_from_the_final_read(self) -> None:
        checker = AckedIsKept()
        checker.acknowledged(1, 1, 71)
        with anomaly("I1"):
            checker.finally_read(0, log_of(70))

    def test_one_batch_acknowledged_at_two_offsets(self) -> None:
        checker = AckedIsKept()
        checker.acknowledged(1, 1, 71)
        checker.acknowledged(2, 5, 71, idempotent=False)
        with anomaly("I11"):
            checker.acknowledged(2, 6, 71)


class TestCommittedOnce:
    def test_replicas_that_agree_are_fine(self) -> None:
        checker = CommittedOnce()
        log = log_of(1, 2, 3)
        checker.advanced("one", 1, 0, 3, at(log))
        checker.advanced("two", 1, 0, 2, at(log))
        checker.led(2, at(log), 0)
        checker.member(2, 3, 0, at(log))
        checker.seen("a reader", 1, log[1:])
        assert checker.end == 3

    def test_two_values_at_one_offset(self) -> None:
        checker = CommittedOnce()
        checker.advanced("one", 1, 0, 2, at(log_of(1, 2)))
        with anomaly("I2"):
            checker.advanced("two", 1, 0, 2, at(log_of(1, 9)))

    def test_the_same_value_on_another_history(self) -> None:
        checker = CommittedOnce()
        checker.advanced("one", 1, 0, 2, at(log_of(1, 2)))
        with anomaly("I2"):
            checker.advanced("two", 1, 1, 2, at(log_of(9, 2)))

    def test_a_watermark_beyond_the_log(self) -> None:
        with anomaly("I2"):
            CommittedOnce().advanced("one", 1, 0, 2, at(log_of(1)))

    def test_a_reader_that_is_shown_what_is_not_committed(self) -> None:
        checker = CommittedOnce()
        checker.advanced("one", 1, 0, 1, at(log_of(1, 2)))
        with anomaly("I2"):
            checker.seen("a reader", 0, log_of(1, 2))

    def test_a_leader_without_what_earlier_epochs_committed(self) -> None:
        checker = CommittedOnce()
        checker.advanced("one", 3, 0, 2, at(log_of(1, 2)))
        with anomaly("I6"):
            checker.led(4, at(log_of(1)), 0)

    def test_a_zombie_of_an_earlier_epoch_owes_nothing_to_later_ones(self) -> None:
        checker = CommittedOnce()
        checker.advanced("one", 3, 0, 2, at(log_of(1, 2)))
        checker.led(2, at(log_of(1)), 0)

    def test_an_isr_member_without_a_committed_record(self) -> None:
        checker = CommittedOnce()
        checker.advanced("one", 1, 0, 2, at(log_of(1, 2)))
        with anomaly("I7"):
            checker.member(2, 2, 0, at(log_of(1)))

    def test_a_duplicate_of_an_idempotent_producer(self) -> None:
        log = log_of(0, 1, producer=4)
        twice = [*log, log[1]._replace(chain=chained(log[1].chain, 1, 1))]
        with anomaly("I11"):
            CommittedOnce().advanced("one", 1, 0, 3, at(twice))

    def test_a_repeat_after_forgotten_producers_is_forgiven_and_a_gap_is_not(self) -> None:
        checker = CommittedOnce()
        checker.log_restarted(1)
        log = log_of(0, 1, producer=4)
        checker.advanced("one", 1, 0, 3, at([*log, log[1]._replace(chain=chained(log[1].chain, 1, 1))]))
        with anomaly("I11"):
            checker.advanced("one", 1, 3, 4, at([*log, log[0], log_of(3, producer=4)[0]]))

    def test_a_gap_of_an_idempotent_producer(self) -> None:
        with anomaly("I11"):
            CommittedOnce().advanced("one", 1, 0, 2, at(log_of(0, 2, producer=4)))


class TestWatermarkMonotone:
    def test_rising_and_restarting_in_another_life_is_fine(self) -> None:
        checker = WatermarkMonotone()
        checker.holds(1, 10, 1, 5)
        checker.holds(1, 10, 1, 6)
        checker.holds(1, 11, 1, 0)
        checker.shown(1, 5)
        checker.shown(2, 5)
        checker.shown(1, 5)

    def test_a_fall_within_one_life_and_epoch(self) -> None:
        checker = WatermarkMonotone()
        checker.holds(1, 10, 1, 5)
        with anomaly("I3"):
            checker.holds(1, 10, 1, 4)

    def test_a_new_epoch_that_shows_less(self) -> None:
        checker = WatermarkMonotone()
        checker.shown(1, 5)
        with anomaly("I3"):
            checker.shown(2, 4)

    def test_an_old_epoch_that_shows_more_afterwards(self) -> None:
        checker = WatermarkMonotone()
        checker.shown(2, 5)
        with anomaly("I3"):
            checker.shown(1, 6)


class TestWatermarkEarned:
    def test_reported_and_on_disk_everywhere_is_fine(self) -> None:
        checker = WatermarkEarned(2)
        checker.reported(1, 2, 5)
        checker.advanced(1, 1, 2, (1, 2), 5, {1: 5, 2: 6})

    def test_a_member_without_it_on_disk(self) -> None:
        checker = WatermarkEarned(2)
        checker.reported(1, 2, 5)
        with anomaly("I4"):
            checker.advanced(1, 1, 2, (1, 2), 5, {1: 5, 2: 4})

    def test_a_member_without_a_report_in_this_epoch(self) -> None:
        checker = WatermarkEarned(2)
        checker.reported(1, 2, 5)
        with anomaly("I4"):
            checker.advanced(2, 1, 2, (1, 2), 5, {1: 5, 2: 5})

    def test_too_few_members(self) -> None:
        with anomaly("I4"):
            WatermarkEarned(2).advanced(1, 1, 1, (1,), 5, {1: 5})

    def test_a_fetch_of_another_epoch_is_answered(self) -> None:
        WatermarkEarned(1).answered(2, 2)
        with anomaly("I4"):
            WatermarkEarned(1).answered(1, 2)

    def test_the_leaders_own_disk_behind(self) -> None:
        with anomaly("I4"):
            WatermarkEarned(1).advanced(1, 1, 1, (1,), 5, {1: 4})


class TestOneLeader:
    def test_one_life_may_lead_an_epoch_as_often_as_it_likes(self) -> None:
        checker = OneLeader()
        checker.leads(1, 1, 10)
        checker.leads(1, 1, 10)
        checker.leads(2, 1, 10)

    @pytest.mark.parametrize(("broker", "incarnation"), [(2, 20), (1, 11)])
    def test_two_leaders_or_two_lives_in_one_epoch(self, broker: int, incarnation: int) -> None:
        checker = OneLeader()
        checker.leads(1, 1, 10)
        with anomaly("I5"):
            checker.leads(1, broker, incarnation)


class TestLogMatching:
    def test_equal_logs_and_other_epochs_are_fine(self) -> None:
        checker = LogMatching()
        for broker in (1, 2):
            for offset, entry in enumerate(log_of(1, 2)):
                checker.stored(broker, offset, entry, entry.chain)
        other = log_of(8, 9, epoch=2)[1]
        checker.stored(3, 1, other, other.chain)

    def test_one_epoch_written_twice(self) -> None:
        checker = LogMatching()
        one, other = log_of(1, 2)[1], log_of(1, 3)[1]
        checker.stored(1, 1, one, one.chain)
        with anomaly("I8"):
            checker.stored(2, 1, other, other.chain)

    def test_a_copy_behind_another_history(self) -> None:
        entry = log_of(1, 2)[1]
        with anomaly("I8"):
            LogMatching().stored(2, 1, entry, chained(99, 1, 2))


class TestNoCutBelow:
    def test_cutting_what_only_we_have_is_fine(self) -> None:
        checker = NoCutBelow()
        checker.truncating(2, 3, 5, log_of(1)[0], log_of(2)[0], in_isr=False, committed=9)
        checker.truncating(2, 5, 5, None, log_of(2)[0], in_isr=True, committed=9)

    def test_cutting_what_the_leader_has_too(self) -> None:
        entry = log_of(1)[0]
        with anomaly("I9"):
            NoCutBelow().truncating(2, 3, 5, entry, entry, in_isr=False, committed=0)

    def test_an_isr_member_that_cuts_what_is_committed(self) -> None:
        with anomaly("I9"):
            NoCutBelow().truncating(2, 3, 5, log_of(1)[0], None, in_isr=True, committed=4)


class TestMetadataLine:
    def test_changes_one_by_one_are_fine(self) -> None:
        checker = MetadataLine()
        shrunk = replace(STATE, isr=(BrokerId(1),), partition_epoch=PartitionEpoch(8))
        checker.changed(STATE, shrunk)
        checker.changed(shrunk, shrunk)
        checker.accepted(STATE, 7)
        checker.applied(1, 3, 7)
        checker.applied(1, 3, 8)
        checker.applied(1, 4, 9)

    @pytest.mark.parametrize(
        "after",
        [
            replace(STATE, isr=(BrokerId(1),)),
            replace(STATE, partition_epoch=PartitionEpoch(9)),
            replace(STATE, partition_epoch=PartitionEpoch(6)),
            replace(STATE, partition_epoch=PartitionEpoch(8), leader_epoch=LeaderEpoch(2)),
            replace(STATE, partition_epoch=PartitionEpoch(8), isr=(), leader=NO_LEADER),
            replace(STATE, partition_epoch=PartitionEpoch(8), isr=(BrokerId(3),), leader=NO_LEADER),
            replace(STATE, partition_epoch=PartitionEpoch(8), isr=(BrokerId(2),)),
        ],
        ids=["silent change", "skipped epoch", "older epoch", "older leader", "empty isr", "foreign isr", "leader out"],
    )
    def test_an_illegal_change(self, after: PartitionState) -> None:
        with anomaly("I10"):
            MetadataLine().changed(STATE, after)

    def test_a_proposal_made_at_another_version(self) -> None:
        with anomaly("I10"):
            MetadataLine().accepted(STATE, 6)

    def test_a_replica_that_goes_back(self) -> None:
        checker = MetadataLine()
        checker.applied(1, 3, 8)
        with anomaly("I10"):
            checker.applied(1, 3, 7)

    def test_a_member_that_leaves_an_isr_below_the_minimum_is_eligible(self) -> None:
        one, two = BrokerId(1), BrokerId(2)
        shrunk = replace(STATE, isr=(one,), elr=(two,), partition_epoch=PartitionEpoch(8))
        MetadataLine(2).changed(STATE, shrunk)
        with anomaly("I7"):
            MetadataLine(1).changed(STATE, shrunk)

    @pytest.mark.parametrize("elr", [(2,), (9,)], ids=["in the isr too", "no replica"])
    def test_an_eligible_replica_that_cannot_be_one(self, elr: tuple[int, ...]) -> None:
        after = replace(STATE, elr=tuple(map(BrokerId, elr)), partition_epoch=PartitionEpoch(8))
        with anomaly("I10"):
            MetadataLine().changed(STATE, after)

    @pytest.mark.parametrize("in_sync", [True, False])
    def test_a_move_is_complete_when_the_whole_target_is_in_the_isr(self, in_sync: bool) -> None:
        one, two, three = BrokerId(1), BrokerId(2), BrokerId(3)
        moving = replace(
            STATE,
            replicas=(one, three, two),
            isr=(one, three, two) if in_sync else (one, two),
            adding=(three,),
            removing=(two,),
        )
        complete = replace(
            moving,
            replicas=(one, three),
            isr=(one, three) if in_sync else (one,),
            adding=(),
            removing=(),
            partition_epoch=PartitionEpoch(8),
        )
        if in_sync:
            MetadataLine().changed(moving, complete)
        else:
            with anomaly("I10"):
                MetadataLine().changed(moving, complete)
