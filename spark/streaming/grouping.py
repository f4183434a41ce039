"""Which ranges of a micro-batch share a task: few records of many partitions cost more in tasks than in reading. Pure.

A task costs Spark some ten milliseconds of a core, however little it reads. Used by stream_reader.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from raylog.client.reading.range_fetcher import PartitionRange

SHARED_TASK_RECORDS = 5_000
"""Offsets of a task with more than one range, at most."""


def grouped(ranges: Sequence[PartitionRange], most: int = SHARED_TASK_RECORDS) -> list[list[PartitionRange]]:
    """All ranges in their order, neighbours together as long as they have at most so many offsets."""
    found: list[list[PartitionRange]] = []
    offsets = 0
    for item in ranges:
        offsets += item.end - item.start
        if not found or offsets > most:
            found.append([])
            offsets = item.end - item.start
        found[-1].append(item)
    return found
