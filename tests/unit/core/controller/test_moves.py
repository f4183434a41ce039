"""Partitions that move to other brokers: the states between, completion, cancelling, refusals, removed replicas."""

import pytest

from raylog.base.errors import (
    InvalidConfig,
    InvalidReplicaAssignment,
    InvalidRequest,
    NoReassignmentInProgress,
    RaylogError,
    StaleBrokerEpoch,
    UnknownTopicOrPartition,
)
from raylog.base.ids import NO_INCARNATION, NO_LEADER, BrokerId, TopicPartition
from raylog.core.controller.events import CloseSession, SendPartitionState
from raylog.core.metadata.image import MetadataImage
from tests.unit.core.controller.bench import DEFAULTS, GRACE_MS, T0, Bench, running_topic


def with_brokers(*extra: int, config: dict[str, object] | None = None) -> Bench:
    """Return a bench with the partition on 1, 2, 3 (1 leads) and further brokers."""
    bench = running_topic(config=config)
    for broker in extra:
        bench.broker(broker)
    return bench


def joins(bench: Bench, broker: int) -> None:
    """An added replica starts and catches up: the leader adds it to the ISR."""
    bench.replica(broker)
    state = bench.state()
    bench.isr(state.leader, [*state.isr, broker])


def shape(bench: Bench) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    state = bench.state()
    return state.replicas, state.adding, state.removing, state.isr


# ---------------------------------------------------------------- course of a move


@pytest.fixture
def bench() -> Bench:
    return with_brokers(4)


def test_a_move_first_adds_and_keeps_all_it_has(bench: Bench) -> None:
    bench.reassign([2, 3, 4])
    assert shape(bench) == ((2, 3, 4, 1), (4,), (1,), (2, 3, 1))
    place = bench.state().place(BrokerId(4))
    assert place is not None
    assert place.incarnation == NO_INCARNATION
    assert bench.moving() == [["flights", 0, [2, 3, 4, 1], [4], [1], [2, 3, 1], 1]]


def test_it_is_complete_when_the_isr_holds_the_whole_target() -> None:
    bench = with_brokers(4, 5)
    bench.reassign([3, 4, 5])
    joins(bench, 4)
    assert shape(bench) == ((3, 4, 5, 1, 2), (4, 5), (1, 2), (3, 4, 1, 2)), "one of two is not enough"
    joins(bench, 5)
    assert shape(bench) == ((3, 4, 5), (), (), (3, 4, 5))
    assert bench.summary() == (3, 2, (3, 4, 5)), "a replica of the target leads, in a new epoch"
    assert bench.moving() == []


def test_a_leader_that_stays_begins_a_new_epoch_when_others_are_removed(bench: Bench) -> None:
    bench.reassign([1, 2, 4])
    joins(bench, 4)
    assert bench.summary() == (1, 2, (1, 2, 4)), "what it knew of broker 3 ends with the epoch"


def test_more_replicas_need_no_new_epoch(bench: Bench) -> None:
    bench.reassign([1, 2, 3, 4])
    joins(bench, 4)
    assert bench.summary() == (1, 1, (1, 2, 3, 4))


def test_fewer_replicas_and_another_order_are_complete_at_once() -> None:
    bench = with_brokers()
    bench.reassign([3, 1, 2])
    assert shape(bench) == ((3, 1, 2), (), (), (3, 1, 2))
    assert bench.summary()[:2] == (1, 1)
    bench.reassign([1])
    assert shape(bench) == ((1,), (), (), (1,))


def test_requesting_the_present_state_writes_nothing(bench: Bench) -> None:
    before = len(bench.log)
    bench.reassign([1, 2, 3])
    assert len(bench.log) == before
    bench.reassign([1, 2, 4])
    before = len(bench.log)
    bench.reassign([1, 2, 4])
    assert len(bench.log) == before


def test_completion_waits_for_a_target_replica_that_can_lead(bench: Bench) -> None:
    bench.reassign([4])
    bench.replica(4)
    state = bench.state()
    bench.isr(1, [1, 2, 3])  # no effect: 4 has not caught up
    assert bench.state() == state
    bench.isr(1, [1, 2, 3, 4])
    assert shape(bench) == ((4,), (), (), (4,))


def test_a_member_of_the_target_without_its_log_does_not_count(bench: Bench) -> None:
    bench.lose_replica(1)
    bench.lose_replica(2)
    assert bench.summary()[2] == (3,)
    bench.replica(3, log_lost=True)
    bench.reassign([3])
    assert shape(bench) == ((3, 1, 2), (), (1, 2), (3,)), "the only copy of the records is not given away"


def test_a_partition_without_a_leader_moves_after_its_election(bench: Bench) -> None:
    for broker in (1, 2, 3):
        bench.lose_replica(broker)
    assert bench.summary()[0] == NO_LEADER
    last = bench.summary()[2][0]
    bench.reassign([last])
    assert bench.state().removing
    bench.replica(last)
    assert shape(bench) == ((last,), (), (), (last,))


# ---------------------------------------------------------------- removed replicas


def test_a_removed_replica_is_notified_and_its_session_closed(bench: Bench) -> None:
    bench.reassign([2, 3, 4])
    session, life = bench.sessions[T0, 1], bench.lives[T0, 1]
    joins(bench, 4)
    sent = [found for found in bench.effects if isinstance(found, SendPartitionState) and found.session == session]
    assert [(found.incarnation, found.state) for found in sent] == [(life, bench.state())]
    assert any(isinstance(found, CloseSession) and found.session == session for found in bench.effects)
    with pytest.raises(UnknownTopicOrPartition, match="holds no replica"):
        bench.back(1)


def test_the_leader_receives_the_new_epoch_of_its_own_proposal(bench: Bench) -> None:
    bench.reassign([1, 2, 4])
    leader = bench.sessions[T0, 1]
    joins(bench, 4)
    assert bench.sent_states()[leader].leader_epoch == 2


def test_the_metadata_remembers_what_was_removed_until_it_is_added_again(bench: Bench) -> None:
    bench.reassign([1, 2, 4])
    joins(bench, 4)
    assert bench.image.removed_replicas == {(T0, 3): 1}
    assert MetadataImage.restore(1, bench.image.to_records()).removed_replicas == {(T0, 3): 1}
    bench.reassign([1, 2, 3])
    assert bench.image.removed_replicas == {}


def test_a_replica_removed_and_added_again_is_another_life(bench: Bench) -> None:
    bench.reassign([1, 2, 4])
    joins(bench, 4)
    old_life = bench.lives[T0, 3]
    bench.reassign([1, 2, 3])
    with pytest.raises(StaleBrokerEpoch):
        bench.replica(3, incarnation=old_life)
    with pytest.raises(RaylogError):
        bench.isr(1, [1, 2, 3, 4], incarnations={3: old_life})
    joins(bench, 3)
    assert shape(bench) == ((1, 2, 3), (), (), (1, 2, 3))


def test_the_log_of_a_removed_replica_is_forgotten(bench: Bench) -> None:
    bench.replica(3, log_id="old")
    bench.isr(1, [1, 2, 3])
    bench.reassign([1, 2, 4])
    joins(bench, 4)
    bench.reassign([1, 2, 4, 3])
    bench.replica(3, log_id="new", log_lost=True)
    assert not bench.image.lost_logs


# ---------------------------------------------------------------- another target, cancelling


def test_a_second_target_replaces_the_first() -> None:
    bench = with_brokers(4, 5)
    bench.reassign([1, 2, 4])
    bench.replica(4)
    bench.reassign([1, 2, 5])
    assert shape(bench) == ((1, 2, 5, 3), (5,), (3,), (1, 2, 3))
    assert (T0, 4) in bench.image.removed_replicas
    joins(bench, 5)
    assert shape(bench) == ((1, 2, 5), (), (), (1, 2, 5))


def test_cancelling_restores_the_old_set() -> None:
    bench = with_brokers(4, 5)
    bench.reassign([4, 5, 1])
    joins(bench, 4)
    bench.reassign(None)
    assert set(bench.state().replicas) == {1, 2, 3}
    assert shape(bench)[1:3] == ((), ())
    assert bench.summary()[:2] == (1, 2)
    with pytest.raises(NoReassignmentInProgress):
        bench.reassign(None)


def test_cancelling_moves_the_leadership_back() -> None:
    bench = with_brokers(4, 5)
    bench.reassign([4, 5])
    joins(bench, 4)
    bench.lose_replica(1)
    bench.lose_replica(2)
    bench.lose_replica(3)
    assert bench.summary()[0] == 4
    with pytest.raises(InvalidReplicaAssignment, match="cannot be cancelled"):
        bench.reassign(None)
    bench.replica(2)
    bench.isr(4, [4, 2])
    bench.reassign(None)
    assert bench.summary()[0] == 2
    assert set(bench.state().replicas) == {1, 2, 3}


def test_a_move_outlives_the_controller(bench: Bench) -> None:
    bench.reassign([2, 3, 4])
    for broker in (1, 2, 3, 4):
        bench.lives.setdefault(("broker", broker), -1)
    lives = dict(bench.lives)
    bench.start()
    for broker in (1, 2, 3, 4):
        bench.broker(broker, incarnation=lives["broker", broker])
    for broker in (1, 2, 3):
        bench.replica(broker, incarnation=lives[T0, broker])
    assert bench.moving() == [["flights", 0, [2, 3, 4, 1], [4], [1], [2, 3, 1], 1]]
    bench.wait(GRACE_MS + 1_000)
    joins(bench, 4)
    assert shape(bench) == ((2, 3, 4), (), (), (2, 3, 4))


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("target", "error", "words"),
    [
        ([], InvalidReplicaAssignment, "at least one broker"),
        ([1, 1], InvalidReplicaAssignment, "twice on broker 1"),
        ([1, 2, 9], InvalidReplicaAssignment, "broker 9, which never registered; known are 1, 2, 3"),
        ([1, 2, 3, 4], InvalidReplicaAssignment, "never registered"),
        ([-1], InvalidReplicaAssignment, "never registered"),
        ([1], InvalidReplicaAssignment, "min.insync.replicas=2"),
        (None, NoReassignmentInProgress, "nothing to cancel"),
    ],
)
def test_an_illegal_target_changes_nothing(target: list[int] | None, error: type[Exception], words: str) -> None:
    bench = running_topic(config={"min.insync.replicas": 2})
    before = bench.state()
    with pytest.raises(error, match=words):
        bench.reassign(target)
    assert bench.state() == before


def test_one_bad_part_refuses_the_whole_request(bench: Bench) -> None:
    brokers = (BrokerId(1), BrokerId(2), BrokerId(4))
    for bad in (("flights", 0, brokers), ("flights", 1, brokers), ("flihgts", 0, brokers)):
        with pytest.raises((InvalidRequest, UnknownTopicOrPartition)) as refusal:
            bench.reassign_all([("flights", 0, brokers), bad])
        assert str(refusal.value)
        assert not bench.state().adding
    with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 0, and no partition 1"):
        bench.reassign([1], TopicPartition("flights", 1))
    with pytest.raises(UnknownTopicOrPartition, match="did you mean 'flights'"):
        bench.reassign([1], TopicPartition("flihgts", 0))


def test_the_last_copy_in_sync_stays_in_the_set() -> None:
    bench = with_brokers(4, 5)
    bench.lose_replica(2)
    bench.lose_replica(3)
    bench.reassign([4, 5])
    joins(bench, 4)
    bench.lose_replica(1)
    assert bench.summary()[2] == (4,)
    with pytest.raises(InvalidReplicaAssignment, match="in sync on 4 alone"):
        bench.reassign([1, 2, 5])


def test_an_offline_broker_may_be_a_target_and_the_move_waits_for_it(bench: Bench) -> None:
    bench.lose(("broker", 4))
    bench.reassign([1, 2, 4])
    assert bench.state().adding == (4,)
    bench.broker(4)
    joins(bench, 4)
    assert shape(bench) == ((1, 2, 4), (), (), (1, 2, 4))


# ---------------------------------------------------------------- throttle, settings, description


def test_the_throttle_is_a_setting_of_the_cluster(bench: Bench) -> None:
    bench.reassign([1, 2, 4], throttle=1_000_000)
    assert bench.image.config == {**DEFAULTS, "follower.replication.throttled.rate": "1000000"}
    bench.reassign_all([], throttle=2_000_000)
    assert bench.image.config == {**DEFAULTS, "follower.replication.throttled.rate": "2000000"}
    with pytest.raises(InvalidConfig, match="at least 1"):
        bench.reassign_all([], throttle=0)


def test_the_settings_count_on_the_smaller_set_until_the_end() -> None:
    bench = with_brokers(4, 5, 6)
    bench.reassign([4, 5, 6])
    assert len(bench.state().replicas) == 6
    assert bench.state().replication_factor == 3
    bench.reassign([1, 2, 3, 4, 5])
    assert bench.state().replication_factor == 3


def test_the_description_names_what_moves(bench: Bench) -> None:
    bench.reassign([1, 2, 4])
    assert bench.described()["reassigning_partitions"] == ["flights-0"]
