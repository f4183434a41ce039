"""`QueueConsumer`: consumes a queue from synchronous code; also re-exports its asyncio twin and its messages.

Its engine runs on the loop of the shared runtime. Messages are taken and settled in the caller's thread, without a call
to that loop. May touch: threads (through the runtime), the clock.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Self, Unpack

from raylog.base.errors import ClientClosed
from raylog.client.checked import checks_arguments, number, number_or_none, whole_or_none
from raylog.client.config import QueueConsumerConfig, show_keys
from raylog.client.guard import of_another_process, this_process
from raylog.client.keywords import QueueConsumerKeywords
from raylog.client.queues.asynchronous import CLOSE_TIMEOUT_S, COMMIT_TIMEOUT_S, AsyncQueueConsumer
from raylog.client.queues.engine import FailedVerdict
from raylog.client.queues.message import QueueMessage, Reject, Retry
from raylog.client.runtime import SynchronousClient

__all__ = ["AsyncQueueConsumer", "QueueConsumer", "QueueMessage", "Reject", "Retry"]

LOOK_S = 0.5
"""A waiting thread wakes up at this interval, so that a signal such as Ctrl-C can end the wait."""


@checks_arguments("getone", "poll")
class QueueConsumer(SynchronousClient):
    """A member of a queue's group. A context manager; also an iterator over messages.

    Only one thread at a time may take messages; any thread may settle them. Keywords are those of
    `raylog.QueueConsumerConfig`. `on_failed` is called with a partition, a range of offsets and the error when the
    broker did not accept a verdict (acknowledge, retry, ...); without it, a warning is logged.
    """

    _asynchronous: AsyncQueueConsumer

    def __init__(
        self,
        *topics: str,
        config: Mapping[str, Any] | None = None,
        on_failed: FailedVerdict | None = None,
        **keywords: Unpack[QueueConsumerKeywords],
    ) -> None:
        """Connect to the cluster and join the group. Raises InvalidConfig, NoClusterFound, UnknownTopicOrPartition."""
        self._is_open = False
        consumer = AsyncQueueConsumer(*topics, config=config, on_failed=on_failed, **keywords)
        consumer._is_inner = True
        super().__init__(consumer)
        self._engine = consumer._engine
        self._turn = consumer._turn
        self._forks = this_process.forks
        self._is_open = True
        try:
            self._runtime.run(consumer.start())
        except BaseException:  # an interrupt may arrive after the start
            self._is_open = False
            self._runtime.call_soon(self._engine.abandon)
            raise

    @property
    def config(self) -> QueueConsumerConfig:
        """The configuration."""
        return self._engine.config

    def _why_closed(self) -> str | None:
        return None if self._is_open else "The queue's consumer is closed."

    def close(self, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """End `run`, release unsettled messages, wait for the last answers, leave the group. Idempotent.

        Waits for running handlers; after `timeout` seconds their messages are released, and may be handled twice.
        """
        if not self._is_open:
            return
        try:
            if self._runtime.thread.is_alive():
                self._runtime.run(self._asynchronous.stop(timeout_s=timeout))
        finally:
            # Still open if the call came from a signal handler and was refused.
            self._is_open = self._runtime.thread.is_alive() and not self._engine.is_closed

    def __del__(self) -> None:
        if getattr(self, "_is_open", False):
            warnings.warn("A QueueConsumer was not closed; use `with`, or call close().", ResourceWarning, stacklevel=2)
            if self._runtime.thread.is_alive():
                self._runtime.call_soon(self._engine.abandon)

    def getone(self, timeout_ms: float | None = None) -> QueueMessage | None:
        """The next message; None if none came within `timeout_ms` (None = wait without a limit).

        Raises InconsistentGroupProtocol if the group has other settings, or does not work as a queue; ClientClosed.
        """
        found = self._taken(1, number_or_none("timeout_ms", timeout_ms))
        return found[0] if found else None

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> list[QueueMessage]:
        """The next messages, at most `max_records` (None = max_poll_records); [] if none came within `timeout_ms`.

        With order by key, a message's retry or release also releases later ones of its key: skip those with
        `is_settled`. Raises as `getone`.
        """
        timeout_ms, max_records = number("timeout_ms", timeout_ms), whole_or_none("max_records", max_records)
        return self._taken(self.config.max_poll_records if max_records is None else max_records, timeout_ms)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> QueueMessage:
        """The next message. The iteration ends when none came for consumer_timeout_ms, and after close()."""
        wait_ms = self.config.consumer_timeout_ms if self._is_open else 0
        try:
            found = self._taken(1, wait_ms)
        except ClientClosed:
            raise StopIteration from None
        if not found:
            raise StopIteration
        return found[0]

    def _taken(self, limit: int, timeout_ms: float | None) -> list[QueueMessage]:
        """Take messages. After an exception meanwhile, such as Ctrl-C, the next call releases those already taken."""
        engine, turn = self._engine, self._turn
        before = engine.hand_over
        try:
            try:
                del turn.free
            except AttributeError:
                raise turn.refused() from None
            try:
                self._check_process()
                engine.begin_hand_over()
                found = self._first(timeout_ms)
                while found and len(found) < limit and (message := engine.take()) is not None:
                    found.append(message)
            finally:
                turn.free = True
            engine.is_handing = False
            return found
        except BaseException:
            engine.interrupted(before)
            raise

    def _first(self, timeout_ms: float | None) -> list[QueueMessage]:
        engine = self._engine
        deadline_s = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        while True:
            engine.raise_error()
            message = engine.take()
            if message is not None:
                return [message]
            left_s = LOOK_S if deadline_s is None else min(LOOK_S, deadline_s - time.monotonic())
            if left_s <= 0:
                return []
            engine.arrived.wait(left_s)

    def _check_process(self) -> None:
        if self._forks != this_process.forks:
            raise of_another_process("QueueConsumer")

    def commit(self, timeout: float = COMMIT_TIMEOUT_S) -> None:
        """Wait until all verdicts given so far (acknowledge, retry, ...) are stored.

        Raises InvalidRecordState if a message's lock had expired before its verdict, TimeoutError.
        """
        self._run(self._asynchronous.commit(timeout_s=timeout))

    def run(self, handler: Callable[[QueueMessage], object], *, concurrency: int = 1) -> None:
        """Call `handler` with each message in `concurrency` threads; ends by `end()`, or consumer_timeout_ms with none.

        When the handler returns, the message is acknowledged, unless the handler has settled it. If it raises, the
        message is retried after the group's pauses; `Retry(delay=)` sets another pause; `Reject` makes it a dead
        letter. With order by key, messages of one key are never handled at the same time. A handler may be a coroutine
        function. Raises InvalidConfig for a `Retry(delay=)` that is no duration; its message is released.
        """
        self._run(self._asynchronous.run(handler, concurrency=concurrency))

    def end(self) -> None:
        """Have `run` return as soon as the running handlers have returned. From any thread."""
        self._asynchronous.end()


show_keys(QueueConsumerConfig, QueueConsumer)
