"""Cooperative members (KIP-429) against the real coordinator machine over real sockets.

The law: a member keeps reading what stays its own, the listener is called with the change alone, and what changes its
owner is committed before, so that no record is lost or read again. The toy coordinator checks that a partition has one
owner in each generation.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from raylog.base.errors import (
    AssignorFailed,
    CommitFailed,
    InconsistentGroupProtocol,
    InvalidConfig,
    InvalidGroupId,
    RaylogError,
    RebalanceInProgress,
)
from raylog.base.ids import TopicPartition
from raylog.client.assignor import PartitionAssignor, Subscription
from raylog.client.consumer.consumer import Consumer
from raylog.client.group.membership import Membership
from tests.unit.client.consumer_support import read
from tests.unit.client.group.test_groups import ALL, PARTITIONS, Group, options
from tests.unit.client.toy_server import ToyCluster
from tests.waiting import wait_for

COOPERATIVE = {"partition_assignment_strategy": "cooperative-sticky"}
BOTH = {"partition_assignment_strategy": "cooperative-sticky,range"}


@pytest.fixture
def group(cluster: ToyCluster) -> Iterator[Group]:
    made = Group(cluster, "classic")
    yield made
    for member in made.members:
        member._stop.set()
    for member in made.members:
        member._thread.join(20)


class Watched:
    """A cooperative consumer in the test's own thread, and the calls of its listener."""

    def __init__(self, group: Group, **more: Any) -> None:
        self.consumer = Consumer(**options(group, **COOPERATIVE, **more))
        self.calls: list[tuple[str, set[TopicPartition]]] = []

        def note(kind: str) -> Any:
            return lambda held: self.calls.append((kind, set(held)))

        self.consumer.subscribe(
            ["flights"], on_assigned=note("assigned"), on_revoked=note("revoked"), on_lost=note("lost")
        )

    def taken(self) -> list[tuple[str, set[TopicPartition]]]:
        """The calls since the last look, without those that brought nothing."""
        found, self.calls = [call for call in self.calls if call[1]], []
        return found


def everything(group: Group) -> list[int]:
    return [offset for member in group.members for seen in member.seen.values() for offset in seen]


def test_the_listener_is_called_with_the_change_alone(group: Group) -> None:
    group.produce()
    watched = Watched(group)
    with watched.consumer as consumer:
        read(consumer, PARTITIONS * 30)
        assert watched.taken() == [("assigned", ALL)]
        other = group.join("other", **COOPERATIVE)
        wait_for(lambda: consumer.poll(20) is not None and group.has_members(2), "no second member came")
        ((kind, lost),) = watched.taken()
        assert (kind, len(lost)) == ("revoked", PARTITIONS // 2)
        assert consumer.assignment() == ALL - lost
        wait_for(lambda: consumer.poll(20) is not None and other.assignments[-1] == lost, "the other got nothing")
        other.stop()
        wait_for(lambda: consumer.poll(20) is not None and consumer.assignment() == ALL, "nothing came back")
        assert watched.taken() == [("assigned", lost)]


def test_a_member_reads_and_commits_while_the_round_waits_for_another(group: Group) -> None:
    group.produce()
    watched = Watched(group, enable_auto_commit=False)
    with (
        watched.consumer as consumer,
        Consumer("flights", **options(group, client_id="slow", max_poll_interval_ms=60_000, **COOPERATIVE)) as slow,
    ):
        wait_for(
            lambda: (
                consumer.poll(10) is not None
                and slow.poll(10) is not None
                and len(consumer.assignment()) == len(slow.assignment()) == PARTITIONS // 2
            ),
            "two members did not share the partitions",
        )
        mine = consumer.assignment()
        watched.taken()
        third = group.join("third", **COOPERATIVE)
        wait_for(  # `slow` does not poll, so the round waits for it
            lambda: (
                consumer.poll(10) is not None
                and len(group.cluster.do(lambda: group.coordinator._machine.parked_requests())) == 2
            ),
            "the round did not begin",
        )
        group.produce()
        fresh = read(consumer, len(mine) * 30)
        assert {TopicPartition(record.topic, record.partition) for record in fresh} == mine
        consumer.commit()
        assert {number: group.committed()[number] for _, number in mine} == {
            number: group.produced for _, number in mine
        }
        assert group.cluster.do(lambda: len(group.coordinator._machine.parked_requests())) == 2
        assert watched.taken() == []
        wait_for(
            lambda: consumer.poll(10) is not None and slow.poll(10) is not None and group.has_members(3),
            "the third member did not come in",
        )
        assert [kind for kind, _ in watched.taken()] in ([], ["revoked"])
        third.stop()


def test_members_that_come_and_go_hand_their_positions_over(group: Group) -> None:
    group.produce()
    first = group.join("a", **COOPERATIVE)
    wait_for(group.everything_was_read, "records were left out")
    for name in ("b", "c"):
        group.join(name, **COOPERATIVE)
        group.produce(10)
        wait_for(lambda: group.has_members(len(group.members)), "a member did not come in")
        wait_for(group.everything_was_read, "records were left out")
    first.stop()
    wait_for(lambda: group.has_members(2), "the others did not take over")
    group.produce(10)
    wait_for(group.everything_was_read, "records were left out")
    for member in group.members[1:]:
        member.stop()
    assert len(everything(group)) == PARTITIONS * group.produced, "a record was read twice"
    assert group.committed() == dict.fromkeys(range(PARTITIONS), group.produced)


def test_what_a_member_kept_is_lost_when_the_group_forgets_it(group: Group) -> None:
    group.produce()
    watched = Watched(group, client_id="victim", session_timeout_ms=500)
    with watched.consumer as consumer:
        read(consumer, PARTITIONS * 30)
        watched.taken()
        group.cluster.do(lambda: group.coordinator.silenced.add("victim"))
        other = group.join("other", **COOPERATIVE)
        wait_for(lambda: consumer.poll(20) is not None and other.assignments[-1:] == [ALL], "it was not forgotten")
        group.cluster.do(group.coordinator.silenced.clear)
        group.cluster.do(group.coordinator.cut)
        wait_for(lambda: consumer.poll(20) is not None and group.has_members(2), "the victim did not come back")
        wait_for(lambda: consumer.poll(20) is not None and watched.calls[-1][1], "the victim got nothing")
        lost, came = watched.taken()
        assert lost == ("lost", ALL)
        assert came == ("assigned", consumer.assignment())


def test_a_topic_that_is_not_subscribed_to_any_more_is_given_back_first(group: Group) -> None:
    group.produce()
    group.cluster.create_topic("trips")
    watched = Watched(group)
    with watched.consumer as consumer:
        read(consumer, PARTITIONS * 30)
        watched.taken()
        consumer.subscribe(
            ["flights", "trips"],
            on_assigned=lambda held: watched.calls.append(("assigned", set(held))),
            on_revoked=lambda held: watched.calls.append(("revoked", set(held))),
        )
        trips = TopicPartition("trips", 0)
        wait_for(lambda: consumer.poll(20) is not None and trips in consumer.assignment(), "the topic did not come")
        assert watched.taken() == [("assigned", {trips})]
        consumer.subscribe(["trips"], on_revoked=lambda held: watched.calls.append(("revoked", set(held))))
        wait_for(lambda: consumer.poll(20) is not None and consumer.assignment() == {trips}, "the others stayed")
        assert watched.taken() == [("revoked", ALL)]


def test_a_group_becomes_cooperative_in_two_rolling_restarts(group: Group) -> None:
    group.produce()
    patient = {"session_timeout_ms": 20_000}  # a member that is taken for dead may not commit what it has read
    running = [group.join(f"{name}-eager", **patient) for name in "ab"]
    wait_for(lambda: group.has_members(2), "two members did not come together")
    for strategy in (BOTH, COOPERATIVE):
        for place, member in enumerate(running):
            member.stop()
            running[place] = group.join(f"{member.name}+", **strategy, **patient)
            wait_for(lambda: group.has_members(2), "the restarted member did not come in")
            group.produce(10)
            wait_for(group.everything_was_read, "records were left out")
    assert group.cluster.do(lambda: group.coordinator.generations[-1].protocol) == "cooperative-sticky"
    assert len(everything(group)) == PARTITIONS * group.produced, "a record was read twice"
    with (
        Consumer("flights", **options(group)) as eager,
        pytest.raises(InconsistentGroupProtocol, match="partition_assignment_strategy") as mixed,
    ):
        read(eager, 1)
    assert mixed.value.details == {
        "group": "board",
        "protocol_type": "consumer",
        "assignors": ["cooperative-sticky"],
    }


def test_a_commit_that_the_end_of_the_round_overtakes_may_be_repeated(group: Group) -> None:
    group.produce()
    with Consumer("flights", enable_auto_commit=False, **options(group, **COOPERATIVE)) as consumer:
        read(consumer, 30)
        member = consumer._engine.group
        assert member is not None
        membership = member.membership
        assert isinstance(membership, Membership)
        generation = membership.generation

        def overtaken() -> None:  # as between the end of a round and its answer
            membership.is_joining, membership.owned_generation = True, generation - 1

        consumer._do(overtaken)
        with pytest.raises(RebalanceInProgress, match=r"call poll\(\)") as refused:
            consumer.commit()
        assert refused.value.retriable
        assert membership.generation == generation, "its member was not forgotten"
        consumer._do(lambda: setattr(membership, "is_joining", False))
        with pytest.raises(CommitFailed, match="max_poll_interval_ms") as evicted:
            consumer.commit()
        assert evicted.value.details["group"] == "board"
        assert evicted.value.details["member_generation"] == generation - 1
        assert evicted.value.details["generation"] == generation


@pytest.mark.parametrize("kind", ["move", "cut", "silence"])
def test_cooperative_members_survive_their_coordinators_troubles(group: Group, kind: str) -> None:
    members = [group.join(name, **COOPERATIVE) for name in ("a", "b", "c")]
    wait_for(lambda: group.has_members(3), "three members did not come together")
    for turn in range(3):
        group.produce(10)
        if kind == "move":
            group.cluster.runtime.run(group.coordinator.move(), 10)
        elif kind == "cut":
            group.cluster.do(group.coordinator.cut)
            members[turn].stop(crash=True)
            members[turn] = group.join(f"again-{turn}", **COOPERATIVE)
        else:
            ignored = len(group.coordinator.muted)
            group.cluster.do(lambda: group.coordinator.silenced.add("b"))
            wait_for(lambda ignored=ignored: len(group.coordinator.muted) > ignored, "a heartbeat has no answer")  # type: ignore[misc]
            group.cluster.do(group.coordinator.silenced.clear)
            group.cluster.do(group.coordinator.cut)
        wait_for(lambda: group.has_members(3), "three members did not come together again")
        wait_for(group.everything_was_read, "records were left out")
    for member in members:
        member.stop()
    assert not [error for member in group.members for error in member.errors if isinstance(error, RaylogError)]


class Thrower(PartitionAssignor):
    """An assignor with a defect."""

    name = "thrower"

    def assign(self, subscriptions: object, partition_counts: object) -> dict[str, list[TopicPartition]]:
        raise KeyError("no such member")


def test_an_assignor_that_raises_fails_each_poll_of_the_leader(group: Group) -> None:
    with Consumer("flights", **options(group, partition_assignment_strategy=[Thrower])) as consumer:
        for _ in range(2):
            with pytest.raises(AssignorFailed, match=r"The assignor 'thrower' raised \(KeyError") as failed:
                read(consumer, 1)
            assert isinstance(failed.value.__cause__, KeyError)


def test_an_assignor_of_ones_own_shares_the_partitions_out(group: Group) -> None:
    group.produce()
    first = group.join("a", partition_assignment_strategy=[Odds])
    second = group.join("b", partition_assignment_strategy=[Odds])
    wait_for(lambda: group.has_members(2), "two members did not come together")
    wait_for(group.everything_was_read, "records were left out")
    shares = {frozenset(number for _, number in each.assignments[-1]) for each in (first, second)}
    assert shares == {frozenset({0, 2, 4}), frozenset({1, 3, 5})}


class Odds(PartitionAssignor):
    """Even partitions to the first member, odd ones to the others; members report their assignment."""

    name = "odds"

    def assign(
        self, subscriptions: Mapping[str, Subscription], partition_counts: Mapping[str, int]
    ) -> dict[str, list[TopicPartition]]:
        first, *others = sorted(subscriptions)
        second = others[0] if others else first
        everything = [TopicPartition(topic, number) for topic in partition_counts for number in range(PARTITIONS)]
        given: dict[str, list[TopicPartition]] = {first: [], second: []}
        for each in everything:
            given[second if each.partition % 2 else first].append(each)
        return given


@pytest.mark.parametrize("name", ["cooperative-stiky", "broadcast"])
def test_an_unknown_assignor_is_refused_when_the_consumer_is_made(cluster: ToyCluster, name: str) -> None:
    with pytest.raises(InvalidConfig, match="assignor of your own is given as its class"):
        Consumer("flights", group_id="board", partition_assignment_strategy=name, **cluster.options)


def test_a_commit_without_a_group_names_the_key(cluster: ToyCluster) -> None:
    cluster.create_topic("trips")
    with Consumer(**cluster.options) as consumer:
        consumer.assign([TopicPartition("trips", 0)])
        with pytest.raises(InvalidGroupId, match="group_id"):
            consumer.commit({TopicPartition("trips", 0): 1})
