"""The core of a queue consumer: its partitions (`QueueSource`), its buffer of messages, its membership.

`AsyncQueueConsumer` runs it on the user's loop, `QueueConsumer` on that of the shared runtime. Methods belong to that
loop unless they say otherwise. May touch: the network, the clock.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from raylog.base.errors import ClientClosed, InvalidConfig, InvalidRecordState, RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.config import QueueConsumerConfig
from raylog.client.queues.buffer import MessageBuffer
from raylog.client.queues.membership import QueueMembership
from raylog.client.queues.message import QueueMessage
from raylog.client.queues.priorities import turns_of
from raylog.client.queues.source import QueueSource
from raylog.client.runtime import Signal
from raylog.client.serializers import deserializer
from raylog.client.tasks import Ending, LastingTask, outcomes, side_by_side
from raylog.client.user_code import USER_ERRORS
from raylog.core.queues import events as ev
from raylog.core.queues.origins import retry_topic

logger = logging.getLogger(__name__)

FailedVerdict = Callable[[TopicPartition, int, int, RaylogError], object]
"""Called with a partition, the first offset, the offset after the last, and why their verdict was not accepted."""
FAILURES_MAX = 1_000
"""How many failed verdicts are remembered for `commit`; the newest ones."""
ABANDON_TIMEOUT_S = 2.0
"""Limit for releasing the records of a consumer that was garbage collected without close()."""


class QueueEngine:
    """One member of a queue's group. `start()` before use, `close()` at the end."""

    def __init__(
        self, config: QueueConsumerConfig, topics: Sequence[str], on_failed: FailedVerdict | None = None
    ) -> None:
        """Raises InvalidConfig if the priority does not fit the topics, or for an unknown deserializer."""
        self.config = config
        self._topics = topics
        self.group = config.group_id or ""
        self.settings = config.settings()
        self.member_id = f"{config.client_id}-{secrets.token_hex(8)}"
        self.by_key = False
        self.key_deserializer = deserializer(config.key_deserializer)
        self.value_deserializer = deserializer(config.value_deserializer)
        self.cluster = ClusterClient(config)
        lane_of = {topic: lane for lane, topic in enumerate(topics)}
        lane_of |= {retry_topic(self.group, topic): lane for topic, lane in lane_of.items()}
        self.buffer = MessageBuffer(
            config.max_poll_records,
            turns_of(config.priority, topics),
            lane_of,
            call_on_loop=self.call_on_loop,
            on_change=self._arrived,
        )
        """Messages that are locked for this member and were not taken yet."""
        self.failures: deque[tuple[TopicPartition, int, int, RaylogError]] = deque(maxlen=FAILURES_MAX)
        self.is_flushing = False
        self.is_closed = False
        self.is_handing = False
        """Whether a call has taken messages that it has not returned yet. Reset by a plain assignment right before."""
        self.hand_over = 0
        """The number of the last call that took messages."""
        self._ending = Ending()
        self._abandoned: LastingTask | None = None
        self.arrived = Signal()
        """Set when there may be messages, for one waiting thread."""
        self._on_failed = on_failed
        self._wanted: set[TopicPartition] = set()
        """The partitions that are assigned to this member."""
        self._sources: dict[TopicPartition, QueueSource] = {}
        """The sources of the assigned partitions."""
        self._retiring: dict[QueueSource, LastingTask] = {}
        """Sources of partitions that are no longer assigned, until all their records are settled."""
        self._membership: QueueMembership | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()
        self._error: BaseException | None = None

    # Life

    async def start(self) -> None:
        """Connect to the cluster, begin to fetch, and join the group. Raises UnknownTopicOrPartition, InvalidConfig."""
        topics = self._topics
        if not topics:
            raise InvalidConfig("A queue's consumer needs at least one topic.")
        self._loop = asyncio.get_running_loop()
        try:
            await self.cluster.start()
            timeout_s = self.config.request_timeout_ms / 1000
            partitions: list[TopicPartition] = []
            for topic in topics:
                info = await self.cluster.topic(topic, timeout_s=timeout_s)
                partitions += [TopicPartition(topic, number) for number in range(len(info.partitions))]
        except BaseException:  # cancelled or refused: close the connections already opened
            self.is_closed = True
            await self.cluster.close()
            raise
        self.cluster.watch(topics)
        self._set_partitions(partitions)  # all of them, until the group has assigned some
        self._membership = QueueMembership(
            self.cluster, self.config, topics, on_partitions=self._set_partitions, on_error=self.fail
        )
        self._membership.start()

    def _set_partitions(self, partitions: Sequence[TopicPartition]) -> None:
        if self.is_closed:
            return
        self._wanted = set(partitions)
        for partition in sorted(self._wanted - self._sources.keys()):
            self._begin(partition)
        for partition in sorted(self._sources.keys() - self._wanted):
            source = self._sources.pop(partition)
            source.is_wanted = False
            self.buffer.dry(partition)
            self._return_buffered([source])
            self._retiring[source] = LastingTask(partial(self._retire, source), f"queue {partition} retires")

    def _begin(self, partition: TopicPartition) -> None:
        """Begin to fetch from a partition. If it was just revoked, go on with the records that are still held."""
        source = next((source for source in self._retiring if source.partition == partition), None)
        if source is None:
            source = self._sources[partition] = QueueSource(self, partition)
            source.start()
        elif not source.is_leaving:  # else `_retire` begins it, after the leader has forgotten this member
            self._retiring.pop(source).cancel()
            self._sources[partition] = source
            source.resume()
        if partition in self._sources:
            self.buffer.begins(partition)

    async def _retire(self, source: QueueSource) -> None:
        """Return what the leader still hands out, wait until all held records are settled, and leave."""
        if not source.is_leaving:  # else this task was cancelled, and started again, while it left
            await source.stop()
            await source.released()
        await source.close(leaves=True)
        del self._retiring[source]
        if source.partition in self._wanted and not self.is_closed:
            self._begin(source.partition)

    async def close(self, timeout_s: float = 10.0) -> None:
        """Release unsettled records, wait for the last answers, leave the group. Idempotent."""
        self.is_closed = True
        self.is_flushing = True
        await self._ending.run(self._close, partial(self._settle_rest, timeout_s))

    async def _settle_rest(self, timeout_s: float) -> None:
        sources = [*self._sources.values(), *self._retiring]
        try:
            for source in sources:
                source.is_wanted = False
            self._return_buffered(sources)
            for source in sources:
                source.give_back(source.held_messages(), ev.RELEASE)
            async with asyncio.timeout(timeout_s):
                await side_by_side(QueueSource.stop, sources)
                await side_by_side(QueueSource.settled, sources)
        except TimeoutError:
            logger.warning("Some acknowledgements of group %s were not answered in %s s.", self.group, timeout_s)

    async def _close(self) -> None:
        sources = [*self._sources.values(), *self._retiring]
        if self._membership is not None:
            await self._membership.leave()
        retiring = list(self._retiring.values())
        for each in retiring:
            each.cancel()
        await asyncio.gather(*(each.task for each in retiring), return_exceptions=True)
        await outcomes(partial(QueueSource.close, leaves=True), sources)
        await self.cluster.close()
        self._news.set()
        self.arrived.set()

    def abandon(self) -> None:
        """Close without waiting: the user forgot to close it, or its start was interrupted."""
        if not self.is_closed:
            self._abandoned = LastingTask(self._abandon, "raylog-abandoned")

    async def _abandon(self) -> None:
        with suppress(RaylogError):
            await self.close(ABANDON_TIMEOUT_S)

    # Messages

    def _arrived(self) -> None:
        self._news.set()
        self.arrived.set()

    def take(self) -> QueueMessage | None:
        """The next message that is still locked, if there is one. From any thread."""
        while True:
            message = self.buffer.pop()
            if message is None:
                return None
            if message._is_settled:
                continue
            if message.is_locked:
                message._taken_by = self.hand_over
                return message
            message._lock.source.forget(message)  # its lock was lost: it is handed out again, perhaps to another member

    def begin_hand_over(self) -> None:
        """Begin to take messages for the user. Returns those that an interrupted call took to the leader."""
        if self.is_handing:
            kept = set(self.buffer)
            for source in (*self._sources.values(), *self._retiring):
                lost = [each for each in source.held_messages() if each._taken_by in (0, self.hand_over)]
                source.give_back([each for each in lost if each not in kept], ev.RETURN)
        self.hand_over += 1
        self.is_handing = True

    def interrupted(self, before: int) -> None:
        """An error leaves a call, so the user does not get the messages that it took.

        `before`: the value of `hand_over` before the call; if it is unchanged, the call took none.
        """
        if self.hand_over != before:
            self.is_handing = True

    async def wait(self, timeout_s: float | None) -> None:
        """Wait until there may be messages, for at most `timeout_s` (None = no limit). Raises as `raise_error`."""
        self.raise_error()
        self._news.clear()
        if self.buffer.is_ready:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return
        self.raise_error()

    def raise_error(self) -> None:
        """Raise an error that only the user can resolve, if there is one, or ClientClosed."""
        if self._error is not None:
            raise self._error
        if self.is_closed:
            raise ClientClosed("The queue's consumer is closed.")

    def fail(self, error: BaseException) -> None:
        """Have the user's next call raise an error, or an exit such as SystemExit; of several the first."""
        self._error = self._error or error
        self._news.set()
        self.arrived.set()

    def call_on_loop(self, function: Callable[[], object]) -> None:
        """Call a function on the engine's loop. From any thread."""
        loop = self._loop
        if loop is None or loop.is_closed():
            return
        if self._is_on_loop(loop):
            function()
        else:
            loop.call_soon_threadsafe(function)

    @staticmethod
    def _is_on_loop(loop: asyncio.AbstractEventLoop) -> bool:
        try:
            return asyncio.get_running_loop() is loop
        except RuntimeError:
            return False

    # Locks

    def drop_buffered(self, source: QueueSource) -> None:
        """Drop the buffered messages of a source whose locks are lost."""
        for message in self.buffer:
            if message._lock.source is source and not source.is_current(message):
                source.forget(message)

    def drop_later(self, source: QueueSource, failed: QueueMessage) -> None:
        """Return the held messages after a message of their key that is retried, so that none overtakes it."""
        key, offset = failed.record.key, failed.record.offset
        later = [
            message
            for message in source.held_messages()
            if message.record.offset > offset and message.record.key == key
        ]
        if key is not None and later:
            source.give_back(later, ev.RETURN)

    def _return_buffered(self, sources: Sequence[QueueSource]) -> None:
        """Return the buffered messages of these sources to their leaders."""
        returned = self.buffer.take_out(sources)
        for source in sources:
            source.give_back([message for message in returned if message._lock.source is source], ev.RETURN)

    def return_waiting(self, source: QueueSource) -> None:
        """Return buffered messages that wait for a topic of higher priority: another member may be free for them."""
        if self.buffer.is_behind(source.partition):
            self._return_buffered([source])

    # Verdicts

    def expects_retry_topic(self) -> None:
        """Look for new retry topics of the group with the next heartbeats."""
        if self._membership is not None:
            self._membership.expects_retry_topic()

    def verdict_failed(self, partition: TopicPartition, first: int, end: int, error: RaylogError) -> None:
        """Report that a verdict was not accepted; its records may be handed out again."""
        self.failures.append((partition, first, end, error))
        if self._on_failed is not None:
            try:
                self._on_failed(partition, first, end, error)
            except USER_ERRORS:  # the user's function may raise anything
                logger.exception("on_failed raised")
        else:
            logger.warning("%s, offsets %d to %d: %s", partition, first, end, error)

    async def commit(self, timeout_s: float) -> None:
        """Wait until all verdicts so far are answered. Raises the first failure since the last call; TimeoutError."""
        self.is_flushing = True
        try:
            async with asyncio.timeout(timeout_s):
                sources = () if self.is_closed else (*self._sources.values(), *self._retiring)
                await side_by_side(QueueSource.settled, sources)
        finally:
            self.is_flushing = False
        if self.failures:
            failures, self.failures = list(self.failures), deque(maxlen=FAILURES_MAX)
            partition, first, end, error = failures[0]
            more = f" ({len(failures) - 1} more such failures)" if len(failures) > 1 else ""
            raised = type(error)(f"{partition}, offsets {first} to {end}: {error.message}{more}")
            raised.details.update({"failures": [(*row[:3], row[3].message) for row in failures]})
            raise raised


__all__ = ["FailedVerdict", "InvalidRecordState", "QueueEngine"]
