"""Stream reads as Spark calls them: planning in one process of the driver, reading in the workers.

Spark makes one reader in the planning process of the query, where it stays, and another that is pickled into the tasks.
The two share no state, so a task has all that it needs in its partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from raylog.base.errors import InvalidConfig
from raylog.client.reading.range_fetcher import PartitionRange
from raylog.spark.reading.admission import Limits
from raylog.spark.reading.columns import arrow_schema
from raylog.spark.reading.options import ReadOptions
from raylog.spark.reading.reader import RangePartition, keep_what_is_loaded
from raylog.spark.reading.short_errors import without_frames

if TYPE_CHECKING:
    from raylog.spark.reading.planning import StreamPlanner


@without_frames(
    *("initialOffset", "prepareForTriggerAvailableNow", "latestOffset", "reportLatestOffset"),
    *("partitions", "read", "commit"),
)
class RaylogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows what the options name. Offsets are Kafka's JSON, with the topics' ids beside them."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """`schema` is that of the rows: the columns of the options, in their order."""
        self._options: ReadOptions | None = options
        """None in a task."""
        self._reading = options.reading
        self._schema = arrow_schema(schema)
        self._made: StreamPlanner | None = None

    def __getstate__(self) -> dict[str, object]:
        """State for the tasks: nothing with a secret. Each task has a token instead, in its partition."""
        return {"_options": None, "_reading": self._reading, "_schema": self._schema, "_made": None}

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins."""
        return self._planner.initial()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the query: the present ends of the logs."""
        self._planner.fix_end()

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit that the options set. Spark knows no limit with two bounds: with both, it gets the maximum, and
        `latestOffset` adds the minimum."""
        limits = self._limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        return ReadAllAvailable() if limits.min_offsets is None else ReadMinRows(limits.min_offsets)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the batch from `start` ends. ReadAllAvailable, as for Trigger.Once, overrides the options' limits."""
        limits = self._limits
        if isinstance(limit, ReadMaxRows):
            limits = replace(limits, max_offsets=limit.max_rows)
        elif isinstance(limit, ReadMinRows):
            limits = replace(limits, min_offsets=limit.min_rows)
        elif isinstance(limit, ReadAllAvailable):
            limits = Limits()
        return self._planner.latest(start, limits)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends of the logs at the last trigger, which the query's progress shows beside the end of the batch."""
        return self._planner.reported()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of the batch. Small ranges share a task, unless the options say how ranges are cut."""
        ranges = self._planner.ranges(start, end)
        wanted = None if self._options is None else self._options.wanted
        if wanted is not None and (wanted.min_partitions or wanted.max_records_per_partition):
            return [RangePartition(item) for item in ranges]
        return [RangePartition(first, tuple(others)) for first, *others in grouped(ranges)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The records of the ranges of a task as Arrow record batches; runs in a worker."""
        if not isinstance(partition, RangePartition):
            return iter(())
        from raylog.client.ranges.reading import read_ranges

        keep_what_is_loaded()
        ranges = [partition.range, *partition.others]
        return read_ranges(ranges, self._reading, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit `end`, below which everything is processed, to the group that `kafka.group.id` names."""
        self._planner.processed(end)

    def stop(self) -> None:
        """Close the connections. Spark may end the process before this call; then the system closes them."""
        if self._made is not None:
            self._made.close()
            self._made = None

    @property
    def _limits(self) -> Limits:
        return Limits() if self._options is None else self._options.limits

    @property
    def _planner(self) -> StreamPlanner:
        if self._made is None:
            from raylog.spark.reading.planning import StreamPlanner

            if self._options is None:
                raise RuntimeError("Micro-batches are planned on the driver, not in a task.")
            self._made = StreamPlanner(self._options)
        return self._made


@without_frames("initialOffset", "prepareForTriggerAvailableNow", "latestOffset", "partitions", "read")
class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stands in for the reader of a query with wrong options: it raises their error at Spark's first call.

    Without any reader, PySpark fails while it stops the reader, and shows that error as well.
    """

    def __init__(self, error: InvalidConfig) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        """Raise the error."""
        raise self._error

    def prepareForTriggerAvailableNow(self) -> None:
        """Raise the error."""
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Raise the error."""
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raise the error."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Raise the error."""
        raise self._error


SHARED_TASK_RECORDS = 5_000
"""Most offsets of a task with more than one range."""


def grouped(ranges: Sequence[PartitionRange], most: int = SHARED_TASK_RECORDS) -> list[list[PartitionRange]]:
    """The ranges in their order, neighbours in one group as long as they have at most `most` offsets together."""
    found: list[list[PartitionRange]] = []
    offsets = 0
    for item in ranges:
        offsets += item.end - item.start
        if not found or offsets > most:
            found.append([])
            offsets = item.end - item.start
        found[-1].append(item)
    return found
