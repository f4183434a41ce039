"""Partitions fall asleep at their leader's proposal, and wake at a request."""

import pytest

from raylog.base.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    NotController,
    NotLeaderOrFollower,
    StaleBrokerEpoch,
    UnknownTopicOrPartition,
)
from raylog.base.ids import (
    NO_LEADER,
)
from raylog.core.controller.liveness import WOKEN_LEADER_WAIT_MS
from tests.unit.core.controller.bench import GRACE_MS, T0, running_topic
from tests.unit.core.controller.sleep_bench import (
    POINT,
    born_asleep,
    end_processes,
    propose,
    sleeping_topic,
    wake,
)

# ---------------------------------------------------------------- falling asleep


def test_a_partition_falls_asleep_and_keeps_leader_epoch_and_isr() -> None:
    bench = running_topic()
    before = bench.state()
    propose(bench)
    state = bench.state()
    assert state.asleep == POINT
    assert bench.summary() == (1, 1, (1, 2, 3))
    assert state.partition_epoch == before.partition_epoch + 1
    assert all(not place.port for place in state.places)
    assert {place.broker: place.incarnation for place in state.places} == {
        place.broker: place.incarnation for place in before.places
    }


def test_the_followers_get_the_state_and_the_leader_gets_it_as_its_answer() -> None:
    bench = running_topic()
    [wire] = propose(bench)
    assert wire == bench.state().to_wire()
    assert set(bench.sent_states()) == {bench.sessions[T0, 2], bench.sessions[T0, 3]}


def test_the_processes_that_end_afterwards_change_nothing() -> None:
    bench = running_topic()
    propose(bench)
    before = bench.state()
    end_processes(bench)
    bench.wait(2 * GRACE_MS)
    assert bench.state() == before


def test_a_session_that_stays_for_a_moment_is_legal() -> None:
    bench = running_topic()
    propose(bench)
    bench.wait(1_000)
    assert bench.state().asleep == POINT


def test_the_description_counts_those_that_sleep() -> None:
    bench = running_topic()
    assert bench.described()["asleep_partitions"] == 0
    propose(bench)
    assert bench.described()["asleep_partitions"] == 1
    assert bench.described()["leaderless_partitions"] == []


# ---------------------------------------------------------------- refused


def test_a_partition_with_a_replica_out_of_sync_does_not_sleep() -> None:
    bench = running_topic()
    bench.isr(1, [1, 2])
    with pytest.raises(IneligibleReplica, match=r"its ISR is \[1, 2\]"):
        propose(bench)


def test_a_partition_with_a_replica_that_does_not_run_does_not_sleep() -> None:
    bench = running_topic()
    bench.start()
    for broker in (1, 2, 3):
        bench.broker(broker)
    bench.back(1)
    bench.back(2)
    with pytest.raises(IneligibleReplica, match="not all its replicas run"):
        propose(bench)


def test_a_partition_that_moves_does_not_sleep() -> None:
    bench = running_topic()
    bench.broker(4)
    bench.reassign([1, 2, 4])
    with pytest.raises(IneligibleReplica, match="being reassigned"):
        propose(bench)


def test_a_stale_proposal_is_refused_by_what_it_does_not_know() -> None:
    bench = running_topic()
    bench.lose_replica(1)
    bench.replica(1)
    assert bench.summary()[:2] == (2, 2)
    with pytest.raises(StaleBrokerEpoch):
        propose(bench, 2, incarnation=1)
    with pytest.raises(FencedLeaderEpoch):
        propose(bench, 2, leader_epoch=1)
    with pytest.raises(NotController):
        propose(bench, 2, leader_epoch=3)
    with pytest.raises(InvalidUpdateVersion):
        propose(bench, 2, partition_epoch=bench.state().partition_epoch - 1)
    with pytest.raises(InvalidRequest, match="does not lead"):
        propose(bench, 3)


def test_a_proposal_is_committed_once() -> None:
    bench = running_topic()
    epoch = bench.state().partition_epoch
    propose(bench)
    with pytest.raises(InvalidUpdateVersion):
        propose(bench, partition_epoch=epoch)


def test_a_replica_is_not_registered_while_its_partition_sleeps() -> None:
    bench = sleeping_topic()
    with pytest.raises(NotLeaderOrFollower, match="sleeps"):
        bench.replica(2)
    with pytest.raises(NotLeaderOrFollower, match="sleeps"):
        bench.back(1)


# ---------------------------------------------------------------- waking


def test_a_partition_wakes_without_a_leader_until_the_one_it_had_runs() -> None:
    bench = sleeping_topic()
    epoch = bench.state().partition_epoch
    assert wake(bench) == [1]
    assert bench.state().asleep is None
    assert bench.summary() == (NO_LEADER, 1, (1, 2, 3))
    assert bench.state().partition_epoch == epoch + 1
    bench.replica(2)
    bench.replica(3)
    assert bench.summary() == (NO_LEADER, 1, (1, 2, 3))
    bench.replica(1)
    assert bench.summary() == (1, 2, (1, 2, 3))


def test_a_second_wake_finds_it_awake() -> None:
    bench = sleeping_topic()
    assert wake(bench) == [1]
    state = bench.state()
    assert wake(bench) == [0]
    assert bench.state() == state


def test_the_named_partitions_wake_and_no_others() -> None:
    bench = born_asleep()
    assert wake(bench, partitions=[1]) == [1]
    assert [state.asleep is None for state in bench.image.partitions()] == [False, True]
    assert wake(bench) == [1]


def test_a_topic_or_partition_that_does_not_exist_cannot_be_woken() -> None:
    bench = born_asleep()
    with pytest.raises(UnknownTopicOrPartition, match="flights"):
        wake(bench, "flight")
    for number in (2, -1):
        with pytest.raises(UnknownTopicOrPartition, match="partitions 0 to 1"):
            wake(bench, partitions=[0, number])
    assert bench.described()["asleep_partitions"] == 2, "none was woken"


def test_a_replica_that_has_not_ended_registers_again_when_it_wakes() -> None:
    bench = running_topic()
    propose(bench)
    sessions = {bench.sessions[T0, broker] for broker in (1, 2, 3)}
    wake(bench)
    assert sessions <= bench.closed
    for broker in (2, 3, 1):
        bench.back(broker)
    assert bench.summary() == (1, 2, (1, 2, 3))


def test_the_leader_it_had_is_given_up_after_a_while() -> None:
    bench = sleeping_topic()
    wake(bench)
    bench.replica(2)
    bench.replica(3)
    bench.wait(WOKEN_LEADER_WAIT_MS - 500)
    assert bench.summary()[0] == NO_LEADER
    bench.wait(500)
    assert bench.summary() == (2, 2, (2, 3))


def test_followers_that_do_not_start_leave_the_isr_once_enough_did() -> None:
    bench = sleeping_topic()
    wake(bench)
    bench.replica(1)
    assert bench.summary() == (1, 2, (1, 2, 3)), "a majority is waited for"
    bench.replica(3)
    assert bench.summary() == (1, 2, (1, 3))


def test_it_wakes_under_another_broker_where_its_own_is_offline() -> None:
    bench = sleeping_topic()
    bench.lose(("broker", 1))
    assert bench.summary()[0] == 2
    wake(bench)
    bench.replica(3)
    assert bench.summary()[0] == NO_LEADER
    bench.replica(2)
    assert bench.summary() == (2, 3, (2, 3))


def test_a_leader_whose_broker_goes_offline_is_not_waited_for() -> None:
    bench = sleeping_topic()
    wake(bench)
    bench.replica(2)
    bench.replica(3)
    bench.lose(("broker", 1))
    assert bench.summary() == (2, 2, (2, 3))


def test_a_controller_that_starts_during_the_wake_elects_what_runs() -> None:
    bench = sleeping_topic()
    wake(bench)
    bench.start()
    for broker in (1, 2, 3):
        bench.broker(broker)
    bench.replica(3)
    assert bench.summary()[:2] == (3, 2)
    bench.replica(2)
    bench.replica(1)
    assert bench.summary()[:2] == (3, 2), "what comes later follows"
