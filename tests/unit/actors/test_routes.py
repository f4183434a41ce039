"""Routes to participants: looked up once, again when they prove wrong, and one connection to each process."""

import asyncio
import gc
from typing import Any, cast

import pytest

from raylog.actors import routes
from raylog.actors.routes import Routes
from raylog.base.errors import ConnectionFailed, LeaderNotAvailable, UnknownTopicOrPartition
from raylog.base.ids import TopicIdPartition
from raylog.protocol.broker import FindCoordinatorReply
from raylog.rpc import Reply

ORDERS = TopicIdPartition("orders", "o" * 32, 0)
LEADER = ("host", 9_001)


class Dialled:
    """A connection that answers searches for coordinators."""

    def __init__(self, world: "World", place: tuple[str, int]) -> None:
        self.world = world
        self.place = place
        self.is_closed = False

    def close(self, reason: str) -> None:
        self.is_closed = True

    async def call(self, method: str, request: object, *, timeout_s: float) -> Reply:
        return cast(Reply, type("Answer", (), {"args": FindCoordinatorReply(0, *self.world.coordinator)}))


class World:
    """The controller's metadata, and the processes that can be reached."""

    def __init__(self) -> None:
        self.lookups: list[list[str]] = []
        self.dialled: list[Dialled] = []
        self.refused: set[tuple[str, int]] = set()
        self.topic_id = ORDERS.topic_id
        self.leader = LEADER
        self.exists = True
        self.error_code = 0
        self.partitions = 1
        self.coordinator = ("host", 9_100)
        self.brokers = [("host", 8_001), ("host", 8_002)]

    async def metadata(self, names: list[str]) -> object:
        self.lookups.append(names)
        host, port = self.leader
        partitions = [[number, 1, 4, host, port, [1], [1], []] for number in range(self.partitions)]
        code = self.error_code if self.exists else UnknownTopicOrPartition.code
        await asyncio.sleep(0)
        topics = [[code, self.topic_id, name, False, partitions, {}] for name in names]
        return ["c", 1, [[number, *place, "n"] for number, place in enumerate(self.brokers)], topics]

    async def dial(self, host: str, port: int, **_: object) -> Any:
        await asyncio.sleep(0)
        if (host, port) in self.refused:
            raise ConnectionFailed("refused")
        self.dialled.append(Dialled(self, (host, port)))
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


async def test_a_topic_that_was_created_again_is_found(world: World) -> None:
    found = routes_in(world)
    assert await found.leader(ORDERS) is not None
    world.topic_id = "n" * 32
    again = ORDERS._replace(topic_id=world.topic_id)
    routes_found = await asyncio.gather(found.leader(again), found.leader(again._replace(partition=0)))
    assert None not in routes_found
    assert len(world.lookups) == 2
    assert await found.leader(ORDERS) is None


async def test_an_answer_to_an_earlier_query_denies_no_topic(world: World) -> None:
    """The answer on its way is of before: the topic may have been created while it was."""
    found = routes_in(world)
    world.exists = False
    early = asyncio.create_task(found.leader(ORDERS))
    await asyncio.sleep(0)  # the query is sent
    world.exists = True
    late = asyncio.create_task(found.leader(ORDERS))
    assert await early is None
    assert await late is not None
    assert world.lookups == [["orders"], ["orders"]]


async def test_many_partitions_of_a_deleted_topic_share_an_answer(world: World) -> None:
    found = routes_in(world)
    world.exists = False
    routes_found = await asyncio.gather(*(found.leader(ORDERS._replace(partition=number)) for number in range(50)))
    assert routes_found == [None] * 50
    assert len(world.lookups) <= 2


async def test_partitions_that_were_added_are_found(world: World) -> None:
    found = routes_in(world)
    assert await found.leader(ORDERS) is not None
    world.partitions = 3
    assert await found.leader(ORDERS._replace(partition=2)) is not None


async def test_another_error_than_unknown_denies_no_topic(world: World) -> None:
    found = routes_in(world)
    world.error_code = LeaderNotAvailable.code
    with pytest.raises(LeaderNotAvailable):
        await found.leader(ORDERS)


async def test_places_that_were_dialled_are_not_kept(world: World) -> None:
    found = routes_in(world)
    for port in range(9_200, 9_220):
        world.leader = ("host", port)
        route = await found.leader(ORDERS)
        assert route is not None
        route.forget()
    gc.collect()
    assert not found._dialling


async def test_an_address_whose_connection_broke_is_no_coordinators_any_more(world: World) -> None:
    """The process has ended; another may listen there by now."""
    found = routes_in(world)
    await found.group_coordinator("g")
    world.dialled[-1].is_closed = True
    world.coordinator = ("host", 9_101)
    assert cast(Any, (await found.group_coordinator("g")).connection).place == ("host", 9_101)


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
