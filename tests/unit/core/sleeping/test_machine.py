"""A broker answers for the partitions that sleep on it: from the metadata, or by having them woken."""

from dataclasses import replace
from typing import Any

import pytest

from raylog.base.errors import (
    FencedLeaderEpoch,
    InvalidRequest,
    NotController,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    RaylogError,
    UnknownLeaderEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from raylog.base.ids import (
    EARLIEST,
    LATEST,
    NO_EPOCH,
    NO_LEADER,
    BrokerId,
    Incarnation,
    LeaderEpoch,
    Offset,
    TopicPartition,
)
from raylog.core.metadata.image import MetadataImage, partition_changed
from raylog.core.metadata.records import MetadataRecord, ReplicaPlaced, TopicConfigured, TopicCreated, TopicDeleted
from raylog.core.partition import NEVER_WRITTEN, PartitionState, SleepPoint
from raylog.core.sleeping import events as ev
from raylog.core.sleeping.machine import CHORE_PAUSE_MS, WAKE_AGAIN_MS, WAKE_WAIT_MS, SleepersMachine

ID = "a" * 32
AT = TopicPartition("flights", 0)
ME, OTHER = BrokerId(1), BrokerId(2)
STALE_MS, CHECK_MS = 9_000, 300_000
DAY_MS = 86_400_000
POINT = SleepPoint(
    log_start_offset=Offset(10), end_offset=Offset(40), last_epoch=LeaderEpoch(4), oldest_ms=DAY_MS, size_bytes=900
)


class Stage:
    """Broker 1 with two partitions on brokers 1 and 2, of which ``flights-0`` sleeps under it in epoch 5."""

    def __init__(self) -> None:
        self.now = 100_000
        self.image = MetadataImage()
        self.image.apply(
            TopicCreated(topic_id=ID, topic="flights", config={"retention.ms": "1000"}, partitions=((ME, OTHER),) * 2)
        )
        self._last = 0
        self.machine = SleepersMachine(
            lambda: self.image, lambda: ME, stale_after_ms=lambda: STALE_MS, retention_check_ms=lambda: CHECK_MS
        )
        self.put(leader=ME, leader_epoch=LeaderEpoch(5), asleep=POINT)
        self.step(ev.LinkChanged(now_ms=self.now, is_connected=True))

    def step(self, event: ev.Event) -> list[ev.Effect]:
        return self.machine.step(event).now

    def apply(self, *records: MetadataRecord) -> None:
        for record in records:
            self.image.apply(record)

    def put(self, partition: int = 0, **changes: Any) -> None:
        """Change a partition's state in the metadata."""
        state = self.image.partition(TopicPartition("flights", partition))
        assert state is not None
        epoch = type(state.partition_epoch)(state.partition_epoch + 1)
        self.apply(partition_changed(replace(state, partition_epoch=epoch, **changes)))

    def changed(self, *partitions: TopicPartition) -> list[ev.Effect]:
        return self.step(ev.MetadataChanged(now_ms=self.now, partitions=partitions or None))

    def wakes(self) -> list[ev.Effect]:
        """The controller has woken the partition, and nothing of it runs yet."""
        self.put(asleep=None, leader=NO_LEADER)
        return self.changed(AT)

    def is_led(self, leader: BrokerId = ME, epoch: int = 6) -> list[ev.Effect]:
        """A replica leads."""
        place = ReplicaPlaced(topic="flights", partition=0, broker=leader, incarnation=Incarnation(7), host="h", port=9)
        self.apply(place)
        self.put(leader=leader, leader_epoch=LeaderEpoch(epoch))
        return self.changed(AT)

    def _common(self, wait_ms: int, epoch: int, partition: int, topic_id: str) -> dict[str, Any]:
        self._last += 1
        return {
            "now_ms": self.now,
            "request": self._last,
            "topic_id": topic_id,
            "partition": partition,
            "leader_epoch": LeaderEpoch(epoch),
            "deadline_ms": self.now + wait_ms,
        }

    def write(
        self, *, wait_ms: int = 30_000, epoch: int = 5, partition: int = 0, topic_id: str = ID
    ) -> list[ev.Effect]:
        return self.step(ev.WriteReceived(**self._common(wait_ms, epoch, partition, topic_id)))

    def fetch(self, offset: int, *, wait_ms: int = 500, epoch: int = 5) -> list[ev.Effect]:
        return self.step(ev.FetchReceived(**self._common(wait_ms, epoch, 0, ID), fetch_offset=Offset(offset)))

    def offset_for(self, timestamp: int) -> list[ev.Effect]:
        return self.step(ev.ListOffsetsReceived(**self._common(5_000, 5, 0, ID), timestamp=timestamp))

    def end_of(self, epoch: int) -> list[ev.Effect]:
        return self.step(ev.EpochEndReceived(**self._common(5_000, 5, 0, ID), epoch=LeaderEpoch(epoch)))

    def wait(self, ms: int, *, deleting_ms: int = 0) -> list[ev.Effect]:
        """Time passes, with a tick whenever one is due."""
        effects: list[ev.Effect] = []
        end = self.now + ms
        while self.now < end:
            self.now = max(self.now + 1, self.machine.next_due_ms(self.now, end))
            effects += self.step(ev.Tick(now_ms=self.now, deleting_ms=deleting_ms))
        return effects


def refusals(effects: list[ev.Effect]) -> list[tuple[int, type[RaylogError]]]:
    assert all(isinstance(effect, ev.RefuseRequest) for effect in effects), effects
    return [(effect.request, type(effect.error)) for effect in effects if isinstance(effect, ev.RefuseRequest)]


WAKE = ev.WakePartition(partition=AT)

# ---------------------------------------------------------------- answers from the metadata


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_fetch_at_the_end_is_answered_empty_at_its_deadline(stage: Stage) -> None:
    assert stage.fetch(40, wait_ms=20_000) == []
    assert stage.wait(19_999) == []
    assert stage.wait(1) == [ev.AnswerFetch(request=1, high_watermark=Offset(40), log_start_offset=Offset(10))]
    assert stage.machine.waiting == 0


def test_a_fetch_at_the_end_that_does_not_wait_is_answered_at_once(stage: Stage) -> None:
    assert stage.fetch(40, wait_ms=0) == [
        ev.AnswerFetch(request=1, high_watermark=Offset(40), log_start_offset=Offset(10))
    ]


@pytest.mark.parametrize("offset", [9, 41])
def test_a_fetch_outside_the_log_is_refused_with_the_bounds(offset: int) -> None:
    [refused] = Stage().fetch(offset)
    assert isinstance(refused, ev.RefuseRequest)
    assert isinstance(refused.error, OffsetOutOfRange)
    assert refused.error.details == {"start": 10, "end": 40}


@pytest.mark.parametrize(("timestamp", "offset"), [(EARLIEST, 10), (LATEST, 40)])
def test_the_first_offset_and_the_end_are_known_without_waking(timestamp: int, offset: int) -> None:
    [answer] = Stage().offset_for(timestamp)
    assert answer == ev.AnswerOffset(request=1, offset=Offset(offset), leader_epoch=LeaderEpoch(5))


def test_no_time_has_an_offset_in_a_log_without_records(stage: Stage) -> None:
    stage.put(asleep=NEVER_WRITTEN)
    assert stage.offset_for(DAY_MS) == [
        ev.AnswerOffset(request=1, offset=Offset(-1), leader_epoch=LeaderEpoch(5)),
    ]


@pytest.mark.parametrize("epoch", [4, 5])
def test_the_last_epoch_with_a_record_ends_at_the_end(epoch: int) -> None:
    assert Stage().end_of(epoch) == [
        ev.AnswerEpochEnd(request=1, epoch=LeaderEpoch(4), end_offset=Offset(40), log_start_offset=Offset(10))
    ]


def test_every_epoch_ends_at_the_end_of_a_log_without_records(stage: Stage) -> None:
    stage.put(asleep=NEVER_WRITTEN)
    assert stage.end_of(3) == [
        ev.AnswerEpochEnd(request=1, epoch=LeaderEpoch(3), end_offset=Offset(0), log_start_offset=Offset(0))
    ]


# ---------------------------------------------------------------- what wakes


def test_a_write_a_read_a_time_and_an_earlier_epoch_wake_the_partition() -> None:
    assert Stage().write() == [WAKE]
    assert Stage().fetch(39) == [WAKE]
    assert Stage().offset_for(DAY_MS) == [WAKE]
    assert Stage().end_of(3) == [WAKE]


def test_what_waits_for_the_wake_is_refused_once_a_replica_leads(stage: Stage) -> None:
    stage.write()
    stage.fetch(40, wait_ms=20_000)
    assert stage.wakes() == [], "no replica leads yet"
    assert stage.machine.waiting == 2
    assert refusals(stage.is_led()) == [(1, NotLeaderOrFollower), (2, NotLeaderOrFollower)]
    assert stage.machine.waiting == 0


def test_requests_that_come_while_it_wakes_wait_for_the_leader_too(stage: Stage) -> None:
    stage.write()
    stage.wakes()
    assert stage.write() == []
    assert refusals(stage.is_led(OTHER)) == [(1, NotLeaderOrFollower), (2, NotLeaderOrFollower)]


def test_one_wake_is_requested_for_many_requests_and_again_after_a_second(stage: Stage) -> None:
    assert stage.write() == [WAKE]
    assert stage.write() == stage.fetch(10, wait_ms=4_000) == []
    assert stage.wait(WAKE_AGAIN_MS - 1) == []
    assert stage.wait(1) == [WAKE]
    assert stage.wait(WAKE_AGAIN_MS) == [WAKE]


def test_a_wake_is_not_requested_again_once_nothing_waits_for_it(stage: Stage) -> None:
    stage.write()
    stage.step(ev.RequestDropped(request=1))
    assert stage.wait(3 * WAKE_AGAIN_MS) == []
    assert stage.write() == [WAKE], "the next request has it woken again"


def test_a_request_that_waits_too_long_for_the_wake_is_refused(stage: Stage) -> None:
    stage.write(wait_ms=30_000)
    assert set(stage.wait(WAKE_WAIT_MS - 1)) == {WAKE}
    assert refusals([effect for effect in stage.wait(1) if effect != WAKE]) == [(1, NotLeaderOrFollower)]


def test_a_request_with_an_earlier_deadline_is_refused_then(stage: Stage) -> None:
    stage.fetch(20, wait_ms=300)
    assert stage.wait(299) == []
    assert refusals(stage.wait(1)) == [(1, NotLeaderOrFollower)]


def test_a_wake_that_may_succeed_later_leaves_the_requests_waiting(stage: Stage) -> None:
    stage.write()
    assert stage.step(ev.WakeRefused(now_ms=stage.now, partition=AT, error=NotController())) == []
    assert stage.wait(WAKE_AGAIN_MS) == [WAKE]


def test_a_wake_that_cannot_succeed_refuses_all_that_wait(stage: Stage) -> None:
    stage.write()
    stage.fetch(40)
    effects = stage.step(ev.WakeRefused(now_ms=stage.now, partition=AT, error=InvalidRequest("no")))
    assert refusals(effects) == [(1, InvalidRequest), (2, InvalidRequest)]
    assert stage.wait(2 * WAKE_AGAIN_MS) == []


def test_a_wake_by_another_broker_is_waited_for_by_what_is_parked_here(stage: Stage) -> None:
    stage.fetch(40, wait_ms=20_000)
    assert stage.wakes() == []
    assert stage.write() == [], "it wakes already"
    assert refusals(stage.is_led()) == [(1, NotLeaderOrFollower), (2, NotLeaderOrFollower)]


def test_a_partition_that_sleeps_again_is_answered_for_as_it_is_now(stage: Stage) -> None:
    """Requests that were refused in between look for the leader; those that were not are taken again."""
    stage.fetch(40, wait_ms=20_000)
    stage.write()
    longer = replace(POINT, end_offset=Offset(41), last_epoch=LeaderEpoch(6))
    stage.put(asleep=None, leader=NO_LEADER)
    stage.put(leader=ME, asleep=longer)
    assert stage.changed(AT) == [], "a wake is under way, and both wait for it"
    stage = Stage()
    stage.fetch(40, wait_ms=20_000)
    stage.put(asleep=None, leader=NO_LEADER)
    stage.put(leader=ME, leader_epoch=LeaderEpoch(6), asleep=longer)
    assert refusals(stage.changed(AT)) == [(1, FencedLeaderEpoch)], "it knew the epoch before"


def test_a_fetch_that_waits_wakes_it_when_there_is_a_record_now(stage: Stage) -> None:
    stage.fetch(40, wait_ms=20_000, epoch=NO_EPOCH)
    longer = replace(POINT, end_offset=Offset(41), last_epoch=LeaderEpoch(6))
    stage.put(asleep=None, leader=NO_LEADER)
    stage.put(leader=ME, leader_epoch=LeaderEpoch(6), asleep=longer)
    assert stage.changed(AT) == [WAKE]


# ---------------------------------------------------------------- refusals


def test_a_topic_or_partition_that_does_not_exist_is_refused() -> None:
    assert refusals(Stage().write(topic_id="b" * 32)) == [(1, UnknownTopicId)]
    assert refusals(Stage().write(partition=2)) == [(1, UnknownTopicOrPartition)]


def test_what_waits_at_a_topic_that_is_deleted_is_refused(stage: Stage) -> None:
    stage.fetch(40, wait_ms=20_000)
    stage.apply(TopicDeleted(topic_id=ID, topic="flights"))
    assert refusals(stage.changed(AT)) == [(1, UnknownTopicId)]


def test_a_partition_that_is_awake_is_refused(stage: Stage) -> None:
    assert refusals(stage.write(partition=1)) == [(1, NotLeaderOrFollower)]


def test_a_partition_that_sleeps_under_another_broker_is_refused(stage: Stage) -> None:
    stage.fetch(40, wait_ms=20_000)
    stage.put(leader=OTHER, leader_epoch=LeaderEpoch(6))
    assert refusals(stage.changed(AT)) == [(1, NotLeaderOrFollower)]
    assert refusals(stage.fetch(40, epoch=6)) == [(2, NotLeaderOrFollower)]


def test_another_leader_epoch_than_the_present_one_is_refused() -> None:
    assert refusals(Stage().write(epoch=4)) == [(1, FencedLeaderEpoch)]
    assert refusals(Stage().write(epoch=6)) == [(1, UnknownLeaderEpoch)]
    assert Stage().write(epoch=NO_EPOCH) == [WAKE]


def test_a_broker_that_has_lost_the_controller_for_long_answers_nothing(stage: Stage) -> None:
    stage.fetch(40, wait_ms=30_000)
    stage.step(ev.LinkChanged(now_ms=stage.now, is_connected=False))
    assert stage.wait(STALE_MS - 1) == []
    assert stage.fetch(40, wait_ms=0) != []
    stage.now += 1
    assert refusals(stage.fetch(40)) == [(3, NotController)]
    assert refusals(stage.step(ev.Tick(now_ms=stage.now, deleting_ms=0))) == [(1, NotController)]
    stage.step(ev.LinkChanged(now_ms=stage.now, is_connected=True))
    assert stage.fetch(40) == []


def test_a_broker_that_has_never_reached_the_controller_answers_nothing(stage: Stage) -> None:
    stage.machine = SleepersMachine(
        lambda: stage.image, lambda: ME, stale_after_ms=lambda: STALE_MS, retention_check_ms=lambda: CHECK_MS
    )
    assert refusals(stage.write()) == [(1, NotController)]


def test_a_request_whose_connection_closed_is_forgotten(stage: Stage) -> None:
    stage.fetch(40)
    stage.step(ev.RequestDropped(request=1))
    stage.step(ev.RequestDropped(request=1))
    assert stage.machine.waiting == 0
    assert stage.wait(1_000) == []


# ---------------------------------------------------------------- retention


def both_asleep() -> Stage:
    stage = Stage()
    stage.put(1, leader=ME, leader_epoch=LeaderEpoch(1), asleep=POINT)
    return stage


def test_partitions_with_records_to_remove_are_woken_one_at_a_time() -> None:
    stage = both_asleep()
    due_ms = DAY_MS + 1_001
    assert stage.wait(1, deleting_ms=due_ms) == [], "the first check comes after the pause"
    assert stage.wait(CHECK_MS, deleting_ms=due_ms) == [WAKE]
    assert stage.wait(CHORE_PAUSE_MS - 1, deleting_ms=due_ms) == []
    assert stage.wait(1, deleting_ms=due_ms) == [ev.WakePartition(partition=TopicPartition("flights", 1))]


def test_records_that_are_young_enough_or_always_kept_wake_nothing() -> None:
    assert both_asleep().wait(3 * CHECK_MS, deleting_ms=DAY_MS + 1_000) == []
    stage = both_asleep()
    for config in ({"retention.ms": "-1"}, {"cleanup.policy": "compact"}):
        stage.apply(TopicConfigured(topic_id=ID, topic="flights", config=config))
        assert stage.wait(3 * CHECK_MS, deleting_ms=99 * DAY_MS) == []


def test_retention_leaves_alone_what_sleeps_empty_or_under_another_broker() -> None:
    stage = both_asleep()
    stage.put(0, asleep=NEVER_WRITTEN)
    stage.put(1, leader=OTHER, leader_epoch=LeaderEpoch(2))
    assert stage.wait(3 * CHECK_MS, deleting_ms=99 * DAY_MS) == []


def test_nothing_is_due_before_the_next_check_when_nothing_waits(stage: Stage) -> None:
    stage.wait(1)
    assert stage.machine.next_due_ms(stage.now, 10 * CHECK_MS) == stage.now + CHECK_MS
    stage.fetch(40, wait_ms=500)
    assert stage.machine.next_due_ms(stage.now, 10 * CHECK_MS) == stage.now + 500


def test_the_state_of_the_stage_is_legal() -> None:
    stage = both_asleep()
    states = list(stage.image.partitions())
    assert all(isinstance(state, PartitionState) and state.asleep == POINT for state in states)
