"""Where leaders of partitions and coordinators of groups are, for processes of the cluster. Owned by a shell.

Transaction coordinators send markers this way, and leader roles records (``actors/roles``).
What was found is kept until it proves wrong. The controller's metadata decides whether a topic was deleted: it has
every topic that was ever acknowledged, and no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from raylog.actors.transport import dial
from raylog.core.errors import LeaderNotAvailable, UnknownTopicOrPartition
from raylog.protocol.broker import FIND_COORDINATOR, METADATA, FindCoordinatorRequest, MetadataReply, MetadataTopic
from raylog.rpc import Connection, Secret

FetchMetadata = Callable[[list[str]], Awaitable[object]]
"""Returns the controller's answer to ``metadata`` for some topics."""

CONNECT_TIMEOUT_S: Final = 1.0
FIND_TIMEOUT_S: Final = 6.0
KNOWN_MAX: Final = 10_000
"""Most topics, and most groups, that are remembered."""

_Place = tuple[str, int]


class TopicPlace(Protocol):
    """One partition of one topic; a topic that was created again has another id."""

    @property
    def topic(self) -> str: ...
    @property
    def topic_id(self) -> str: ...
    @property
    def partition(self) -> int: ...


@dataclass(slots=True)
class Route:
    """The way to one participant; ``leader_epoch`` counts for partitions."""

    connection: Connection
    leader_epoch: int = -1
    forget: Callable[[], None] = field(default=lambda: None)
    """Have the participant looked up again: it was not there."""


class Routes:
    """Finds participants, with one connection to each of their processes."""

    def __init__(self, fetch_metadata: FetchMetadata, secret: Secret) -> None:
        """Nothing is looked up before the first call."""
        self._fetch_metadata = fetch_metadata
        self._secret = secret
        self._topics: dict[str, MetadataTopic] = {}
        self._groups: dict[str, _Place] = {}
        self._brokers: list[_Place] = []
        self._connections: dict[_Place, Connection] = {}
        self._looking = asyncio.Lock()
        self._dialling: dict[_Place, asyncio.Lock] = {}

    async def leader(self, partition: TopicPlace) -> Route | None:
        """Return the way to a partition's leader; None = the topic was deleted. Raises RaylogError or OSError."""
        topic = self._topics.get(partition.topic) or await self._look_up(partition.topic)

        def forget() -> None:
            if self._topics.get(partition.topic) is topic:
                del self._topics[partition.topic]

        if topic.error_code == UnknownTopicOrPartition.code or topic.topic_id != partition.topic_id:
            forget()  # a topic that is created under this name is another one
            return None
        if partition.partition >= len(topic.partitions):
            forget()
            raise LeaderNotAvailable(f"{partition.topic}-{partition.partition} is not known yet.")
        found = topic.partitions[partition.partition]
        if not found.leader_port:
            forget()
            raise LeaderNotAvailable(f"{partition.topic}-{partition.partition} has no leader at the moment.")
        try:
            connection = await self.connect((found.leader_host, found.leader_port))
        except BaseException:  # any end, a cancellation too: this way may lead nowhere
            forget()
            raise
        return Route(connection, found.leader_epoch, forget)

    async def group_coordinator(self, group: str) -> Route:
        """Return the way to a group's coordinator, which is started if need be. Raises RaylogError or OSError."""
        place = self._groups.get(group)
        if place is None:
            place = await self._find_coordinator(group)
            if len(self._groups) >= KNOWN_MAX:
                self._groups.clear()
            self._groups[group] = place

        def forget() -> None:
            if self._groups.get(group) == place:
                del self._groups[group]

        try:
            return Route(await self.connect(place), forget=forget)
        except BaseException:  # any end, a cancellation too: this way may lead nowhere
            forget()
            raise

    def close(self) -> None:
        """Close all connections."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close("no longer needed")

    async def _look_up(self, name: str) -> MetadataTopic:
        async with self._looking:
            known = self._topics.get(name)
            if known is not None:  # another participant was looked up meanwhile
                return known
            topic = (await self._metadata([name])).topics[0]
            if len(self._topics) >= KNOWN_MAX:
                self._topics.clear()
            self._topics[name] = topic
            return topic

    async def _find_coordinator(self, group: str) -> _Place:
        async with self._looking:
            if not self._brokers:
                reply = await self._metadata([])
                self._brokers = [(broker.host, broker.port) for broker in reply.brokers]
            if not self._brokers:
                raise LeaderNotAvailable("No broker is online that could find the group's coordinator.")
            broker = self._brokers[0]
        try:
            connection = await self.connect(broker)
            request = FindCoordinatorRequest("group", group)
            answer = await connection.call(FIND_COORDINATOR.name, request, timeout_s=FIND_TIMEOUT_S)
        except BaseException:  # any end, a cancellation too: this way may lead nowhere
            if self._brokers[:1] == [broker]:  # the next search takes another one
                self._brokers.pop(0)
            raise
        found = FIND_COORDINATOR.read_reply(answer.args)
        return found.host, found.port

    async def _metadata(self, names: list[str]) -> MetadataReply:
        return METADATA.read_reply(await self._fetch_metadata(names))

    async def connect(self, place: _Place) -> Connection:
        """Return a connection to a process, one for all. Raises RaylogError or OSError."""
        async with self._dialling.setdefault(place, asyncio.Lock()):
            standing = self._connections.get(place)
            if standing is not None and not standing.is_closed:
                return standing
            for known in [known for known, connection in self._connections.items() if connection.is_closed]:
                del self._connections[known]
            connection = await dial(*place, secret=self._secret, timeout_s=CONNECT_TIMEOUT_S)
            self._connections[place] = connection
            return connection
