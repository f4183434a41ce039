"""`QueueSource`: one partition of a queue at its consumer. Fetches records, renews locks, sends verdicts.

It has two tasks: one fetches, the other sends verdicts and renews locks. Methods that may be called from any thread say
so: they use only a deque and a dict, whose single operations are atomic, and wake the loop at most once per round.
Owned by the engine. May touch: the network, the clock.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from raylog.base.errors import ConnectionFailed, CorruptMessage, RaylogError, UnknownMemberId, from_code
from raylog.base.ids import TopicPartition
from raylog.client.cluster.backoff import Backoff, as_raylog_error
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.cluster.connections import call
from raylog.client.cluster.deadline import Deadline
from raylog.client.config import QueueConsumerConfig
from raylog.client.queues.buffer import MessageBuffer
from raylog.client.queues.leases import LeaseBook
from raylog.client.queues.message import QueueMessage
from raylog.client.queues.verdicts import (
    UNASKED,
    Settled,
    gap_verdicts,
    is_unasked,
    taken_verdicts,
    unopened_verdicts,
)
from raylog.client.reading.decode import BatchOpener, Deserializer, FetchedBatch
from raylog.client.tasks import LastingTask
from raylog.client.user_code import USER_ERRORS
from raylog.core.queues import events as ev
from raylog.protocol.queues import (
    QUEUE_ACKNOWLEDGE,
    QUEUE_FETCH,
    QUEUE_LEAVE,
    QUEUE_OPEN,
    QueueAcknowledgeReply,
    QueueAcknowledgeRequest,
    QueueFetchReply,
    QueueFetchRequest,
    QueueLeaveRequest,
    QueueOpenRequest,
    QueueVerdict,
)
from raylog.rpc import Connection
from raylog.storage.batch.header import iter_headers

logger = logging.getLogger(__name__)

ANSWER_EXTRA_S: Final = 5.0
"""Added to a fetch's wait as its timeout."""
LEAVE_TIMEOUT_S: Final = 1.0
NO_RECORDS: Final = 0
"""The record count of a fetch that ends this member's waiting fetches at the leader, and hands out nothing."""
VERDICTS_MAX: Final = 5_000
"""How many verdicts are taken for one request, at most."""
RENEWALS: Final = 4
"""How often locks are checked per lock duration, so that each is renewed when about half of it is over."""


class Member(Protocol):
    """What a `QueueSource` needs of its engine."""

    config: QueueConsumerConfig
    cluster: ClusterClient
    group: str
    member_id: str
    settings: dict[str, str]
    by_key: bool
    is_flushing: bool
    buffer: MessageBuffer
    key_deserializer: Deserializer | None
    value_deserializer: Deserializer | None

    def fail(self, error: BaseException) -> None:
        """Have the user's next call raise an error."""

    def call_on_loop(self, function: Callable[[], object]) -> None:
        """Call a function on the engine's loop. From any thread."""

    def drop_buffered(self, source: QueueSource) -> None:
        """Drop the buffered messages of a source whose locks are lost."""

    def return_waiting(self, source: QueueSource) -> None:
        """Return buffered messages that wait for a topic of higher priority."""

    def drop_later(self, source: QueueSource, failed: QueueMessage) -> None:
        """Return the held messages after a message of their key that is retried or released."""

    def expects_retry_topic(self) -> None:
        """Look for new retry topics of the group."""

    def verdict_failed(self, partition: TopicPartition, first: int, end: int, error: RaylogError) -> None:
        """Report that a verdict was not accepted."""


class QueueSource:
    """One partition of a queue, as one consumer works on it."""

    def __init__(self, engine: Member, partition: TopicPartition) -> None:
        self.partition = partition
        self._engine = engine
        self._leases = LeaseBook()
        self._settled: deque[Settled] = deque()
        self._is_woken = False
        self._woken = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._looked = asyncio.Event()
        """Set in each round of `_send_on`: the held messages may have changed."""
        self._tasks: list[LastingTask] = []
        self._sending: list[QueueVerdict] = []
        """The verdicts being sent; sent again if the task was cancelled from outside and restarted."""
        self._connection: Connection | None = None
        self._watched: Connection | None = None
        """The last connection with an `on_close` callback of this source."""
        self._opener = BatchOpener(
            partition, engine.key_deserializer, engine.value_deserializer, check_crcs=engine.config.check_crcs
        )
        self._wall_ahead_s = time.time() - time.monotonic()
        self.is_wanted = True
        """Whether the partition is still assigned; otherwise only held messages are settled."""
        self.is_leaving = False
        """Whether `close` has begun, after which the leader forgets this member."""
        self._is_fetching = False

    def start(self) -> None:
        """Start the two tasks."""
        self._tasks = [
            LastingTask(self._fetch_on, f"queue {self.partition} fetch"),
            LastingTask(self._send_on, f"queue {self.partition} verdicts"),
        ]

    @property
    def held(self) -> int:
        """How many messages are held: locked and not settled."""
        return len(self._leases)

    def wall_s(self, deadline: float) -> float:
        """A time of the monotonic clock as seconds since 1970."""
        return deadline + self._wall_ahead_s

    # From the user's thread

    def settle(self, message: QueueMessage, kind: int, delay_ms: int = -1, reason: str = "") -> None:
        """Queue a verdict (`kind`) on a message for the leader. From any thread."""
        self._leases.drop(message)
        self._settled.append((message.record.offset, message._lock.hand, kind, delay_ms, reason))
        if kind in (ev.RETRY, ev.RELEASE) and self._engine.by_key:
            self._engine.drop_later(self, message)
        self._wake()

    def extend(self, message: QueueMessage, lock_ms: int) -> None:
        """Request that a lock lasts for `lock_ms` from now; it changes when the leader answers. From any thread."""
        self._settled.append(self._leases.request(message, lock_ms))
        self._wake()

    def forget(self, message: QueueMessage) -> None:
        """Drop a message that the user did not get, and whose lock is lost. From any thread.

        In the same session its hand-out is returned, so that it does not count.
        """
        message._is_settled = True
        self._leases.drop(message)
        if self._leases.is_current(message):
            self._settled.append((message.record.offset, message._lock.hand, ev.RETURN, -1, ""))
            self._wake()

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._engine.call_on_loop(self._woken.set)

    # Fetching

    async def _fetch_on(self) -> None:
        config, buffer = self._engine.config, self._engine.buffer
        backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
        while self.is_wanted:
            try:
                count = await buffer.room(self.partition)
                if self.is_wanted:
                    with buffer.fetching(self.partition):
                        await self._fetch(count)
                backoff.reset()
            except asyncio.CancelledError:
                raise
            except Exception as failure:  # any error: without another fetch the partition would not be consumed
                error = as_raylog_error(failure)
                if not isinstance(error, UnknownMemberId) and not error.retriable:
                    self._engine.fail(error)
                    return
                await self._recover(error, backoff)
            except USER_ERRORS as exit_error:  # a deserializer's exit: the user's next call raises it, not the loop
                self._engine.fail(exit_error)
                return

    async def _recover(self, error: RaylogError, backoff: Backoff) -> None:
        """After an error: count all locks as lost, and look up the leader, with backoff."""
        self._lose_session()
        cluster = self._engine.cluster
        if isinstance(error, UnknownMemberId) or cluster.learn_leader(*self.partition, error):
            await asyncio.sleep(0.001)
            return
        await asyncio.sleep(backoff.next_s())
        try:
            await cluster.refresh((self.partition.topic,), timeout_s=5.0)
        except RaylogError as trouble:
            logger.debug("%s: no metadata: %s", self.partition, trouble)

    def _lose_session(self) -> None:
        self._connection = None
        self._leases.lose_all()
        self._engine.drop_buffered(self)

    def _closed(self, connection: Connection) -> None:
        if connection is self._connection:  # the leader releases the locks of a closed connection
            self._lose_session()

    async def _open(self, timeout_s: float) -> tuple[Connection, str, int]:
        """The connection with the leader, on which this member has opened the queue; with topic id and leader epoch."""
        engine = self._engine
        info, found = await engine.cluster.leader(*self.partition, timeout_s=timeout_s)
        assert found.endpoint is not None  # `leader` raises without one
        connection = await engine.cluster.connection(found.endpoint, timeout_s)
        if self._connection is not connection or connection.is_closed:
            self._lose_session()
            request = QueueOpenRequest(
                info.topic_id,
                self.partition.partition,
                found.leader_epoch,
                engine.group,
                engine.member_id,
                engine.settings,
            )
            reply, _ = await call(connection, QUEUE_OPEN, request, timeout_s=timeout_s)
            self._leases.lock_s = reply.lock_ms / 1000
            self._woken.set()  # with a shorter lock, the next renewal is due sooner
            engine.by_key = reply.by_key
            self._connection = connection
            if connection is not self._watched:
                self._watched = connection
                connection.on_close(self._closed)
        return connection, info.topic_id, found.leader_epoch

    async def _fetch(self, count: int) -> None:
        engine = self._engine
        timeout_s = engine.config.request_timeout_ms / 1000
        connection, topic_id, epoch = await self._open(timeout_s)
        if not self.is_wanted:
            return
        wait_ms = engine.buffer.wait_ms(self.partition, engine.config.fetch_max_wait_ms)
        request = QueueFetchRequest(
            topic_id,
            self.partition.partition,
            epoch,
            engine.group,
            engine.member_id,
            count,
            engine.config.fetch_max_bytes,
            wait_ms,
        )
        session, sent_s = self._leases.session, time.monotonic()
        self._is_fetching = True
        try:
            reply, payload = await call(connection, QUEUE_FETCH, request, timeout_s=wait_ms / 1000 + ANSWER_EXTRA_S)
        except asyncio.CancelledError:  # the answer may hand out records that nothing receives
            if self.is_wanted and not self.is_leaving:
                self._lose_session()
            raise
        finally:
            self._is_fetching = False
        if session == self._leases.session and reply.ranges:
            self._take(reply, payload, sent_s)
        else:
            engine.buffer.dry(self.partition)

    def _take(self, reply: QueueFetchReply, payload: memoryview, sent_s: float) -> None:
        """Make messages of the records that were handed out; settle offsets without a record at once."""
        locks = self._leases.locks(self, reply, sent_s, time.monotonic())
        if not self.is_wanted or not locks:
            # The partition was revoked meanwhile, or the locks have expired already. Return the records: other members
            # then need not wait for the locks, and the hand-out does not count.
            for row in reply.ranges:
                self._settled += [
                    (offset, (row.count, row.lease), ev.RETURN, -1, "") for offset in range(row.first, row.end)
                ]
            self._woken.set()
            return
        messages: list[QueueMessage] = []
        unopened: set[int] = set()
        place, rows = 0, reply.ranges
        failure: RaylogError | None = None
        span = range(0)
        for position, header in iter_headers(payload):
            span = range(span.start if span else header.base_offset, header.next_offset)
            batch = FetchedBatch(payload, position, header)
            while place < len(rows) and rows[place].end <= header.base_offset:
                place += 1
            if place == len(rows):
                break
            if header.is_control:
                continue
            stop = place
            while stop < len(rows) and rows[stop].first < header.next_offset:
                stop += 1
            if stop == place:
                continue  # no record of this batch was handed out to us: others have them, or it was aborted
            try:
                opened = self._opener.pick(batch, [(row.first, row.end) for row in rows[place:stop]])
            except CorruptMessage as damage:  # the other batches may be good
                refused_rows = unopened_verdicts(rows[place:stop], header, damage)
                unopened.update(offset for offset, *_ in refused_rows)
                self._settled += refused_rows
                logger.warning("%s: %s", self.partition, damage)
                continue
            failure = failure or opened.failure
            at = place
            for record in opened.records:
                while rows[at].end <= record.offset:
                    at += 1
                messages.append(QueueMessage(record, locks[at]))
        found = {message.record.offset: message for message in messages}
        refused = failure.details.get("offset") if failure is not None else None
        if len(found) < sum(row.end - row.first for row in rows):
            self._settled += gap_verdicts(rows, found.keys() | unopened, span, failure, refused)
            self._woken.set()
        self._leases.take_in(messages)
        self._engine.buffer.put(self.partition, messages)

    # Verdicts and locks

    async def _send_on(self) -> None:
        config = self._engine.config
        backoff = Backoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
        renewed_s = time.monotonic()
        while True:
            left_s = renewed_s + self._leases.lock_s / RENEWALS - time.monotonic()
            if left_s <= 0:
                self._renew()
                renewed_s = time.monotonic()
            elif not self._woken.is_set() and not self._sending:
                await self._wait_woken(left_s)
            self._woken.clear()
            self._looked.set()
            if self._settled and config.acknowledge_linger_ms and not self._engine.is_flushing:
                await asyncio.sleep(config.acknowledge_linger_ms / 1000)
            self._is_woken = False
            verdicts = self._sending = self._sending or taken_verdicts(self._settled, VERDICTS_MAX)
            if not verdicts:
                self._idle.set()
                continue
            self._idle.clear()
            await self._send(verdicts, backoff)
            self._sending = []
            (self._woken if self._settled else self._idle).set()

    async def _wait_woken(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):  # not wait_for, which may lose a cancellation (Python 3.11)
                await self._woken.wait()
        except TimeoutError:
            pass  # time to check the locks

    def _renew(self) -> None:
        """Renew the locks that expire soon (or drop expired ones), and return messages that wait by priority."""
        self._engine.return_waiting(self)
        if self._engine.config.renew_locks:
            self._settled += self._leases.renewals(time.monotonic())
        else:
            self._leases.expire(time.monotonic())

    async def _send(self, verdicts: list[QueueVerdict], backoff: Backoff) -> None:
        """Send verdicts, again if an answer was lost, until they are answered or the request timeout is over."""
        engine = self._engine
        deadline = Deadline(engine.config.request_timeout_ms / 1000)
        while True:
            try:
                info, found = await engine.cluster.leader(*self.partition, timeout_s=deadline.left_s)
                assert found.endpoint is not None  # `leader` raises without one
                connection = await engine.cluster.connection(found.endpoint, deadline.left_s)
                if self._connection is not None and connection is not self._connection:
                    self._lose_session()  # another leader, or a new connection: it has no locks of ours
                request = QueueAcknowledgeRequest(
                    info.topic_id,
                    self.partition.partition,
                    found.leader_epoch,
                    engine.group,
                    engine.member_id,
                    verdicts,
                )
                session, sent_s = self._leases.session, time.monotonic()
                reply, _ = await call(connection, QUEUE_ACKNOWLEDGE, request, timeout_s=deadline.left_s)
                backoff.reset()
                self._answered(verdicts, reply, session, sent_s)
                return
            except RaylogError as error:
                if not error.retriable or deadline.is_over:
                    self._leases.unanswered(verdicts)
                    for verdict in verdicts:
                        if verdict.kind not in UNASKED:
                            self._failed(verdict.first, verdict.end, error)
                    return
                if not isinstance(error, ConnectionFailed) and engine.cluster.learn_leader(*self.partition, error):
                    continue
            await asyncio.sleep(backoff.next_s())
            try:
                await engine.cluster.refresh((self.partition.topic,), timeout_s=min(5.0, deadline.left_s))
            except RaylogError as trouble:
                logger.debug("%s: no metadata: %s", self.partition, trouble)

    def _answered(
        self, verdicts: list[QueueVerdict], reply: QueueAcknowledgeReply, session: int, sent_s: float
    ) -> None:
        if reply.postpones:
            self._engine.expects_retry_topic()
        if session == self._leases.session:
            self._leases.answered(verdicts, reply, sent_s)
        for row in reply.failures:
            error = from_code(row.error_code, row.message, {"first": row.first, "end": row.end})
            if is_unasked(row, verdicts):
                logger.info("%s: nothing was changed: %s", self.partition, error)
            else:
                self._failed(row.first, row.end, error)

    def _failed(self, first: int, end: int, error: RaylogError) -> None:
        self._engine.verdict_failed(self.partition, first, end, error)

    # The end

    async def stop(self) -> None:
        """Stop fetching; returns when all records that the leader has handed out were received or returned."""
        self.is_wanted = False
        fetching = self._tasks[0]
        if not self._is_fetching:  # it waits for room, or for a leader
            fetching.cancel()
            await asyncio.wait([fetching.task])
            return
        connection, engine = self._connection, self._engine
        info = engine.cluster.metadata.topic(self.partition.topic)
        if connection is None or connection.is_closed or info is None:
            return
        request = QueueFetchRequest(
            info.topic_id, self.partition.partition, -1, engine.group, engine.member_id, NO_RECORDS, 0, 0
        )
        try:
            await call(connection, QUEUE_FETCH, request, timeout_s=LEAVE_TIMEOUT_S)
        except RaylogError as error:
            logger.debug("%s goes on fetching, and gives back what comes: %s", self.partition, error)
        else:
            await asyncio.wait([fetching.task], timeout=LEAVE_TIMEOUT_S)

    def resume(self) -> None:
        """Fetch again, after `stop`; held messages stay."""
        self.is_wanted = True
        if self._tasks[0].done():
            self._tasks[0] = LastingTask(self._fetch_on, f"queue {self.partition} fetch")

    async def released(self) -> None:
        """Wait until no message is held, and all verdicts are answered."""
        while self._leases:
            self._looked.clear()
            await self._looked.wait()
        await self.settled()

    async def settled(self) -> None:
        """Wait until all verdicts so far are answered."""
        while self._settled or self._sending or not self._idle.is_set():
            self._idle.clear()
            self._woken.set()
            await self._idle.wait()

    def give_back(self, messages: Sequence[QueueMessage], kind: int) -> None:
        """Settle messages with a verdict that the user did not give: RETURN (does not count) or RELEASE."""
        for message in messages:
            if not message._is_settled and self._leases.is_current(message):
                message._is_settled = True
                self._leases.drop(message)
                self._settled.append((message.record.offset, message._lock.hand, kind, -1, ""))
        self._woken.set()

    def held_messages(self) -> list[QueueMessage]:
        """The messages that are held: locked and not settled."""
        return self._leases.messages()

    def holds(self, message: QueueMessage) -> bool:
        """Whether a message is certainly still locked."""
        return self._leases.holds(message, time.monotonic())

    def is_current(self, message: QueueMessage) -> bool:
        """Whether a message was handed out in the present session."""
        return self._leases.is_current(message)

    async def close(self, *, leaves: bool) -> None:
        """End the tasks; with `leaves` have the leader forget this member."""
        self.is_leaving = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait([task.task for task in self._tasks])
        connection, engine = self._connection, self._engine
        if not leaves or connection is None or connection.is_closed:
            return
        info = engine.cluster.metadata.topic(self.partition.topic)
        if info is not None:
            request = QueueLeaveRequest(info.topic_id, self.partition.partition, -1, engine.group, engine.member_id)
            try:
                await call(connection, QUEUE_LEAVE, request, timeout_s=LEAVE_TIMEOUT_S)
            except RaylogError as error:
                logger.debug("%s was not left, its locks end with the connection: %s", self.partition, error)
