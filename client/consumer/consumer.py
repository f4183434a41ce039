"""`Consumer`: reads records from synchronous code; also re-exports `AsyncConsumer`.

Its engine runs on the event loop of the shared runtime. While records are buffered, poll() takes them in the caller's
thread without a call to that loop. May touch: threads (through the runtime), the clock.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from raylog.base.ids import TopicPartition
from raylog.client.arguments import check_topics
from raylog.client.checked import checks_arguments, number, number_or_none, whole, whole_or_none
from raylog.client.config import ConsumerConfig, load, show_keys
from raylog.client.consumer.asynchronous import AsyncConsumer
from raylog.client.consumer.engine import CLOSE_TIMEOUT_S, ConsumerEngine
from raylog.client.consumer.handover import ListenerCall
from raylog.client.consumer.listener import RebalanceListener
from raylog.client.consumer.operations import ConsumerState, Offsets, Operations
from raylog.client.guard import Turn
from raylog.client.keywords import ConsumerKeywords
from raylog.client.reading.column_batch import ColumnBatch
from raylog.client.runtime import SynchronousClient, blocking, on_loop
from raylog.client.types import OffsetAndMetadata, Record

__all__ = ["AsyncConsumer", "Consumer", "RebalanceListener"]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _alone(
    method: Callable[Concatenate[Any, Parameters], None],
) -> Callable[Concatenate[Any, Parameters], None]:
    """Wrap a method that moves positions: it is refused while a poll takes records, except in that poll's listener."""

    @wraps(method)
    def call(consumer: Consumer, /, *args: Parameters.args, **options: Parameters.kwargs) -> None:
        if consumer._poller == threading.get_ident():
            return method(consumer, *args, **options)
        turn = consumer._one_poll
        try:
            del turn.free
        except AttributeError:
            raise turn.refused() from None
        try:
            turn.held_here()
            method(consumer, *args, **options)
        finally:
            turn.holder = None
            turn.free = True

    return call


@checks_arguments("poll", "consume", "consume_batch")
class Consumer(ConsumerState, SynchronousClient):
    """Reads records. A context manager; also an iterator over records.

    It is for one thread at a time. It subscribes to the topics given here; keywords are those of
    `raylog.ConsumerConfig`, with Kafka's names. Each method blocks until the same method of `AsyncConsumer` returns.
    """

    _asynchronous: Operations

    def __init__(
        self, *topics: str, config: Mapping[str, Any] | None = None, **keywords: Unpack[ConsumerKeywords]
    ) -> None:
        """Connect to the cluster, and subscribe to the topics if there are any.

        Raises InvalidConfig, NoClusterFound, ConnectionFailed, AuthenticationFailed.
        """
        self._is_open = False
        check_topics(topics)
        ConsumerState.__init__(self, ConsumerEngine(load(ConsumerConfig, config, keywords)))
        SynchronousClient.__init__(self, Operations(self._engine))
        self._one_poll = Turn(_refusal)
        self._is_closing = False
        self._poller = 0
        """Ident of the thread that waits in a poll or calls the listener there; 0 = none."""
        self._is_open = True
        try:
            self._runtime.run(self._engine.start(topics))
        except BaseException:  # an interrupt may arrive after the start
            self._is_open = False
            self._runtime.call_soon(self._engine.abandon)
            raise
        _open_engines.add(self._engine)

    def close(self, autocommit: bool = True, timeout: float = CLOSE_TIMEOUT_S) -> None:
        """Commit the positions (with `enable_auto_commit`), call the listener, leave the group, close. Idempotent.

        `autocommit=False` leaves out the commit; `timeout` limits each wait, in seconds.
        """
        self._close(autocommit, timeout)

    def __exit__(self, *raised: object) -> None:
        """Close. When an exception leaves the block, the records of the last poll are not committed."""
        failure = next((each for each in raised if isinstance(each, BaseException)), None)
        self._close(True, CLOSE_TIMEOUT_S, failure)

    def _close(self, autocommit: bool, timeout: float, failure: BaseException | None = None) -> None:
        if not self._is_open or self._is_closing:
            return
        if not self._runtime.thread.is_alive():
            self._is_open = False
            return  # in a forked child, or at interpreter exit: the loop and its connections do not exist
        self._is_closing = True
        try:
            self._close_once(autocommit, timeout, failure)
        finally:
            self._is_closing = False
            self._is_open = not self._engine.is_closed  # still open if the call came from a signal handler: refused

    def _close_once(self, autocommit: bool, timeout: float, failure: BaseException | None) -> None:
        is_alone = False
        try:
            del self._one_poll.free  # takes the turn: the listener must not poll here either
            is_alone = True
        except AttributeError:
            pass  # another thread polls; or this thread does, and we are in its listener or in a signal handler
        try:
            if is_alone:
                self._one_poll.held_here()
            work = self._engine.last_call(commit=autocommit, timeout_s=timeout, failure=failure)
            call = self._runtime.run(work)
            if call is not None:
                self._poller = threading.get_ident()
                self._engine.listener.make(call)
        finally:
            if is_alone:
                self._one_poll.holder = None
                self._one_poll.free = True
            self._runtime.run(self._engine.close(timeout_s=timeout))

    def __del__(self) -> None:
        if getattr(self, "_is_open", False):
            warnings.warn("A Consumer was not closed; use `with`, or call close().", ResourceWarning, stacklevel=2)
            if self._runtime.thread.is_alive():
                self._runtime.call_soon(self._engine.abandon)

    subscribe = on_loop(Operations.subscribe)
    assign = on_loop(Operations.assign)

    def unsubscribe(self) -> None:
        """Call the listener, unsubscribe and leave the group. Does not commit; waits for commits under way."""
        call = self._run(self._engine.before_unsubscribe())
        try:
            if call is not None:
                self._engine.listener.make(call)
        finally:
            self._run(self._engine.unsubscribe())

    # Records

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> dict[TopicPartition, list[Record]]:
        """The next records by partition, at most `max_records` (None = max_poll_records); {} if none come in time.

        `timeout_ms` is how long to wait for records. Raises UnknownTopicOrPartition; NoOffsetForPartition,
        OffsetOutOfRange and LogTruncation with auto_offset_reset="none"; CorruptMessage, RecordDeserializationFailed,
        and fatal group errors.
        """
        timeout_ms, max_records = number("timeout_ms", timeout_ms), whole_or_none("max_records", max_records)
        limit = self.config.max_poll_records if max_records is None else max_records
        assignment = self._engine.assignment
        before = assignment.handing.moved
        try:
            return self._take_or_poll(partial(assignment.take, limit), timeout_ms / 1000) or {}
        except BaseException as error:
            assignment.handing.interrupted(error, before)
            raise

    def consume(self, num: int = 1, timeout: float | None = None) -> list[Record]:
        """Up to `num` records in one list, as soon as there are any; [] after `timeout` seconds (None = no limit).

        Raises as `poll`.
        """
        num, timeout = whole("num", num), number_or_none("timeout", timeout)
        timeout_ms = math.inf if timeout is None or timeout < 0 else timeout * 1000
        assignment = self._engine.assignment
        before = assignment.handing.moved
        try:
            return [record for records in self.poll(timeout_ms, max_records=num).values() for record in records]
        except BaseException as error:
            assignment.handing.interrupted(error, before)
            raise

    def consume_batch(self, max_records: int | None = None, timeout: float | None = None) -> ColumnBatch:
        """Up to `max_records` records as columns, as soon as there are any; empty after `timeout` s (None = no limit).

        `max_records=None` returns all buffered records, and some megabytes of those read from files. No object is made
        per record, so this is several times faster than `consume`; `to_arrow()` of the result makes a table.
        Deserializers are not applied. Raises as `poll`.
        """
        max_records, timeout = whole_or_none("max_records", max_records), number_or_none("timeout", timeout)
        limit = sys.maxsize if max_records is None else max_records
        timeout_s = math.inf if timeout is None or timeout < 0 else timeout
        assignment = self._engine.assignment
        before = assignment.handing.moved
        try:
            return self._take_or_poll(partial(assignment.take_columns, limit), timeout_s) or ColumnBatch([])
        except BaseException as error:
            assignment.handing.interrupted(error, before)
            raise

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        """The next record. The iteration ends when none came for consumer_timeout_ms, and after close()."""
        engine = self._engine
        take, handing = engine.assignment.take_one, engine.assignment.handing
        before = handing.moved
        turn = self._one_poll
        try:
            del turn.free
        except AttributeError:
            raise turn.refused() from None
        try:
            record = engine.taken(take) if engine.is_smooth() else None
            if record is not None:
                handing.is_done = True
                return record
        except BaseException as error:
            handing.interrupted(error, before)
            raise
        finally:
            turn.free = True
        try:
            record = self._take_or_poll(take, self._iteration_s) if self._is_open else None
            if record is not None:
                return record
        except BaseException as error:
            handing.interrupted(error, before)
            raise
        raise StopIteration

    def _take_or_poll(self, take: Callable[[], Result], timeout_s: float) -> Result | None:
        """The next records, or None after the timeout.

        While only records are missing, this thread takes them and waits for them; `_poll` takes over as soon as work
        on the loop is due, such as a rebalance or a commit.
        """
        engine, handing = self._engine, self._engine.assignment.handing
        deadline_s = time.monotonic() + timeout_s
        turn = self._one_poll
        if engine.is_smooth():
            try:
                del turn.free
            except AttributeError:
                raise turn.refused() from None
            try:
                turn.held_here()
                handing.next_poll()
                while engine.is_smooth():
                    engine.expect_signal()
                    taken = engine.taken(take)
                    if taken:
                        handing.is_done = True
                        return taken
                    if not engine.wait_here(deadline_s):
                        break
            finally:
                turn.holder = None
                turn.free = True
        return self._poll(take, deadline_s)

    def _poll(self, take: Callable[[], Result], deadline_s: float) -> Result | None:
        """As `AsyncConsumer._poll`; records are taken and the listener is called in the caller's thread."""
        engine, handing = self._engine, self._engine.assignment.handing
        turn = self._one_poll
        try:
            del turn.free
        except AttributeError:
            raise turn.refused() from None
        try:
            self._poller = threading.get_ident()
            turn.held_here()
            handing.next_poll()
            while True:
                call = self._run(engine.ready(deadline_s))
                if call is not None:
                    self._call_listener(call)
                elif engine.may_take and (taken := engine.taken(take)):
                    handing.is_done = True
                    return taken
                elif time.monotonic() >= deadline_s:
                    return None
        finally:
            self._poller = 0
            turn.holder = None
            turn.free = True

    def _call_listener(self, call: ListenerCall) -> None:
        try:
            self._engine.listener.make(call)
        finally:
            self._do(self._engine.listener_called)

    # Positions

    seek = _alone(on_loop(Operations.seek))
    seek_to_beginning = _alone(blocking(Operations.seek_to_beginning))
    seek_to_end = _alone(blocking(Operations.seek_to_end))
    seek_to_committed = _alone(blocking(Operations.seek_to_committed))
    position = blocking(Operations.position)
    pause = on_loop(Operations.pause)
    resume = on_loop(Operations.resume)

    def commit(self, offsets: Offsets | None = None, *, timeout: float | None = None) -> None:
        """Store offsets for the group: those given, or the positions of all assigned partitions.

        Raises CommitFailed when the group has rebalanced meanwhile, InvalidGroupId without a group_id.
        """
        self._run(self._asynchronous.commit(offsets, timeout_s=timeout))

    commit_async = on_loop(Operations.commit_nowait)

    @overload
    def committed(self, partition: TopicPartition, metadata: Literal[False] = False) -> int | None: ...
    @overload
    def committed(self, partition: TopicPartition, metadata: Literal[True]) -> OffsetAndMetadata | None: ...
    def committed(self, partition: TopicPartition, metadata: bool = False) -> int | OffsetAndMetadata | None:
        """The group's committed offset, with its metadata text if `metadata`; None when there is none."""
        if metadata:
            return self._run(self._asynchronous.committed(partition, True))
        return self._run(self._asynchronous.committed(partition))

    group_metadata = on_loop(Operations.group_metadata)

    # Cluster metadata

    beginning_offsets = blocking(Operations.beginning_offsets)
    end_offsets = blocking(Operations.end_offsets)
    offsets_for_times = blocking(Operations.offsets_for_times)
    offsets_for_leader_epoch = blocking(Operations.offsets_for_leader_epoch)
    partitions_for_topic = blocking(Operations.partitions_for_topic)
    topics = blocking(Operations.topics)

    def _why_closed(self) -> str | None:
        return "The consumer is closed, or was made before a fork; make a new one." if self._engine.is_closed else None


def _refusal(is_inside: bool) -> str:
    if is_inside:
        return (
            "poll() is running already in this thread: what is called inside it, as a rebalance listener or a signal "
            "handler, may not poll, nor move positions while records are taken."
        )
    return (
        "poll() is running already, in another thread or in what this call has interrupted: a Consumer is for one "
        "thread at a time. Give each thread a consumer of its own, with the same group_id, or let a raylog.WorkerPool "
        "handle the records of one."
    )


_open_engines: weakref.WeakSet[ConsumerEngine] = weakref.WeakSet()


def _disown_after_fork() -> None:
    """Close consumers in a forked child: their thread, sockets and buffered records belong to the parent."""
    for engine in _open_engines:
        engine.is_closed = True
    _open_engines.clear()


os.register_at_fork(after_in_child=_disown_after_fork)


show_keys(ConsumerConfig, Consumer)
