"""`Consumer`: reading records from synchronous code; also re-exports `AsyncConsumer`.

A consumer's background work runs on the loop of the shared runtime. While records are buffered, poll() takes them in
the caller's thread without entering that loop. May touch: threads (through the runtime), the clock.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Literal, Self, TypeVar, overload

from raylog.client.consumer.asynchronous import CLOSE_TIMEOUT_S, AsyncConsumer, Offsets
from raylog.client.consumer.engine import Engine
from raylog.client.consumer.group_session import ListenerCall
from raylog.client.consumer.listener import CallbackWaiter, RebalanceListener
from raylog.client.reading.column_batch import ColumnBatch
from raylog.client.runtime import shared
from raylog.client.types import OffsetAndMetadata, OffsetAndTimestamp, Record
from raylog.core.errors import ClientClosed, InvalidRequest, RaylogError
from raylog.core.ids import TopicPartition

__all__ = ["AsyncConsumer", "Consumer", "RebalanceListener"]

Result = TypeVar("Result")


class Consumer:
    """Reads records. A context manager; also an iterator over records.

    For one thread at a time. Topics given here are subscribed to; keywords are those of `ConsumerConfig`, by Kafka's
    names. Each method blocks until the same method of `AsyncConsumer` returns.
    """

    def __init__(self, *topics: str, config: Mapping[str, Any] | None = None, **keywords: Any) -> None:
        """Reach the cluster, and subscribe to the topics if there are any.

        Raises InvalidConfig, NoClusterFound, ConnectionFailed, AuthenticationFailed.
        """
        self._inner = AsyncConsumer(*topics, config=config, **keywords)
        self._inner._has_owner = True
        self._engine = self._inner._engine
        self.config = self._inner.config
        self._one_poll = threading.Lock()
        self._runtime = shared()
        self._is_open = False
        self._runtime.run(self._inner.start())
        self._is_open = True
        _open_engines.add(self._engine)

    def close(self, autocommit: bool = True, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Commit the positions (with automatic commits), call the listener, leave the group, close. Idempotent.

        `timeout` is in seconds.
        """
        if not self._is_open:
            return
        self._is_open = False
        if not self._runtime.thread.is_alive():
            return  # in a forked child, or at interpreter exit: the loop and its connections do not exist
        is_alone = self._one_poll.acquire(blocking=False)  # the listener must not poll here either
        try:
            call = self._runtime.run(self._engine.last_call(commit=autocommit, timeout_s=timeout))
            if call is not None:
                self._inner._listener.make(call)
        finally:
            if is_alone:
                self._one_poll.release()
            self._runtime.run(self._engine.close(timeout_s=timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_is_open", False):
            warnings.warn("A Consumer was not closed; use `with`, or call close().", ResourceWarning, stacklevel=2)
            if self._runtime.thread.is_alive():
                self._runtime.call_soon(self._engine.abandon)

    # Subscription

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | None = None,
        listener: RebalanceListener | None = None,
        on_assigned: CallbackWaiter | None = None,
        on_revoked: CallbackWaiter | None = None,
        on_lost: CallbackWaiter | None = None,
    ) -> None:
        """Read these topics, or those whose whole name matches the regular expression `pattern`.

        With a group_id the partitions are shared with the group's other members, and poll() calls the listener in this
        thread when the assignment changes; without one all are read. Replaces an earlier subscription.
        """
        self._do(
            lambda: self._inner.subscribe(
                topics,
                pattern=pattern,
                listener=listener,
                on_assigned=on_assigned,
                on_revoked=on_revoked,
                on_lost=on_lost,
            )
        )

    def unsubscribe(self) -> None:
        """Unsubscribe and leave the group. Does not commit."""
        self._run(self._inner.unsubscribe())

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without sharing. Starts at committed offsets if there is a group_id."""
        self._do(lambda: self._inner.assign(partitions))

    def assignment(self) -> set[TopicPartition]:
        """The assigned partitions."""
        return self._inner.assignment()

    def subscription(self) -> set[str]:
        """The topics subscribed to."""
        return self._inner.subscription()

    # Records

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> dict[TopicPartition, list[Record]]:
        """The next records by partition, at most `max_records` (max_poll_records); {} when none come in `timeout_ms`.

        Raises UnknownTopicOrPartition, NoOffsetForPartition, CorruptMessage, RecordDeserializationFailed, without
        auto_offset_reset OffsetOutOfRange and LogTruncation, and fatal group errors.
        """
        limit = self.config.max_poll_records if max_records is None else max_records
        return self._take_or_poll(lambda: self._engine.take(limit), timeout_ms / 1000) or {}

    def consume(self, num: int = 1, timeout: float | None = None) -> list[Record]:
        """Up to `num` records in one list, as soon as there are any; [] after `timeout` seconds (None: never)."""
        timeout_ms = math.inf if timeout is None or timeout < 0 else timeout * 1000
        return [record for records in self.poll(timeout_ms, max_records=num).values() for record in records]

    def consume_batch(self, max_records: int | None = None, timeout: float | None = None) -> ColumnBatch:
        """Up to `max_records` records as columns, as soon as there are any; empty after `timeout` s (None: never).

        Without `max_records`, all that is buffered; of files, some megabytes. No object is made for a record, so this
        is several times faster than `consume`; `to_arrow()` of the result makes a table. Deserializers are not applied.
        Raises as `poll`.
        """
        limit = sys.maxsize if max_records is None else max_records
        timeout_s = math.inf if timeout is None or timeout < 0 else timeout
        return self._take_or_poll(lambda: self._engine.take_columns(limit), timeout_s) or ColumnBatch([])

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        """The next record. Ends when none came for consumer_timeout_ms, and after close()."""
        engine = self._engine
        if self._one_poll.acquire(blocking=False):  # else another thread polls, and the slow path raises
            try:
                record = engine.take_one() if engine.is_smooth() else None
            finally:
                self._one_poll.release()
            if record is not None:
                return record
        if not self._is_open:
            raise StopIteration
        wait_ms = self.config.consumer_timeout_ms
        record = self._take_or_poll(engine.take_one, math.inf if wait_ms is None else wait_ms / 1000)
        if record is None:
            raise StopIteration
        return record

    def _take_or_poll(self, take: Callable[[], Result], timeout_s: float) -> Result | None:
        """Records buffered or received in time; taken and waited for in this thread until the loop has work to do."""
        engine = self._engine
        deadline_s = time.monotonic() + timeout_s
        if engine.is_smooth() and self._one_poll.acquire(blocking=False):
            try:
                while engine.is_smooth():
                    engine.expect_signal()
                    taken = take()
                    if taken:
                        return taken
                    if not engine.wait_here(deadline_s):
                        break
            finally:
                self._one_poll.release()
        return self._poll(take, deadline_s)

    def _poll(self, take: Callable[[], Result], deadline_s: float) -> Result | None:
        """The steps of `AsyncConsumer._poll`, with taking and the listener in the caller's thread."""
        if not self._one_poll.acquire(blocking=False):
            raise InvalidRequest(
                "poll() is running already: a Consumer is for one thread at a time, and a rebalance listener, which is "
                "called inside poll(), may not poll."
            )
        engine = self._engine
        try:
            while True:
                call = self._run(engine.ready(deadline_s))
                if call is not None:
                    self._tell(call)
                elif taken := take():
                    return taken
                elif time.monotonic() >= deadline_s:
                    return None
        finally:
            self._one_poll.release()

    def _tell(self, call: ListenerCall) -> None:
        try:
            self._inner._listener.make(call)
        finally:
            self._do(self._engine.told)

    # Positions

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Move the position to this offset. Raises InvalidRequest for a partition that is not assigned."""
        self._do(lambda: self._inner.seek(partition, offset))

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Move the position to the first record in the log; without arguments in all assigned partitions."""
        self._run(self._inner.seek_to_beginning(*partitions))

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Move the position behind the last record; without arguments in all assigned partitions."""
        self._run(self._inner.seek_to_end(*partitions))

    def seek_to_committed(self, *partitions: TopicPartition) -> None:
        """Move the position to the committed offset; without arguments in all assigned partitions."""
        self._run(self._inner.seek_to_committed(*partitions))

    def position(self, partition: TopicPartition) -> int:
        """The offset of the next record that poll() returns."""
        return self._run(self._inner.position(partition))

    def commit(self, offsets: Offsets | None = None, *, timeout: float | None = None) -> None:
        """Store offsets for the group: those given, or the positions of all assigned partitions.

        Raises CommitFailed when the group has rebalanced meanwhile, InvalidGroupId without a group_id.
        """
        self._run(self._inner.commit(offsets, timeout_s=timeout))

    def commit_async(
        self,
        offsets: Offsets | None = None,
        callback: Callable[[Mapping[TopicPartition, OffsetAndMetadata], RaylogError | None], object] | None = None,
    ) -> None:
        """As `commit`, without waiting; `callback(offsets, error)` is called in the client's own thread."""
        self._do(lambda: self._inner.commit_nowait(offsets, callback))

    @overload
    def committed(self, partition: TopicPartition, metadata: Literal[False] = False) -> int | None: ...
    @overload
    def committed(self, partition: TopicPartition, metadata: Literal[True]) -> OffsetAndMetadata | None: ...
    def committed(self, partition: TopicPartition, metadata: bool = False) -> int | OffsetAndMetadata | None:
        """The group's committed offset, with its note if `metadata`; None when there is none."""
        if metadata:
            return self._run(self._inner.committed(partition, True))
        return self._run(self._inner.committed(partition))

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these partitions until resume(); group membership continues."""
        self._do(lambda: self._inner.pause(*partitions))

    def resume(self, *partitions: TopicPartition) -> None:
        """Return records of these partitions again."""
        self._do(lambda: self._inner.resume(*partitions))

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return self._inner.paused()

    # Cluster metadata

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset of the first record that each partition still has."""
        return self._run(self._inner.beginning_offsets(partitions))

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset behind the last committed record of each partition: its high watermark."""
        return self._run(self._inner.end_offsets(partitions))

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each timestamp (ms since 1970); None when there is none."""
        return self._run(self._inner.offsets_for_times(timestamps))

    def partitions_for_topic(self, topic: str) -> set[int]:
        """The numbers of the topic's partitions. Raises UnknownTopicOrPartition that names the nearest topic."""
        return self._run(self._inner.partitions_for_topic(topic))

    def topics(self) -> set[str]:
        """The names of all topics, without the cluster's own."""
        return self._run(self._inner.topics())

    def highwater(self, partition: TopicPartition) -> int | None:
        """The high watermark of the last fetch of an assigned partition; None before the first."""
        return self._inner.highwater(partition)

    def current_lag(self, partition: TopicPartition) -> int | None:
        """Records between the position and the high watermark of the last fetch (KIP-695); None before both are known.

        Raises InvalidRequest for a partition that is not assigned.
        """
        return self._inner.current_lag(partition)

    def metrics(self) -> dict[str, float]:
        """Current metrics, by Kafka's names: `records-lag-max`, `records-lead-min` and others."""
        return self._inner.metrics()

    # Internals

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Wait for work on the loop. All work has its own deadline, except a poll that was called without one."""
        if self._engine.is_closed:
            work.close()
            raise ClientClosed("The consumer is closed, or was made before a fork; make a new one.")
        return self._runtime.run(work)

    def _do(self, function: Callable[[], Result]) -> Result:
        """Schedule a call on the loop, between its other work."""

        async def call() -> Result:
            return function()

        return self._run(call())


_open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


def _disown_after_fork() -> None:
    """In a forked child the thread and the sockets belong to the parent, and so do buffered records."""
    for engine in _open_engines:
        engine.is_closed = True
    _open_engines.clear()


os.register_at_fork(after_in_child=_disown_after_fork)
