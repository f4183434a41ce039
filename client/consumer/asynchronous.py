"""`AsyncConsumer`: reading records on the user's own event loop, alone or in a group.

Wraps `engine.py` in the public methods. `Consumer` in `raylog.client.consumer.consumer` wraps it. May touch:
the network, the clock.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import re
import sys
import time
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal, Self, TypeVar, overload

from raylog.client.arguments import checked_partition, checked_topic
from raylog.client.config import ConsumerConfig, load
from raylog.client.consumer.committed_offsets import checked_offset, list_offsets
from raylog.client.consumer.engine import Engine
from raylog.client.consumer.group_session import ListenerCall
from raylog.client.consumer.listener import CallbackWaiter, ListenerCalls, RebalanceListener
from raylog.client.consumer.metrics import lag_of, metrics_of
from raylog.client.consumer.partition import Start
from raylog.client.reading.column_batch import ColumnBatch
from raylog.client.types import OffsetAndMetadata, OffsetAndTimestamp, Record
from raylog.core.errors import InvalidRequest, RaylogError, RequestTimedOut
from raylog.core.ids import EARLIEST, LATEST, TopicPartition

Offsets = Mapping[TopicPartition, "OffsetAndMetadata | int"]
Result = TypeVar("Result")
CLOSE_TIMEOUT_S = 30.0
"""Time for the last commit when a consumer is closed."""


class AsyncConsumer:
    """Reads records on the running event loop. `await start()` and `await stop()`, or `async with`.

    Not for use by several tasks at the same time. Topics given here are subscribed to; keywords are those of
    `ConsumerConfig`, by Kafka's names.
    """

    def __init__(self, *topics: str, config: Mapping[str, Any] | None = None, **keywords: Any) -> None:
        """Raises InvalidConfig for an unknown key (naming the nearest) or a wrong value."""
        self._topics = topics
        self.config = load(ConsumerConfig, config, keywords)
        self._engine = Engine(self.config)
        self._listener = ListenerCalls()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_owner = False

    async def start(self) -> None:
        """Reach the cluster. Raises NoClusterFound, ConnectionFailed, AuthenticationFailed."""
        self._loop = asyncio.get_running_loop()
        try:
            await self._engine.start()
        except BaseException:  # also when cancelled: close the connections already opened
            await self._engine.cluster.close()
            self._engine.is_closed = True
            raise
        if self._topics:
            self.subscribe(self._topics)

    async def stop(self, *, autocommit: bool = True, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Commit the positions (with automatic commits), call the listener, leave the group, close. Idempotent."""
        engine = self._engine
        if engine.is_closed or self._loop is None:
            return
        call = await engine.last_call(commit=autocommit, timeout_s=timeout_s)
        try:
            if call is not None:
                await self._tell(call)
        finally:
            await engine.close(timeout_s=timeout_s)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __del__(self) -> None:
        loop = getattr(self, "_loop", None)
        if loop is None or self._has_owner or self._engine.is_closed:
            return
        warnings.warn(
            "An AsyncConsumer was not stopped; use `async with`, or await stop().", ResourceWarning, stacklevel=2
        )
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._engine.abandon)

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

        With a group_id the partitions are shared with the group's other members, and polls call the listener when the
        assignment changes; without one all are read. Replaces an earlier subscription.
        """
        names = [checked_topic(topic) for topic in ([topics] if isinstance(topics, str) else topics)]
        if bool(names) == (pattern is not None):
            raise InvalidRequest("subscribe() takes topics or a pattern: one of the two.")
        self._listener.set(listener, on_assigned, on_revoked, on_lost)
        self._engine.subscribe(names, None if pattern is None else re.compile(pattern))

    async def unsubscribe(self) -> None:
        """Unsubscribe and leave the group. Does not commit."""
        await self._engine.unsubscribe()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without sharing. Starts at committed offsets if there is a group_id."""
        self._engine.assign([checked_partition(each) for each in partitions])

    def assignment(self) -> set[TopicPartition]:
        """The assigned partitions."""
        return set(self._engine.assignment.states)

    def subscription(self) -> set[str]:
        """The topics subscribed to."""
        return set(self._engine.assignment.topics)

    # Records

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Record]]:
        """The next records by partition, at most `max_records` (max_poll_records); {} when none come in `timeout_ms`.

        Raises UnknownTopicOrPartition, NoOffsetForPartition, OffsetOutOfRange (without auto_offset_reset),
        CorruptMessage, RecordDeserializationFailed, and fatal group errors.
        """
        limit = self.config.max_poll_records if max_records is None else max_records
        return await self._poll(lambda: self._engine.take(limit, partitions), timeout_ms / 1000, partitions) or {}

    async def getone(self) -> Record:
        """The next record; waits without a limit. Otherwise as `getmany`."""
        record = None
        while record is None:
            record = await self._poll(self._engine.take_one, math.inf)
        return record

    async def getcolumns(self, *, timeout_ms: float = 0, max_records: int | None = None) -> ColumnBatch:
        """The next records as columns, at most `max_records` (None: all that is buffered); empty after `timeout_ms`."""
        limit = sys.maxsize if max_records is None else max_records
        return await self._poll(lambda: self._engine.take_columns(limit), timeout_ms / 1000) or ColumnBatch([])

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """The next record. Ends when none came for consumer_timeout_ms."""
        wait_ms = self.config.consumer_timeout_ms
        record = await self._poll(self._engine.take_one, math.inf if wait_ms is None else wait_ms / 1000)
        if record is None:
            raise StopAsyncIteration
        return record

    async def _poll(
        self, take: Callable[[], Result], timeout_s: float, only: Iterable[TopicPartition] = ()
    ) -> Result | None:
        engine = self._engine
        if engine.is_smooth() and (taken := take()):
            return taken
        deadline_s = time.monotonic() + timeout_s
        while True:
            call = await engine.ready(deadline_s, only)
            if call is not None:
                try:
                    await self._tell(call)
                finally:
                    engine.told()
            elif taken := take():
                return taken
            elif time.monotonic() >= deadline_s:
                return None

    async def _tell(self, call: ListenerCall) -> None:
        told = self._listener.make(call)
        if inspect.isawaitable(told):
            await told

    # Positions

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Move the position to this offset. Raises InvalidRequest for a partition that is not assigned."""
        if type(offset) is not int:
            raise TypeError(f"An offset must be an int, not {offset!r:.100}.")
        if offset < 0:
            raise InvalidRequest(
                f"An offset may not be negative: {offset}. seek_to_beginning() goes to the first record."
            )
        self._engine.seek(partition, offset)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Move the position to the first record in the log; without arguments in all assigned partitions."""
        await self._seek_to(partitions, Start.EARLIEST)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Move the position behind the last record; without arguments in all assigned partitions."""
        await self._seek_to(partitions, Start.LATEST)

    async def seek_to_committed(self, *partitions: TopicPartition) -> None:
        """Move the position to the committed offset; without arguments in all assigned partitions."""
        await self._seek_to(partitions, Start.COMMITTED)

    async def _seek_to(self, partitions: Iterable[TopicPartition], start: Start) -> None:
        wanted = list(partitions) or list(self._engine.assignment.states)
        self._engine.seek_to(wanted, start)
        for partition in wanted:  # the end offset of this moment, not of the next poll
            await self.position(partition)

    async def position(self, partition: TopicPartition) -> int:
        """The offset of the next record that a poll returns."""
        return await self._in_time(
            f"The position of {partition} was not found", self._engine.position(partition, self._api_s)
        )

    async def commit(self, offsets: Offsets | None = None, *, timeout_s: float | None = None) -> None:
        """Store offsets for the group: those given, or the positions of all assigned partitions.

        Raises CommitFailed when the group has rebalanced meanwhile, InvalidGroupId without a group_id.
        """
        await self._engine.commit(self._offsets(offsets), timeout_s=self._api_s if timeout_s is None else timeout_s)

    def commit_nowait(
        self,
        offsets: Offsets | None = None,
        callback: Callable[[Mapping[TopicPartition, OffsetAndMetadata], RaylogError | None], object] | None = None,
    ) -> None:
        """As `commit`, without waiting; `callback(offsets, error)` is called at the end."""
        self._engine.commit_later(self._offsets(offsets), callback)  # type: ignore[unused-awaitable]  # the engine's own

    def _offsets(self, offsets: Offsets | None) -> dict[TopicPartition, OffsetAndMetadata]:
        if offsets is None:
            return self._engine.positions()
        return {(at := checked_partition(each)): checked_offset(at, offset) for each, offset in offsets.items()}

    @overload
    async def committed(self, partition: TopicPartition, metadata: Literal[False] = False) -> int | None: ...
    @overload
    async def committed(self, partition: TopicPartition, metadata: Literal[True]) -> OffsetAndMetadata | None: ...
    async def committed(self, partition: TopicPartition, metadata: bool = False) -> int | OffsetAndMetadata | None:
        """The group's committed offset, with its note if `metadata`; None when there is none."""
        found = await self._engine.committed.fetch([partition], timeout_s=self._api_s)
        stored = found[TopicPartition(*partition)]
        return stored if metadata or stored is None else stored.offset

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these partitions until resume(); group membership continues."""
        self._engine.pause(partitions, paused=True)

    def resume(self, *partitions: TopicPartition) -> None:
        """Return records of these partitions again."""
        self._engine.pause(partitions, paused=False)

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return {each for each, state in self._engine.assignment.states.items() if state.paused}

    # Cluster metadata

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset of the first record that each partition still has."""
        return await self._edges(partitions, EARLIEST)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset behind the last committed record of each partition: its high watermark."""
        return {
            each: found.offset for each, found in (await self._list(dict.fromkeys(partitions, LATEST))).items() if found
        }

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each timestamp (ms since 1970); None when there is none."""
        negative = [each for each, timestamp_ms in timestamps.items() if timestamp_ms < 0]
        if negative:
            raise InvalidRequest(
                f"Timestamps may not be negative ({negative[0]}); use beginning_offsets or end_offsets."
            )
        return await self._list(timestamps)

    async def _edges(self, partitions: Iterable[TopicPartition], edge: int) -> dict[TopicPartition, int]:
        answers = await self._list(dict.fromkeys(partitions, edge))
        return {each: found.offset for each, found in answers.items() if found is not None}

    async def _list(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        wanted = {TopicPartition(*each): timestamp for each, timestamp in wanted.items()}
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for each, answer in (await list_offsets(self._engine.cluster, wanted, timeout_s=self._api_s)).items():
            if isinstance(answer, RaylogError):
                raise answer
            found[each] = answer
        return found

    async def partitions_for_topic(self, topic: str) -> set[int]:
        """The numbers of the topic's partitions. Raises UnknownTopicOrPartition that names the nearest topic."""
        info = await self._engine.cluster.topic(topic, timeout_s=self._api_s)
        return {each.partition for each in info.partitions}

    async def topics(self) -> set[str]:
        """The names of all topics, without the cluster's own."""
        await self._engine.cluster.refresh(None, timeout_s=self._api_s)
        return {name for name, info in self._engine.cluster.metadata.topics.items() if not info.internal}

    def highwater(self, partition: TopicPartition) -> int | None:
        """The high watermark of the last fetch of an assigned partition; None before the first."""
        found = self._engine.assignment.state(partition).high_watermark
        return None if found < 0 else found

    def current_lag(self, partition: TopicPartition) -> int | None:
        """Records between the position and the high watermark of the last fetch (KIP-695); None before both are known.

        Raises InvalidRequest for a partition that is not assigned.
        """
        return lag_of(self._engine.assignment.state(partition))

    def metrics(self) -> dict[str, float]:
        """Current metrics, by Kafka's names: see `client/consumer/metrics.py`."""
        return metrics_of(self._engine.assignment)

    # Internals

    @property
    def _api_s(self) -> float:
        return self.config.default_api_timeout_ms / 1000

    async def _in_time(self, complaint: str, work: Awaitable[Result]) -> Result:
        try:
            return await work
        except TimeoutError:
            raise RequestTimedOut(f"{complaint} within {self._api_s:g} seconds; check that the cluster runs.") from None
