"""`run(handler, concurrency=)`: calls handlers concurrently, turns their results into verdicts, keeps order per key."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Protocol

from raylog.base.errors import InvalidConfig
from raylog.client.config import QueueConsumerConfig
from raylog.client.queues.message import QueueMessage, Reject, Retry
from raylog.client.user_code import USER_ERRORS
from raylog.core.queues import events as ev

logger = logging.getLogger(__name__)

Handler = Callable[[QueueMessage], Awaitable[object] | object]
REASON_MAX = 500
"""The most characters of an exception that become the reason of a retry."""
POLL_S = 0.2
"""How often a run that waits for a message checks whether it has to end."""
HANDLED_BY: ContextVar[object] = ContextVar("handled_by", default=None)
"""Inside a handler: the consumer whose `run` called it. That consumer's stop() must not wait for this handler."""


class Worker(Protocol):
    """What a run needs of its consumer."""

    @property
    def config(self) -> QueueConsumerConfig: ...
    @property
    def is_ending(self) -> bool: ...
    @property
    def keeps_order(self) -> bool: ...

    async def getone(self, *, timeout_ms: float | None = None) -> QueueMessage | None:
        """The next message; None if none came in time."""

    async def commit(self) -> None:
        """Wait until all verdicts so far are stored."""


class _Run:
    """One call of `run`."""

    def __init__(self, consumer: Worker, handler: Handler, concurrency: int) -> None:
        if concurrency < 1:
            raise InvalidConfig(f"concurrency must be at least 1, not {concurrency}.")
        self._consumer = consumer
        self._handler = handler
        self._free = asyncio.Semaphore(concurrency)
        self._is_coroutine = inspect.iscoroutinefunction(handler)
        self._threads = None if self._is_coroutine else ThreadPoolExecutor(concurrency, "queue-handler")
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: dict[Any, deque[QueueMessage]] = {}
        """For each key that is being handled, the messages that wait for it."""
        self._refusal: BaseException | None = None
        """Why the run ends: a handler gave an invalid verdict, or raised an exit such as SystemExit."""

    async def run(self) -> None:
        """Take messages and call handlers until the end; then wait for the running handlers."""
        consumer = self._consumer
        timeout_ms = consumer.config.consumer_timeout_ms
        quiet_since = time.monotonic()
        try:
            while self._is_going_on:
                await self._free.acquire()
                message = None
                try:
                    while message is None and self._is_going_on:
                        message = await consumer.getone(timeout_ms=POLL_S * 1000)
                        if message is not None or self._tasks:
                            quiet_since = time.monotonic()
                        elif timeout_ms is not None and (time.monotonic() - quiet_since) * 1000 >= timeout_ms:
                            return
                finally:
                    if message is None:
                        self._free.release()
                if message is not None and self._refusal is None:
                    self._begin(message, consumer.keeps_order)
                elif message is not None:
                    self._free.release()
                    message.release()
        except asyncio.CancelledError:  # cancel the handlers too: their messages are released
            for task in self._tasks:
                task.cancel()
            raise
        finally:
            if self._tasks:
                await asyncio.gather(*self._tasks, return_exceptions=True)
            for left in self._waiting.values():
                for message in left:
                    message.release()
            if self._threads is not None:
                self._threads.shutdown(wait=False)
        await consumer.commit()
        if self._refusal is not None:
            raise self._refusal

    @property
    def _is_going_on(self) -> bool:
        return not self._consumer.is_ending and self._refusal is None

    def _begin(self, message: QueueMessage, by_key: bool) -> None:
        key = (message.topic, message.partition, message.record.key) if by_key else None
        if by_key and message.record.key is not None:
            waiting = self._waiting.get(key)
            if waiting is not None:
                waiting.append(message)
                self._free.release()
                return
            self._waiting[key] = deque()
        else:
            key = None
        task = asyncio.get_running_loop().create_task(self._handle_all(message, key))
        self._tasks.add(task)
        task.add_done_callback(partial(self._handled, message, key))

    def _handled(self, message: QueueMessage, key: Any, task: asyncio.Task[None]) -> None:
        """A handler's task is done. If it was cancelled, perhaps before its first step, release its messages."""
        self._tasks.discard(task)
        self._free.release()
        left = self._waiting.pop(key, ()) if key is not None else ()
        for each in (message, *left) if task.cancelled() else left:
            self._settle(each, each.release)

    async def _handle_all(self, message: QueueMessage, key: Any) -> None:
        """Handle a message, then the messages of its key that came meanwhile."""
        await self._handle(message)
        waiting = self._waiting.get(key) if key is not None else None
        while waiting:
            later = waiting.popleft()
            if not later.is_settled:
                await self._handle(later)

    async def _handle(self, message: QueueMessage) -> None:
        HANDLED_BY.set(getattr(self._consumer, "consumer", self._consumer))
        try:
            if self._threads is None:
                result = self._handler(message)
                if inspect.isawaitable(result):
                    await result
            else:
                call = partial(copy_context().run, self._handler, message)
                await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except Reject as rejected:
            reason = str(rejected)
            self._settle(message, lambda: message.reject(reason))
        except Retry as again:
            self._retry(message, again.delay, str(again))
        except asyncio.CancelledError:
            self._settle(message, message.release)
            raise
        except Exception as failure:  # the user's handler may raise anything: retry the record
            logger.warning("%r failed: %r", message, failure, exc_info=failure)
            self._retry(message, None, f"{type(failure).__name__}: {failure}"[:REASON_MAX])
        except USER_ERRORS as exit_error:  # an exit ends `run`, which raises it; the record is released
            self._refusal = self._refusal or exit_error
            self._settle(message, message.release)
        else:
            self._settle(message, message.ack)

    def _retry(self, message: QueueMessage, delay: Any, reason: str) -> None:
        key = (message.topic, message.partition, message.record.key)
        later = self._waiting.get(key)
        if later:  # later messages of the key must not overtake it
            message._lock.source.give_back(list(later), ev.RETURN)
            later.clear()
        self._settle(message, lambda: message.retry(delay, reason))

    def _settle(self, message: QueueMessage, verdict: Callable[[], None]) -> None:
        if message.is_settled:
            return
        try:
            verdict()
        except InvalidConfig as refusal:  # such as an invalid pause: end the run, since the next one would be the same
            message.release()
            self._refusal = self._refusal or refusal


async def run_on_loop(consumer: Worker, handler: Handler, concurrency: int) -> None:
    """The work of `AsyncQueueConsumer.run`."""
    await _Run(consumer, handler, concurrency).run()
