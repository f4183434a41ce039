"""Cuts large ranges into tasks by bytes, as Spark cuts files, unless the reader says how many to make.

The size of a record is estimated from the first batch of the largest ranges. Used by planning.py, and by the planner of
Spark's streams. May touch: the network, the event loop's clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from raylog.base.errors import RaylogError
from raylog.client.cluster.deadline import now_s
from raylog.client.ranges.offsets import split_ranges
from raylog.client.reading.range_fetcher import PartitionRange, RangeFetcher

logger = logging.getLogger(__name__)

TASK_BYTES = 256 << 20
"""The stored bytes of one task: twice spark.sql.files.maxPartitionBytes (128 MB), because a task costs Spark about 40
ms of CPU, a tenth of the time to read 128 MB."""
TASK_RECORDS_MAX = 4_000_000
"""The most records of one task: a core of Spark needs about a second for so many."""
_SAMPLED = 4
"""How many ranges of a topic are sampled: their first batch is fetched."""
_SAMPLE_TIMEOUT_S = 5.0
SMALL = 128
"""Ranges of up to so many records are not sampled."""
SIZES_AGE_S = 60.0
"""How long a sampled size is used."""


def records_of_a_task(bytes_per_record: float | None) -> int:
    """How many records of this size one task may read; None = the size is not known."""
    if not bytes_per_record:
        return TASK_RECORDS_MAX
    return max(1, min(TASK_RECORDS_MAX, int(TASK_BYTES / bytes_per_record)))


def cut(whole: Sequence[PartitionRange], bytes_per_record: dict[str, float]) -> list[PartitionRange]:
    """Cut ranges into pieces of at most TASK_BYTES and TASK_RECORDS_MAX. `bytes_per_record`: by topic, where known."""
    return [
        replace(item, start=start, end=end)
        for item in whole
        for _, start, end in split_ranges(
            [(item.start, item.end)], max_records=records_of_a_task(bytes_per_record.get(item.topic))
        )
    ]


class RecordSizes:
    """The estimated sizes of the topics' records. They are used for `SIZES_AGE_S`, since a sample costs fetches."""

    def __init__(self) -> None:
        self._sizes: dict[str, float] = {}
        """Stored bytes per record, by topic id."""
        self._sampled_s: dict[str, float] = {}

    async def of(self, whole: Sequence[PartitionRange]) -> dict[str, float]:
        """Stored bytes per record, by topic; topics with only small ranges or without a sample are left out."""
        large = [item for item in whole if item.end - item.start > SMALL]
        ids = {item.topic: item.topic_id for item in large}
        never_s = float("-inf")
        old = {topic for topic, id_ in ids.items() if now_s() - self._sampled_s.get(id_, never_s) >= SIZES_AGE_S}
        if old:
            found = await _sample([item for item in large if item.topic in old])
            self._sizes |= {ids[topic]: size for topic, size in found.items()}
            self._sampled_s |= {ids[topic]: now_s() for topic in sorted(old)}
        return {topic: self._sizes[id_] for topic, id_ in ids.items() if id_ in self._sizes}


async def _sample(large: Sequence[PartitionRange]) -> dict[str, float]:
    """Stored bytes per record, by topic, from the first batches of its largest ranges."""
    chosen: list[PartitionRange] = []
    for topic in dict.fromkeys(item.topic for item in large):
        own = [item for item in large if item.topic == topic]
        chosen += sorted(own, key=lambda item: item.start - item.end)[:_SAMPLED]
    sizes: dict[str, tuple[int, int]] = {}
    for item, (size, records) in zip(chosen, await asyncio.gather(*map(_first_batch, chosen)), strict=True):
        before = sizes.get(item.topic, (0, 0))
        sizes[item.topic] = before[0] + size, before[1] + records
    return {topic: size / records for topic, (size, records) in sizes.items() if records}


async def _first_batch(item: PartitionRange) -> tuple[int, int]:
    """The bytes and the number of offsets of a range's first batch; (0, 0) if it cannot be read: a task raises that."""
    fetcher = RangeFetcher(item, max_bytes=1, stall_timeout_s=_SAMPLE_TIMEOUT_S)
    try:
        batches = await fetcher.next() or []
    except RaylogError as error:
        logger.info("The size of the records of %s is not known: %s", item.topic_partition, error)
        return 0, 0
    finally:
        await fetcher.close()
    return sum(each.header.size for each in batches), sum(each.header.last_offset_delta + 1 for each in batches)
