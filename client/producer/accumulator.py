"""The producer's record buffer, from `send()` to the sender: open and sealed batches per partition, in bounded memory.

The hot path of the producer. The `append` methods run in the user's threads, everything else on the sender's loop; a
`Spinlock` separates them, held for about a microsecond. `Producer.send` inlines the append of a record that fits into
the open batch; all size decisions, and all other records, are here. The loop is woken when a batch opens (its linger
time begins) and when it is full, not per record. May touch: the clock.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from threading import get_ident

from raylog.base.errors import RaylogError, RecordTooLarge
from raylog.client.cluster.metadata import TopicInfo
from raylog.client.config import ProducerConfig
from raylog.client.producer.batch import Batch, EncodedBody
from raylog.client.producer.futures import SendFuture
from raylog.client.producer.partition_queues import PartitionQueue, TopicQueues, partition_removed
from raylog.client.producer.partitioner import rule_of
from raylog.client.producer.sizes import PLAIN_BYTES_MAX, RECORD_OVERHEAD_BYTES, LargestRecord, headers_size
from raylog.client.spinlock import Spinlock
from raylog.client.types import Header

BATCH_SHARE_OF_REQUEST = 4
"""Under load a batch grows up to 1/4 of max.request.size, so that several can be in flight."""
ROOM_SHARE = 8
"""An open batch may reserve up to 1/8 of the free memory, divided by the number of active queues."""
DEFAULT_LINGER_MS = 5
"""The linger time if the user sets no `linger_ms`; it applies only while a batch of the partition is in flight."""
_NEVER_S = float("inf")


class Accumulator:
    """All queues of one producer. `wake` is called, from any thread, when the sender should make a pass over them."""

    def __init__(self, config: ProducerConfig, wake: Callable[[], None], chance: random.Random | None = None) -> None:
        self._wake = wake
        self._chance = chance or random.Random()
        self.turn = Spinlock()
        self._largest = min(config.max_request_size, PLAIN_BYTES_MAX)
        self._batch_size = min(config.batch_size, PLAIN_BYTES_MAX)
        self._grow_limit = max(self._batch_size, self._largest // BATCH_SHARE_OF_REQUEST)
        self._is_compressed = config.compression_type != "none"
        self._linger_s = (DEFAULT_LINGER_MS if config.linger_ms is None else config.linger_ms) / 1000
        self._lingers_when_quiet = config.linger_ms is not None
        self._delivery_s = config.delivery_timeout_ms / 1000
        self._choose = rule_of(config.partitioner)
        self._buffer_memory = config.buffer_memory
        self._memory = config.buffer_memory
        """How many bytes may be buffered: `buffer_memory`, or -1 while records are refused."""
        self._buffered = 0
        self._waiters: list[Callable[[], object]] = []
        self.active: list[PartitionQueue] = []
        """The queues that may have work for the sender."""
        self._next_pass_s = _NEVER_S
        self._is_wake_due = False
        self._is_wake_sent = False  # True until the pass begins, which will see what is appended now
        self.topic_queues_by_name: dict[str, TopicQueues] = {}
        self.closed_by: RaylogError | None = None
        """Why records are refused; None = they are accepted."""
        self._is_closed = False
        self.loop_thread: int | None = None
        self.is_fed_by_threads = False
        """Whether any thread other than the loop's has woken the sender."""

    # Called by user threads

    def append(
        self,
        topic_queues: TopicQueues,
        key: bytes | None,
        value: bytes | None,
        headers: list[Header] | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> SendFuture | None:
        """Add one record; None if there is no memory for it now (see `when_room`).

        Without a timestamp it gets the current time. Raises RecordTooLarge, UnknownTopicOrPartition, or the error with
        which the producer was closed.
        """
        size = RECORD_OVERHEAD_BYTES
        if value is not None:
            size += len(value)
        if key is not None:
            size += len(key)
        if headers is not None:
            size += headers_size(headers)
        if size > topic_queues.check_from:
            topic_queues.largest_record.check(key, value, headers)
        named = None
        if partition is not None:
            named = topic_queues.queue(partition)
        elif key is not None or self._choose is not None:
            named = self.queue_of(topic_queues, key, value, None)
        turn, token = self.turn, [get_ident()]
        try:
            turn.take(token)
            if named is not None and named.is_removed:  # the topic has shrunk since the look-up
                named = self.queue_of(topic_queues, key, value, partition)
            batch = (named or topic_queues.sticky).open
            if batch is not None and size < batch.room:
                batch.room -= size
            else:
                batch = self._with_room(topic_queues, named or self._sticky_queue(topic_queues, size), size)
                if batch is None:
                    return None
            index = batch.add(key, value, headers, timestamp_ms)
        finally:
            if turn.owner is token:
                turn.owner = None
                turn.free = True
            if self._is_wake_due and not self._is_wake_sent:
                self._wake_sender()
        return SendFuture(batch, index)

    def append_batch(
        self,
        topic_queues: TopicQueues,
        queue: PartitionQueue | None,
        keys: list[bytes | None] | None,
        values: list[bytes | None],
        stamps: list[tuple[int, int]],
        size: int,
        headers: list[list[Header] | None] | None = None,
    ) -> Batch | None:
        """Add a whole batch of `size` bytes at the end of its queue; None if there is no memory now.

        `stamps` as in `Batch`. `queue=None` = the sticky queue (records without a key). Raises RecordTooLarge, or the
        error with which the producer was closed.
        """

        def fill(batch: Batch) -> None:
            batch.keys, batch.values, batch.headers, batch.stamps = keys or [], values, headers, stamps

        return self._append_whole(topic_queues, queue, size, fill)

    def append_body(
        self, topic_queues: TopicQueues, queue: PartitionQueue | None, encoded: EncodedBody
    ) -> Batch | None:
        """As `append_batch`, for a batch that is already encoded except for its header."""

        def fill(batch: Batch) -> None:
            batch.body, batch.record_count, batch.stamps = encoded, encoded.records, [(0, encoded.first_ms)]

        return self._append_whole(topic_queues, queue, encoded.size, fill)

    def _append_whole(
        self, topic_queues: TopicQueues, queue: PartitionQueue | None, size: int, fill: Callable[[Batch], None]
    ) -> Batch | None:
        turn, token = self.turn, [get_ident()]
        try:
            turn.take(token)
            batch = self._enqueued(topic_queues, queue, size, fill)  # returned below: a `return` leaves the `try` first
        finally:
            if turn.owner is token:
                turn.owner = None
                turn.free = True
            if self._is_wake_due and not self._is_wake_sent:
                self._wake_sender()
        return batch

    def _wake_sender(self) -> None:
        """Wake the sender. Without the lock, since it takes long; whatever sets `_is_wake_sent` has to wake it."""
        try:
            self._is_wake_sent = True
            self._wake()
        except BaseException:  # Ctrl-C, before the sender was woken
            self._wake()
            raise

    def queue_of(
        self, topic_queues: TopicQueues, key: bytes | None, value: bytes | None, partition: int | None
    ) -> PartitionQueue | None:
        """A record's queue: of the given partition, else by the partitioner or key; None = the sticky queue.

        Raises UnknownTopicOrPartition, and whatever the user's partitioner raises.
        """
        if partition is not None:
            return topic_queues.queue(partition)
        choose = self._choose
        if choose is not None:
            chosen = choose(topic_queues, key, value)
            return None if chosen is None else topic_queues.queue(chosen)
        return None if key is None else topic_queues.queue_of_key(key)

    @property
    def chooses(self) -> bool:
        """Whether a partitioner other than the default chooses partitions."""
        return self._choose is not None

    def when_room(self, callback: Callable[[], object]) -> bool:
        """Call `callback` once when memory is released. False = never, because nothing is buffered, or closed."""
        turn, token = self.turn, [get_ident()]
        try:
            turn.take(token)
            if self.closed_by is not None or self._buffered == 0:
                return False
            self._waiters.append(callback)
        finally:
            if turn.owner is token:
                turn.owner = None
                turn.free = True
        self._wake()  # lingering batches should be sent now: their memory is needed
        return True

    def stop_waiting(self, callback: Callable[[], object]) -> None:
        """Remove a callback of `when_room`, whose caller no longer waits. Idempotent."""
        turn, token = self.turn, [get_ident()]
        try:
            turn.take(token)
            if callback in self._waiters:
                self._waiters.remove(callback)
        finally:
            if turn.owner is token:
                turn.owner = None
                turn.free = True

    def topic_queues(self, info: TopicInfo) -> TopicQueues:
        """The queues of a topic, made for or updated with its metadata."""
        with self.turn:
            topic_queues = self.topic_queues_by_name.get(info.name)
            if topic_queues is None:
                topic_queues = TopicQueues(info.name, self._chance)
                topic_queues.largest_record = LargestRecord(
                    info.name, self._largest, self._largest, self._is_compressed
                )
            request_limit = min(self._largest, max(self._batch_size, self._buffer_memory // 4))
            for queue in topic_queues.update(info, self._grow_limit, request_limit):
                self._seal(queue)
            self.topic_queues_by_name[info.name] = topic_queues
            return topic_queues

    # Called by the sender

    def forget(self, topic: str) -> bool:
        """Drop the queues of a topic that no longer exists; False = not yet, because one of them has work."""
        with self.turn:
            if any(queue.is_active or queue.sealed for queue in self.topic_queues_by_name[topic].queues):
                return False
            del self.topic_queues_by_name[topic]
            return True

    def begin_pass(self) -> list[PartitionQueue]:
        """Begin a pass; return the queues that may have work. Batches opened from here on wake the sender again."""
        with self.turn:
            self._next_pass_s = _NEVER_S
            self._is_wake_due = self._is_wake_sent = False
            return list(self.active)

    def end_pass(self, next_pass_s: float, idle: Iterable[PartitionQueue]) -> None:
        """End a pass: note when the next one is due without a wake-up, and which queues had no work."""
        with self.turn:
            self._next_pass_s = min(self._next_pass_s, next_pass_s)
            for queue in idle:
                if queue.open is None and not queue.sealed and queue.is_active:
                    queue.is_active = False
                    self.active.remove(queue)

    def take(self, queue: PartitionQueue, now_s: float) -> Batch | None:
        """The queue's next batch if it is ready: full, its linger time over, or its memory needed. Else None."""
        with self.turn:
            if queue.sealed:
                return queue.sealed.popleft()
            batch = queue.open
            if batch is None:
                return None
            is_full = batch.reserved - batch.room >= queue.full_size(self._batch_size)
            is_late = now_s >= self._lingers_until_s(queue, batch) and queue.waiting_bytes < queue.limit
            # If the queue has batches in flight, these will release memory for the waiters.
            is_in_the_way = bool(self._waiters) and not queue.waiting_bytes
            if is_full or is_late or is_in_the_way:
                self._seal(queue)
            return queue.sealed.popleft() if queue.sealed else None

    def ready_at_s(self, queue: PartitionQueue) -> float:
        """When the linger time of the queue's open batch ends; infinity if there is none."""
        batch = queue.open
        return _NEVER_S if batch is None else self._lingers_until_s(queue, batch)

    def oldest_deadline_s(self, queue: PartitionQueue) -> float:
        """The delivery deadline of the queue's first waiting batch; infinity if there is none."""
        with self.turn:
            batch = queue.sealed[0] if queue.sealed else queue.open
            return _NEVER_S if batch is None else batch.deadline_s

    def take_expired(self, queue: PartitionQueue, now_s: float) -> list[Batch]:
        """Remove and return the waiting batches whose delivery deadline has passed."""
        expired = []
        with self.turn:
            while queue.sealed and queue.sealed[0].deadline_s <= now_s:
                expired.append(queue.sealed.popleft())
            if not queue.sealed and queue.open is not None and queue.open.deadline_s <= now_s:
                self._seal(queue)
                expired += queue.sealed
                queue.sealed.clear()
        return expired

    def seal_all(self) -> list[Batch]:
        """Seal every open batch, so that it is ready; return all waiting batches."""
        waiting: list[Batch] = []
        with self.turn:
            for queue in self.active:
                self._seal(queue)
                waiting += queue.sealed
        return waiting

    def release(self, queue: PartitionQueue, size: int) -> None:
        """Release the memory of a batch that is done.

        If it was the only batch of the producer, its queue becomes inactive, which saves a pass. This is done only if
        threads feed the producer: a task on the loop that waited for this batch may send the next record at once.
        """
        with self.turn:
            queue.waiting_bytes -= size
            self._buffered -= size
            if self.is_fed_by_threads and self.active == [queue] and not queue.waiting_bytes and queue.open is None:
                queue.is_active = False
                self.active.clear()
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter()

    def refuse(self, error: RaylogError) -> None:
        """Refuse further records with `error`, until `accept`. Waiting batches stay."""
        with self.turn:
            if not self._is_closed:
                self.closed_by = error
            self._memory = -1  # no batch is open then, so every append needs memory, and meets `closed_by`
            for queue in self.active:
                self._seal(queue)
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter()

    def accept(self) -> None:
        """Accept records again, unless closed."""
        with self.turn:
            if not self._is_closed:
                self.closed_by, self._memory = None, self._buffer_memory

    def take_all(self) -> list[tuple[PartitionQueue, Batch]]:
        """Remove and return all waiting batches, ready or not."""
        left: list[tuple[PartitionQueue, Batch]] = []
        with self.turn:
            for queue in self.active:
                self._seal(queue)
                left += [(queue, batch) for batch in queue.sealed]
                queue.sealed.clear()
        return left

    def close(self, error: RaylogError) -> list[tuple[PartitionQueue, Batch]]:
        """Refuse further records with `error`, for good; remove and return all waiting batches."""
        self.refuse(error)
        self._is_closed = True
        return self.take_all()

    def disown(self, error: RaylogError) -> None:
        """In a forked child: refuse everything. Also frees the lock, since the thread that held it is not here."""
        self.turn.owner, self.turn.free = None, True
        self.closed_by = error
        self._is_closed, self._memory = True, -1
        for topic_queues in self.topic_queues_by_name.values():
            for queue in topic_queues.queues:
                queue.open = None

    @property
    def buffered_bytes(self) -> int:
        """Bytes of records that are neither stored nor failed."""
        turn, token = self.turn, [get_ident()]
        try:
            turn.take(token)
            return self._buffered - sum(queue.open.room for queue in self.active if queue.open is not None)
        finally:
            if turn.owner is token:
                turn.owner = None
                turn.free = True

    # Internals; the lock is held

    def _raise_if_never(self, size: int) -> None:
        if self.closed_by is not None:
            raise self.closed_by.with_traceback(None)  # all refused records share it: else its traceback would grow
        if size > self._memory:
            raise RecordTooLarge(f"The record of {size} bytes is over buffer_memory={self._memory}.", size=size)

    def _sticky_queue(self, topic_queues: TopicQueues, size: int) -> PartitionQueue:
        """The sticky queue for the next `size` bytes. A queue that had its share is sealed at once, and replaced."""
        queue = topic_queues.sticky
        if size <= topic_queues.sticky_left():
            return queue
        chosen = topic_queues.change_over(self._batch_size)
        if chosen is not queue and queue.open is not None:
            self._is_wake_due = True
            self._seal(queue)
        return chosen

    def _enqueued(
        self, topic_queues: TopicQueues, queue: PartitionQueue | None, size: int, fill: Callable[[Batch], None]
    ) -> Batch | None:
        """Put a sealed batch of `size` bytes at the end of its queue; None if there is no memory now."""
        if self._buffered + size > self._memory:
            self._raise_if_never(size)
            return None
        if queue is None:
            queue = self._sticky_queue(topic_queues, size)
        if queue.is_removed:
            raise partition_removed(queue)
        self._seal(queue)
        batch = self._new_batch(queue)
        fill(batch)
        self._activate(queue)
        batch.reserved = batch.size = size
        self._buffered += size
        queue.waiting_bytes += size
        queue.closed_bytes += size
        queue.sealed += (batch,)
        self._is_wake_due = True
        return batch

    def _with_room(self, topic_queues: TopicQueues, queue: PartitionQueue, size: int) -> Batch | None:
        """The queue's open batch, or a new one, with a record's bytes counted; None if there is no memory for them.

        This is called once for many records: the batch also reserves memory for more (`room`), up to the size at which
        it counts as full. The reservation is limited, to leave memory for other partitions; in the sticky queue also by
        what is left of the queue's share, after which the next sticky queue is chosen.
        """
        batch, batch_size = queue.open, self._batch_size
        before = 0 if batch is None else batch.reserved - batch.room
        free = self._memory - self._buffered + (0 if batch is None else batch.room)
        if size > free:
            self._raise_if_never(size)
            return None
        if batch is None or before + size > queue.limit:
            batch, before = self._next_batch(queue, batch), 0
        filled = before + size
        if filled >= queue.full_size(batch_size) > before:
            self._is_wake_due = True
        until = min(queue.limit, batch_size if filled < batch_size else filled + batch_size)
        room = min(until - filled, (free - size) // (ROOM_SHARE * len(self.active)))
        if topic_queues.sticky is queue:
            left = topic_queues.sticky_left() - size
            if left >= 0 or topic_queues.change_over(self._batch_size) is queue:
                room = min(room, topic_queues.sticky_left() - size)
        room = max(0, room)
        self._buffered += filled + room - batch.reserved
        batch.reserved, batch.room = filled + room, room
        return batch

    def _seal(self, queue: PartitionQueue) -> None:
        """Seal the open batch, if there is one. An empty one, whose first record was interrupted, is dropped.

        The batch is queued or open at every step: no call lies between the two assignments, so no signal handler runs
        there.
        """
        batch = queue.open
        if batch is None:
            return
        size = batch.reserved - batch.room if batch.values else 0
        self._buffered -= batch.reserved - size
        batch.size, batch.room = size, 0
        queue.waiting_bytes += size
        queue.closed_bytes += size
        if batch.values:
            queue.sealed += (batch,)
        queue.open = None

    def _next_batch(self, queue: PartitionQueue, full: Batch | None) -> Batch:
        if full is not None:
            self._is_wake_due = True
            self._seal(queue)
        batch = self._new_batch(queue)
        due_s = self._lingers_until_s(queue, batch)
        self._activate(queue)
        # No call from here on, where a signal handler could run: the queue of an open batch is always active, and the
        # sender is woken for it.
        if due_s < self._next_pass_s:
            self._next_pass_s = due_s
            self._is_wake_due = True
        queue.open = batch
        return batch

    def _lingers_until_s(self, queue: PartitionQueue, batch: Batch) -> float:
        if self._lingers_when_quiet or queue.waiting_bytes:
            return batch.opened_s + self._linger_s
        return batch.opened_s  # no batch in flight: lingering would only cost time

    def _new_batch(self, queue: PartitionQueue) -> Batch:
        now_s = time.monotonic()
        return Batch(queue.topic, queue.partition, now_s, now_s + self._delivery_s, self.loop_thread)

    def _activate(self, queue: PartitionQueue) -> None:
        if not queue.is_active:
            queue.is_active = True
            self.active.append(queue)
