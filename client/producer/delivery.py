"""Delivers one partition's batches: in order, each once, through broken connections, lost answers and new leaders.

*The line* are the partition's batches that have a sequence and are not done: in flight, or to be sent again. The rules,
with idempotence on:

- A batch gets its sequence when it enters the line, and keeps it. The line holds at most five batches, because a leader
  remembers the last five batches of a producer. A batch leaves the line when it and all before it are answered.
- After a retriable failure nothing new is sent until every request is answered. Then the whole line is sent again, in
  order, with the same bytes, to the current leader. It recognises batches that are stored, and answers with their
  offset.
- A leader that does not know a producer accepts any sequence from it. So the first batch is sent alone, and so is the
  first one after each failure. Others may follow only when it is stored: only then is a gap before them detected.
- A batch that has failed for good (late, or refused) leaves a hole in the sequences if it was not stored. Then the next
  batch is refused as out of order although it is the first of the line. This proves that no batch of the line is
  stored, here or in a replica that may become leader (R13). So the line gets the next producer epoch and sequences from
  0, and is sent again. The leader refuses requests in flight with the old epoch. (As Kafka's client, KIP-360.)
- A batch of several records that is refused as too large is cut into pieces with the same sequences, since none of it
  is stored: the topic's limit was lowered, or the leader compresses less. Only a single record that is too large fails.
  (As Kafka's client, KIP-126.)
- In a transaction the coordinator gives the epoch, one to each transaction, and nothing is sent before it has added the
  partition. A batch that has failed for good makes the transaction abortable instead.

Everything here runs on the sender's loop. May touch: the network through `ClusterClient`, the clock.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Coroutine
from functools import partial
from itertools import islice
from typing import Any

from raylog.base.errors import (
    DeliveryTimedOut,
    DuplicateSequence,
    InvalidProducerEpoch,
    InvalidRecord,
    LeaderNotAvailable,
    OutOfOrderSequence,
    RaylogError,
    RecordTooLarge,
    RequestTimedOut,
    TransactionAbortable,
)
from raylog.client.cluster.backoff import Backoff, as_raylog_error
from raylog.client.producer.batch import QUEUED, SENT, SEQUENCE_MASK, STORED, Batch
from raylog.client.producer.delivery_context import DeliveryContext, Transaction
from raylog.client.producer.partition_queues import PartitionQueue
from raylog.client.producer.sizes import MESSAGE_BYTES_DEFAULT
from raylog.client.tasks import LastingTask
from raylog.core.scheduling.envelope import SCHEDULED_TOPIC
from raylog.protocol.method import Method
from raylog.protocol.replica import PRODUCE, ProduceReply, ProduceRequest
from raylog.protocol.scheduling import SCHEDULE, ScheduleReply, ScheduleRequest
from raylog.rpc import Connection, Reply

logger = logging.getLogger(__name__)

_NEVER_S = float("inf")
PRODUCER_EPOCH_MAX = 2**15 - 1
LEADER_CONNECT_S = 2.0
"""Connect timeout for a leader, before metadata is fetched again."""
LEADER_REMEMBERS_S = 600.0
"""The least value of producer.id.expiration.ms, after which a leader forgets an idle producer."""


class Delivery:
    """The line of one partition's batches, and the connection with the partition's leader."""

    def __init__(self, context: DeliveryContext, queue: PartitionQueue) -> None:
        self._context = context
        self._queue = queue
        self._line: deque[Batch] = deque()
        is_schedule = queue.topic == SCHEDULED_TOPIC
        self._method: Method[Any, Any] = SCHEDULE if is_schedule else PRODUCE
        self._request: type[ProduceRequest | ScheduleRequest] = ScheduleRequest if is_schedule else ProduceRequest
        self._connection: Connection | None = None
        self._topic_id = ""
        self._leader_epoch = -1
        self._acks = context.wire_acks
        """The acks of requests: as configured, but 1 instead of 0 for a sleeping partition, and after an error until a
        batch is stored, because a refusal has to be noticed then."""
        self._producer_id = -1
        self._producer_epoch = -1
        self._next_sequence = 0
        self._recovery: LastingTask | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_recovering = False
        self._is_known_to_leader = not context.config.enable_idempotence
        self._last_stored_s = 0.0
        self._has_stored = False
        """Whether this partition has acknowledged a batch of the open transaction."""
        self._has_tried_at_once = False
        self._needs_metadata = False
        self._last_error: RaylogError | None = None
        config = context.config
        self._backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms)

    # Called by the sender

    @property
    def is_idle(self) -> bool:
        """Whether the line is empty."""
        return not self._line

    @property
    def batches(self) -> list[Batch]:
        """The batches of the line."""
        return list(self._line)

    def waits_since_s(self) -> float:
        """When the oldest request in flight was sent; infinity if there is none."""
        since_s = _NEVER_S
        for batch in self._line:
            if batch.state is SENT and batch.sent_s < since_s:
                since_s = batch.sent_s
        return since_s

    def pump(self, now_s: float) -> None:
        """Send what may be sent: first batches of the line, then new ones while the line is short enough."""
        if self._is_recovering:
            return
        queue, line, context = self._queue, self._line, self._context
        is_free = context.transaction is None or self._has_joined(context.transaction)
        if self._connection is None or self._connection.is_closed:
            if line or queue.sealed or queue.open is not None:
                self._recover()
            return
        if not is_free or (context.transaction is not None and not self._is_of_added_topic(context.transaction)):
            return
        if not line and now_s - self._last_stored_s > LEADER_REMEMBERS_S:
            self._is_known_to_leader = not context.config.enable_idempotence
        window = context.window if self._is_known_to_leader else 1
        if line:
            for batch in islice(line, window):
                if batch.state is QUEUED:
                    self._send(batch, now_s)
        while len(line) < window and (queue.sealed or queue.open is not None) and not self._is_recovering:
            taken = context.accumulator.take(queue, now_s)
            if taken is None:
                return
            if self._enter_line(taken):
                self._send(taken, now_s)

    def _has_joined(self, transaction: Transaction) -> bool:
        """Whether batches may be sent in the open transaction. In a new one, sequences begin at 0."""
        queue = self._queue
        if not self._line and not queue.sealed and queue.open is None:
            return True  # nothing to send
        if not transaction.may_send(queue.topic, queue.partition):
            return False
        if not self._line and transaction.identity != (self._producer_id, self._producer_epoch):
            self._producer_id, self._producer_epoch = transaction.identity
            self._next_sequence, self._is_known_to_leader = 0, False
            self._has_stored = False
        return True

    def _is_of_added_topic(self, transaction: Transaction) -> bool:
        """Whether the leader's topic is the one that was added to the transaction; if not, nothing may be sent to it.

        If the topic was created again during the transaction, the new one was not added, and its records would get no
        marker. While the old one has acknowledged nothing, all records are still here, and the new topic is added.
        Otherwise records were lost with the old topic, and the transaction fails.
        """
        queue = self._queue
        added = transaction.topic_id(queue.topic, queue.partition)
        if not added or added == self._topic_id:
            return True
        known = self._context.cluster.metadata.topic(queue.topic)
        if known is not None and known.topic_id == added:
            self._recover()  # the connection is still with a leader of the old topic
        elif not self._has_stored:
            transaction.add_again(queue.topic, queue.partition)
        else:
            self.fail_queue(
                TransactionAbortable(
                    f"The topic {queue.topic!r} was deleted and created again during the transaction, so that what was "
                    "sent to it before does not exist any more."
                )
            )
        return False

    def drop_unsent(self, error: RaylogError) -> None:
        """Fail the batches without a request in flight, because the transaction is aborted."""
        dropped = [batch for batch in self._line if batch.state is QUEUED]
        for batch in dropped:
            self._line.remove(batch)
            self._fail(batch, error)
        if dropped:
            self._settle_front(time.monotonic())

    def expire(self, now_s: float) -> None:
        """Fail the batches whose delivery timeout has passed."""
        late = [batch for batch in self._line if batch.deadline_s <= now_s and batch.state is not STORED]
        for batch in late:
            self._line.remove(batch)
        for batch in [*late, *self._context.accumulator.take_expired(self._queue, now_s)]:
            self._fail(batch, self._too_late())
        if late:
            self._settle_front(time.monotonic())

    def expires_s(self) -> float:
        """The deadline of the oldest batch. It is the first to expire, since all have the same timeout."""
        return self._line[0].deadline_s if self._line else self._context.accumulator.oldest_deadline_s(self._queue)

    def leader_changed(self) -> None:
        """After a change of metadata: stop waiting for answers of a former leader, whose machine may be down."""
        found = self._context.cluster.metadata.partition(self._queue.topic, self._queue.partition)
        topic = self._context.cluster.metadata.topic(self._queue.topic)
        connection = self._connection
        if found is None or topic is None or connection is None or found.endpoint is None:
            return
        if found.leader_epoch <= self._leader_epoch and topic.topic_id == self._topic_id:
            return
        self._connection = None
        if any(batch.state is SENT for batch in self._line):
            connection.abort(f"{self._queue.topic}-{self._queue.partition} has another leader")

    def fail_all(self, error: RaylogError) -> None:
        """Fail the whole line."""
        batches, self._line = list(self._line), deque()
        for batch in batches:
            self._fail(batch, error)

    def give_up(self, error: Exception) -> None:
        """Fail all batches of this partition after an unexpected exception, so that no future stays pending."""
        queue = self._queue
        reason = as_raylog_error(error)
        logger.error("The records for %s-%s failed: %s", queue.topic, queue.partition, reason.message, exc_info=error)
        self.fail_queue(reason)

    def close(self) -> list[asyncio.Task[None]]:
        """Cancel the search for a leader and the waits for the socket; return these tasks, which have still to end."""
        for task in self._tasks:
            task.cancel()
        if self._recovery is None:
            return list(self._tasks)
        self._recovery.cancel()
        return [*self._tasks, self._recovery.task]

    def _own(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Sending

    def _enter_line(self, batch: Batch) -> bool:
        """Encode a batch and put it into the line. False = that is impossible; it has failed, without a sequence."""
        context = self._context
        is_idempotent = context.config.enable_idempotence
        sequence = self._next_sequence if is_idempotent else -1
        try:
            batch.encode(context.compression, self._producer_id, self._producer_epoch, sequence, context.attributes)
        except Exception as error:  # any error: the batch has left its queue, so it has to fail
            self._fail(batch, _not_encoded(batch, error))
            return False
        if is_idempotent:
            self._next_sequence = (sequence + batch.record_count) & SEQUENCE_MASK
        context.counts.encoded(batch)
        self._line.append(batch)
        return True

    def _send(self, batch: Batch, now_s: float) -> None:
        connection, context = self._connection, self._context
        if connection is None:
            return
        batch.attempts += 1
        batch.state = SENT
        batch.sent_s = now_s
        queue = self._queue
        head = self._topic_id, queue.partition, self._leader_epoch, self._acks, context.config.request_timeout_ms
        # Each request has the transactional id: a leader that gets a producer's first batch needs it, to verify at the
        # coordinator that the partition is in the transaction.
        request = ProduceRequest(*head, context.transactional_id) if context.transactional_id else self._request(*head)
        attempt = batch.attempts
        if self._acks == 0:
            try:
                connection.notify(self._method.name, request, batch.encoded)
            except RaylogError as error:  # too large for a frame
                asyncio.get_running_loop().call_soon(self._answered, batch, attempt, error)
                return
            # Without answers only the socket gives back-pressure.
            written = self._own(connection.drain())
            written.add_done_callback(partial(self._written, batch, attempt))
            return
        connection.call_then(
            self._method.name,
            request,
            batch.encoded,
            timeout_s=context.request_timeout_s,
            then=partial(self._answered, batch, attempt),
        )

    def _answered(self, batch: Batch, attempt: int, answer: Reply | RaylogError) -> None:
        if batch.attempts != attempt or batch.is_done:
            return
        if not isinstance(answer, Reply):
            self._refused(batch, answer)
            return
        try:
            reply: ProduceReply | ScheduleReply = self._method.read_reply(answer.args)
        except RaylogError as error:
            self._refused(batch, error)
            return
        if reply.log_append_time_ms >= 0:
            batch.stamps = [(0, reply.log_append_time_ms)]
        if isinstance(reply, ScheduleReply):
            batch.replaced = reply.replaced
        self._stored(batch, reply.base_offset)

    def _written(self, batch: Batch, attempt: int, _: asyncio.Future[None]) -> None:
        """Complete a batch that gets no answer (acks=0): the socket has accepted it."""
        if batch.attempts == attempt and not batch.is_done:
            self._stored(batch, -1)

    def _stored(self, batch: Batch, base_offset: int) -> None:
        batch.state = STORED
        batch.base_offset = base_offset
        self._is_known_to_leader = self._has_stored = True
        self._last_stored_s = now_s = time.monotonic()
        self._acks = self._context.wire_acks
        if self._last_error is not None or self._has_tried_at_once:
            self._backoff.reset()
            self._has_tried_at_once = False
            self._last_error = None
        self._settle_front(now_s)

    def _settle_front(self, now_s: float) -> None:
        """Complete the stored batches at the front of the line, then go on sending or recovering."""
        line, context, queue = self._line, self._context, self._queue
        while line and line[0].state is STORED:
            batch = line.popleft()
            context.counts.stored(batch, now_s)
            context.accumulator.release(queue, batch.size)
            batch.complete(batch.base_offset)
        if self._is_recovering:
            self._begin_recovery_when_answered()
        elif queue.is_active:  # else it has no work, and the next append wakes the sender
            context.look_again()

    def _refused(self, batch: Batch, error: RaylogError) -> None:
        if isinstance(error, DuplicateSequence):  # stored, but the leader no longer remembers the offset
            self._stored(batch, -1)
            return
        transaction = self._context.transaction
        if transaction is not None and (transaction.gives_up or isinstance(error, InvalidProducerEpoch)):
            # A leader cannot say whether this producer is fenced: the coordinator does, when the transaction is
            # aborted.
            self._line.remove(batch)
            self._fail(batch, error)
            self._settle_front(time.monotonic())
            return
        if isinstance(error, InvalidProducerEpoch):
            self._context.on_fenced(error)
            return
        self._last_error = error
        self._context.counts.retried(batch)
        out_of_order = isinstance(error, OutOfOrderSequence) and self._producer_id >= 0
        if out_of_order or (error.retriable and batch.attempts <= self._context.config.retries):
            batch.state = QUEUED
            batch.is_refused_as_out_of_order = out_of_order
            is_known = self._context.cluster.learn_leader(self._queue.topic, self._queue.partition, error)
            if is_known:
                self._has_tried_at_once = False  # no pause: a partition that falls asleep soon might sleep again
            self._needs_metadata |= not is_known and (error.refresh_metadata or isinstance(error, RequestTimedOut))
            if isinstance(error, RequestTimedOut) and self._connection is not None:
                # The leader hangs or is cut off: the other requests would only time out as well.
                self._connection.abort(f"produce was not answered: {error.message}")
            self._recover()
            return
        if isinstance(error, RecordTooLarge) and batch.record_count > 1:
            batch.state, batch.is_refused_as_too_large = QUEUED, True
            self._needs_metadata = True  # for the topic's limit, which applies to the next batches too
            self._recover()
            return
        self._line.remove(batch)
        self._fail(batch, error)
        self._settle_front(time.monotonic())

    def _fail(self, batch: Batch, error: RaylogError) -> None:
        self._context.fail(self._queue, batch, error)

    def _too_late(self) -> DeliveryTimedOut:
        limit_ms = self._context.config.delivery_timeout_ms
        reason = f" The last error was: {self._last_error.message}" if self._last_error is not None else ""
        return DeliveryTimedOut(
            f"Records for {self._queue.topic}-{self._queue.partition} were not acknowledged within delivery_timeout_ms="
            f"{limit_ms}; they may or may not be stored.{reason}"
        )

    # Recovering

    def _recover(self) -> None:
        """Stop sending. When all requests are answered, find the leader, and send from the front of the line again."""
        self._is_recovering = True
        self._is_known_to_leader = not self._context.config.enable_idempotence
        self._begin_recovery_when_answered()

    def _begin_recovery_when_answered(self) -> None:
        if self._recovery is None and not any(batch.state is SENT for batch in self._line):
            self._recovery = LastingTask(self._find_leader, f"raylog-leader-{self._queue.topic}")

    async def _find_leader(self) -> None:
        """Retry with backoff until a leader is connected, or nothing is left to send."""
        while True:
            # The first retry follows without a pause: usually a new leader is already elected.
            if self._has_tried_at_once:
                await asyncio.sleep(self._backoff.next_s())
            self._has_tried_at_once = self._last_error is not None
            try:
                await self._connect()
                break
            except Exception as failure:  # any error: if this task ended, the records would wait in vain
                error = self._last_error = as_raylog_error(failure)
                self._needs_metadata = True
                if not isinstance(failure, RaylogError):
                    logger.exception("The search for a leader of %s failed.", self._queue.topic)
                if not error.retriable:
                    self.fail_queue(error)
                if not self._line and not self._queue.sealed and self._queue.open is None:
                    break
        self._recovery = None
        self._is_recovering = False
        self._context.look_again()

    async def _connect(self) -> None:
        context, queue = self._context, self._queue
        timeout_s = context.request_timeout_s
        if self._needs_metadata:
            await context.cluster.refresh((queue.topic,), timeout_s=timeout_s)
        self._needs_metadata = False
        topic = context.cluster.metadata.topic(queue.topic)
        found = context.cluster.metadata.partition(queue.topic, queue.partition)
        if topic is None or found is None or found.endpoint is None:
            raise LeaderNotAvailable(f"Partition {queue.topic}-{queue.partition} has no leader at the moment.")
        # A leader that is slow to connect to may be down: after this timeout metadata is fetched again, while the
        # attempt to connect goes on.
        connection = await context.cluster.connection(found.endpoint, min(timeout_s, LEADER_CONNECT_S))
        self._cut_refused(int(topic.config.get("max.message.bytes", MESSAGE_BYTES_DEFAULT)))
        if context.config.enable_idempotence:
            await self._renew_producer()
        self._topic_id, self._leader_epoch = topic.topic_id, found.leader_epoch
        self._acks = context.wire_acks or int(found.is_asleep or self._last_error is not None)
        self._connection = connection

    def _cut_refused(self, bytes_max: int) -> None:
        """Replace batches that were refused as too large by pieces of them. No request is in flight."""
        for batch in [batch for batch in self._line if batch.is_refused_as_too_large]:
            at = self._line.index(batch)
            del self._line[at]
            try:
                # At most half the size, even if the known limit allows more: the leader may have a lower one now.
                pieces = batch.cut(min(bytes_max, max(1, batch.encoded_bytes // 2)), self._context.attributes)
            except Exception as error:  # such as out of memory: the other batches go on without it
                self._fail(batch, _not_encoded(batch, error))
                continue
            for number, piece in enumerate(pieces):
                self._line.insert(at + number, piece)

    async def _renew_producer(self) -> None:
        """Get a producer id if there is none; take the next epoch if the sequences have a hole before the line.

        In a transaction a hole is an error.
        """
        line = self._line
        is_behind_hole = bool(line) and line[0].is_refused_as_out_of_order
        if self._context.transaction is not None:
            if is_behind_hole:
                raise OutOfOrderSequence(
                    f"Records of this transaction for {self._queue.topic}-{self._queue.partition} are lost."
                )
            return
        if self._producer_id < 0 or (is_behind_hole and self._producer_epoch >= PRODUCER_EPOCH_MAX):
            producer_id, producer_epoch = await self._context.producer_id(another_than=self._producer_id)
        elif is_behind_hole:
            producer_id, producer_epoch = self._producer_id, self._producer_epoch + 1
        else:
            return
        self._producer_id, self._producer_epoch = producer_id, producer_epoch
        self._next_sequence = 0
        for batch in [batch for batch in line if batch.state is QUEUED]:
            try:
                batch.encode_again(producer_id, producer_epoch, self._next_sequence)
            except Exception as error:  # such as out of memory: the other batches go on without it
                line.remove(batch)
                self._fail(batch, _not_encoded(batch, error))
                continue
            batch.is_refused_as_out_of_order = False
            self._next_sequence = (self._next_sequence + batch.record_count) & SEQUENCE_MASK

    def fail_queue(self, error: RaylogError) -> None:
        """Fail the line and all waiting batches of this partition, for an error that no retry can fix."""
        self.fail_all(error)
        while (batch := self._context.accumulator.take(self._queue, float("inf"))) is not None:
            self._fail(batch, error)


def _not_encoded(batch: Batch, error: Exception) -> InvalidRecord:
    """The error for a batch that cannot be encoded."""
    found = InvalidRecord(
        f"A batch of {batch.record_count} records for {batch.topic}-{batch.partition} could not be encoded and was "
        f"not sent ({type(error).__name__}: {error}). Send its records one by one to find the one that is wrong."
    )
    found.__cause__ = error
    return found
