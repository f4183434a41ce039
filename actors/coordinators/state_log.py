"""The log of a coordinator that is an actor: its partition of the internal topic, read and written as by any client.

Appends carry the coordinator's producer id and epoch. The first append of an incarnation has a higher epoch than all
before it. From then on the partition's leader refuses appends of earlier incarnations, as Kafka fences producers
(KIP-98). Owned by the coordinator's shell. May touch: the network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from raylog.actors.clock import monotonic_ms, wall_ms
from raylog.actors.coordinators.runner import fence_row
from raylog.actors.coordinators.stored_rows import EncodedRow, encode_rows, encoded_row
from raylog.actors.transport import dial
from raylog.base.errors import RaylogError, RequestTimedOut
from raylog.base.ids import EARLIEST
from raylog.core.configuration.config import TopicConfig
from raylog.core.coordinators.share import CoordinatorKeys
from raylog.protocol.broker import MetadataTopic
from raylog.protocol.method import AnyMethod
from raylog.protocol.replica import DESCRIBE_PRODUCERS, FETCH, LIST_OFFSETS, PRODUCE, READ_UNCOMMITTED
from raylog.rpc import Connection, Reply, Secret
from raylog.storage.batch.compression import Buffer
from raylog.storage.batch.records import BatchMeta

FetchMetadata = Callable[[], Awaitable[MetadataTopic]]
"""Returns the topic's metadata."""

CONNECT_TIMEOUT_S: Final = 1.0
REQUEST_TIMEOUT_MS: Final = 5_000
RETRY_S: Final = 0.03
READ_BYTES: Final = 4 * 1024 * 1024
READ_WAIT_MS: Final = 500
MAX_SEQUENCE: Final = 2**31 - 1
PRODUCER_EPOCH_MAX: Final = 2**15 - 1
"""Reserved to fence all other epochs of a producer id; no coordinator serves with it."""

LOAD_TIMEOUT_S: Final = 60.0
"""Deadline of each request while the log is being loaded."""
APPEND_TIMEOUT_S: Final = 20.0
BATCH_HEAD_BYTES: Final = 128
"""Room for what a batch has besides its rows: its header, and the heads of its columns."""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One registration of a coordinator with the controller: its epoch, and the identity of its appends."""

    epoch: int
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class _Leader:
    topic_id: str
    leader_epoch: int
    connection: Connection


class StateLog:
    """One partition of a coordinator's topic, read and written over the wire as by any client."""

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        secret: Secret,
        fetch_metadata: FetchMetadata,
        registered: Callable[[], Awaitable[Incarnation]],
    ) -> None:
        """Make it; no connection is made before the first call. ``registered`` returns the present incarnation."""
        self._topic = topic
        self._partition = partition
        self._secret = secret
        self._fetch_metadata = fetch_metadata
        self._registered = registered
        self._leader: _Leader | None = None
        self._incarnation = Incarnation(-1, -1, -1)
        self._sequence = 0
        self.config: dict[str, str] = {}
        """The topic's configuration when its leader was last looked up."""
        self._partitions = 0
        self.rows_bytes_max = TopicConfig.from_dict({}).max_message_bytes - BATCH_HEAD_BYTES
        """Most bytes of rows in one append, by the topic's configuration when its leader was last looked up."""
        self._looking = asyncio.Lock()

    @property
    def share(self) -> CoordinatorKeys:
        """The keys that belong to this partition, by the topic when its leader was last looked up."""
        return CoordinatorKeys(self._partition, self._partitions)

    async def begin(self) -> int:
        """Fence all earlier incarnations with a first append; returns the offset behind it."""
        self._incarnation = await self._registered()
        self._sequence = 0
        fence, _ = encoded_row(fence_row(self._incarnation.epoch), None)
        if self._incarnation.epoch >= PRODUCER_EPOCH_MAX:  # below, all incarnations have had the same producer id
            await self._fence_earlier(fence)
        return await self._append([fence], LOAD_TIMEOUT_S) + 1

    async def start_offset(self) -> int:
        """Return the first offset that can be read."""
        reply = await self._request(LIST_OFFSETS, EARLIEST, timeout_s=LOAD_TIMEOUT_S)
        return LIST_OFFSETS.read_reply(reply.args).offset

    async def fetch(self, offset: int) -> Buffer:
        """Return committed batches from an offset on."""
        limits = (READ_BYTES, 1, READ_WAIT_MS, READ_UNCOMMITTED)
        return (await self._request(FETCH, offset, *limits, timeout_s=LOAD_TIMEOUT_S)).payload

    async def append(self, rows: Sequence[EncodedRow]) -> int:
        """Append rows as one batch on all in-sync replicas; returns the offset of the first one.

        Together, several rows may not exceed ``rows_bytes_max``: the leader would refuse them. Raises
        :class:`raylog.base.errors.InvalidProducerEpoch` when a newer coordinator has taken over, and
        :class:`RequestTimedOut` when the outcome is not known at the deadline.
        """
        return await self._append(rows, APPEND_TIMEOUT_S)

    async def _append(self, rows: Sequence[EncodedRow], timeout_s: float) -> int:
        meta = BatchMeta(self._incarnation.producer_id, self._incarnation.producer_epoch, self._sequence)
        batch = encode_rows(rows, wall_ms(), meta)
        reply = await self._request(PRODUCE, -1, REQUEST_TIMEOUT_MS, payload=batch, timeout_s=timeout_s)
        self._sequence = (self._sequence + len(rows)) & MAX_SEQUENCE
        return PRODUCE.read_reply(reply.args).base_offset

    async def _fence_earlier(self, row: EncodedRow) -> None:
        """Fence the producer ids of earlier coordinators of this partition, by appending a row with each of them.

        When a coordinator has used up the epochs of its producer id, it continues with another id. Appends with the new
        id do not fence a process that still has the old one. Ids grow, so the ids of later coordinators are left alone.
        """
        reply = await self._request(DESCRIBE_PRODUCERS, timeout_s=LOAD_TIMEOUT_S)
        for known in DESCRIBE_PRODUCERS.read_reply(reply.args):
            if known.producer_id < self._incarnation.producer_id and known.producer_epoch < PRODUCER_EPOCH_MAX:
                meta = BatchMeta(known.producer_id, PRODUCER_EPOCH_MAX, 0)
                batch = encode_rows([row], wall_ms(), meta)
                await self._request(PRODUCE, -1, REQUEST_TIMEOUT_MS, payload=batch, timeout_s=LOAD_TIMEOUT_S)

    def close(self) -> None:
        """Close the connection to the leader."""
        if self._leader is not None:
            self._leader.connection.close("coordinator stopped")
            self._leader = None

    async def _request(self, method: AnyMethod, *fields: object, payload: bytes = b"", timeout_s: float) -> Reply:
        """Send a request to the partition's leader, with retries, until it replies. Raises RequestTimedOut.

        ``fields``: those after the partition and its leader epoch.
        """
        deadline = monotonic_ms() + int(timeout_s * 1000)
        while True:
            try:
                leader = await self._find_leader()
                request = method.request(leader.topic_id, self._partition, leader.leader_epoch, *fields)
                return await leader.connection.call(
                    method.name, request, payload, timeout_s=REQUEST_TIMEOUT_MS / 1000 + 1
                )
            except (RaylogError, OSError) as trouble:
                if isinstance(trouble, RaylogError) and trouble.is_remote and not trouble.retriable:
                    raise
                last = trouble
            self.close()
            if monotonic_ms() >= deadline:
                raise RequestTimedOut(
                    f"{self._topic}-{self._partition} did not answer within {timeout_s:.0f} s: {last}"
                )
            await asyncio.sleep(RETRY_S)

    async def _find_leader(self) -> _Leader:
        async with self._looking:
            return await self._known_leader()

    async def _known_leader(self) -> _Leader:
        standing = self._leader
        if standing is not None and not standing.connection.is_closed:
            return standing
        topic = await self._fetch_metadata()
        if topic.error_code or self._partition >= len(topic.partitions):
            raise ConnectionResetError(f"{self._topic} is not there yet")
        self._partitions = len(topic.partitions)
        partition = topic.partitions[self._partition]
        if not partition.leader_port:
            raise ConnectionResetError(f"{self._topic}-{self._partition} has no leader at the moment")
        self.config = {key: str(value) for key, value in topic.config.items()}
        self.rows_bytes_max = TopicConfig.from_dict(topic.config).max_message_bytes - BATCH_HEAD_BYTES
        connection = await dial(
            partition.leader_host, partition.leader_port, secret=self._secret, timeout_s=CONNECT_TIMEOUT_S
        )
        self._leader = _Leader(topic.topic_id, partition.leader_epoch, connection)
        return self._leader
