"""`AsyncQueueConsumer`: consumes a queue on the user's own event loop. May touch: the network, the clock."""

from __future__ import annotations

import asyncio
import logging
import time
import warnings
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self, Unpack

from raylog.client.arguments import check_topics
from raylog.client.checked import checks_arguments
from raylog.client.config import QueueConsumerConfig, load, show_keys
from raylog.client.guard import Home, NotPickled, Turn
from raylog.client.keywords import QueueConsumerKeywords
from raylog.client.queues.engine import FailedVerdict, QueueEngine
from raylog.client.queues.message import QueueMessage
from raylog.client.queues.running import HANDLED_BY, run_on_loop

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 10.0
COMMIT_TIMEOUT_S = 30.0


@checks_arguments()
class AsyncQueueConsumer(NotPickled):
    """A member of a queue's group, on the running event loop. `await start()` and `await stop()`, or `async with`.

    Only one task at a time may take messages; any task may settle them. Keywords are those of
    `raylog.QueueConsumerConfig`. `on_failed` is called with a partition, a range of offsets and the error when the
    broker did not accept a verdict (acknowledge, retry, ...); without it, a warning is logged.
    """

    _is_inner = False
    """Whether a `QueueConsumer` wraps this object; then the `QueueConsumer` warns when it was not closed."""

    def __init__(
        self,
        *topics: str,
        config: Mapping[str, Any] | None = None,
        on_failed: FailedVerdict | None = None,
        **keywords: Unpack[QueueConsumerKeywords],
    ) -> None:
        """Raises InvalidConfig for an unknown key (and suggests the nearest) or a wrong value.

        With `priority`, give the topics in the order of their importance, the most important one first.
        """
        check_topics(topics)
        self._engine = QueueEngine(load(QueueConsumerConfig, config, keywords), topics, on_failed)
        self._home = self._engine.cluster.home = Home("AsyncQueueConsumer")
        self._turn = Turn(_refusal)
        self._is_stopping = False
        self._running: asyncio.Future[None] | None = None
        """Done when the last `run` has ended; None = `run` was not called."""

    @property
    def config(self) -> QueueConsumerConfig:
        """The configuration."""
        return self._engine.config

    async def start(self) -> None:
        """Connect, and join the group. Raises NoClusterFound, ConnectionFailed, UnknownTopicOrPartition."""
        self._home.enter()
        try:
            await self._engine.start()
        except BaseException:  # refused or cancelled
            self._home.leave()
            raise

    async def stop(self, *, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """End `run`, release unsettled messages, wait for the last answers, leave the group. Idempotent.

        Waits for running handlers; after `timeout_s` their messages are released, and may be handled twice.
        """
        if self._home.loop is None:
            return
        self._engine.is_closed |= self._home.has_ended
        self._home.check()
        deadline_s = time.monotonic() + timeout_s
        running = self._running
        if running is not None and not running.done():
            self.end()
            if HANDLED_BY.get() is not self:  # a handler that calls stop() must not wait for itself
                await asyncio.wait([running], timeout=timeout_s)
            if not running.done():
                logger.warning(
                    "Handlers of group %s run on after %g s: their records are given back, and may be handled twice.",
                    self._engine.group,
                    timeout_s,
                )
        await self._engine.close(max(0.0, deadline_s - time.monotonic()))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __del__(self) -> None:
        home = getattr(self, "_home", None)
        if home is None or home.loop is None or self._engine.is_closed or self._is_inner:
            return
        warnings.warn(
            "An AsyncQueueConsumer was not stopped; use `async with`, or await stop().", ResourceWarning, stacklevel=2
        )
        if not home.has_ended and not home.is_of_another_process:
            home.loop.call_soon_threadsafe(self._engine.abandon)

    async def getone(self, *, timeout_ms: float | None = None) -> QueueMessage | None:
        """The next message; None if none came within `timeout_ms` (None = wait without a limit).

        Raises InconsistentGroupProtocol if the group has other settings, or does not work as a queue; ClientClosed.
        """
        with self._turn:
            return await self._next(timeout_ms)

    async def _next(self, timeout_ms: float | None) -> QueueMessage | None:
        self._home.started()
        engine = self._engine
        deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        while True:
            engine.raise_error()
            message = engine.take()
            if message is not None:
                return message
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                return None
            await engine.wait(left_s)

    async def getmany(self, *, timeout_ms: float = 0, max_records: int | None = None) -> list[QueueMessage]:
        """The next messages, at most `max_records` (None = max_poll_records); [] if none came within `timeout_ms`.

        With order by key, a message's retry or release also releases later ones of its key: skip those with
        `is_settled`. Raises as `getone`.
        """
        limit = self.config.max_poll_records if max_records is None else max_records
        with self._turn:
            first = await self._next(timeout_ms)
            if first is None:
                return []
            found = [first]
            while len(found) < limit and (message := self._engine.take()) is not None:
                found.append(message)
            return found

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> QueueMessage:
        """The next message. The iteration ends when none came for consumer_timeout_ms."""
        message = await self.getone(timeout_ms=self.config.consumer_timeout_ms)
        if message is None:
            raise StopAsyncIteration
        return message

    async def commit(self, *, timeout_s: float = COMMIT_TIMEOUT_S) -> None:
        """Wait until all verdicts given so far (acknowledge, retry, ...) are stored.

        Raises InvalidRecordState if a message's lock had expired before its verdict, TimeoutError.
        """
        self._home.started()
        await self._engine.commit(timeout_s)

    async def run(self, handler: Callable[[QueueMessage], Awaitable[object] | object], *, concurrency: int = 1) -> None:
        """Call `handler` with each message, `concurrency` at a time; ends by `end()`, or consumer_timeout_ms with none.

        When the handler returns, the message is acknowledged, unless the handler has settled it. If it raises, the
        message is retried after the group's pauses; `Retry(delay=)` sets another pause; `Reject` makes it a dead
        letter. With order by key, messages of one key are never handled at the same time. Handlers that are not
        coroutine functions run in threads.
        """
        self._home.started()
        with self._turn:
            self._running = asyncio.get_running_loop().create_future()
            try:
                await run_on_loop(_Running(self), handler, concurrency)
            finally:
                self._running.set_result(None)

    def end(self) -> None:
        """Have `run` return as soon as the running handlers have returned. From any thread."""
        self._is_stopping = True
        self._engine.call_on_loop(self._engine._news.set)

    @property
    def keeps_order(self) -> bool:
        """Whether the queue keeps the order of each key's messages."""
        return self._engine.by_key

    @property
    def is_ending(self) -> bool:
        """Whether `end` was called."""
        return self._is_stopping


class _Running:
    """A view of the consumer for its `run`, which holds the turn: its `getone` does not take it again."""

    def __init__(self, consumer: AsyncQueueConsumer) -> None:
        self.consumer = consumer
        self.config = consumer.config
        self.commit = consumer.commit

    @property
    def is_ending(self) -> bool:
        """Whether `end` was called."""
        return self.consumer.is_ending

    @property
    def keeps_order(self) -> bool:
        """Whether the queue keeps the order of each key's messages."""
        return self.consumer.keeps_order

    async def getone(self, *, timeout_ms: float | None = None) -> QueueMessage | None:
        """The next message; None if none came within `timeout_ms`."""
        return await self.consumer._next(timeout_ms)


def _refusal(_: bool) -> str:
    return (
        "Messages are being taken already, by another task or thread, or by run(): a consumer of a queue is for one "
        "at a time. Use run(handler, concurrency=), or give each a consumer of its own, with the same group_id."
    )


show_keys(QueueConsumerConfig, AsyncQueueConsumer)
