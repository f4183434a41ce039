"""`AsyncConsumer`: reading records on the user's own event loop, alone or in a group.

It adds the waiting of a poll to a `ConsumerEngine`; its other methods are those of `Operations`. May touch: the
network, the clock.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import sys
import time
import warnings
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Self, TypeVar, Unpack

from raylog.base.ids import TopicPartition
from raylog.client.arguments import check_topics
from raylog.client.checked import checks_arguments
from raylog.client.config import ConsumerConfig, load, show_keys
from raylog.client.consumer.engine import CLOSE_TIMEOUT_S, ConsumerEngine
from raylog.client.consumer.handover import ListenerCall
from raylog.client.consumer.operations import Operations
from raylog.client.guard import Home, NotPickled, Turn
from raylog.client.keywords import ConsumerKeywords
from raylog.client.reading.column_batch import ColumnBatch
from raylog.client.types import Record

Result = TypeVar("Result")


@checks_arguments()
class AsyncConsumer(Operations, NotPickled):
    """Reads records on the running event loop. `await start()` and `await stop()`, or `async with`.

    It is for one task at a time. It subscribes to the topics given here; keywords are those of `raylog.ConsumerConfig`,
    with Kafka's names.
    """

    def __init__(
        self, *topics: str, config: Mapping[str, Any] | None = None, **keywords: Unpack[ConsumerKeywords]
    ) -> None:
        """Raises InvalidConfig for an unknown key (and suggests the nearest) or a wrong value."""
        check_topics(topics)
        super().__init__(ConsumerEngine(load(ConsumerConfig, config, keywords)))
        self._topics = topics
        self._turn = Turn(_refusal)
        self._home = self._engine.cluster.home = Home("AsyncConsumer")
        self._listening: asyncio.Task[Any] | None = None
        """A running call of the user's rebalance listener; it continues when the poll that made it is cancelled."""

    async def start(self) -> None:
        """Connect to the cluster. Raises NoClusterFound, ConnectionFailed, AuthenticationFailed."""
        self._home.enter()
        try:
            await self._engine.start(self._topics)
        except BaseException:  # refused or cancelled
            self._home.leave()
            raise

    async def stop(self, *, autocommit: bool = True, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Commit the positions (with `enable_auto_commit`), call the listener, leave the group, close. Idempotent.

        `autocommit=False` leaves out the commit; `timeout_s` limits each wait.
        """
        await self._stop(autocommit, timeout_s)

    async def _stop(self, autocommit: bool, timeout_s: float, failure: BaseException | None = None) -> None:
        engine = self._engine
        if engine.is_closed or self._home.loop is None:
            return
        engine.is_closed = self._home.has_ended
        self._home.check()
        try:
            if self._listening is not None and self._listening is not asyncio.current_task():
                await asyncio.wait([self._listening], timeout=timeout_s)
            call = await engine.last_call(commit=autocommit, timeout_s=timeout_s, failure=failure)
            if call is not None:
                await self._made(call)
        finally:
            await engine.close(timeout_s=timeout_s)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, _: object, failure: BaseException | None, __: object) -> None:
        """Stop. When an exception leaves the block, the records of the last poll are not committed."""
        await self._stop(True, CLOSE_TIMEOUT_S, failure)

    async def unsubscribe(self) -> None:
        """Call the listener, unsubscribe and leave the group. Does not commit; waits for commits under way."""
        call = await self._engine.before_unsubscribe()
        try:
            if call is not None:
                await self._made(call)
        finally:
            await self._engine.unsubscribe()

    def __del__(self) -> None:
        home = getattr(self, "_home", None)
        if home is None or home.loop is None or self._engine.is_closed:
            return
        warnings.warn(
            "An AsyncConsumer was not stopped; use `async with`, or await stop().", ResourceWarning, stacklevel=2
        )
        if not home.has_ended and not home.is_of_another_process:
            home.loop.call_soon_threadsafe(self._engine.abandon)

    # Records

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Record]]:
        """The next records by partition, at most `max_records` (None = max_poll_records); {} if none come in time.

        `timeout_ms` is how long to wait for records. Raises UnknownTopicOrPartition; NoOffsetForPartition,
        OffsetOutOfRange and LogTruncation with auto_offset_reset="none"; CorruptMessage, RecordDeserializationFailed,
        and fatal group errors.
        """
        limit = self.config.max_poll_records if max_records is None else max_records
        take = partial(self._engine.assignment.take, limit, partitions)
        return await self._handed(self._poll(take, timeout_ms / 1000, partitions)) or {}

    async def getone(self) -> Record:
        """The next record; waits without a limit. Otherwise as `getmany`."""
        record = None
        while record is None:
            record = await self._handed(self._poll(self._engine.assignment.take_one, math.inf))
        return record

    async def getcolumns(self, *, timeout_ms: float = 0, max_records: int | None = None) -> ColumnBatch:
        """At most `max_records` next records as columns (None = all that are buffered); empty if none come in time.

        `timeout_ms` is how long to wait for records. Raises as `getmany`.
        """
        limit = sys.maxsize if max_records is None else max_records
        take = partial(self._engine.assignment.take_columns, limit)
        return await self._handed(self._poll(take, timeout_ms / 1000)) or ColumnBatch([])

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """The next record. The iteration ends when none came for consumer_timeout_ms."""
        record = await self._handed(self._poll(self._engine.assignment.take_one, self._iteration_s))
        if record is None:
            raise StopAsyncIteration
        return record

    async def _handed(self, poll: Coroutine[Any, Any, Result | None]) -> Result | None:
        """The result of a poll. On return its records count as handed to the user; an error may move positions back."""
        handing = self._engine.assignment.handing
        before = handing.moved
        try:
            taken = await poll
            handing.is_done = True
            return taken
        except BaseException as error:
            handing.interrupted(error, before)
            raise

    async def _poll(
        self, take: Callable[[], Result], timeout_s: float, only: Iterable[TopicPartition] = ()
    ) -> Result | None:
        self._home.started()
        if self._listening is not None and self._listening is asyncio.current_task():
            raise self._turn.refused()
        with self._turn:
            return await self._poll_alone(take, timeout_s, only)

    async def _poll_alone(
        self, take: Callable[[], Result], timeout_s: float, only: Iterable[TopicPartition]
    ) -> Result | None:
        engine = self._engine
        engine.assignment.handing.next_poll()
        if engine.is_smooth() and (taken := engine.taken(take)):
            return taken
        deadline_s = time.monotonic() + timeout_s
        while True:
            call = await engine.ready(deadline_s, only)
            if call is not None:
                await self._listen(call)
            elif engine.may_take and (taken := engine.taken(take)):
                return taken
            elif time.monotonic() >= deadline_s:
                return None

    async def _listen(self, call: ListenerCall) -> None:
        """Call the listener, or wait for the end of a call whose poll was cancelled meanwhile.

        A listener that was cancelled from elsewhere is called again, so that its work for the partitions is not lost.
        """
        while True:
            if self._listening is None:
                self._listening = asyncio.get_running_loop().create_task(self._made(call), name="raylog-listener")
            listening = self._listening
            await asyncio.wait([listening])
            self._listening = None
            if not (listening.cancelled() and listening.cancelling()):
                break
        try:
            listening.result()
        finally:
            self._engine.listener_called()

    async def _made(self, call: ListenerCall) -> None:
        returned = self._engine.listener.make(call)
        if inspect.isawaitable(returned):
            await returned


def _refusal(_: bool) -> str:
    return (
        "A poll is running already: an AsyncConsumer is for one task at a time, and a rebalance listener, which is "
        "called inside a poll, may not poll. Give each task a consumer of its own, with the same group_id."
    )


show_keys(ConsumerConfig, AsyncConsumer)
