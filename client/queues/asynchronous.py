"""`AsyncQueueConsumer`: working on a queue from the user's own event loop. May touch: the network, the clock."""

from __future__ import annotations

import asyncio
import logging
import time
import warnings
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self, Unpack

from raylog.client.arguments import check_topics
from raylog.client.checked import checks_arguments
from raylog.client.config import load, show_keys
from raylog.client.guard import Home, NotPickled, Turn
from raylog.client.keywords import QueueConsumerKeywords
from raylog.client.queues.config import QueueConsumerConfig
from raylog.client.queues.engine import FailedVerdict, QueueEngine
from raylog.client.queues.message import QueueMessage
from raylog.client.queues.running import HANDLED_BY, run_on_loop

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 10.0
COMMIT_TIMEOUT_S = 30.0
ENDING_S = 0.05


@checks_arguments()
class AsyncQueueConsumer(NotPickled):
    """A member of a queue's group, on the running event loop. `await start()` and `await stop()`, or `async with`.

    One task at a time takes messages; they may be settled in any. Keywords are those of `raylog.QueueConsumerConfig`.
    `on_failed` is called with a partition, a range of offsets and the error when the broker did not take a verdict;
    without it, a warning is logged.
    """

    _is_inner = False
    """Whether this is the inner part of a `QueueConsumer`, which warns for both."""

    def __init__(
        self,
        *topics: str,
        config: Mapping[str, Any] | None = None,
        on_failed: FailedVerdict | None = None,
        **keywords: Unpack[QueueConsumerKeywords],
    ) -> None:
        """Raises InvalidConfig for an unknown key (naming the nearest) or a wrong value.

        With `priority` the topics are given from the most important one down.
        """
        check_topics(topics)
        self._engine = QueueEngine(load(QueueConsumerConfig, config, keywords), topics, on_failed)
        self._home = self._engine.cluster.home = Home("AsyncQueueConsumer")
        self._turn = Turn(_refusal)
        self._is_stopping = False
        self._running: asyncio.Future[None] | None = None
        """Done when `run` has ended."""

    @property
    def config(self) -> QueueConsumerConfig:
        """The configuration."""
        return self._engine.config

    async def start(self) -> None:
        """Reach the cluster. Raises NoClusterFound, ConnectionFailed, UnknownTopicOrPartition."""
        self._home.enter()
        try:
            await self._engine.start()
        except BaseException:  # refused, or cut off
            self._home.leave()
            raise

    async def stop(self, *, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Let `run` end, give back what is not settled, wait for the last answers, leave the group. Idempotent.

        Handlers that run are waited for; after `timeout_s` their records are given back, and may be handled twice.
        """
        if self._home.loop is None:
            return
        self._engine.is_closed |= self._home.has_ended
        self._home.check()
        deadline_s = time.monotonic() + timeout_s
        running = self._running
        if running is not None and not running.done():
            self.end()
            if HANDLED_BY.get() is not self:  # else a handler of its own closes it
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
        """The next message; None when none came in `timeout_ms` (None: wait without a limit).

        Raises InconsistentGroupProtocol where the group has other settings, or is no queue's; ClientClosed.
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
        """The next messages, at most `max_records` (max_poll_records); [] when none came in `timeout_ms`.

        With order by key, the retry or release of a message gives back later ones of its key: skip what `is_settled`.
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
        """The next message. Ends when none came for consumer_timeout_ms."""
        message = await self.getone(timeout_ms=self.config.consumer_timeout_ms)
        if message is None:
            raise StopAsyncIteration
        return message

    async def commit(self, *, timeout_s: float = COMMIT_TIMEOUT_S) -> None:
        """Wait until everything that was reported of records is stored.

        Raises InvalidRecordState when a lock had run out before, TimeoutError.
        """
        self._home.started()
        await self._engine.commit(timeout_s)

    async def run(self, handler: Callable[[QueueMessage], Awaitable[object] | object], *, concurrency: int = 1) -> None:
        """Call `handler` with each message, so many at a time, until `end()` or for consumer_timeout_ms nothing comes.

        A message that the handler returns from is acknowledged, unless the handler settled it. An exception has it
        retried by the group's pauses; `Retry(delay=)` after another one; `Reject` makes it a dead letter. With order by
        key, messages of a key are never handled at the same time. Handlers that are not coroutines run in threads.
        """
        self._home.started()
        with self._turn:
            self._running = asyncio.get_running_loop().create_future()
            try:
                await run_on_loop(_Running(self), handler, concurrency)
            finally:
                self._running.set_result(None)

    def end(self) -> None:
        """Have `run` return when the handlers that are called now have returned. From any thread."""
        self._is_stopping = True
        self._engine.call_on_loop(self._engine._news.set)

    @property
    def keeps_order(self) -> bool:
        """Whether the queue keeps the order of each key."""
        return self._engine.by_key

    @property
    def is_ending(self) -> bool:
        """Whether `end` was called."""
        return self._is_stopping


class _Running:
    """The consumer, as its `run` uses it: no other call takes messages meanwhile."""

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
        """Whether the queue keeps the order of each key."""
        return self.consumer.keeps_order

    async def getone(self, *, timeout_ms: float | None = None) -> QueueMessage | None:
        """The next message."""
        return await self.consumer._next(timeout_ms)


def _refusal(_: bool) -> str:
    return (
        "Messages are being taken already, by another task or thread, or by run(): a consumer of a queue is for one "
        "at a time. Use run(handler, concurrency=), or give each a consumer of its own, with the same group_id."
    )


show_keys(QueueConsumerConfig, AsyncQueueConsumer)
