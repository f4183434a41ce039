"""Raylog's reader without Spark: ranges of a topic to Arrow record batches, and what a time filter fetches.

Run by `workers.Worker`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from benchmarks.analytics.workers import Phase, Task, serve
from benchmarks.job import Outcome
from raylog.base.ids import EARLIEST, LATEST
from raylog.client.ranges.narrowing import Narrowing
from raylog.client.ranges.offsets import OffsetSpec
from raylog.client.ranges.planning import RangesWanted, plan_read
from raylog.client.ranges.reading import RangeReading, read_range
from raylog.client.reading.decode import FetchedBatch
from raylog.client.reading.range_fetcher import PartitionRange, RangeFetcher
from raylog.client.runtime import shared
from raylog.storage.batch.times import TimeBounds

CALL_TIMEOUT_S = 60.0
PART = 1_000
"""A filter leaves one of so many equal parts of the time."""


def ranges(task: Task, narrowing: Narrowing | None = None) -> list[PartitionRange]:
    """The whole topic, or what a filter leaves of it."""
    wanted = RangesWanted(
        topics=(task["topic"],),
        start=OffsetSpec(option="start", everywhere=EARLIEST),
        end=OffsetSpec(option="end", everywhere=LATEST),
        bootstrap=task["bootstrap"],
        secret=task["secret"],
        lateness_ms=task.get("lateness_ms"),
    )
    return plan_read(wanted, narrowing)


def read(task: Task) -> Outcome:
    """Read everything, range after range; the rate is for one core."""
    planned = ranges(task)
    reading = RangeReading()
    phase = Phase(task["server_pids"])
    records = size = 0
    for item in planned:
        for batch in read_range(item, reading):
            records += batch.num_rows
            size += batch.nbytes
    found = phase.read(records, size)
    found["rate"] = records / max(found["seconds"], found["client_cpu_s"])
    return {**found, "once": records, "stored": task["records"]}


def filtered(task: Task) -> Outcome:
    """The bytes that are fetched for a thousandth of the topic's time, as a part of all; near and over the network."""
    planned = ranges(task)
    first_ms, last_ms = times_of(planned)
    low_ms, end_ms = slice_of(first_ms, last_ms, task["place"])
    narrowed = ranges(task, _as_spark_narrows(low_ms, end_ms))
    bytes_each = sum(fetched(item, near=True)[0] for item in planned[:1])
    times = TimeBounds(low_ms, end_ms)
    whole = bytes_each * sum(item.end - item.start for item in planned) / (planned[0].end - planned[0].start)
    found: dict[bool, int] = {}
    matching = 0
    for near in (True, False):
        results = [fetched(item, near=near, times=times) for item in narrowed]
        found[near], matching = sum(size for size, _ in results), sum(count for _, count in results)
    return {
        "records": matching,
        "planned": sum(item.end - item.start for item in narrowed),
        "bytes": found[True],
        "part_read": found[True] / whole,
        "part_over_network": found[False] / whole,
    }


def _as_spark_narrows(low_ms: int, end_ms: int) -> Narrowing:
    """The bounds that Spark pushes down for a half-open slice of time."""
    from pyspark.sql.datasource import GreaterThanOrEqual, LessThan

    from raylog.spark.reading.filters import narrowing_of

    low, end = (datetime.fromtimestamp(number / 1000, UTC) for number in (low_ms, end_ms))
    return narrowing_of([GreaterThanOrEqual(("timestamp",), low), LessThan(("timestamp",), end)])


def slice_of(first_ms: int, last_ms: int, place: str) -> tuple[int, int]:
    """A thousandth of the time, in the middle or at the end: its first millisecond, and the one behind its last."""
    width = max(1, (last_ms - first_ms) // PART)
    low = last_ms - width + 1 if place == "end" else (first_ms + last_ms) // 2
    return low, low + width


def times_of(planned: Sequence[PartitionRange]) -> tuple[int, int]:
    """The oldest and the newest timestamp of the topic, in milliseconds."""
    ends = [headers[position] for item in planned for position, headers in ((0, edge(item, 0)), (-1, edge(item, -1)))]
    return min(ends), max(ends)


def edge(item: PartitionRange, side: int) -> tuple[int, int]:
    """The times of the batch at one side of a range."""
    narrow = replace(item, end=item.start + 1) if side == 0 else replace(item, start=item.end - 1)
    batches, _ = batches_of(narrow, near=True)
    return batches[0].header.base_timestamp, batches[-1].header.max_timestamp


def batches_of(item: PartitionRange, *, near: bool, times: TimeBounds | None = None) -> tuple[list[FetchedBatch], int]:
    """All batches of a range that are not skipped, and the bytes that finding them takes from files or the network."""
    fetcher = RangeFetcher(item, short_circuit_reads=near, times=times)
    found: list[FetchedBatch] = []
    try:
        while (more := shared().run(fetcher.next(), CALL_TIMEOUT_S)) is not None:
            found += (batch for batch in more if not batch.is_hidden)
    finally:
        shared().run(fetcher.close(), CALL_TIMEOUT_S)
    return found, fetcher.bytes_read


def fetched(item: PartitionRange, *, near: bool, times: TimeBounds | None = None) -> tuple[int, int]:
    """Bytes that reading a range takes, and the records of its batches that a time leaves."""
    batches, size = batches_of(item, near=near, times=times)
    low_ms, end_ms = (0, 2**62) if times is None else (times.low_ms or 0, times.end_ms or 2**62)
    within = (
        batch.header.record_count
        for batch in batches
        if batch.header.base_timestamp < end_ms and batch.header.max_timestamp >= low_ms
    )
    return size, sum(within)


def begin(_: Task) -> Mapping[str, Any]:
    """Nothing to start."""
    return {"read": read, "filter": filtered}


if __name__ == "__main__":
    serve(begin)
