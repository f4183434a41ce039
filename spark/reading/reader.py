"""Batch reads: planning on the driver, reading in Spark's Python workers.

The driver's planning process makes a reader, which plans its partitions there and is then pickled into every task. So a
reader holds no connection. As long as the leader named in its partition exists, a worker needs neither Ray nor a
broker.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from raylog.client.ranges.narrowing import Narrowing
from raylog.client.ranges.reading import RangeReading
from raylog.client.reading.range_fetcher import PartitionRange
from raylog.spark.reading.columns import arrow_schema
from raylog.spark.reading.filters import narrowing_of
from raylog.spark.reading.options import ReadOptions
from raylog.spark.reading.short_errors import without_frames


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """One task: a range of offsets of one partition, with everything that is needed to read it."""

    range: PartitionRange
    others: tuple[PartitionRange, ...] = ()
    """Small ranges that the task of a micro-batch reads as well."""


class PushDown:
    """Takes in a query's comparisons when Spark offers them, and lets Spark apply them all again.

    Spark refuses a reader that overrides `pushFilters` while `spark.sql.python.filterPushdown.enabled` is false, its
    default. It detects this by `__func__`, which therefore is the base's method here. With push-down on, Spark calls
    this object; with push-down off, it does not, and filters all records itself.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: RaylogReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Remember the bounds of the read; return all filters, which Spark shall apply to the rows as well."""
        self._reader.narrowing = narrowing_of(filters)
        return filters


@cache
def keep_what_is_loaded() -> None:
    """Exempt what this worker has loaded so far from garbage collection; only the first call does something.

    Spark's workers collect garbage after each task, and its planning processes after each plan. A collection walks
    through everything imported: 4 to 9 ms for what a read needs, while the fetches of a small range take 2 ms.
    """
    gc.freeze()


@without_frames("partitions", "read")
class RaylogReader(DataSourceReader):
    """Reads what the options name, between offsets that are fixed when the query is planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """`schema` is that of the rows: the columns of the options, in their order."""
        self.options: ReadOptions | None = options
        """None in a task."""
        self.reading: RangeReading = options.reading
        self.schema = arrow_schema(schema)
        self.narrowing = Narrowing()

    def __getstate__(self) -> dict[str, object]:
        """State for the tasks: nothing with a secret. Each task has a token instead, in its partition."""
        reading = replace(self.reading, times=self.narrowing.times)
        return {"options": None, "reading": reading, "schema": self.schema}

    @property
    def pushFilters(self) -> PushDown:
        """Called by Spark with the comparisons of a query, if push-down is on; see PushDown."""
        return PushDown(self)

    def partitions(self) -> list[InputPartition]:
        """One task for each range; runs on the driver."""
        from raylog.client.ranges.planning import plan_read

        if self.options is None:
            raise RuntimeError("Ranges are planned on the driver, not in a task.")
        keep_what_is_loaded()
        ranges = plan_read(self.options.wanted, self.narrowing, keeps_client=True)
        return [RangePartition(item) for item in ranges]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The records of one range as Arrow record batches; runs in a worker. Spark's empty partition gives nothing."""
        if not isinstance(partition, RangePartition):
            return iter(())
        from raylog.client.ranges.reading import read_range

        keep_what_is_loaded()
        return read_range(partition.range, self.reading, self.schema)
