"""A group continues through deleted topics, late commits, replaced members and members of another kind."""

import asyncio
import gc
import threading
from typing import Any

import msgspec
import pytest

from raylog.base.errors import (
    ClientClosed,
    CommitFailed,
    FencedInstanceId,
    InconsistentGroupProtocol,
    RaylogError,
    UnknownTopicOrPartition,
)
from raylog.base.ids import TopicPartition
from raylog.client.consumer import consumer_session
from raylog.client.consumer.asynchronous import AsyncConsumer
from raylog.client.consumer.consumer import Consumer
from raylog.client.consumer.group_session import GroupSession
from raylog.client.group.embedded_protocol import decode_assignment
from raylog.core.groups.coordinator import GroupCoordinatorMachine
from raylog.core.groups.events import Tick
from raylog.core.received import Received
from raylog.protocol.groups import OffsetCommitRequest
from raylog.rpc import Request, connect
from tests.unit.client.consumer_support import Member, fill, numbers, read, with_coordinator
from tests.unit.client.toy_coordinator import ToyCoordinator
from tests.unit.client.toy_server import SECRET, ToyCluster
from tests.waiting import wait_for

STAYS, GOES = TopicPartition("stays", 0), TopicPartition("goes", 0)


@pytest.fixture
def coordinator(cluster: ToyCluster) -> ToyCoordinator:
    return with_coordinator(cluster)


CLASSIC: dict[str, Any] = {"group_protocol": "classic"}
"""For stories about rounds and their leaders, which groups of the consumer protocol do not have."""


def options(cluster: ToyCluster, **more: Any) -> dict[str, Any]:
    return {
        "group_id": "board",
        "auto_offset_reset": "earliest",
        "heartbeat_interval_ms": 50,
        "session_timeout_ms": 2_000,
        "retry_backoff_max_ms": 50,
        "metadata_max_age_ms": 100,
        "auto_commit_interval_ms": 20,
        **cluster.options,
        **more,
    }


def committed(cluster: ToyCluster, coordinator: ToyCoordinator, topic: str) -> int | None:
    return cluster.do(lambda: coordinator.offset("board", topic, 0))


def test_a_deleted_topic_leaves_the_group_with_the_other_topics(
    cluster: ToyCluster, coordinator: ToyCoordinator
) -> None:
    for topic in ("goes", "stays"):
        cluster.create_topic(topic)
        fill(cluster, topic, 0, numbers(0, 10))
    with Consumer("goes", "stays", **options(cluster)) as consumer:
        read(consumer, 20)
        cluster.delete_topic("goes")
        fill(cluster, "stays", 0, numbers(10, 20))
        assert len(read(consumer, 10)) == 10
        wait_for(
            lambda: consumer.poll(10) is not None and committed(cluster, coordinator, "stays") == 20,
            "the commits of the other topic stopped",
        )
        wait_for(lambda: consumer.poll(10) is not None and consumer.assignment() == {STAYS}, "it kept a dead topic")
        cluster.create_topic("goes")
        fill(cluster, "goes", 0, numbers(0, 5))
        assert {record.topic for record in read(consumer, 5)} == {"goes"}, "the topic that came back was not taken up"


def test_a_commit_stores_the_topic_that_exists_and_names_the_other(
    cluster: ToyCluster, coordinator: ToyCoordinator
) -> None:
    cluster.create_topic("stays")
    with Consumer(**options(cluster, enable_auto_commit=False)) as consumer:
        consumer.assign([STAYS])
        with pytest.raises(UnknownTopicOrPartition, match="goes"):
            consumer.commit({STAYS: 3, GOES: 5})
        assert committed(cluster, coordinator, "stays") == 3
        assert consumer.committed(STAYS) == 3


def test_a_group_without_any_topic_of_its_own_raises_at_each_poll(
    cluster: ToyCluster, coordinator: ToyCoordinator
) -> None:
    cluster.create_topic("stays")
    with Consumer("stay", **options(cluster)) as consumer:
        for _ in range(2):
            with pytest.raises(UnknownTopicOrPartition, match="did you mean 'stays'"):
                read(consumer, 1)


def test_a_commit_that_waited_belongs_to_the_generation_of_its_call(
    cluster: ToyCluster, coordinator: ToyCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic("stays")
    fill(cluster, "stays", 0, numbers(0, 10))
    held: list[Received[Any]] = []
    normal = GroupCoordinatorMachine.step
    is_holding = threading.Event()

    def hold(machine: GroupCoordinatorMachine, event: Any) -> Any:
        if isinstance(event, Received) and isinstance(event.message, OffsetCommitRequest) and is_holding.is_set():
            is_holding.clear()
            held.append(event)  # the first commit is slow: it is answered when the test lets it
            return normal(machine, Tick(cause="tick", now_ms=event.now_ms))
        return normal(machine, event)

    monkeypatch.setattr(GroupCoordinatorMachine, "step", hold)
    errors: list[RaylogError | None] = []
    with Consumer("stays", **options(cluster, enable_auto_commit=False, **CLASSIC)) as consumer:
        read(consumer, 10)
        is_holding.set()
        consumer.commit_async({STAYS: 1})
        wait_for(lambda: held, "the slow commit did not arrive")
        consumer.commit_async({STAYS: 2}, lambda _, error: errors.append(error))
        consumer._do(lambda: consumer._engine.group.rejoin("the test requests it"))  # type: ignore[union-attr]
        first = consumer._engine.group.membership.generation  # type: ignore[union-attr]
        wait_for(
            lambda: (
                consumer.poll(10) is not None and consumer._engine.group.membership.owned_generation > first  # type: ignore[union-attr]
            ),
            "the member did not join again",
        )
        assert not errors
        cluster.do(lambda: coordinator._step(held[0]))
        wait_for(lambda: errors, "the commit that waited was not answered")
        assert isinstance(errors[0], CommitFailed)
        consumer.commit({STAYS: 7})
    assert committed(cluster, coordinator, "stays") == 7
    assert 2 not in [commit.offset for commit in coordinator.commits]


def test_a_replaced_static_member_stays_fenced_and_its_successor_reads(
    cluster: ToyCluster, coordinator: ToyCoordinator
) -> None:
    cluster.create_topic("stays")
    fill(cluster, "stays", 0, numbers(0, 10))
    # Without heartbeats, so that the old process learns of it first from the answer to its commit.
    static = options(
        cluster, **CLASSIC, group_instance_id="one", heartbeat_interval_ms=9_000, session_timeout_ms=10_000
    )
    old = Consumer("stays", **static)
    try:
        read(old, 10)
        successor = Member(cluster, "successor", "stays", group_instance_id="one", session_timeout_ms=10_000)
        wait_for(lambda: successor.assignments, "the successor did not join")
        for _ in range(3):
            with pytest.raises(FencedInstanceId):
                read(old, 1)
        fill(cluster, "stays", 0, numbers(10, 20))
        wait_for(lambda: max(successor.seen[STAYS], default=0) == 19, "the successor was fenced in its turn")
        assert len(successor.assignments) == 1
        successor.stop()
    finally:
        old.close()


@pytest.mark.parametrize("when", ["while it is away", "after it is back"])
def test_a_static_leader_that_restarts_sees_new_partitions(
    cluster: ToyCluster, coordinator: ToyCoordinator, when: str
) -> None:
    cluster.create_topic("stays", partitions=2)
    static = options(cluster, group_instance_id="one", session_timeout_ms=20_000)
    with Consumer("stays", **static) as first:
        wait_for(lambda: first.poll(10) is not None and len(first.assignment()) == 2, "it did not join")
    if when == "while it is away":
        add_partition(cluster, "stays")
    with Consumer("stays", **static) as again:
        if when == "after it is back":
            wait_for(lambda: again.poll(10) is not None and len(again.assignment()) == 2, "it did not come back")
            add_partition(cluster, "stays")
        wait_for(
            lambda: again.poll(10) is not None and TopicPartition("stays", 2) in again.assignment(),
            "the new partition went to no member",
        )


def add_partition(cluster: ToyCluster, topic: str) -> None:
    """Grow a topic by one partition, as `create_partitions` does."""

    async def grow() -> None:
        topic_id, config = cluster.topics.pop(topic)
        kept = {place: item for place, item in cluster.partitions.items() if place[0] == topic}
        endpoints = {place: item for place, item in cluster.replicas.items() if place[0] == topic}
        await cluster._create_topic(topic, len(kept) + 1, None, config)
        cluster.topics[topic] = (topic_id, config)
        for (name, number), item in list(cluster.partitions.items()):
            if name == topic:
                item.topic_id = topic_id
                cluster.partitions[name, number] = kept.get((name, number), item)
        for place, endpoint in endpoints.items():
            await cluster.replicas[place].server.close()
            cluster.replicas[place] = endpoint

    cluster.runtime.run(grow(), 10)


async def _join_as_foreigner(cluster: ToyCluster, coordinator: ToyCoordinator, metadata: bytes) -> list[Any]:
    """A member that speaks the group protocol, with metadata of its own."""
    assert coordinator._endpoint is not None
    connection = await connect(coordinator._endpoint.host, coordinator._endpoint.port, secret=SECRET)
    try:

        def args(member_id: str) -> list[Any]:
            return ["board", member_id, None, "foreigner", 5_000, 5_000, "consumer", [["range", metadata]]]

        with pytest.raises(RaylogError) as refusal:  # with the id to join with
            await connection.call("join_group", args(""), timeout_s=10)
        member_id = str((refusal.value.details or {})["member_id"])
        joined = await connection.call("join_group", args(member_id), timeout_s=10)
        generation, member_id = joined.args[0], joined.args[3]
        synced = await connection.call("sync_group", ["board", generation, member_id, None, []], timeout_s=10)
        return [bytes(synced.args[0])]
    finally:
        connection.close()


@pytest.mark.parametrize("metadata", [b"\x00\x01\x00", b"\xc1", b"", msgspec.msgpack.encode({"topics": 1})])
def test_a_member_of_another_kind_gets_nothing_and_the_leader_goes_on(
    cluster: ToyCluster, coordinator: ToyCoordinator, metadata: bytes
) -> None:
    cluster.create_topic("stays")
    fill(cluster, "stays", 0, numbers(0, 10))
    leader = Member(cluster, "leader", "stays", session_timeout_ms=5_000, **CLASSIC)
    wait_for(lambda: leader.assignments, "the leader did not join")
    (given,) = cluster.runtime.run(_join_as_foreigner(cluster, coordinator, metadata), 15)
    assert decode_assignment(given) == ()
    fill(cluster, "stays", 0, numbers(10, 20))
    wait_for(lambda: leader.errors or max(leader.seen[STAYS], default=0) == 19, "the leader stopped")
    leader.stop()


def test_an_unreadable_assignment_raises_one_clear_error_at_every_poll(
    cluster: ToyCluster, coordinator: ToyCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic("stays")
    normal = Request.reply

    def garble(request: Request, args: Any = None, *rest: Any) -> None:
        normal(request, [b"\xc1"] if request.method == "sync_group" else args, *rest)

    monkeypatch.setattr(Request, "reply", garble)
    with Consumer("stays", **options(cluster, **CLASSIC)) as consumer:
        for _ in range(2):
            with pytest.raises(InconsistentGroupProtocol, match="another kind of client"):
                read(consumer, 1)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_an_unexpected_error_while_joining_is_raised_by_each_poll(
    cluster: ToyCluster, coordinator: ToyCoordinator, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic("stays")

    async def fail(*_: Any) -> None:
        await asyncio.sleep(0)
        raise KeyError("a bug")

    if protocol == "classic":
        monkeypatch.setattr(GroupSession, "_partition_counts", fail)
    else:
        monkeypatch.setattr(consumer_session, "look_up_topics", fail)
    with Consumer("stays", **options(cluster, group_protocol=protocol)) as consumer:
        for _ in range(2):
            with pytest.raises(RaylogError, match="a bug"):
                read(consumer, 1)
        monkeypatch.undo()
        fill(cluster, "stays", 0, numbers(0, 3))
        assert len(read(consumer, 3)) == 3


async def test_a_join_that_the_close_has_ended_is_no_unhandled_error(
    cluster: ToyCluster, coordinator: ToyCoordinator
) -> None:
    cluster.create_topic("flights")
    unhandled: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))

    async def join() -> None:
        raise ClientClosed("The client is closed.")

    async with AsyncConsumer("flights", group_id="board", **CLASSIC, **cluster.options) as consumer:
        group = consumer._engine.group
        assert isinstance(group, GroupSession)
    group._start(join())
    assert group._work is not None
    await asyncio.wait([group._work])
    await group.close()
    group._work = None
    await asyncio.sleep(0)  # the loop lets go of its callback
    gc.collect()
    assert unhandled == []
