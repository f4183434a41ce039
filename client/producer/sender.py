"""The part of a producer on the loop: makes passes over all queues, at wake-ups, linger times and deadlines.

One per producer; it owns a `Delivery` per queue. It calls the deliveries, and both call the accumulator and the
`DeliveryContext`. In the other direction there are only callbacks: `wake` from the threads that call `send()`;
`look_again` and `abandon` (of a fenced producer) from the deliveries. Everything here runs on one event loop. May
touch: the clock, timers, and the network through `ClusterClient`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial
from typing import Any

from raylog.base.errors import RaylogError
from raylog.client.bell import Bell
from raylog.client.cluster.cluster_client import SUSPECT_S, ClusterClient
from raylog.client.config import ProducerConfig
from raylog.client.producer.accumulator import Accumulator
from raylog.client.producer.delivery import Delivery
from raylog.client.producer.delivery_context import DeliveryContext, Transaction
from raylog.client.producer.partition_queues import PartitionQueue, partition_removed
from raylog.rpc import WriteCoalescer
from raylog.rpc.host import keep_freed_memory

_NEVER_S = float("inf")
KEPT_BYTES = 8 << 20
"""Freed memory that malloc keeps for reuse: enough for the batches in flight of a few partitions."""
KEPT_DELETED_S = 300.0
"""How long the queues of a deleted topic are kept, beyond max_block_ms; as Kafka's `metadata.max.idle.ms`."""


class Sender:
    """Moves batches from the accumulator to the leaders. `start` on the loop; `wake` from any thread."""

    def __init__(self, config: ProducerConfig, cluster: ClusterClient) -> None:
        self.cluster = cluster
        self.accumulator = Accumulator(config, self.wake)
        self._context = DeliveryContext(
            config, cluster, self.accumulator, look_again=self.look_again, on_fenced=self.abandon
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bell: Bell | None = None
        """The loop's bell; made when another thread wakes the loop for the first time."""
        self._coalescer = WriteCoalescer()  # replaced by the loop's in `start`
        self._deliveries: dict[PartitionQueue, Delivery] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = _NEVER_S
        self._expires_s = _NEVER_S
        """The earliest deadline of any batch."""
        self._is_pass_due = False
        self._deleted_s: dict[str, float] = {}
        """When a topic with queues here was first found not to exist (`time.monotonic`)."""
        self._looking: asyncio.Task[None] | None = None
        self._is_closed = False

    # Lifecycle

    def start(self, loop_thread: int) -> None:
        """Start on the running loop. `loop_thread`: ident of its thread."""
        self._loop = asyncio.get_running_loop()
        self._coalescer = WriteCoalescer.on(self._loop)
        keep_freed_memory(KEPT_BYTES)
        self.accumulator.loop_thread = loop_thread
        self.cluster.on_topics_changed(self._topics_changed)

    async def flush(self) -> None:
        """Send all records appended before this call, and wait until they are stored or have failed."""
        batches = self.accumulator.seal_all()
        for delivery in self._deliveries.values():
            batches += delivery.batches
        loop = asyncio.get_running_loop()
        waiters = [(batch, loop.create_future()) for batch in batches]
        callbacks = [(batch, partial(_set, waiter)) for batch, waiter in waiters]
        try:
            for batch, callback in callbacks:
                batch.when_done(callback)
            self.look_again()
            if waiters:
                await asyncio.wait([waiter for _, waiter in waiters])
        except asyncio.CancelledError:  # by the caller's timeout
            for batch, callback in callbacks:
                batch.stop_waiting(callback)
            raise

    async def close(self, error: RaylogError) -> None:
        """Stop; records that are not stored fail with `error`."""
        self._is_closed = True
        tasks: list[asyncio.Task[Any]] = [*self.abandon(error), *self._context.tasks()]
        if self._timer is not None:
            self._timer.cancel()
        if self._looking is not None:
            tasks.append(self._looking)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)

    # Passes

    def wake(self) -> None:
        """Schedule a pass over all queues; from any thread."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        if threading.get_ident() == self.accumulator.loop_thread:
            self.look_again()  # no wake-up needed
        elif self._bell is not None and len(self.accumulator.active) < 2:  # with more, slower is fine: batches grow
            self._bell.ring(self._woken)
        else:
            loop.call_soon_threadsafe(self._woken_at_first)

    def look_again(self) -> None:
        """Schedule a pass with `call_soon`; calls before it share it. On the loop only."""
        if not self._is_pass_due and self._loop is not None and not self._is_closed:
            self._is_pass_due = True
            self._loop.call_soon(self._pass)

    def _woken_at_first(self) -> None:
        self.accumulator.is_fed_by_threads = True
        if self._bell is None:
            self._bell = Bell.on_running_loop()
        self._woken()

    def _woken(self) -> None:
        if not self._is_pass_due:  # else a pass is scheduled already
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
        # From here on nothing delays a batch: all that could be sent was sent.
        next_s, idle = self._look_ahead(queues, now_s)
        self.accumulator.end_pass(next_s, idle)
        if next_s < self._timer_s and self._loop is not None:  # an earlier timer stays, and its pass sets the next one
            if self._timer is not None:
                self._timer.cancel()
            self._timer_s = next_s
            self._timer = self._loop.call_later(max(0.0, next_s - time.monotonic()), self._pass_by_timer)

    def _serve(self, queues: list[PartitionQueue], now_s: float) -> None:
        """Have every delivery send what it may."""
        is_late = now_s >= self._expires_s
        for queue in queues:
            delivery = self._deliveries.get(queue)
            if delivery is None:
                delivery = self._deliveries[queue] = Delivery(self._context, queue)
            try:
                if queue.is_removed:
                    delivery.fail_queue(partition_removed(queue))
                if is_late:
                    delivery.expire(now_s)
                delivery.pump(now_s)
            except Exception as error:  # any error: it must neither stop the other partitions nor pass silently
                delivery.give_up(error)

    def _look_ahead(self, queues: list[PartitionQueue], now_s: float) -> tuple[float, list[PartitionQueue]]:
        """When the next pass is due without a wake-up, and which queues have no work."""
        expires_s = next_s = _NEVER_S
        idle = []
        for queue in queues:
            delivery = self._deliveries[queue]
            due_s = delivery.expires_s()
            if due_s < expires_s:
                expires_s = due_s
            suspect_s = delivery.waits_since_s() + SUSPECT_S
            if suspect_s <= now_s:
                self._look_for_leader(queue.topic)
                suspect_s = now_s + SUSPECT_S
            if suspect_s < next_s:
                next_s = suspect_s
            if queue.open is not None:
                lingers_until_s = self.accumulator.ready_at_s(queue)
                if now_s < lingers_until_s < next_s:  # if its time is over, it waits for an answer, which causes a pass
                    next_s = lingers_until_s
            if delivery.is_idle:
                idle.append(queue)
        self._expires_s = expires_s
        return min(next_s, expires_s), idle

    def _pass_by_timer(self) -> None:
        self._timer, self._timer_s = None, _NEVER_S
        self.look_again()

    def _look_for_leader(self, topic: str) -> None:
        """Fetch the topic's leaders; if they have changed, `_topics_changed` ends the wait for the old ones."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self.cluster.look_for_leader(topic))

    def _topics_changed(self, topics: set[str]) -> None:
        for name in topics:
            info = self.cluster.metadata.topic(name)
            if name in self.accumulator.topic_queues_by_name and info is not None:
                self.accumulator.topic_queues(info)
        for queue, delivery in list(self._deliveries.items()):
            if queue.topic in topics:
                delivery.leader_changed()
                if queue.is_removed and not queue.is_active and delivery.is_idle:
                    delivery.close()
                    del self._deliveries[queue]
        self.forget_deleted()
        self.look_again()

    def forget_deleted(self) -> None:
        """Drop the queues of topics that were deleted a while ago, and not created again. Cheap; called often.

        They are not dropped at once, because a thread may have looked up a queue and wait for memory. And a second
        queue for the same partition would begin its sequences at 0 again.
        """
        now_s, known = time.monotonic(), self.accumulator.topic_queues_by_name
        deleted = {name for name in known if self.cluster.metadata.topic(name) is None}
        self._deleted_s = {name: self._deleted_s.get(name, now_s) for name in deleted}
        kept_s = KEPT_DELETED_S + self._context.config.max_block_ms / 1000
        for name, since_s in list(self._deleted_s.items()):
            queues = known[name].queues
            is_idle = all(queue not in self._deliveries or self._deliveries[queue].is_idle for queue in queues)
            if now_s - since_s < kept_s or not is_idle or not self.accumulator.forget(name):
                continue
            for queue in queues:
                delivery = self._deliveries.pop(queue, None)
                if delivery is not None:
                    delivery.close()
            self._context.counts.topics.pop(name, None)
            self.cluster.unwatch((name,))
            del self._deleted_s[name]

    # Transactions

    def use(self, transaction: Transaction) -> None:
        """Send all records in these transactions. Call it before the start."""
        self._context.transaction = transaction

    def refuse(self, error: RaylogError) -> None:
        """Have every `send()` raise this error, until `accept`."""
        self.accumulator.refuse(error)

    def accept(self) -> None:
        """Accept records again."""
        self.accumulator.accept()

    def drop_unsent(self, error: RaylogError) -> None:
        """Fail all batches without a request in flight."""
        for queue, batch in self.accumulator.take_all():
            self._context.fail(queue, batch, error)
        for delivery in self._deliveries.values():
            delivery.drop_unsent(error)

    # The end

    def abandon(self, error: RaylogError) -> list[asyncio.Task[None]]:
        """Fail all records that are not stored, and every later `send()`; return cancelled tasks that still run."""
        for queue, batch in self.accumulator.close(error):
            self._context.fail(queue, batch, error)
        ending = []
        for delivery in self._deliveries.values():
            delivery.fail_all(error)
            ending += delivery.close()
        return ending

    @property
    def failed_records(self) -> int:
        """How many records have failed so far."""
        return self._context.counts.records_failed

    def failed_of(self, topic: str) -> int:
        """How many records of a topic have failed so far."""
        found = self._context.counts.topics.get(topic)
        return 0 if found is None else found.records_failed

    def topic_metrics(self) -> dict[str, dict[str, float]]:
        """The metrics of each topic that was sent to."""
        return {topic: found.metrics() for topic, found in list(self._context.counts.topics.items())}

    def metrics(self) -> dict[str, float]:
        """The metrics by Kafka's names; times in milliseconds, sizes in bytes."""
        memory = self._context.config.buffer_memory
        return self._context.counts.metrics() | {
            "buffer-total-bytes": memory,
            "buffer-available-bytes": memory - self.accumulator.buffered_bytes,
        }


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
