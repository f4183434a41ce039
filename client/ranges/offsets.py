"""Where a read begins and ends, as options say it, and how ranges are cut into tasks.

Used by readers of options (the texts) and planning.py (applying them). Pure: touches neither Spark nor the network.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from raylog.core.errors import InvalidConfig
from raylog.core.ids import EARLIEST, LATEST, TopicPartition

EDGES = {"earliest": EARLIEST, "latest": LATEST}
EDGE_NAMES = {number: name for name, number in EDGES.items()}
NO_TOPIC = "/"
"""A character that no topic's name has: keys with it hold what a stream notes beside its offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSpec:
    """One end of the read: the same for all partitions (`everywhere`), or given for each (`each`).

    With both, `everywhere` is for partitions that `each` does not name. The numbers are offsets (or EARLIEST, LATEST),
    or with `is_time` milliseconds since 1970. `option` is the name that error messages use.
    """

    option: str
    everywhere: int | None = None
    each: Mapping[TopicPartition, int] | None = None
    is_time: bool = False

    def of(self, partition: TopicPartition) -> int:
        """The number for this partition; `check_names` has made sure that there is one."""
        if self.each is not None and (partition in self.each or self.everywhere is None):
            return self.each[partition]
        if self.everywhere is None:
            raise ValueError(f"{self.option} says nothing at all.")
        return self.everywhere

    def check_names(self, partitions: Sequence[TopicPartition]) -> None:
        """InvalidConfig unless the option names these partitions and no others (or none in particular)."""
        if self.each is None:
            return
        missing = [str(partition) for partition in partitions if partition not in self.each]
        if missing and self.everywhere is None:
            raise InvalidConfig(
                f"{self.option} must name every partition that is read; these are missing: {', '.join(missing[:10])}."
            )
        known = set(partitions)
        extra = sorted(str(item) for item in self.each if item not in known)
        if extra:
            raise InvalidConfig(
                f"{self.option} names partitions that do not exist or are not read: {', '.join(extra[:10])}."
            )


def parse_offsets(option: str, text: str, *, illegal: int | None) -> OffsetSpec:
    """Read `earliest`, `latest` or `{"topic": {"0": 23, "1": -1}}`; `illegal` is the edge that makes no sense here.

    None: both do, as in a stream. An offset of a stream may be given as its progress and its checkpoint have it: what
    the JSON holds beside the topics is left out.
    """
    word = text.strip().lower()
    if word in EDGES:
        _refuse_edge(option, EDGES[word], illegal, "all partitions")
        return OffsetSpec(option=option, everywhere=EDGES[word])
    each = parse_partition_numbers(option, text, '`earliest`, `latest` or JSON as {"topic": {"0": 23, "1": -2}}')
    for partition, number in each.items():
        if number < EARLIEST:
            raise InvalidConfig(
                f"{option} of {partition} must be an offset, -2 (earliest) or -1 (latest), not {number}."
            )
        _refuse_edge(option, number, illegal, str(partition))
    return OffsetSpec(option=option, each=each)


def parse_times(option: str, text: str) -> OffsetSpec:
    """Read `{"topic": {"0": 1700000000000}}`, milliseconds since 1970."""
    each = parse_partition_numbers(option, text, 'JSON as {"topic": {"0": 1700000000000}}')
    early = [str(partition) for partition, number in each.items() if number < 0]
    if early:
        raise InvalidConfig(f"{option} must be milliseconds since 1970; it is negative for {', '.join(early)}.")
    return OffsetSpec(option=option, each=each, is_time=True)


def parse_partition_numbers(option: str, text: str, shape: str) -> dict[TopicPartition, int]:
    """Read Kafka's JSON form of a number for each partition. InvalidConfig names the expected `shape`."""
    refusal = InvalidConfig(f"{option} must be {shape}, not {text!r}.")
    found = _json(text, refusal)
    each: dict[TopicPartition, int] = {}
    for topic, numbers in found.items():
        if NO_TOPIC in topic:
            continue
        if not isinstance(numbers, dict):
            raise refusal
        for partition, number in numbers.items():
            if not partition.isdecimal() or not isinstance(number, int) or isinstance(number, bool):
                raise refusal
            each[TopicPartition(topic, int(partition))] = number
    if not each:
        raise refusal
    return each


def parse_assignment(option: str, text: str) -> tuple[TopicPartition, ...]:
    """Read `{"topic": [0, 1]}`."""
    refusal = InvalidConfig(f'{option} must be JSON as {{"topic": [0, 1]}}, not {text!r}.')
    found: set[TopicPartition] = set()
    for topic, partitions in _json(text, refusal).items():
        if not isinstance(partitions, list):
            raise refusal
        for partition in partitions:
            if not isinstance(partition, int) or isinstance(partition, bool) or partition < 0:
                raise refusal
            found.add(TopicPartition(topic, partition))
    if not found:
        raise refusal
    return tuple(sorted(found))


def split_ranges(
    ranges: Sequence[tuple[int, int]], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[tuple[int, int, int]]:
    """Cut (start, end) ranges into pieces of nearly equal size; (index of the range, start, end) in order.

    No piece has more than `max_records` offsets. If there are fewer pieces than `min_partitions`, those that are
    largest are cut further, until there are enough or nothing is left to cut. Empty ranges give nothing.
    """
    sizes = [max(0, end - start) for start, end in ranges]
    parts = [0 if size == 0 else -(-size // max_records) if max_records else 1 for size in sizes]
    missing = min(min_partitions or 0, sum(sizes)) - sum(parts)
    largest = [(-size / count, index) for index, (size, count) in enumerate(zip(sizes, parts, strict=True)) if count]
    heapq.heapify(largest)
    for _ in range(missing):
        _, index = largest[0]
        parts[index] += 1
        heapq.heapreplace(largest, (-sizes[index] / parts[index], index))
    pieces = []
    for index, count in enumerate(parts):
        start, size = ranges[index][0], sizes[index]
        cuts = [start + size * step // count for step in range(count + 1)] if count else []
        pieces += [(index, first, end) for first, end in pairwise(cuts)]
    return pieces


def _refuse_edge(option: str, number: int, illegal: int | None, where: str) -> None:
    if number == illegal:
        raise InvalidConfig(
            f"{option} cannot be {EDGE_NAMES[number]} ({number}) for {where} in a batch query: nothing would be read."
        )


def _json(text: str, refusal: InvalidConfig) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        raise refusal from None
    if not isinstance(found, dict):
        raise refusal
    return found
