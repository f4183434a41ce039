"""Parses the options for the start and end of a read, and cuts ranges into tasks.

Used by readers of options (parsing), planning.py and cutting.py. Pure: touches neither Spark nor the network.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from raylog.base.errors import InvalidConfig
from raylog.base.ids import EARLIEST, LATEST, TopicPartition

EDGES = {"earliest": EARLIEST, "latest": LATEST}
EDGE_NAMES = {number: name for name, number in EDGES.items()}
NO_TOPIC = "/"
"""A character that no topic name contains: a stream marks JSON keys with it that are not topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSpec:
    """The start or the end of a read: the same for all partitions (`everywhere`), or one for each (`each`).

    With both, `everywhere` is for partitions that `each` does not name. The numbers are offsets (or EARLIEST, LATEST);
    with `is_time` they are milliseconds since 1970. `option`: its name in error messages.
    """

    option: str
    everywhere: int | None = None
    each: Mapping[TopicPartition, int] | None = None
    is_time: bool = False

    def of(self, partition: TopicPartition) -> int:
        """The number for this partition. Call `check_names` before, which makes sure that there is one."""
        if self.each is not None and (partition in self.each or self.everywhere is None):
            return self.each[partition]
        if self.everywhere is None:
            raise ValueError(f"{self.option} says nothing at all.")
        return self.everywhere

    def check_names(self, partitions: Sequence[TopicPartition]) -> None:
        """Raise InvalidConfig unless the option covers these partitions, and names no others."""
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
    """Parse `earliest`, `latest` or `{"topic": {"0": 23, "1": -1}}`. Raises InvalidConfig.

    `illegal`: EARLIEST or LATEST if that makes no sense here; None = both are legal, as in a stream. The JSON may be an
    offset from a stream's progress or checkpoint; its keys that are not topics are ignored.
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
    """Parse `{"topic": {"0": 1700000000000}}`, in milliseconds since 1970. Raises InvalidConfig."""
    each = parse_partition_numbers(option, text, 'JSON as {"topic": {"0": 1700000000000}}')
    early = [str(partition) for partition, number in each.items() if number < 0]
    if early:
        raise InvalidConfig(f"{option} must be milliseconds since 1970; it is negative for {', '.join(early)}.")
    return OffsetSpec(option=option, each=each, is_time=True)


def parse_partition_numbers(option: str, text: str, shape: str) -> dict[TopicPartition, int]:
    """Parse Kafka's JSON form of a number per partition. Raises InvalidConfig, which shows the expected `shape`."""
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
    """Parse `{"topic": [0, 1]}`. Raises InvalidConfig."""
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
    """Cut each (start, end) range into pieces of nearly equal size; returns (index of the range, start, end) in order.

    No piece has more than `max_records` offsets. If there are fewer pieces than `min_partitions`, the largest ones are
    cut further, until there are enough or nothing is left to cut. Empty ranges have no pieces.
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
