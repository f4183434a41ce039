"""A forwarder's source, and the partitions that its routes lead to.

May touch: the controller and other leaders, through a host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from raylog.actors.coordinators.state_role import until_committed
from raylog.actors.naming import INTERNAL_PREFIX
from raylog.actors.roles.host import RoleHost
from raylog.base.errors import LeaderNotAvailable, UnknownTopicOrPartition
from raylog.base.ids import EARLIEST, LATEST
from raylog.core.dead_letters import UNDELIVERABLE_TOPIC
from raylog.core.forwarding.progress import Route
from raylog.core.scheduling.envelope import SCHEDULED_TOPIC
from raylog.protocol.replica import LIST_OFFSETS, FetchReply, ListOffsetsRequest

READ_BYTES: Final = 2 * 1024 * 1024
WAIT_MS: Final = 10_000
READ_COMMITTED: Final = 1
CALL_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Place:
    """One partition of a topic."""

    topic: str
    topic_id: str
    partition: int


class Source(Protocol):
    """The partition whose records are forwarded."""

    @property
    def place(self) -> Place:
        """The partition."""

    async def begin(self) -> None:
        """Wait until ends that are read are never below an end that consumers have seen."""

    async def read(self, offset: int, wait_ms: int) -> tuple[FetchReply, bytes]:
        """Return committed batches from an offset on. Raises OffsetOutOfRange, other RaylogError, OSError."""

    async def bounds(self) -> tuple[int, int]:
        """Return where the log starts, and the end that consumers see."""


class OwnSource:
    """The source when this process is its leader."""

    def __init__(self, host: RoleHost) -> None:
        """``host``: the host of the role that forwards."""
        self._host = host
        self.place = Place(host.partition.topic, host.topic_id, host.partition.partition)

    async def begin(self) -> None:
        """Wait until everything that is in the log now is committed."""
        await until_committed(self._host)

    async def read(self, offset: int, wait_ms: int) -> tuple[FetchReply, bytes]:
        """Return committed batches from an offset on."""
        return await self._host.fetch(offset, max_bytes=READ_BYTES, max_wait_ms=wait_ms, isolation_level=READ_COMMITTED)

    async def bounds(self) -> tuple[int, int]:
        """Return where the log starts, and the end that consumers see."""
        return self._host.log.log_start_offset, (await self._host.list_offsets(LATEST)).offset


class OtherSource:
    """A source that another broker may lead."""

    def __init__(self, host: RoleHost, place: Place) -> None:
        """``host``: the host of the role that forwards."""
        self._host = host
        self.place = place

    async def begin(self) -> None:
        """Do nothing: a consumer of another leader never sees the end go back."""

    async def read(self, offset: int, wait_ms: int) -> tuple[FetchReply, bytes]:
        """Return committed batches from an offset on."""
        return await self._host.targets.fetch(
            self.place, offset, max_bytes=READ_BYTES, max_wait_ms=wait_ms, isolation_level=READ_COMMITTED
        )

    async def bounds(self) -> tuple[int, int]:
        """Return where the log starts, and the end that consumers see."""
        return await self._offset(EARLIEST), await self._offset(LATEST)

    async def _offset(self, timestamp: int) -> int:
        place = self.place

        def request(epoch: int) -> ListOffsetsRequest:
            return ListOffsetsRequest(place.topic_id, place.partition, epoch, timestamp, READ_COMMITTED)

        reply = await self._host.targets.call(place, LIST_OFFSETS, request, timeout_s=CALL_S)
        return reply.offset


async def resolve(host: RoleHost, routes: tuple[Route, ...]) -> tuple[tuple[Route, str, int], ...]:
    """Return topic id and partition of each route; an empty topic id if the topic does not exist.

    Raises RaylogError while that is not known.
    """
    # Raylog's own topics, named in a header or a setting, are no targets: users may not write there.
    names = {topic for topic, _ in routes if topic == UNDELIVERABLE_TOPIC or not topic.startswith(INTERNAL_PREFIX)}
    known: dict[str, tuple[str, int]] = {}
    if UNDELIVERABLE_TOPIC in names:
        made = await host.ensure_topic(UNDELIVERABLE_TOPIC)
        known[UNDELIVERABLE_TOPIC] = made.topic_id, made.partitions
    if any(topic == SCHEDULED_TOPIC for topic, _ in routes):
        made = await host.ensure_topic(SCHEDULED_TOPIC)
        known[SCHEDULED_TOPIC] = made.topic_id, made.partitions
    wanted = sorted(names - {UNDELIVERABLE_TOPIC})
    if wanted:
        for row in (await host.metadata(wanted)).topics:
            if row.error_code == UnknownTopicOrPartition.code:
                known[row.topic] = "", 0
            elif row.error_code or not row.partitions:
                raise LeaderNotAvailable(f"{row.topic} is not known yet.")
            else:
                known[row.topic] = row.topic_id, len(row.partitions)
    found: list[tuple[Route, str, int]] = []
    for route in routes:
        topic_id, partitions = known.get(route[0], ("", 0))
        found.append((route, topic_id, route[1] % partitions if partitions else 0))
    return tuple(found)
