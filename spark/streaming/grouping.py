"""Which ranges of a micro-batch share a task. Pure.

A task costs Spark some ten milliseconds of a core, however little it reads. So for few records of many partitions, the
tasks would cost more than the reading. Used by stream_reader.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from raylog.client.reading.range_fetcher import PartitionRange

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
