"""Consumers in a group, against the real coordinator machine over real sockets.

The law under all of it: every record is read at least once, in a generation a partition has one owner (the toy
coordinator checks each generation it writes), and what was committed stays committed.
"""

import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from raylog.base.errors import (
    CommitFailed,
    FencedInstanceId,
    InconsistentGroupProtocol,
    InvalidRequest,
    UnknownTopicOrPartition,
)
from raylog.base.ids import TopicPartition
from raylog.client.consumer.consumer import Consumer
from raylog.client.group.membership import Membership
from tests.unit.client.consumer_support import Member, fill, numbers, offsets, read, with_coordinator
from tests.unit.client.toy_coordinator import ToyCoordinator
from tests.unit.client.toy_server import ToyCluster
from tests.waiting import wait_for

HERE = TopicPartition("flights", 0)
PARTITIONS = 6
ALL = {TopicPartition("flights", number) for number in range(PARTITIONS)}


class Group:
    """A toy cluster with a coordinator, a topic of six partitions, and members that are ended with the test."""

    def __init__(self, cluster: ToyCluster, protocol: str) -> None:
        self.cluster = cluster
        self.protocol = protocol
        self.coordinator: ToyCoordinator = with_coordinator(cluster)
        cluster.create_topic("flights", partitions=PARTITIONS)
        self.members: list[Member] = []
        self.produced = 0

    def join(self, name: str, **options: Any) -> Member:
        given = {} if "partition_assignment_strategy" in options else {"group_protocol": self.protocol}
        member = Member(self.cluster, name, "flights", **given | options)
        self.members.append(member)
        return member

    def produce(self, each: int = 30) -> None:
        """Append `each` records to every partition."""
        for number in range(PARTITIONS):
            fill(self.cluster, "flights", number, numbers(self.produced, self.produced + each))
        self.produced += each

    @property
    def beat(self) -> str:
        """The name of its members' heartbeats."""
        return "heartbeat" if self.protocol == "classic" else "consumer_group_heartbeat"

    def has_beaten_since(self, seen: int) -> bool:
        """Whether a heartbeat came after so many requests."""
        return self.beat in self.cluster.do(lambda: self.coordinator.requests_seen[seen:])

    def generation(self) -> int:
        """Its generation or epoch."""
        return self.cluster.do(lambda: self.coordinator.generation("board"))

    def has_members(self, count: int) -> bool:
        return self.cluster.do(
            lambda: self.coordinator.members("board") == count and self.coordinator.owners("board").keys() == ALL
        )

    def everything_was_read(self) -> bool:
        seen = {
            partition: {offset for member in self.members for offset in list(member.seen.get(partition, ()))}
            for partition in ALL
        }
        return all(seen[partition] >= set(range(self.produced)) for partition in ALL)

    def committed(self) -> dict[int, int | None]:
        return self.cluster.do(
            lambda: {number: self.coordinator.offset("board", "flights", number) for number in range(PARTITIONS)}
        )


@pytest.fixture(params=["classic", "consumer"])
def group(cluster: ToyCluster, request: pytest.FixtureRequest) -> Iterator[Group]:
    """A group of each protocol."""
    made = Group(cluster, request.param)
    yield made
    for member in made.members:
        member._stop.set()
    for member in made.members:
        member._thread.join(20)


in_classic_groups = pytest.mark.parametrize("group", ["classic"], indirect=True)
"""For stories about rounds, which groups of the consumer protocol do not have."""


def options(group: Group, **more: Any) -> dict[str, Any]:
    return {
        "group_id": "board",
        "auto_offset_reset": "earliest",
        "heartbeat_interval_ms": 50,
        "group_protocol": group.protocol,
        **group.cluster.options,
    } | more


def test_members_share_the_partitions_and_read_everything(group: Group) -> None:
    group.produce()
    for name in ("a", "b", "c"):
        group.join(name)
    wait_for(lambda: group.has_members(3), "three members did not come together")
    group.produce()
    wait_for(group.everything_was_read, "records were left out")
    owners = group.cluster.do(lambda: group.coordinator.owners("board"))
    assert sorted(list(owners.values()).count(owner) for owner in set(owners.values())) == [2, 2, 2]
    for member in group.members:
        member.stop()
    assert group.committed() == dict.fromkeys(range(PARTITIONS), group.produced)


def test_a_member_that_leaves_hands_its_position_over(group: Group) -> None:
    group.produce()
    first, second = group.join("a"), group.join("b")
    wait_for(lambda: group.has_members(2), "two members did not come together")
    wait_for(group.everything_was_read, "records were left out")
    before = {partition: len(seen) for partition, seen in first.seen.items()}
    first.stop()
    wait_for(lambda: group.has_members(1), "the other did not take over")
    group.produce()
    wait_for(group.everything_was_read, "records were left out")
    second.stop()
    # A clean close commits, so the next owner starts exactly there: nothing is read twice after it.
    assert before == {partition: len(seen) for partition, seen in first.seen.items()}
    everything = [offset for member in (first, second) for seen in member.seen.values() for offset in seen]
    assert len(everything) == PARTITIONS * group.produced


@in_classic_groups
def test_a_poll_that_ends_amid_a_rebalance_returns_no_records(group: Group) -> None:
    group.produce()
    with Consumer("flights", max_poll_records=10, **options(group)) as consumer:
        engine = consumer._engine
        found = offsets(read(consumer, 10))
        consumer.pause(*ALL)
        commits = engine.committed._one_at_a_time
        consumer._run(commits.acquire())  # so that the commit before the join is waited for
        other = group.join("other", session_timeout_ms=10_000)
        wait_for(lambda: consumer.poll(5) == {} and not engine.may_take, "no rebalance began")
        consumer.resume(*ALL)
        assert engine.assignment.has_records()
        assert consumer.poll(20) == {}
        consumer._do(commits.release)

        def everything_is_read() -> bool:
            found.extend(each for records in consumer.poll(5).values() for each in offsets(records))
            return len(found) + other.count() >= PARTITIONS * 30

        wait_for(everything_is_read, "records were left out")
        assert len(found) + other.count() == PARTITIONS * 30, "a record was read twice"
        other.stop()


@pytest.mark.parametrize("silent_first", [False, True])
def test_a_crashed_members_partitions_go_to_the_others(group: Group, silent_first: bool) -> None:
    group.produce()
    victim = group.join("victim")
    group.join("other")
    wait_for(lambda: group.has_members(2), "two members did not come together")
    wait_for(group.everything_was_read, "records were left out")
    if silent_first:  # the network drops its requests: it is alive, but the coordinator receives nothing
        group.cluster.do(lambda: group.coordinator.silenced.add("victim"))
    else:
        victim.stop(crash=True)
    group.produce()
    wait_for(lambda: group.has_members(1), "the session of the victim did not end")
    group.produce()
    wait_for(
        lambda: all(
            set(range(group.produced)) - set(victim.seen[partition]) <= set(group.members[1].seen[partition])
            and max(group.members[1].seen[partition], default=-1) == group.produced - 1
            for partition in ALL
        ),
        "the other did not read on where commits had ended",
    )
    if silent_first:
        group.cluster.do(lambda: group.coordinator.silenced.clear())
        group.cluster.do(group.coordinator.cut)
        wait_for(lambda: group.has_members(2), "the member did not come back after its silence")


def test_a_group_survives_broken_connections_and_coordinator_moves(group: Group) -> None:
    members = [group.join(name) for name in ("a", "b", "c")]
    wait_for(lambda: group.has_members(3), "three members did not come together")
    for turn in range(6):
        group.produce(10)
        if turn % 3 == 0:
            group.cluster.runtime.run(group.coordinator.move(), 10)
        elif turn % 3 == 1:
            group.cluster.do(group.coordinator.cut)
            group.cluster.cut_connections()
        else:
            group.cluster.do(lambda: setattr(group.coordinator, "is_loading", True))
            seen = len(group.cluster.do(lambda: list(group.coordinator.requests_seen)))
            wait_for(partial(group.has_beaten_since, seen), "no heartbeat")
            group.cluster.do(lambda: setattr(group.coordinator, "is_loading", False))
        wait_for(group.everything_was_read, f"records were left out in turn {turn}")
    wait_for(lambda: group.has_members(3), "the three did not stay together")
    for member in members:
        member.stop()
    assert group.committed() == dict.fromkeys(range(PARTITIONS), group.produced)
    assert group.cluster.do(lambda: group.coordinator.generation("board")) < 30, (
        "a moved coordinator is no reason to go on rebalancing"
    )


def test_a_backlog_keeps_no_member_from_joining_a_rebalance(group: Group) -> None:
    group.produce(5_000)
    with Consumer("flights", max_poll_records=1, **options(group)) as consumer:
        seen = len(read(consumer, 1))
        group.join("other")
        deadline = time.monotonic() + 30
        while len(consumer.assignment()) == PARTITIONS:
            if seen > PARTITIONS * group.produced - 10_000:
                group.produce(5_000)
            seen += sum(map(len, consumer.poll(100).values()))
            assert time.monotonic() < deadline, "with records at hand it never looked up"


def test_members_that_come_and_go_at_once_lose_nothing(group: Group) -> None:
    for turn in range(4):
        group.produce(20)
        group.join(f"joiner{turn}", partition_assignment_strategy=("sticky",))
        if turn:
            group.members[turn - 1].stop(crash=turn % 2 == 0)
        group.produce(20)
    wait_for(group.everything_was_read, "records were left out")
    wait_for(lambda: group.has_members(1), "the last one did not get everything")


def test_committed_offsets_are_where_the_next_consumer_begins(group: Group) -> None:
    group.produce()
    with Consumer("flights", enable_auto_commit=False, **options(group)) as consumer:
        read(consumer, PARTITIONS * 30)
        consumer.commit({HERE: 7})
        assert consumer.committed(HERE) == 7
        consumer.seek_to_committed(HERE)
        assert consumer.position(HERE) == 7
        assert consumer.committed(TopicPartition("flights", 1)) is None
    with Consumer("flights", **options(group)) as consumer:
        records = read(consumer, PARTITIONS * 30 - 7)
        assert offsets(record for record in records if record.partition == 0) == list(range(7, 30))


def test_automatic_commits_cover_only_what_an_earlier_poll_returned(group: Group) -> None:
    group.produce()
    seen = 0
    with Consumer("flights", auto_commit_interval_ms=1, max_poll_records=10, **options(group)) as consumer:
        while seen < PARTITIONS * 30:
            got = sum(map(len, consumer.poll(100).values()))
            stored = sum(offset or 0 for offset in group.committed().values())
            assert stored <= seen, "records that are not processed yet were committed"
            seen += got
    assert sum(offset or 0 for offset in group.committed().values()) == seen


def test_a_listener_can_commit_before_and_seek_after_and_not_poll(group: Group) -> None:
    group.produce()
    story: list[str] = []

    def on_assigned(held: list[TopicPartition]) -> None:
        story.append(f"assigned {len(held)} {threading.current_thread() is threading.main_thread()}")
        if HERE in held:
            consumer.seek(HERE, 25)

    def on_revoked(held: list[TopicPartition]) -> None:
        consumer.commit({HERE: 29})
        story.append(f"revoked {len(held)}")
        with pytest.raises(InvalidRequest, match="may not poll"):
            consumer.poll(0)

    with Consumer(enable_auto_commit=False, **options(group, client_id="a")) as consumer:
        consumer.subscribe(["flights"], on_assigned=on_assigned, on_revoked=on_revoked)
        records = read(consumer, 5 + 5 * 30)
        assert offsets(record for record in records if record.partition == 0) == list(range(25, 30))
        other = group.join("other")
        wait_for(lambda: consumer.poll(20) is not None and len(consumer.assignment()) == 3, "no rebalance came")
        eager = [f"assigned {PARTITIONS} True", f"revoked {PARTITIONS}", "assigned 3 True"]
        assert story == (eager if group.protocol == "classic" else [f"assigned {PARTITIONS} True", "revoked 3"])
        assert consumer.committed(HERE) == 29
        other.stop()


def test_a_listener_that_raises_fails_the_poll_and_not_the_group(group: Group) -> None:
    group.produce()

    def on_assigned(_: list[TopicPartition]) -> None:
        raise LookupError("no such state")

    with Consumer(**options(group)) as consumer:
        consumer.subscribe(["flights"], on_assigned=on_assigned)
        with pytest.raises(LookupError):
            read(consumer, 1)
        assert len(read(consumer, PARTITIONS * 30)) == PARTITIONS * 30


@in_classic_groups
def test_a_commit_after_the_group_went_on_is_refused(group: Group) -> None:
    group.produce()
    with Consumer("flights", enable_auto_commit=False, **options(group, client_id="slow")) as consumer:
        read(consumer, 30)
        member = consumer._engine.group
        assert member is not None
        assert isinstance(member.membership, Membership)
        generation = member.membership.generation
        consumer._do(member._heart.cancel)  # type: ignore[union-attr]
        group.join("other")
        wait_for(lambda: group.cluster.do(lambda: group.coordinator._machine.parked_requests()), "no member rejoins")
        # The round waits for this one, which does not poll; a commit in it is still its right.
        consumer.commit()
        for name in ("generation", "owned_generation"):
            consumer._do(lambda name=name: setattr(member.membership, name, generation - 1))  # type: ignore[misc]
        with pytest.raises(CommitFailed, match="max_poll_interval_ms"):
            consumer.commit()
        errors: list[object] = []
        consumer.commit_async(callback=lambda _, error: errors.append(error))
        wait_for(lambda: errors, "the callback was not called")
        assert isinstance(errors[0], CommitFailed)
        group.produce()
        assert read(consumer, 1), "the next polls join again"


def test_a_member_that_does_not_poll_leaves_until_its_next_poll(group: Group) -> None:
    group.produce()
    lost: list[int] = []
    with Consumer(max_poll_interval_ms=300, enable_auto_commit=False, **options(group)) as consumer:
        consumer.subscribe(["flights"], on_lost=lambda held: lost.append(len(held)))
        read(consumer, 30)
        wait_for(lambda: group.cluster.do(lambda: group.coordinator.members("board")) == 0, "it did not leave")
        with pytest.raises(CommitFailed, match="max_poll_interval_ms"):
            consumer.commit()
        assert len(read(consumer, PARTITIONS * 30)) == PARTITIONS * 30, "nothing was committed, so all comes again"
        assert lost == [PARTITIONS]


def test_a_long_wait_for_records_is_no_silence(group: Group) -> None:
    with Consumer("flights", max_poll_interval_ms=200, **options(group)) as consumer:
        wait_for(lambda: consumer.poll(20) is not None and consumer.assignment() == ALL, "it did not join")
        generation = group.generation()
        assert consumer.poll(700) == {}
        assert consumer.assignment() == ALL
        assert group.generation() == generation, "it did not leave and come back"


def test_a_static_member_that_restarts_causes_no_rebalance(group: Group) -> None:
    group.produce()
    static = options(group, group_instance_id="one")
    with Consumer("flights", **static) as consumer:
        read(consumer, PARTITIONS * 30)
    generation = group.generation()
    group.produce()
    with Consumer("flights", **static) as consumer:
        assert len(read(consumer, PARTITIONS * 30)) == PARTITIONS * 30
        assert group.generation() == generation


@in_classic_groups
def test_a_second_process_of_an_instance_fences_the_first(group: Group) -> None:
    static = options(group, group_instance_id="one")
    with Consumer("flights", **static) as consumer:
        wait_for(lambda: consumer.poll(20) is not None and consumer.assignment() == ALL, "it did not join")
        with Consumer("flights", **static) as twin:
            wait_for(lambda: twin.poll(20) is not None and twin.assignment() == ALL, "the twin did not take over")
            with pytest.raises(FencedInstanceId):
                wait_for(lambda: consumer.poll(50) is None, "the replaced one was not fenced")


def test_added_partitions_are_found_and_read(group: Group) -> None:
    group.produce()
    group.join("a", metadata_max_age_ms=50)
    group.join("b", metadata_max_age_ms=50)
    wait_for(lambda: group.has_members(2), "two members did not come together")
    added = TopicPartition("trips", 0)
    group.cluster.create_topic("trips")
    fill(group.cluster, "trips", 0, numbers(0, 10))
    with Consumer("flights", "trips", **options(group)) as consumer:
        wait_for(
            lambda: consumer.poll(20) is not None and added in consumer.assignment(), "the new topic was not assigned"
        )
        wait_for(lambda: group.cluster.do(lambda: added in group.coordinator.owners("board")), "it has no owner")


def test_what_only_the_user_can_help_comes_out_of_poll(group: Group) -> None:
    with (
        Consumer("fligths", **options(group)) as consumer,
        pytest.raises(UnknownTopicOrPartition, match="did you mean 'flights'"),
    ):
        read(consumer, 1)
    group.join("ranger")
    wait_for(lambda: group.has_members(1), "the first member did not join")
    with (
        Consumer(
            "flights", **options(group, partition_assignment_strategy=("sticky",), group_protocol="classic")
        ) as consumer,
        pytest.raises(InconsistentGroupProtocol),
    ):
        read(consumer, 1)


def test_a_new_subscription_replaces_the_old_one(group: Group) -> None:
    group.produce()
    group.cluster.create_topic("trips")
    fill(group.cluster, "trips", 0, numbers(0, 3))
    with Consumer("flights", **options(group)) as consumer:
        read(consumer, PARTITIONS * 30)
        consumer.subscribe(["trips"])
        assert [record.topic for record in read(consumer, 3)] == ["trips"] * 3
        assert consumer.assignment() == {TopicPartition("trips", 0)}
        consumer.unsubscribe()
        assert consumer.assignment() == set()
        assert consumer.subscription() == set()
        assert group.committed() == dict.fromkeys(range(PARTITIONS), 30)
