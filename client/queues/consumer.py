"""`QueueConsumer`: working on a queue from synchronous code; also re-exports its asyncio twin and its messages.

Its engine runs on the loop of the shared runtime. Messages are taken, and settled, in the caller's thread without
entering that loop. May touch: threads (through the runtime), the clock.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Self, Unpack

from raylog.client.checked import checks_arguments, number, number_or_none, whole_or_none
from raylog.client.config import show_keys
from raylog.client.guard import of_another_process, this_process
from raylog.client.keywords import QueueConsumerKeywords
from raylog.client.queues.asynchronous import CLOSE_TIMEOUT_S, COMMIT_TIMEOUT_S, AsyncQueueConsumer
from raylog.client.queues.config import QueueConsumerConfig
from raylog.client.queues.engine import FailedVerdict
from raylog.client.queues.message import QueueMessage, Reject, Retry
from raylog.client.runtime import SynchronousClient
from raylog.core.errors import ClientClosed

__all__ = ["AsyncQueueConsumer", "QueueConsumer", "QueueMessage", "Reject", "Retry"]

LOOK_S = 0.5
"""How often a thread that waits looks up, so that a signal such as Ctrl-C ends the wait."""


@checks_arguments("getone", "poll")
class QueueConsumer(SynchronousClient):
    """A member of a queue's group. A context manager; also an iterator over messages.

    For one thread at a time; messages may be settled in any. Keywords are those of `raylog.QueueConsumerConfig`.
    `on_failed` is called with a partition, a range of offsets and the error when the broker did not take a verdict.
    """

    _asynchronous: AsyncQueueConsumer

    def __init__(
        self,
        *topics: str,
        config: Mapping[str, Any] | None = None,
        on_failed: FailedVerdict | None = None,
        **keywords: Unpack[QueueConsumerKeywords],
    ) -> None:
        """Reach the cluster, and begin to work. Raises InvalidConfig, NoClusterFound, UnknownTopicOrPartition."""
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
        except BaseException:  # also where it is interrupted when it has started
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
        """Let `run` end, give back what is not settled, wait for the last answers, leave the group. Idempotent.

        Handlers that run are waited for; after `timeout` seconds their records are given back, and may be handled
        twice.
        """
        if not self._is_open:
            return
        try:
            if self._runtime.thread.is_alive():
                self._runtime.run(self._asynchronous.stop(timeout_s=timeout))
        finally:
            # Else a signal handler was refused, and the consumer goes on.
            self._is_open = self._runtime.thread.is_alive() and not self._engine.is_closed

    def __del__(self) -> None:
        if getattr(self, "_is_open", False):
            warnings.warn("A QueueConsumer was not closed; use `with`, or call close().", ResourceWarning, stacklevel=2)
            if self._runtime.thread.is_alive():
                self._runtime.call_soon(self._engine.abandon)

    def getone(self, timeout_ms: float | None = None) -> QueueMessage | None:
        """The next message; None when none came in `timeout_ms` (None: wait without a limit).

        Raises InconsistentGroupProtocol where the group has other settings, or is no queue's; ClientClosed.
        """
        found = self._taken(1, number_or_none("timeout_ms", timeout_ms))
        return found[0] if found else None

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> list[QueueMessage]:
        """The next messages, at most `max_records` (max_poll_records); [] when none came in `timeout_ms`.

        With order by key, the retry or release of a message gives back later ones of its key: skip what `is_settled`.
        """
        timeout_ms, max_records = number("timeout_ms", timeout_ms), whole_or_none("max_records", max_records)
        return self._taken(self.config.max_poll_records if max_records is None else max_records, timeout_ms)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> QueueMessage:
        """The next message. Ends when none came for consumer_timeout_ms, and after close()."""
        wait_ms = self.config.consumer_timeout_ms if self._is_open else 0
        try:
            found = self._taken(1, wait_ms)
        except ClientClosed:
            raise StopIteration from None
        if not found:
            raise StopIteration
        return found[0]

    def _taken(self, limit: int, timeout_ms: float | None) -> list[QueueMessage]:
        """Take messages; an exception on the way, as of Ctrl-C, gives them back with the next call."""
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
        """Wait until everything that was reported of records is stored.

        Raises InvalidRecordState when a lock had run out before, TimeoutError.
        """
        self._run(self._asynchronous.commit(timeout_s=timeout))

    def run(self, handler: Callable[[QueueMessage], object], *, concurrency: int = 1) -> None:
        """Call `handler` with each message in so many threads, until `end()` or nothing comes for consumer_timeout_ms.

        A message that the handler returns from is acknowledged, unless the handler settled it. An exception has it
        retried by the group's pauses; `Retry(delay=)` after another one; `Reject` makes it a dead letter. With order by
        key, messages of a key are never handled at the same time. A handler may be a coroutine function. Raises
        InvalidConfig for a `Retry(delay=)` that is no duration, when the record is given back.
        """
        self._run(self._asynchronous.run(handler, concurrency=concurrency))

    def end(self) -> None:
        """Have `run` return when the handlers that are called now have returned. From any thread."""
        self._asynchronous.end()


show_keys(QueueConsumerConfig, QueueConsumer)
