"""What the deliveries of one producer share: settings, connections, buffer, producer id and counters.

Made by the sender, and passed to each `Delivery`. Belongs to the sender's loop. May touch: the network through
`ClusterClient`, the clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from raylog.base.errors import RaylogError
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.config import ProducerConfig
from raylog.client.producer.accumulator import Accumulator
from raylog.client.producer.batch import Batch
from raylog.client.producer.partition_queues import PartitionQueue
from raylog.client.tasks import outcome
from raylog.protocol.broker import INIT_PRODUCER_ID, InitProducerIdRequest
from raylog.storage.batch.compression import COMPRESSIONS
from raylog.storage.batch.header import TRANSACTIONAL_BIT


@dataclass(slots=True)
class TopicCounts:
    """Counters of one topic, since the start of the producer."""

    records: int = 0
    records_failed: int = 0
    retries: int = 0
    size: int = 0
    """Bytes of acknowledged records, before compression."""

    def metrics(self) -> dict[str, float]:
        """The counters by Kafka's names."""
        return {
            "record-send-total": self.records,
            "record-error-total": self.records_failed,
            "record-retry-total": self.retries,
            "byte-total": self.size,
        }


@dataclass(slots=True)
class SendCounts:
    """Counters of a producer since its start; the source of `Producer.metrics()`."""

    batches: int = 0
    batch_bytes: int = 0
    encoded_bytes: int = 0
    records: int = 0
    records_failed: int = 0
    batches_stored: int = 0
    retries: int = 0
    latency_s: float = 0.0
    latency_max_s: float = 0.0
    queued_s: float = 0.0
    """Sum over all stored batches: the time from a batch's first record until it was last sent."""
    topics: dict[str, TopicCounts] = field(default_factory=dict)

    def of(self, topic: str) -> TopicCounts:
        """The counters of a topic, made on first use."""
        found = self.topics.get(topic)
        if found is None:
            found = self.topics[topic] = TopicCounts()
        return found

    def encoded(self, batch: Batch) -> None:
        """Count a batch that was encoded."""
        self.batches += 1
        self.batch_bytes += batch.size
        self.encoded_bytes += batch.encoded_bytes

    def stored(self, batch: Batch, now_s: float) -> None:
        """Count a batch that was acknowledged."""
        latency_s, queued_s = now_s - batch.sent_s, batch.sent_s - batch.opened_s
        self.batches_stored += 1
        self.records += batch.record_count
        self.latency_s += latency_s
        if latency_s > self.latency_max_s:
            self.latency_max_s = latency_s
        if queued_s > 0:
            self.queued_s += queued_s
        topic = self.of(batch.topic)
        topic.records += batch.record_count
        topic.size += batch.size

    def failed(self, batch: Batch) -> None:
        """Count a batch that has failed."""
        count = batch.record_count or len(batch.values)
        self.records_failed += count
        self.of(batch.topic).records_failed += count

    def retried(self, batch: Batch) -> None:
        """Count an attempt that failed; the batch may be sent again."""
        self.retries += 1
        self.of(batch.topic).retries += 1

    def metrics(self) -> dict[str, float]:
        """The metrics by Kafka's names; times in milliseconds, sizes in bytes."""
        batches, stored = max(1, self.batches), max(1, self.batches_stored)
        return {
            "record-send-total": self.records,
            "record-error-total": self.records_failed,
            "record-retry-total": self.retries,
            "records-per-request-avg": self.records / stored,
            "request-total": self.batches_stored,
            "batch-size-avg": self.batch_bytes / batches,
            "compression-rate-avg": self.encoded_bytes / max(1, self.batch_bytes),
            "outgoing-byte-total": self.encoded_bytes,
            "request-latency-avg": 1000 * self.latency_s / stored,
            "request-latency-max": 1000 * self.latency_max_s,
            "record-queue-time-avg": 1000 * self.queued_s / stored,
            "record-size-avg": self.batch_bytes / max(1, self.records),
        }


class Transaction(Protocol):
    """What deliveries need of the transactions of a producer."""

    @property
    def identity(self) -> tuple[int, int]:
        """Producer id and epoch of the open transaction."""

    @property
    def gives_up(self) -> bool:
        """Whether failed batches are not retried, because the transaction cannot be committed any more."""

    def may_send(self, topic: str, partition: int) -> bool:
        """Whether the partition is in the transaction; if not, it is added, and then the sender makes another pass."""

    def topic_id(self, topic: str, partition: int) -> str:
        """The id of the partition's topic when it was added to the transaction; "" = it was not added."""

    def add_again(self, topic: str, partition: int) -> None:
        """Add the partition again, for the topic that now has this name; then the sender makes another pass."""

    def failed(self, error: RaylogError) -> None:
        """A batch has failed, so the transaction cannot be committed."""


class DeliveryContext:
    """What the deliveries of one producer share."""

    def __init__(
        self,
        config: ProducerConfig,
        cluster: ClusterClient,
        accumulator: Accumulator,
        *,
        look_again: Callable[[], None],
        on_fenced: Callable[[RaylogError], object],
    ) -> None:
        """`look_again` schedules a pass over all queues; `on_fenced` is called when the producer was fenced."""
        self.config = config
        self.cluster = cluster
        self.accumulator = accumulator
        self.look_again = look_again
        self.on_fenced = on_fenced
        self.compression = COMPRESSIONS[config.compression_type]
        self.wire_acks = -1 if config.acks == "all" else int(config.acks)
        self.window = config.max_in_flight_requests_per_connection
        self.request_timeout_s = config.request_timeout_ms / 1000
        self.attributes = 0 if config.transactional_id is None else TRANSACTIONAL_BIT
        """The attributes of all batches, without the codec bits."""
        self.transactional_id = config.transactional_id or ""
        self.transaction: Transaction | None = None
        """The transactions of a producer with a transactional id; set before it sends anything."""
        self.counts = SendCounts()
        self._producer: tuple[int, int] | None = None
        self._requesting: asyncio.Task[tuple[int, int]] | None = None

    def fail(self, queue: PartitionQueue, batch: Batch, error: RaylogError) -> None:
        """Fail a batch: none of its records counts as stored. Releases its memory."""
        self.counts.failed(batch)
        self.accumulator.release(queue, batch.size)
        batch.fail(error)
        if self.transaction is not None:
            self.transaction.failed(error)

    async def producer_id(self, *, another_than: int) -> tuple[int, int]:
        """This producer's id and epoch, requested on first use, and again if the known id is `another_than`.

        `another_than`: an id whose epochs are used up, -1 = none.
        """
        if self._producer is not None and self._producer[0] != another_than:
            return self._producer
        if self._requesting is None or self._requesting.done():
            self._requesting = asyncio.ensure_future(self._request_producer_id())
        return await outcome(self._requesting, self._has_ended, "requested a producer id")

    def _has_ended(self) -> bool:
        return self.accumulator.closed_by is not None

    async def _request_producer_id(self) -> tuple[int, int]:
        request = InitProducerIdRequest()
        reply = await self.cluster.call_broker(INIT_PRODUCER_ID, request, timeout_s=self.request_timeout_s)
        self._producer = (reply.producer_id, reply.producer_epoch)
        return self._producer

    def tasks(self) -> list[asyncio.Task[tuple[int, int]]]:
        """The request for a producer id in flight, if there is one."""
        return [] if self._requesting is None or self._requesting.done() else [self._requesting]
