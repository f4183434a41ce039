"""The controller's checks of a leader's ISR proposal (Kafka's AlterPartition)."""

import pytest

from raylog.base.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    NotController,
    RaylogError,
    StaleBrokerEpoch,
    UnknownTopicId,
)
from raylog.base.ids import NO_LEADER
from raylog.core.partition import PartitionState
from raylog.protocol.admin import DeleteTopicRequest
from raylog.protocol.controller import AlterPartitionRequest
from tests.unit.core.controller.bench import T0, Bench, running_topic


def refused(bench: Bench, error: type[RaylogError], leader: int, members: list[int], **given: object) -> None:
    """Propose, and check that the proposal is refused without any change."""
    before = bench.state()
    with pytest.raises(error):
        bench.isr(leader, members, **given)  # type: ignore[arg-type]
    assert bench.state() == before


@pytest.fixture
def bench() -> Bench:
    return running_topic()


def test_an_accepted_change_raises_the_partition_epoch_only(bench: Bench) -> None:
    epoch = bench.state().partition_epoch
    [wire] = bench.isr(1, [1, 3])
    assert isinstance(wire, list)
    assert PartitionState.from_wire(wire) == bench.state()
    assert bench.summary() == (1, 1, (1, 3))
    assert bench.state().partition_epoch == epoch + 1


def test_followers_receive_the_change_and_the_leader_its_answer(bench: Bench) -> None:
    bench.isr(1, [1, 3])
    assert set(bench.sent_states()) == {bench.sessions[T0, 2], bench.sessions[T0, 3]}


def test_the_isr_is_kept_in_the_order_of_the_replicas(bench: Bench) -> None:
    bench.isr(1, [1])
    bench.isr(1, [3, 2, 1])
    assert bench.state().isr == (1, 2, 3)


def test_the_same_isr_again_is_granted_without_a_change(bench: Bench) -> None:
    before = len(bench.log)
    bench.isr(1, [1, 2, 3])
    assert len(bench.log) == before


def test_an_older_leader_epoch_is_fenced() -> None:
    refused(running_topic(), FencedLeaderEpoch, 1, [1, 2], leader_epoch=0)


def test_a_newer_leader_epoch_means_that_the_caller_is_ahead() -> None:
    refused(running_topic(), NotController, 1, [1, 2], leader_epoch=2)


def test_an_older_partition_epoch_loses_the_race(bench: Bench) -> None:
    refused(bench, InvalidUpdateVersion, 1, [1, 2], partition_epoch=bench.state().partition_epoch - 1)


def test_a_newer_partition_epoch_means_that_the_caller_is_ahead(bench: Bench) -> None:
    refused(bench, NotController, 1, [1, 2], partition_epoch=bench.state().partition_epoch + 1)


def test_a_follower_may_not_propose() -> None:
    refused(running_topic(), InvalidRequest, 2, [1, 2])


def test_the_leader_may_not_leave_the_isr() -> None:
    refused(running_topic(), InvalidRequest, 1, [2, 3])


def test_an_empty_isr_is_refused() -> None:
    refused(running_topic(), InvalidRequest, 1, [])


def test_a_member_may_not_be_named_twice() -> None:
    refused(running_topic(), InvalidRequest, 1, [1, 2, 2])


def test_a_broker_without_a_replica_may_not_join() -> None:
    refused(running_topic(), InvalidRequest, 1, [1, 9], incarnations={9: 1})


def test_a_member_that_is_down_may_not_join(bench: Bench) -> None:
    bench.lose_replica(3)
    refused(bench, IneligibleReplica, 1, [1, 2, 3])


def test_a_member_joins_only_as_the_life_that_earned_it(bench: Bench) -> None:
    earlier = bench.lives[T0, 3]
    bench.replica(3)
    refused(bench, IneligibleReplica, 1, [1, 2, 3], incarnations={3: earlier})


def test_an_earlier_life_of_the_leader_may_not_propose(bench: Bench) -> None:
    refused(bench, StaleBrokerEpoch, 1, [1, 2], incarnation=bench.lives[T0, 1] - 1)


def test_a_leader_not_registered_with_this_controller_may_not_propose() -> None:
    bench = running_topic().start()
    bench.sessions.clear()
    refused(bench, StaleBrokerEpoch, 1, [1, 2])


def test_members_that_are_awaited_may_stay_and_not_join(bench: Bench) -> None:
    bench.isr(1, [1, 2])
    bench.start()
    bench.back(1)
    refused(bench, IneligibleReplica, 1, [1, 2, 3])
    bench.isr(1, [1, 2])
    bench.isr(1, [1])
    assert bench.summary() == (1, 1, (1,))


def test_a_leader_that_was_fenced_learns_that_its_view_is_old(bench: Bench) -> None:
    bench.isr(1, [1])
    known = bench.state()
    bench.lose_replica(1)
    bench.back(1)
    refused(bench, FencedLeaderEpoch, 1, [1], leader_epoch=known.leader_epoch, partition_epoch=known.partition_epoch)
    assert bench.state().leader != NO_LEADER


def test_a_proposal_for_a_deleted_topic_is_refused(bench: Bench) -> None:
    session, topic_id = bench.sessions[T0, 1], bench.topic_id()
    bench.call(DeleteTopicRequest(topic="flights"))
    with pytest.raises(UnknownTopicId):
        bench.call(
            AlterPartitionRequest(
                topic_id=topic_id,
                topic="flights",
                partition=0,
                broker=1,
                incarnation=1,
                leader_epoch=1,
                partition_epoch=1,
                isr=(),
            ),
            session,
        )
