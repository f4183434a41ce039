"""Batch reads: planning on the driver, reading in Spark's Python workers.

A reader is made and plans its partitions in the driver's planning process, then is pickled into every task, so nothing
here holds a connection. A worker needs neither Ray nor a broker as long as the leader in its partition is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from raylog.client.reading.range_fetcher import FETCH_MAX_BYTES, PartitionRange, RangeFetcher
from raylog.client.runtime import Runtime, shared
from raylog.spark.filters import Narrowing, narrowing_of
from raylog.spark.options import ReadOptions

CLOSE_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """One task: one range of offsets of one partition, with everything that is needed to read it."""

    range: PartitionRange


class PushDown:
    """Takes a query's comparisons in when Spark offers them, and lets Spark apply them all again.

    Spark refuses a reader that overrides `pushFilters` while `spark.sql.python.filterPushdown.enabled` is false, its
    default. It looks at `__func__` for that; pointing to the base's method declares no dependency on push-down.
    Where it is on, Spark calls this; where it is off, Spark does not, and filters all records itself.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: RaylogReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Remember the bounds of the read; return all filters, which Spark shall apply to the rows as well."""
        self._reader.narrowing = narrowing_of(filters)
        return filters


class RaylogReader(DataSourceReader):
    """Reads what the options name, from and to offsets that are fixed when the query is planned."""

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.narrowing = Narrowing()

    def __getstate__(self) -> dict[str, object]:
        """State for the tasks: all but the secret. Each task has a token instead, in its partition."""
        return {"options": replace(self.options, secret=None), "narrowing": self.narrowing}

    @property
    def pushFilters(self) -> PushDown:
        """Called by Spark with the comparisons of a query, if push-down is on; see PushDown."""
        return PushDown(self)

    def partitions(self) -> list[InputPartition]:
        """One task for each range; runs on the driver."""
        from raylog.spark.planning import plan_read

        return [RangePartition(item) for item in plan_read(self.options, self.narrowing)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The records of one range as Arrow record batches; runs in a worker. Spark's empty partition gives nothing."""
        if not isinstance(partition, RangePartition):
            return iter(())
        return read_range(partition.range, self.options)


def read_range(wanted: PartitionRange, options: ReadOptions) -> Iterator[Any]:
    """Fetch and decode; the next fetch is under way on the client's thread while this one decodes."""
    from raylog.spark.arrow import ArrowBuilder

    runtime = shared()
    fetcher = RangeFetcher(
        wanted,
        fail_on_data_loss=options.fail_on_data_loss,
        max_bytes=options.fetch_max_bytes or FETCH_MAX_BYTES,
        stall_timeout_s=options.stall_timeout_s,
        short_circuit_reads=options.consumer.short_circuit_reads,
        isolation_level=options.consumer.isolation_level,
    )
    builder = ArrowBuilder(
        wanted.topic_partition,
        wanted.start,
        wanted.end,
        include_headers=options.include_headers,
        check_crcs=options.consumer.check_crcs,
    )
    # A little more than the fetcher's own deadline, so that its error, which has the cause, arrives.
    timeout_s = options.stall_timeout_s + CLOSE_TIMEOUT_S
    coming = _begin(runtime, fetcher.next())
    try:
        while (batches := coming.result(timeout_s)) is not None:
            coming = _begin(runtime, fetcher.next())
            for batch in batches:
                builder.add(batch)
                if builder.is_full:
                    yield from builder.take()
        yield from builder.take()
    finally:  # including when Spark has enough rows and closes the generator
        coming.cancel()
        runtime.run(fetcher.close(), CLOSE_TIMEOUT_S)


def _begin(runtime: Runtime, work: Coroutine[Any, Any, Any]) -> Future[Any]:
    return asyncio.run_coroutine_threadsafe(work, runtime.loop)
