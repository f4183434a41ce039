"""Routes to participants: looked up once, again when they prove wrong, and one connection to each process."""

import asyncio
from typing import Any, cast

import pytest

from raylog.actors import routes
from raylog.actors.routes import Routes
from raylog.core.errors import ConnectionFailed, LeaderNotAvailable, UnknownTopicOrPartition
from raylog.core.transactions.records import TxnPartition
from raylog.protocol.broker import FindCoordinatorReply
from raylog.rpc import Reply

ORDERS = TxnPartition("o" * 32, "orders", 0)
LEADER = ("host", 9_001)


class Dialled:
    """A connection that answers searches for coordinators."""

    def __init__(self, place: tuple[str, int]) -> None:
        self.place = place
        self.is_closed = False

    def close(self, reason: str) -> None:
        self.is_closed = True

    async def call(self, method: str, request: object, *, timeout_s: float) -> Reply:
        return cast(Reply, type("Answer", (), {"args": FindCoordinatorReply(0, "host", 9_100)}))


class World:
    """The controller's metadata, and the processes that can be reached."""

    def __init__(self) -> None:
        self.lookups: list[list[str]] = []
        self.dialled: list[Dialled] = []
        self.refused: set[tuple[str, int]] = set()
        self.topic_id = ORDERS.topic_id
        self.leader = LEADER
        self.exists = True
        self.brokers = [("host", 8_001), ("host", 8_002)]

    async def metadata(self, names: list[str]) -> object:
        self.lookups.append(names)
        await asyncio.sleep(0)
        host, port = self.leader
        partitions = [[0, 1, 4, host, port, [1], [1], []]]
        code = 0 if self.exists else UnknownTopicOrPartition.code
        topics = [[code, self.topic_id, name, False, partitions, {}] for name in names]
        return ["c", 1, [[number, *place, "n"] for number, place in enumerate(self.brokers)], topics]

    async def dial(self, host: str, port: int, **_: object) -> Any:
        await asyncio.sleep(0)
        if (host, port) in self.refused:
            raise ConnectionFailed("refused")
        self.dialled.append(Dialled((host, port)))
        return self.dialled[-1]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(routes, "dial", world.dial)
    return world


def routes_in(world: World) -> Routes:
    return Routes(world.metadata, b"secret")


async def test_a_leader_is_looked_up_and_connected_to_once(world: World) -> None:
    found = routes_in(world)
    first, second = await asyncio.gather(found.leader(ORDERS), found.leader(ORDERS))
    assert first is not None
    assert second is not None
    assert first.connection is second.connection
    assert first.leader_epoch == 4
    assert world.lookups == [["orders"]]
    assert [dialled.place for dialled in world.dialled] == [LEADER]


async def test_a_leader_that_proved_wrong_is_looked_up_again(world: World) -> None:
    found = routes_in(world)
    before = await found.leader(ORDERS)
    assert before is not None
    world.leader = ("host", 9_002)
    assert (await found.leader(ORDERS)) is not None
    assert len(world.lookups) == 1
    before.forget()
    before.forget()
    after = await found.leader(ORDERS)
    assert after is not None
    assert cast(Any, after.connection).place == ("host", 9_002)
    before.forget()
    await found.leader(ORDERS)
    assert len(world.lookups) == 2, "what was found since is not forgotten for what proved wrong before"


@pytest.mark.parametrize("is_created_again", [True, False])
async def test_a_deleted_topic_has_no_leader(world: World, is_created_again: bool) -> None:
    found = routes_in(world)
    world.exists, world.topic_id = is_created_again, "another topic of that name"
    assert await found.leader(ORDERS) is None
    assert world.dialled == []


async def test_a_partition_without_a_leader_is_looked_up_each_time(world: World) -> None:
    found = routes_in(world)
    world.leader = ("", 0)
    for _ in range(2):
        with pytest.raises(LeaderNotAvailable):
            await found.leader(ORDERS)
    with pytest.raises(LeaderNotAvailable):
        await found.leader(ORDERS._replace(partition=7))
    assert len(world.lookups) == 3


async def test_a_leader_that_cannot_be_reached_is_looked_up_again(world: World) -> None:
    found = routes_in(world)
    world.refused.add(LEADER)
    for _ in range(2):
        with pytest.raises(ConnectionFailed):
            await found.leader(ORDERS)
    assert len(world.lookups) == 2


async def test_a_connection_that_closed_is_made_again(world: World) -> None:
    found = routes_in(world)
    await found.leader(ORDERS)
    world.dialled[0].is_closed = True
    await found.leader(ORDERS)
    assert len(world.dialled) == 2


async def test_a_groups_coordinator_is_found_through_a_broker_once(world: World) -> None:
    found = routes_in(world)
    for _ in range(2):
        assert cast(Any, (await found.group_coordinator("g")).connection).place == ("host", 9_100)
    assert [dialled.place for dialled in world.dialled] == [("host", 8_001), ("host", 9_100)]


async def test_a_broker_that_does_not_answer_is_followed_by_the_next(world: World) -> None:
    found = routes_in(world)
    world.refused.add(("host", 8_001))
    with pytest.raises(ConnectionFailed):
        await found.group_coordinator("g")
    assert cast(Any, (await found.group_coordinator("g")).connection).place == ("host", 9_100)
    world.refused.add(("host", 9_100))
    world.dialled[-1].is_closed = True
    with pytest.raises(ConnectionFailed):
        await found.group_coordinator("g")


async def test_without_brokers_no_coordinator_is_found_for_now(world: World) -> None:
    world.brokers = []
    with pytest.raises(LeaderNotAvailable):
        await routes_in(world).group_coordinator("g")


async def test_all_connections_are_closed_at_the_end(world: World) -> None:
    found = routes_in(world)
    await found.leader(ORDERS)
    await found.group_coordinator("g")
    found.close()
    assert all(dialled.is_closed for dialled in world.dialled)
