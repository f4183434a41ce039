"""The planner of one stream: it answers Spark's calls, with the options, the cluster and this package's pure rules.

Spark starts one process for each query and calls one method at a time; the process ends with the query. May touch: the
clock, and the client's thread. Used by stream_reader.py.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from raylog.base.errors import RaylogError, UnknownTopicOrPartition
from raylog.base.ids import TopicPartition
from raylog.client.ranges.planning import PLAN_TIMEOUT_S
from raylog.client.reading.range_fetcher import PartitionRange
from raylog.client.runtime import shared
from raylog.spark.reading.admission import Admission, Limits
from raylog.spark.reading.group_lag import GroupLag
from raylog.spark.reading.live_logs import LiveLogs
from raylog.spark.reading.options import ReadOptions
from raylog.spark.reading.stream_offsets import (
    StreamOffsets,
    check_new_begins,
    check_selection,
    from_json,
    initial,
    known_begins,
    losses,
    spans_between,
)

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

SETTLE_COMMIT_S = 2.0
"""How long the end of an AvailableNow query may wait for its commit to the group."""
CLOSE_TIMEOUT_S = 10.0


class StreamPlanner:
    """Plans the micro-batches of one query. `close` at the end. Raises RaylogErrors with what to change."""

    def __init__(self, options: ReadOptions, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock_s = clock_s
        # A call may have to wait for an election or a restart, like a task, but never less than PLAN_TIMEOUT_S.
        self._timeout_s = max(options.reading.stall_timeout_s, PLAN_TIMEOUT_S)
        self._logs = LiveLogs(options.wanted, self._timeout_s)
        self._admission = Admission()
        group = options.wanted.consumer.group_id
        self._lag = GroupLag(group) if group else None
        self._initial: StreamOffsets | None = None
        self._fixed: StreamOffsets | None = None
        """Where the query ends, with Trigger.AvailableNow; None: it has no end."""
        self._latest: StreamOffsets | None = None
        self._warned: set[str] = set()
        self._excused: set[str] = set()
        """Topics of the options that were reported as missing, and are accepted because of `failOnDataLoss=false`."""

    def initial(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins; the same at each call of one run."""
        if self._initial is None:
            self._initial = self._run(self._starts())
        return self._initial.to_json()

    def fix_end(self) -> None:
        """Let the query end at the present ends of the logs."""
        self._fixed = self._run(self._logs.now(is_fresh=True))

    def latest(self, given: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
        """Where the batch from `given` ends; `given` itself when there is nothing to read now."""
        start = from_json(given)
        end = self._run(self._end(start, limits))
        return dict(given) if end is start else end.to_json()

    def reported(self) -> dict[str, Any] | None:
        """The ends of the logs at the last trigger, for the progress of the query; None before the first."""
        return None if self._latest is None else self._latest.offsets_json()

    def ranges(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[PartitionRange]:
        """The ranges of the batch from `start` to `end`, which an earlier run of the query may have planned."""
        return self._run(self._ranges(from_json(start), from_json(end)))

    def processed(self, end: Mapping[str, Any]) -> None:
        """Commit `end` to the group, if there is one: everything below it was processed."""
        self._run(self._show(from_json(end)))

    def close(self) -> None:
        """Close the connections."""
        shared().run(self._close(), CLOSE_TIMEOUT_S)

    # On the loop

    async def _starts(self) -> StreamOffsets:
        found = await self._logs.starts()
        return initial(found.offsets, found.ids)

    async def _end(self, start: StreamOffsets, limits: Limits) -> StreamOffsets:
        check_selection(start, self._logs.selection)
        if self._fixed is not None and not self._fixed.holds(start):
            # During an election or a restart a partition was missing; `now` waits for it, then it counts as lost.
            self._fixed = await self._logs.now(start, is_fresh=True)
        now = self._fixed or await self._logs.now(start)
        await self._show(start)
        await self._check_named(start, now)
        self._accept(losses(start, now, self._logs.selection))
        self._latest = now
        begins = {place: at for place, at in known_begins(start, now.ids).items() if place in now.offsets}
        added = [place for place in now.offsets if place not in begins]
        begins |= await self._logs.earliest(added)
        if any(place not in begins for place in added):
            return start  # deleted a moment ago; the next trigger has new metadata
        if self._fixed is None:
            return self._admission.end(start, now, begins, limits, int(self._clock_s() * 1000))
        # Without the minimum: a query that ends would otherwise leave out its last records.
        end = self._admission.end(start, now, begins, replace(limits, min_offsets=None), 0)
        if end is start and self._lag is not None:
            await self._lag.settle(SETTLE_COMMIT_S)  # Spark ends the query now, and this process with it
        return end

    async def _ranges(self, start: StreamOffsets, end: StreamOffsets) -> list[PartitionRange]:
        check_selection(start, self._logs.selection)
        ids = await self._logs.ids_of(end)
        there = {place: at for place, at in end.offsets.items() if place.topic in ids}
        self._accept(losses(end, StreamOffsets(there, ids), self._logs.selection))
        kept = known_begins(end, ids)
        spans = [span for span in spans_between(start, end) if span.place in kept]
        added = await self._logs.earliest(span.place for span in spans if span.begin is None)
        self._accept(check_new_begins(added))
        wanted: list[tuple[TopicPartition, int, int]] = []
        for span in spans:
            begin = added.get(span.place, span.end) if span.begin is None else span.begin
            if begin < span.end:
                wanted.append((span.place, begin, span.end))
        return await self._logs.ranges(wanted)

    async def _check_named(self, start: StreamOffsets, now: StreamOffsets) -> None:
        """Report topics and partitions that the options name, and that neither exist nor were ever read.

        That is a mistake in the options, as at the start of the query.
        """
        for topic in sorted(self._logs.selection.named - now.ids.keys() - start.topics - self._excused):
            self._excused.add(topic)
            try:
                await self._logs.require_topic(topic)
            except UnknownTopicOrPartition as error:
                self._accept([error])
        self._accept(
            UnknownTopicOrPartition(f"Partition {place} does not exist; change assign.")
            for place in self._logs.selection.assigned
            if place.topic in now.ids and place not in now.offsets and place not in start.offsets
        )

    async def _show(self, offsets: StreamOffsets) -> None:
        if self._lag is not None:
            self._lag.report(await self._logs.client(), offsets.offsets)

    async def _close(self) -> None:
        if self._lag is not None:
            await self._lag.close()
        await self._logs.close()

    def _accept(self, found: Iterable[RaylogError]) -> None:
        """With `failOnDataLoss` raise the first error; without it, log each error once."""
        for error in found:
            if self._options.wanted.fail_on_data_loss:
                raise error
            if error.message not in self._warned:
                self._warned.add(error.message)
                logger.warning("%s failOnDataLoss is false: the query goes on.", error.message)

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        # Each part has a deadline of its own; this one bounds the rest.
        return shared().run(work, 3 * self._timeout_s + PLAN_TIMEOUT_S)
