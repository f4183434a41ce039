"""Which Ray node reads which ranges, and how the tasks of a read divide them. Pure. Used by reads.py."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

from raylog.client.reading.range_fetcher import PartitionRange


def by_node(ranges: Sequence[PartitionRange], nodes: Collection[str]) -> dict[str, list[PartitionRange]]:
    """The ranges by the id of the Ray node that runs their leader; "" where that is none of `nodes`.

    On the leader's node a task reads the log files itself. With fewer than two nodes there is no choice, and all ranges
    are under "".
    """
    if len(nodes) < 2:
        return {"": list(ranges)} if ranges else {}
    found: dict[str, list[PartitionRange]] = {}
    for item in ranges:
        found.setdefault(item.node_id if item.node_id in nodes else "", []).append(item)
    return found


def shared_out(ranges: Sequence[PartitionRange], tasks: int) -> list[list[PartitionRange]]:
    """Deal the ranges out to at most so many tasks; each task gets at least one."""
    return [list(ranges[first::tasks]) for first in range(min(tasks, len(ranges)))]


def shares(numbers: Sequence[int], total: int) -> list[int]:
    """Divide a total in proportion to these numbers; each share is at least 1, even if their sum then exceeds it."""
    left = sum(numbers)
    found = []
    for index, number in enumerate(numbers):
        others = len(numbers) - index - 1
        found.append(max(1, min(round(total * number / max(1, left)), total - others)))
        total, left = total - found[-1], left - number
    return found


def in_groups(ranges: Sequence[PartitionRange], groups: int) -> list[list[PartitionRange]]:
    """Divide the ranges into at most so many groups of neighbours, of nearly equal size."""
    count = min(groups, len(ranges))
    cuts = [len(ranges) * step // count for step in range(count + 1)] if count else []
    return [list(ranges[first:end]) for first, end in pairwise(cuts)]
