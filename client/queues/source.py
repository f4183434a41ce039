"""One partition of a queue, at its consumer: fetches, what it holds, the verdicts on their way. Owned by the engine.

Two tasks: one fetches, one sends verdicts and renews locks. Methods that a user's thread calls say so: they touch only
a deque and a dict, whose single steps are atomic, and wake the loop at most once a round. May touch: the network, the
clock.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.cluster.connections import call
from raylog.client.cluster.deadline import Deadline
from raylog.client.cluster.failures import Backoff, as_raylog_error
from raylog.client.queues.buffer import MessageBuffer
from raylog.client.queues.config import QueueConsumerConfig
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
from raylog.core.errors import ConnectionFailed, CorruptMessage, RaylogError, UnknownMemberId, from_code
from raylog.core.ids import TopicPartition
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
LEAVE_TIMEOUT_S: Final = 1.0
NO_RECORDS: Final = 0
"""Of a fetch: hand out nothing, and answer this member's fetches that wait."""
VERDICTS_MAX: Final = 5_000
"""Most ranges of one request."""
RENEWALS: Final = 4
"""How often locks are looked at while one would run out: each is renewed when half of it is over, or a little more."""


class Member(Protocol):
    """What a partition needs of its engine."""

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
        """Have the next call of the user raise an error."""

    def call_on_loop(self, function: Callable[[], object]) -> None:
        """Call a function on the engine's loop."""

    def drop_buffered(self, source: QueueSource) -> None:
        """Drop the buffered messages whose locks are lost."""

    def return_waiting(self, source: QueueSource) -> None:
        """Give back the buffered messages that wait for those of a higher topic."""

    def drop_later(self, source: QueueSource, failed: QueueMessage) -> None:
        """Give back the buffered messages of a key behind one that is to be retried."""

    def expects_retry_topic(self) -> None:
        """Look for the group's retry topics."""

    def verdict_failed(self, partition: TopicPartition, first: int, end: int, error: RaylogError) -> None:
        """Note that a verdict was not taken."""


class QueueSource:
    """One partition."""

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
        """Set with each round of `_send_on`: what is held may have changed."""
        self._under_way = 0
        self._tasks: list[LastingTask] = []
        self._sending: list[QueueVerdict] = []
        """What is sent now; sent again when its task was cancelled from outside."""
        self._connection: Connection | None = None
        self._watched: Connection | None = None
        """The last connection whose end this partition is to learn of."""
        self._opener = BatchOpener(
            partition, engine.key_deserializer, engine.value_deserializer, check_crcs=engine.config.check_crcs
        )
        self._wall_ahead_s = time.time() - time.monotonic()
        self.is_wanted = True
        """Whether this member still works on the partition; else it only settles what it holds."""
        self.is_leaving = False
        """Whether the leader is about to forget this member."""
        self._is_fetching = False

    def start(self) -> None:
        """Begin to fetch."""
        self._tasks = [
            LastingTask(self._fetch_on, f"queue {self.partition} fetch"),
            LastingTask(self._send_on, f"queue {self.partition} verdicts"),
        ]

    @property
    def held(self) -> int:
        """How many records are locked and not settled."""
        return len(self._leases)

    def wall_s(self, deadline: float) -> float:
        """A moment of the loop's clock as seconds since 1970."""
        return deadline + self._wall_ahead_s

    # From the user's thread

    def settle(self, message: QueueMessage, kind: int, delay_ms: int = -1, reason: str = "") -> None:
        """Take a verdict. From any thread."""
        self._leases.drop(message)
        self._settled.append((message.record.offset, message._lock.hand, kind, delay_ms, reason))
        if kind in (ev.RETRY, ev.RELEASE) and self._engine.by_key:
            self._engine.drop_later(self, message)
        self._wake()

    def extend(self, message: QueueMessage, lock_ms: int) -> None:
        """Have a lock renewed for so long; it holds for longer when the leader says so. From any thread."""
        self._settled.append(self._leases.request(message, lock_ms))
        self._wake()

    def forget(self, message: QueueMessage) -> None:
        """Drop a message that no user got, and whose lock is lost: its hand-out is not to count. From any thread."""
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
            except Exception as failure:  # any error: without another fetch the partition would be left alone
                error = as_raylog_error(failure)
                if not isinstance(error, UnknownMemberId) and not error.retriable:
                    self._engine.fail(error)
                    return
                await self._recover(error, backoff)
            except USER_ERRORS as exit_error:  # of a deserializer: it leaves the next call, and the loop lives on
                self._engine.fail(exit_error)
                return

    async def _recover(self, error: RaylogError, backoff: Backoff) -> None:
        """Look the leader up again after an error, and lose what was locked."""
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
        if connection is self._connection:  # the leader frees what was locked on it
            self._lose_session()

    async def _open(self, timeout_s: float) -> tuple[Connection, str, int]:
        """The connection with the leader, on which this member has opened the queue."""
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
            self._woken.set()  # locks may have to be renewed sooner than was thought
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
        except asyncio.CancelledError:  # what the answer hands out is with no user
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
        """Make messages of what was handed out; offsets without a record are settled at once."""
        locks = self._leases.locks(self, reply, sent_s, time.monotonic())
        if not self.is_wanted or not locks:
            # Given up meanwhile: other members need not wait for the locks to run out. Or they have: none was begun.
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
                continue  # what lies between is at other members, or was aborted
            try:
                opened = self._opener.pick(batch, [(row.first, row.end) for row in rows[place:stop]])
            except CorruptMessage as damage:  # the others of the answer are good
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
            pass  # locks are looked at

    def _renew(self) -> None:
        """Renew the locks of everything held, where half of the time is over; give back what has to wait."""
        self._engine.return_waiting(self)
        if self._engine.config.renew_locks:
            self._settled += self._leases.renewals(time.monotonic())
        else:
            self._leases.expire(time.monotonic())

    async def _send(self, verdicts: list[QueueVerdict], backoff: Backoff) -> None:
        """Send verdicts until they are answered: they are sent again where an answer was lost."""
        engine = self._engine
        deadline = Deadline(engine.config.request_timeout_ms / 1000)
        while True:
            try:
                info, found = await engine.cluster.leader(*self.partition, timeout_s=deadline.left_s)
                assert found.endpoint is not None  # `leader` raises without one
                connection = await engine.cluster.connection(found.endpoint, deadline.left_s)
                if self._connection is not None and connection is not self._connection:
                    self._lose_session()  # another leader, or another connection with it: it knows no locks
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
        """Fetch no more; returns when all that the leader has handed out is here, or given back."""
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
        """Work on the partition again, with what is still held of it."""
        self.is_wanted = True
        if self._tasks[0].done():
            self._tasks[0] = LastingTask(self._fetch_on, f"queue {self.partition} fetch")

    async def released(self) -> None:
        """Wait until nothing is locked, and every verdict is answered."""
        while self._leases:
            self._looked.clear()
            await self._looked.wait()
        await self.settled()

    async def settled(self) -> None:
        """Wait until every verdict so far is answered."""
        while self._settled or self._sending or not self._idle.is_set():
            self._idle.clear()
            self._woken.set()
            await self._idle.wait()

    def give_back(self, messages: Sequence[QueueMessage], kind: int) -> None:
        """Settle messages that no user has got, or that are not finished at the end."""
        for message in messages:
            if not message._is_settled and self._leases.is_current(message):
                message._is_settled = True
                self._leases.drop(message)
                self._settled.append((message.record.offset, message._lock.hand, kind, -1, ""))
        self._woken.set()

    def held_messages(self) -> list[QueueMessage]:
        """What is locked and not settled."""
        return self._leases.messages()

    def holds(self, message: QueueMessage) -> bool:
        """Whether a message's lock is known to hold: it was not lost, and did not run out."""
        return self._leases.holds(message, time.monotonic())

    def is_current(self, message: QueueMessage) -> bool:
        """Whether a message's lock is of this session."""
        return self._leases.is_current(message)

    async def close(self, *, leaves: bool) -> None:
        """End the tasks, and leave the queue."""
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
