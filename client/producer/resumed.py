"""`ResumedProducer`: an idempotent producer whose owner keeps its id, epoch and sequences, and so survives restarts.

An ordinary producer forgets at the end of its process which sequences it gave to which records. The owner of a resumed
one writes that down before anything is sent (the outbox does so in its table). After a crash it sends exactly the same
batches again: leaders recognise duplicates, and answer with their first offset. For this the producer id has to outlive
every pause, so it is a lasting id, which partitions never forget. A restart does not raise its epoch, so two owners may
send the same batches at the same time without harm; they agree between them on which one gives out the next sequence.

Each `send` is one attempt. May touch: the network through `ClusterClient`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from raylog.base.errors import RaylogError, RequestTimedOut, UnknownTopicOrPartition
from raylog.base.ids import TopicPartition
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.config import ProducerConfig
from raylog.client.types import Header
from raylog.core.scheduling.envelope import SCHEDULED_TOPIC
from raylog.protocol.admin import ENSURE_INTERNAL_TOPIC, EnsureInternalTopicRequest
from raylog.protocol.broker import INIT_PRODUCER_ID, InitProducerIdRequest
from raylog.protocol.replica import DESCRIBE_PRODUCERS, PRODUCE, DescribeProducersRequest, ProduceRequest
from raylog.protocol.scheduling import SCHEDULE, ScheduleRequest
from raylog.storage.batch.compression import COMPRESSIONS
from raylog.storage.batch.header import HEADER_BYTES
from raylog.storage.batch.records import BatchMeta, encode_batch

ACKS_ALL: Final = -1
BATCH_BYTES_MIN: Final = HEADER_BYTES
"""The bytes of a batch without records: its header."""


class Identity(NamedTuple):
    """By this, and its number of records, a leader recognises a batch."""

    producer_id: int
    producer_epoch: int
    first_sequence: int


def encode(
    identity: Identity,
    keys: list[bytes | None] | None,
    values: list[bytes | None],
    timestamps: list[int],
    headers: list[list[Header] | None] | None,
    compression_type: str = "none",
) -> bytes:
    """Encode a batch of these records; timestamps in milliseconds since 1970."""
    codec = COMPRESSIONS[compression_type]
    return encode_batch(keys, values, timestamps, headers, BatchMeta(*identity), compression=codec)


class KnownSequence(NamedTuple):
    """A producer's state at a leader: its epoch, and the sequence of its last record (-1 = none in this epoch)."""

    producer_epoch: int
    last_sequence: int


class ResumedProducer:
    """Sends encoded batches. Make it on an event loop; `start()` before use, `close()` at the end."""

    def __init__(self, config: ProducerConfig, cluster: ClusterClient | None = None) -> None:
        self.config = config
        self.cluster = cluster or ClusterClient(config)
        self._timeout_s = config.request_timeout_ms / 1000

    async def start(self) -> None:
        """Find the cluster. Raises NoClusterFound, ConnectionFailed, AuthenticationFailed."""
        await self.cluster.start()

    async def close(self) -> None:
        """Close the connections."""
        await self.cluster.close()

    async def new_producer_id(self) -> int:
        """A new lasting producer id: unique, and never forgotten by partitions. Its first epoch is 0."""
        reply = await self.cluster.call_broker(INIT_PRODUCER_ID, InitProducerIdRequest(True), timeout_s=self._timeout_s)
        return reply.producer_id

    async def make_scheduled_topic(self) -> None:
        """Make sure that ``__scheduled`` exists, where delayed records wait."""
        await self.cluster.call_broker(
            ENSURE_INTERNAL_TOPIC, EnsureInternalTopicRequest(SCHEDULED_TOPIC), timeout_s=self._timeout_s
        )

    async def known_sequence(self, where: TopicPartition, producer_id: int) -> KnownSequence | None:
        """The producer's state at the partition's leader; None = it has none. Retried until the request's timeout.

        Raises UnknownTopicOrPartition, LeaderNotAvailable, RequestTimedOut, ConnectionFailed.
        """
        rows, _ = await self.cluster.call_leader(
            *where, DESCRIBE_PRODUCERS, DescribeProducersRequest, timeout_s=self._timeout_s
        )
        for row in rows:
            if row.producer_id == producer_id:
                return KnownSequence(row.producer_epoch, row.last_sequence)
        return None

    async def send(self, where: TopicPartition, topic_id: str, batch: bytes) -> int:
        """Send a batch once, to the leader known now; return the offset of its first record (-1 = no longer known).

        Returns when all in-sync replicas have it. Raises UnknownTopicOrPartition, also if the topic was created again.
        After a retriable error the batch may be stored; send it again.
        """
        info, found = await self.cluster.leader(*where, timeout_s=self._timeout_s)
        if info.topic_id != topic_id:
            raise UnknownTopicOrPartition(f"Topic {where.topic!r} was deleted and created again.", topic=where.topic)
        endpoint = found.endpoint
        assert endpoint is not None  # `leader` raises without one
        is_schedule = where.topic == SCHEDULED_TOPIC
        method, kind = (SCHEDULE.name, ScheduleRequest) if is_schedule else (PRODUCE.name, ProduceRequest)
        request = kind(topic_id, where.partition, found.leader_epoch, ACKS_ALL, self.config.request_timeout_ms)
        connection = await self.cluster.connection(endpoint, self._timeout_s)
        try:
            reply = await connection.call(method, request, batch, timeout_s=self._timeout_s)
        except RaylogError as error:
            if isinstance(error, RequestTimedOut) and not error.is_remote:
                # The leader hangs or is cut off: on this connection later requests would only time out as well.
                connection.abort("a batch was not answered in time")
            raise
        return (SCHEDULE if is_schedule else PRODUCE).read_reply(reply.args).base_offset

    async def find_leader_again(self, where: TopicPartition, error: RaylogError) -> None:
        """Prepare another attempt: apply the leader that the error names, or fetch the topic's metadata."""
        if not self.cluster.learn_leader(*where, error):
            try:
                await self.cluster.refresh((where.topic,), timeout_s=self._timeout_s)
            except RaylogError as failure:
                if not failure.retriable:
                    raise
