"""Where leaders of partitions and coordinators are, for processes of the cluster. Owned by a shell.

Transaction coordinators send markers this way, and leader roles send records (``actors/roles``). What was found is kept
until it proves wrong. What was found before does not prove that a topic was deleted: only an answer of the controller
to a later query does, because it includes everything committed until then (protocol.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol
from weakref import WeakValueDictionary

from raylog.actors.transport import dial
from raylog.base.errors import LeaderNotAvailable, UnknownTopicOrPartition
from raylog.protocol.broker import FIND_COORDINATOR, METADATA, FindCoordinatorRequest, MetadataReply, MetadataTopic
from raylog.rpc import Connection, Secret

FetchMetadata = Callable[[list[str]], Awaitable[object]]
"""Returns the controller's answer to ``metadata`` for some topics."""

CONNECT_TIMEOUT_S: Final = 1.0
FIND_TIMEOUT_S: Final = 6.0
KNOWN_MAX: Final = 10_000
"""Most topics, and most groups and transactional ids, that are remembered."""

_Place = tuple[str, int]


class TopicPlace(Protocol):
    """One partition of one topic; a topic that was created again has another id."""

    @property
    def topic(self) -> str: ...
    @property
    def topic_id(self) -> str: ...
    @property
    def partition(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _Seen:
    """The controller's answer about a topic, and the number of that look-up."""

    topic: MetadataTopic
    look_up: int

    def has(self, place: TopicPlace) -> bool:
        """Return whether this is the partition's topic (same id), and whether it has the partition."""
        topic = self.topic
        return not topic.error_code and topic.topic_id == place.topic_id and place.partition < len(topic.partitions)


@dataclass(slots=True)
class Route:
    """The connection to a partition's leader or to a coordinator; ``leader_epoch``: of the partition, else -1."""

    connection: Connection
    leader_epoch: int = -1
    forget: Callable[[], None] = field(default=lambda: None)
    """To be called when the participant was not there, so that it is looked up again."""


class Routes:
    """Finds participants, with one connection to each of their processes."""

    def __init__(self, fetch_metadata: FetchMetadata, secret: Secret) -> None:
        """Make empty routes; nothing is looked up before the first call."""
        self._fetch_metadata = fetch_metadata
        self._secret = secret
        self._topics: dict[str, _Seen] = {}
        self._look_ups = 0
        """How many look-ups of topics have begun."""
        self._coordinators: dict[tuple[str, str], _Place] = {}
        """By kind, and group or transactional id."""
        self._brokers: list[_Place] = []
        self._connections: dict[_Place, Connection] = {}
        self._looking = asyncio.Lock()
        self._dialling: WeakValueDictionary[_Place, asyncio.Lock] = WeakValueDictionary()
        """Locks of the places that are being dialled now, so that each is dialled once."""

    async def leader(self, partition: TopicPlace) -> Route | None:
        """Return the route to a partition's leader; None: the topic was deleted. Raises RaylogError or OSError.

        For None the controller was queried after this call began: what was seen before may be an earlier topic of the
        same name.
        """
        seen = self._topics.get(partition.topic)
        if seen is None or not seen.has(partition):
            seen = await self._look_up(partition)
        topic = seen.topic

        def forget() -> None:
            if self._topics.get(partition.topic) is seen:
                del self._topics[partition.topic]

        if topic.error_code not in (0, UnknownTopicOrPartition.code):
            forget()
            raise LeaderNotAvailable(f"{partition.topic} is not known at the moment (error {topic.error_code}).")
        if topic.error_code or topic.topic_id != partition.topic_id:
            return None  # a topic that is created under this name is another one
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
        """Return the route to a group's coordinator, which is started if needed. Raises RaylogError or OSError."""
        return await self._coordinator("group", group)

    async def transaction_coordinator(self, transactional_id: str) -> Route:
        """Return the route to the coordinator of a transactional id, likewise."""
        return await self._coordinator("transaction", transactional_id)

    async def _coordinator(self, kind: str, key: str) -> Route:
        known = kind, key
        place = self._coordinators.get(known)
        if place is None or self._standing(place) is None:  # without a connection, another process may have the address
            place = await self._find_coordinator(kind, key)
            if len(self._coordinators) >= KNOWN_MAX:
                self._coordinators.clear()
            self._coordinators[known] = place

        def forget() -> None:
            if self._coordinators.get(known) == place:
                del self._coordinators[known]

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

    async def _look_up(self, partition: TopicPlace) -> _Seen:
        """Return the partition's topic. An answer without the partition was requested after this call began."""
        begun_before, name = self._look_ups, partition.topic
        async with self._looking:
            seen = self._topics.get(name)
            if seen is not None and (seen.look_up > begun_before or seen.has(partition)):
                return seen  # another participant was looked up meanwhile
            self._look_ups = number = self._look_ups + 1
            seen = _Seen((await self._metadata([name])).topics[0], number)
            if len(self._topics) >= KNOWN_MAX:
                self._topics.clear()
            self._topics[name] = seen
            return seen

    async def _find_coordinator(self, kind: str, key: str) -> _Place:
        async with self._looking:
            if not self._brokers:
                reply = await self._metadata([])
                self._brokers = [(broker.host, broker.port) for broker in reply.brokers]
            if not self._brokers:
                raise LeaderNotAvailable("No broker is online that could find the coordinator.")
            broker = self._brokers[0]
        try:
            connection = await self.connect(broker)
            request = FindCoordinatorRequest(kind, key)
            answer = await connection.call(FIND_COORDINATOR.name, request, timeout_s=FIND_TIMEOUT_S)
        except BaseException:  # any end, a cancellation too: this way may lead nowhere
            if self._brokers[:1] == [broker]:  # the next search uses another broker
                self._brokers.pop(0)
            raise
        found = FIND_COORDINATOR.read_reply(answer.args)
        return found.host, found.port

    async def _metadata(self, names: list[str]) -> MetadataReply:
        return METADATA.read_reply(await self._fetch_metadata(names))

    async def connect(self, place: _Place) -> Connection:
        """Return the connection to a process, which all callers share. Raises RaylogError or OSError."""
        lock = self._dialling.get(place)
        if lock is None:
            lock = self._dialling[place] = asyncio.Lock()
        async with lock:
            standing = self._standing(place)
            if standing is not None:
                return standing
            for known in [known for known, connection in self._connections.items() if connection.is_closed]:
                del self._connections[known]
            connection = await dial(*place, secret=self._secret, timeout_s=CONNECT_TIMEOUT_S)
            self._connections[place] = connection
            return connection

    def _standing(self, place: _Place) -> Connection | None:
        connection = self._connections.get(place)
        return None if connection is None or connection.is_closed else connection
