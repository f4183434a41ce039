"""The producer's loop side: handles all queues on wake-ups, linger times and deadlines, and keeps the metrics.

One per producer; owns a `Delivery` per queue. Everything here runs on one event loop. May touch: the clock, timers, and
the network through `ClusterClient`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from typing import Any

from raylog.client.cluster.cluster_client import SUSPECT_S, ClusterClient
from raylog.client.config import ProducerConfig
from raylog.client.producer.accumulator import Accumulator
from raylog.client.producer.batch import Batch
from raylog.client.producer.delivery import Delivery
from raylog.client.producer.queues import PartitionQueue, queue_gone
from raylog.core.errors import ClientClosed, RaylogError
from raylog.protocol.broker import INIT_PRODUCER_ID, InitProducerIdRequest
from raylog.rpc import WriteCoalescer
from raylog.rpc.host.malloc import keep_freed_memory
from raylog.storage.batch.compression import COMPRESSIONS

_NEVER_S = float("inf")
KEPT_BYTES = 8 << 20
"""Batches in flight of a few partitions."""


@dataclass(slots=True)
class SendCounts:
    """Counters of the producer; the source of `Producer.metrics()`."""

    batches: int = 0
    batch_bytes: int = 0
    encoded_bytes: int = 0
    records: int = 0
    records_failed: int = 0
    batches_stored: int = 0
    retries: int = 0
    latency_s: float = 0.0
    latency_max_s: float = 0.0


class Sender:
    """Moves batches from the accumulator to the leaders. `start` on the loop; `wake` from any thread."""

    def __init__(self, config: ProducerConfig, cluster: ClusterClient) -> None:
        self.config = config
        self.cluster = cluster
        self.accumulator = Accumulator(config, self.wake)
        self.compression = COMPRESSIONS[config.compression_type]
        self.wire_acks = -1 if config.acks == "all" else int(config.acks)
        self.window = config.max_in_flight_requests_per_connection
        self.request_timeout_s = config.request_timeout_ms / 1000
        self.counts = SendCounts()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._coalescer = WriteCoalescer()  # of the loop, once it is known
        self._deliveries: dict[PartitionQueue, Delivery] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = _NEVER_S
        self._expires_s = _NEVER_S
        """No batch is late before this."""
        self._is_pass_due = False
        self._producer: tuple[int, int] | None = None
        self._asking_producer: asyncio.Task[tuple[int, int]] | None = None
        self._tasks: set[asyncio.Future[Any]] = set()
        self._looking: asyncio.Task[None] | None = None
        self._is_closed = False

    # Lifecycle

    def start(self, loop_thread: int) -> None:
        """Start on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._coalescer = WriteCoalescer.on(self._loop)
        keep_freed_memory(KEPT_BYTES)
        self.accumulator.loop_thread = loop_thread
        self.cluster.on_topics_changed(self._topics_changed)

    async def flush(self) -> None:
        """Send everything that was appended before this call, and wait until it is stored or has failed."""
        batches = self.accumulator.seal_all()
        for delivery in self._deliveries.values():
            batches += delivery.batches
        waiters = []
        loop = asyncio.get_running_loop()
        for batch in batches:
            waiter: asyncio.Future[None] = loop.create_future()
            batch.when_done(lambda waiter=waiter: None if waiter.done() else waiter.set_result(None))  # type: ignore[misc]
            waiters.append(waiter)
        self.look_again()
        if waiters:
            await asyncio.wait(waiters)

    async def close(self, error: RaylogError) -> None:
        """Stop; records that are not stored fail with `error`."""
        self._is_closed = True
        self._abandon(error)
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)

    def fail_for_good(self, error: RaylogError) -> None:
        """The producer was fenced: everything fails, and so does every later `send()`."""
        self._abandon(error)

    def own(self, task: asyncio.Future[Any]) -> None:
        """Keep a task until it is done, and end it with the sender."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Passes

    def wake(self) -> None:
        """Schedule a pass over all queues; from any thread."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        if threading.get_ident() == self.accumulator.loop_thread:
            self.look_again()  # the loop is awake
        else:
            loop.call_soon_threadsafe(self._woken)

    def look_again(self) -> None:
        """Schedule a pass in this iteration of the loop; on the loop only. Calls in one iteration share a pass."""
        if not self._is_pass_due and self._loop is not None and not self._is_closed:
            self._is_pass_due = True
            self._loop.call_soon(self._pass)

    def _woken(self) -> None:
        if not self._is_pass_due:  # else a pass comes in this iteration anyway
            self._pass()

    def _pass(self) -> None:
        self._is_pass_due = False
        if self._is_closed:
            return
        queues = self.accumulator.begin_pass()
        now_s = time.monotonic()
        coalescer = self._coalescer
        coalescer.depth += 1
        try:
            self._serve(queues, now_s)
        finally:
            coalescer.depth -= 1
            if not coalescer.depth and coalescer.queues:
                coalescer.flush()
        # The rest delays no batch: everything that could be sent has been.
        next_s, idle = self._look_ahead(queues, now_s)
        self.accumulator.end_pass(next_s, idle)
        if next_s < self._timer_s and self._loop is not None:  # an earlier timer may stay: its pass sets the next
            if self._timer is not None:
                self._timer.cancel()
            self._timer_s = next_s
            self._timer = self._loop.call_later(max(0.0, next_s - time.monotonic()), self._pass_by_timer)

    def _serve(self, queues: list[PartitionQueue], now_s: float) -> None:
        """Let every queue send what it may."""
        is_late = now_s >= self._expires_s
        for queue in queues:
            delivery = self._deliveries.get(queue)
            if delivery is None:
                delivery = self._deliveries[queue] = Delivery(self, queue)
            try:
                if queue.is_gone:
                    delivery.fail_queue(queue_gone(queue))
                if is_late:
                    delivery.expire(now_s)
                delivery.pump(now_s)
            except Exception as error:  # a failure of one partition must neither delay the others nor be silent
                delivery.give_up(error)

    def _look_ahead(self, queues: list[PartitionQueue], now_s: float) -> tuple[float, list[PartitionQueue]]:
        """When the next queue is due, and which queues have no work."""
        expires_s = next_s = _NEVER_S
        idle = []
        for queue in queues:
            delivery = self._deliveries[queue]
            expires_s = min(expires_s, delivery.expires_s())
            suspect_s = delivery.waits_since_s() + SUSPECT_S
            if suspect_s <= now_s:
                self._look_for_leader(queue.topic)
                suspect_s = now_s + SUSPECT_S
            next_s = min(next_s, suspect_s)
            if queue.open is not None:
                lingers_until_s = self.accumulator.ready_at_s(queue)
                if now_s < lingers_until_s < next_s:  # else it waits for an answer, which triggers a pass
                    next_s = lingers_until_s
            if delivery.is_idle:
                idle.append(queue)
        self._expires_s = expires_s
        return min(next_s, expires_s), idle

    def _pass_by_timer(self) -> None:
        self._timer, self._timer_s = None, _NEVER_S
        self.look_again()

    def _look_for_leader(self, topic: str) -> None:
        """Refresh the topic's leaders; if they changed, `_topics_changed` ends the wait for the old ones."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self.cluster.look_for_leader(topic))
            self.own(self._looking)

    def _topics_changed(self, topics: set[str]) -> None:
        for name in topics:
            info = self.cluster.metadata.topic(name)
            if name in self.accumulator.topic_queues_by_name and info is not None:
                self.accumulator.topic_queues(info)
        for queue, delivery in list(self._deliveries.items()):
            if queue.topic in topics:
                delivery.leader_changed()
                if queue.is_gone and not queue.is_active and delivery.is_idle:
                    delivery.close()
                    del self._deliveries[queue]
        self.look_again()

    def _abandon(self, error: RaylogError) -> None:
        for queue, batch in self.accumulator.close(error):
            self.count_failed(batch)
            self.accumulator.release(queue, batch.size)
            batch.fail(error)
        for delivery in self._deliveries.values():
            delivery.fail_all(error)
            delivery.close()

    # The producer id

    async def producer_id(self, *, another_than: int) -> tuple[int, int]:
        """This producer's id and epoch; requested once, and again when the known id is used up."""
        if self._producer is not None and self._producer[0] != another_than:
            return self._producer
        if self._asking_producer is None or self._asking_producer.done():
            self._asking_producer = asyncio.ensure_future(self._ask_producer_id())
            self.own(self._asking_producer)
        return await asyncio.shield(self._asking_producer)

    async def _ask_producer_id(self) -> tuple[int, int]:
        request = InitProducerIdRequest()
        reply = await self.cluster.call_broker(INIT_PRODUCER_ID, request, timeout_s=self.request_timeout_s)
        self._producer = (reply.producer_id, reply.producer_epoch)
        return self._producer

    # Metrics

    def count_batch(self, batch: Batch) -> None:
        """A batch was closed and encoded."""
        counts = self.counts
        counts.batches += 1
        counts.batch_bytes += batch.size
        counts.encoded_bytes += batch.encoded_bytes

    def count_stored(self, batch: Batch) -> None:
        """A batch was acknowledged."""
        counts = self.counts
        latency_s = time.monotonic() - batch.sent_s
        counts.batches_stored += 1
        counts.records += batch.record_count
        counts.latency_s += latency_s
        counts.latency_max_s = max(counts.latency_max_s, latency_s)

    def count_refused(self, error: RaylogError) -> None:
        """An attempt failed."""
        self.counts.retries += 1

    def count_failed(self, batch: Batch) -> None:
        """A batch was given up."""
        self.counts.records_failed += batch.record_count or len(batch.values)

    def metrics(self) -> dict[str, float]:
        """Kafka's names; times in milliseconds, sizes in bytes."""
        counts = self.counts
        batches, stored = max(1, counts.batches), max(1, counts.batches_stored)
        return {
            "record-send-total": counts.records,
            "record-error-total": counts.records_failed,
            "record-retry-total": counts.retries,
            "records-per-request-avg": counts.records / stored,
            "request-total": counts.batches_stored,
            "batch-size-avg": counts.batch_bytes / batches,
            "compression-rate-avg": counts.encoded_bytes / max(1, counts.batch_bytes),
            "outgoing-byte-total": counts.encoded_bytes,
            "request-latency-avg": 1000 * counts.latency_s / stored,
            "request-latency-max": 1000 * counts.latency_max_s,
            "buffer-total-bytes": self.config.buffer_memory,
            "buffer-available-bytes": self.config.buffer_memory - self.accumulator.buffered_bytes,
        }


def closed_error() -> ClientClosed:
    """The error of later calls and of pending records after `close()`."""
    return ClientClosed("The producer was closed; make a new one.")
