"""Which Ray node reads which ranges, and how tasks of a following read share the partitions. Pure. Used by reads.py."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

from raylog.client.reading.range_fetcher import PartitionRange


def by_node(ranges: Sequence[PartitionRange], nodes: Collection[str]) -> dict[str, list[PartitionRange]]:
    """The ranges by the Ray node with their leader, in order; "" for those with none of these nodes.

    On that node a task reads the leader's files by itself. With all on one node, or a single node in the cluster, there
    is nothing to choose: all are under "".
    """
    if len(nodes) < 2:
        return {"": list(ranges)} if ranges else {}
    found: dict[str, list[PartitionRange]] = {}
    for item in ranges:
        found.setdefault(item.node_id if item.node_id in nodes else "", []).append(item)
    return found


def shared_out(ranges: Sequence[PartitionRange], tasks: int) -> list[list[PartitionRange]]:
    """The ranges dealt out to at most so many tasks, none of which is without one."""
    return [list(ranges[first::tasks]) for first in range(min(tasks, len(ranges)))]


def shares(numbers: Sequence[int], total: int) -> list[int]:
    """A total divided in proportion to these numbers, each of which gets at least 1; with fewer than those, 1 each."""
    left = sum(numbers)
    found = []
    for index, number in enumerate(numbers):
        others = len(numbers) - index - 1
        found.append(max(1, min(round(total * number / max(1, left)), total - others)))
        total, left = total - found[-1], left - number
    return found


def in_groups(ranges: Sequence[PartitionRange], groups: int) -> list[list[PartitionRange]]:
    """The ranges in at most so many groups of neighbours, of nearly equal numbers."""
    count = min(groups, len(ranges))
    cuts = [len(ranges) * step // count for step in range(count + 1)] if count else []
    return [list(ranges[first:end]) for first, end in pairwise(cuts)]
