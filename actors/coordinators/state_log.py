"""A coordinator's view of its partition of the internal topic: read it from the start, append to it, be fenced.

Appends carry the coordinator's producer id and epoch. The first append of an incarnation has a higher epoch than all
before it. From then on the partition's leader refuses appends of earlier incarnations, as Kafka fences producers
(KIP-98). Owned by the coordinator's shell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from raylog.actors.clock import monotonic_ms, wall_ms
from raylog.actors.coordinators.live_rows import LiveRows, offsets_of
from raylog.actors.transport import dial
from raylog.core.config import TopicConfig
from raylog.core.coordinators.share import KeyShare
from raylog.core.errors import RaylogError, RequestTimedOut
from raylog.core.ids import EARLIEST
from raylog.protocol.replica import DESCRIBE_PRODUCERS, PRODUCE
from raylog.rpc import Connection, Reply, Secret
from raylog.storage.batch.records import BatchMeta, encode_batch

FetchMetadata = Callable[[], Awaitable[list[object]]]
"""Returns the topic's row in the reply to ``metadata``."""

CONNECT_TIMEOUT_S: Final = 1.0
REQUEST_TIMEOUT_MS: Final = 5_000
RETRY_S: Final = 0.03
READ_BYTES: Final = 4 * 1024 * 1024
MAX_SEQUENCE: Final = 2**31 - 1
PRODUCER_EPOCH_MAX: Final = 2**15 - 1
"""Reserved to fence all other epochs of a producer id; no coordinator serves with it."""

BATCH_HEAD_BYTES: Final = 128
"""Room for what a batch has besides its rows: its header, and the heads of its columns."""
ROW_HEAD_BYTES: Final = 10
"""Room for the heads of a row's key and value."""

EncodedRow = tuple[bytes, bytes | None]
"""Key and value of one record, in msgpack; a None value is a tombstone."""

_encoder = msgspec.msgpack.Encoder()


def encoded_row(key: list[object], value: list[object] | None) -> tuple[EncodedRow, int]:
    """Return a row in its stored form, and the most bytes that it takes in a batch."""
    packed = _encoder.encode(key), None if value is None else _encoder.encode(value)
    return packed, len(packed[0]) + len(packed[1] or b"") + ROW_HEAD_BYTES


@dataclass(frozen=True, slots=True)
class Identity:
    """The coordinator's producer id and epoch in this incarnation."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class _Leader:
    topic_id: str
    leader_epoch: int
    connection: Connection


class StateLog:
    """One partition of a coordinator's topic, read and written over the wire as by any client."""

    def __init__(self, topic: str, partition: int, *, secret: Secret, fetch_metadata: FetchMetadata) -> None:
        """Make it; no connection is made before the first call."""
        self._topic = topic
        self._partition = partition
        self._secret = secret
        self._fetch_metadata = fetch_metadata
        self._leader: _Leader | None = None
        self._identity = Identity(-1, -1)
        self._sequence = 0
        self.config: dict[str, str] = {}
        """The topic's configuration when its leader was last looked up."""
        self._partitions = 0
        self.rows_bytes_max = TopicConfig.from_dict({}).max_message_bytes - BATCH_HEAD_BYTES
        """Most bytes of rows in one append, by the topic's configuration when its leader was last looked up."""
        self._looking = asyncio.Lock()

    @property
    def share(self) -> KeyShare:
        """The keys that belong to this partition, by the topic when its leader was last looked up."""
        return KeyShare(self._partition, self._partitions)

    def become(self, identity: Identity) -> None:
        """Use this producer id and epoch from now on; sequences start at 0."""
        self._identity = identity
        self._sequence = 0

    async def append(self, rows: Sequence[EncodedRow], *, timeout_s: float) -> int:
        """Append rows as one batch on all in-sync replicas; returns the offset behind them.

        Together, several rows may not exceed ``rows_bytes_max``: the leader would refuse them. Raises
        :class:`raylog.core.errors.InvalidProducerEpoch` when a newer coordinator has taken over, and
        :class:`RequestTimedOut` when the outcome is not known at the deadline.
        """
        now = wall_ms()
        batch = encode_batch(
            [key for key, _ in rows],
            [value for _, value in rows],
            [now] * len(rows),
            meta=BatchMeta(self._identity.producer_id, self._identity.producer_epoch, self._sequence),
        )
        reply = await self._request("produce", [-1, REQUEST_TIMEOUT_MS], batch, timeout_s=timeout_s)
        self._sequence = (self._sequence + len(rows)) & MAX_SEQUENCE
        return int(reply.args[0]) + len(rows)

    async def fence_earlier(self, row: EncodedRow, *, timeout_s: float) -> None:
        """Fence the producer ids of earlier coordinators of this partition, by appending a row with each of them.

        When a coordinator has used up the epochs of its producer id, it continues with another id. Appends with the new
        id do not fence a process that still has the old one. Ids grow, so the ids of later coordinators are left alone.
        """
        reply = await self._request(DESCRIBE_PRODUCERS.name, [], timeout_s=timeout_s)
        for known in DESCRIBE_PRODUCERS.read_reply(reply.args):
            if known.producer_id < self._identity.producer_id and known.producer_epoch < PRODUCER_EPOCH_MAX:
                meta = BatchMeta(known.producer_id, PRODUCER_EPOCH_MAX, 0)
                batch = encode_batch([row[0]], [row[1]], [wall_ms()], meta=meta)
                await self._request(PRODUCE.name, [-1, REQUEST_TIMEOUT_MS], batch, timeout_s=timeout_s)

    async def read_to(self, end: int, *, timeout_s: float) -> LiveRows:
        """Return the live rows from the log's start up to ``end``, which an append returned."""
        rows = LiveRows()
        reply = await self._request("list_offsets", [EARLIEST], timeout_s=timeout_s)
        offset = int(reply.args[0])
        while offset < end:
            reply = await self._request("fetch", [offset, READ_BYTES, 1, 500, 0], timeout_s=timeout_s)
            behind = rows.gather(reply.payload, end)
            offset = offset if behind is None else behind
        return rows

    async def unreadable(self, rows: LiveRows, end: int, *, timeout_s: float) -> dict[int, str]:
        """Return offset and reason of each skipped row or batch below ``end``; reads the log again if it has to."""
        found: dict[bytes, int] = {}
        if rows.passed_over:
            reply = await self._request("list_offsets", [EARLIEST], timeout_s=timeout_s)
            offset = int(reply.args[0])
            while offset < end:
                reply = await self._request("fetch", [offset, READ_BYTES, 1, 500, 0], timeout_s=timeout_s)
                more, behind = offsets_of(reply.payload, rows.passed_over)
                found |= {key: at for key, at in more.items() if at < end}
                offset = offset if behind is None else behind
        return rows.damaged | {at: rows.passed_over[key] for key, at in found.items()}

    def close(self) -> None:
        """Close the connection to the leader."""
        if self._leader is not None:
            self._leader.connection.close("coordinator stopped")
            self._leader = None

    async def _request(self, method: str, args: list[object], payload: bytes = b"", *, timeout_s: float) -> Reply:
        """Send a request to the partition's leader, with retries, until it replies. Raises RequestTimedOut."""
        deadline = monotonic_ms() + int(timeout_s * 1000)
        while True:
            try:
                leader = await self._find_leader()
                head: list[object] = [leader.topic_id, self._partition, leader.leader_epoch]
                return await leader.connection.call(
                    method, head + args, payload, timeout_s=REQUEST_TIMEOUT_MS / 1000 + 1
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
        row = await self._fetch_metadata()
        code, topic_id, _, _, partitions, config = row[:6]
        if code or not isinstance(partitions, list) or self._partition >= len(partitions):
            raise ConnectionResetError(f"{self._topic} is not there yet")
        self._partitions = len(partitions)
        _, _, leader_epoch, host, port, *_ = partitions[self._partition]
        if not port:
            raise ConnectionResetError(f"{self._topic}-{self._partition} has no leader at the moment")
        if isinstance(config, dict):
            self.config = {str(key): str(value) for key, value in config.items()}
            self.rows_bytes_max = TopicConfig.from_dict(config).max_message_bytes - BATCH_HEAD_BYTES
        connection = await dial(host, port, secret=self._secret, timeout_s=CONNECT_TIMEOUT_S)
        self._leader = _Leader(str(topic_id), leader_epoch, connection)
        return self._leader
