"""Requests metrics from processes at a scrape: replicas of this broker, coordinators, other brokers.

Connections are made at the first request, and kept. Replies are cached for a second, so that scrapes and health checks
together send at most one request a second to each process. A process that does not reply in time is left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from raylog.actors.clock import monotonic_ms
from raylog.actors.metrics.counters import reading_from_wire
from raylog.actors.naming import replica_name
from raylog.actors.resting import DozingReplica
from raylog.actors.transport import dial
from raylog.base.errors import RaylogError
from raylog.base.ids import BrokerId, TopicPartition
from raylog.core.metadata.image import MetadataImage
from raylog.core.metrics.cleaning import cleaner_from_wire
from raylog.core.metrics.families import ReplicaFigures
from raylog.core.metrics.roles import roles_from_wire
from raylog.core.metrics.scrubbing import scrub_from_wire
from raylog.core.metrics.totals import Totals
from raylog.core.metrics.usage import usage_from_wire
from raylog.rpc import Connection, Secret

logger = logging.getLogger(__name__)

Endpoint = tuple[str, int]
ANSWER_S: Final = 3.0
"""Timeout for all replies together; connecting may take as long again."""
HOLDS_MS: Final = 900
"""How long a result is cached. Less than a second, so that a scrape every second always gets a new result."""
DIALS_AT_ONCE: Final = 16
NONE_DOZES: Final[Mapping[str, DozingReplica]] = MappingProxyType({})
Answer = TypeVar("Answer")


class MetricsClient:
    """Connections to the processes that report metrics, made when needed."""

    def __init__(self, secret: Secret) -> None:
        """``secret``: the cluster's."""
        self._secret = secret
        self._connections: dict[Endpoint, Connection] = {}
        self._dials = asyncio.Semaphore(DIALS_AT_ONCE)

    def close(self) -> None:
        """Close all connections."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            connection.close("no more looks")

    def keep(self, endpoints: Iterable[Endpoint]) -> None:
        """Close connections to all other endpoints: their processes have moved or ended."""
        for endpoint in set(self._connections) - set(endpoints):
            self._connections.pop(endpoint).close("moved away")

    async def call(
        self, requests: Mapping[Endpoint, tuple[str, object]], timeout_s: float | None = None
    ) -> dict[Endpoint, object]:
        """Call a method, with its arguments, at each endpoint; returns the answers that came in time.

        ``timeout_s``: for connecting, and again for the answers; None = :data:`ANSWER_S`.
        """
        timeout_s = ANSWER_S if timeout_s is None else timeout_s
        missing = [name for name in requests if name not in self._connections or self._connections[name].is_closed]
        if missing:
            await asyncio.gather(*(self._connect(endpoint, timeout_s) for endpoint in missing))
        calls = {
            endpoint: connection.call_nowait(method, args, timeout_s=timeout_s)
            for endpoint, (method, args) in requests.items()
            if (connection := self._connections.get(endpoint)) is not None
        }
        if calls:
            await asyncio.wait(calls.values())  # each ends by itself, at its deadline
        answers: dict[Endpoint, object] = {}
        for endpoint, call in calls.items():
            error = call.exception()
            if error is None:
                answers[endpoint] = call.result().args
            else:
                logger.debug("no figures from %s: %s", endpoint, error)
        return answers

    async def _connect(self, endpoint: Endpoint, timeout_s: float) -> None:
        self._connections.pop(endpoint, None)
        async with self._dials:
            try:
                connection = await dial(*endpoint, secret=self._secret, timeout_s=timeout_s)
            except (RaylogError, OSError) as error:
                logger.debug("no figures from %s: %s", endpoint, error)
                return
        known = self._connections.get(endpoint)
        if known is not None and not known.is_closed:  # another call was faster
            connection.close("there is one already")
        else:
            self._connections[endpoint] = connection


class CachedResult(Generic[Answer]):
    """A result cached for a second; concurrent callers share one collection."""

    def __init__(self, look: Callable[[], Awaitable[Answer]]) -> None:
        """``look`` collects a result, and must have a timeout of its own. Its errors reach the caller, uncached."""
        self._look = look
        self._lock = asyncio.Lock()
        self._found: tuple[int, Answer] | None = None

    async def get(self) -> Answer:
        """Return the cached result, or collect a new one."""
        async with self._lock:
            found = self._found
            if found is None or monotonic_ms() - found[0] >= HOLDS_MS:
                answer = await self._look()
                self._found = found = monotonic_ms(), answer
            return found[1]


def places_of(image: MetadataImage, broker: int) -> dict[TopicPartition, Endpoint | None]:
    """Return the endpoints of a broker's replicas by the metadata; None: not running. Sleeping ones are left out."""
    places: dict[TopicPartition, Endpoint | None] = {}
    for topic in image.topics.values():
        for state in topic.partitions:
            place = state.place(BrokerId(broker))
            if place is not None and state.asleep is None:
                places[state.partition] = (place.host, place.port) if place.port else None
    return places


def _name_of(image: MetadataImage, partition: TopicPartition, broker: int) -> str:
    return replica_name(partition.topic, partition.partition, broker, image.topics[partition.topic].topic_id)


class ReplicaCollector:
    """Collects the metrics of one broker's replicas, and sums their counters over their processes."""

    def __init__(self, client: MetricsClient) -> None:
        """``client`` is closed by its owner."""
        self._client = client
        self.totals = Totals(born_ms=monotonic_ms())

    async def look(
        self, image: MetadataImage, broker: int, dozing: Mapping[str, DozingReplica] = NONE_DOZES
    ) -> dict[TopicPartition, ReplicaFigures | None]:
        """Request the metrics of all replicas of the broker; None: the replica does not run or did not answer.

        Dozing replicas are not continued for that: their last report is used.
        """
        places = places_of(image, broker)
        running = {place: partition for partition, place in places.items() if place is not None}
        known = {
            place: dozing[name].metrics
            for place, partition in running.items()
            if dozing and (name := _name_of(image, partition, broker)) in dozing
        }
        answers = await self._client.call({place: ("replica_metrics", []) for place in running if place not in known})
        answers |= known
        found: dict[TopicPartition, ReplicaFigures | None] = dict.fromkeys(places)
        for place, answer in answers.items():
            partition = running[place]
            try:
                found[partition] = self._read(partition, answer)
            except (ValueError, KeyError, TypeError) as error:
                logger.warning("%s on broker %d has figures that cannot be read: %s", partition, broker, error)
        self.totals.forget(set(places))
        self.totals.forget_groups({partition.topic for partition in places})
        self.totals.mark(monotonic_ms())
        return found

    def _read(self, partition: TopicPartition, answer: object) -> ReplicaFigures:
        if not isinstance(answer, dict):
            raise ValueError(f"{answer!r:.80} is no mapping")
        usage = usage_from_wire(answer["process"])
        self.totals.take(partition.topic, partition, reading_from_wire(answer, usage))
        return ReplicaFigures(
            role=str(answer["role"]),
            size_bytes=int(answer["size_bytes"]),
            log_start_offset=int(answer["log_start_offset"]),
            log_end_offset=int(answer["log_end_offset"]),
            high_watermark=int(answer["high_watermark"]),
            usage=usage,
            cleaner=cleaner_from_wire(answer.get("cleaner")),
            scrub=scrub_from_wire(answer.get("scrub")),
            roles=roles_from_wire(answer.get("roles")),
            damage=str(answer.get("damage", "")),
        )
