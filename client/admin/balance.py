"""Which partitions to move to balance the brokers. Pure; used by ``Admin.plan_balance``.

Goals in order, each subject to those before it: the replicas of a partition are on as many nodes as possible; replica
counts of brokers differ by at most one; preferred-leader counts of brokers differ by at most one. Replicas move only
for the first two goals, and as few as possible; preferred leaders change only by reordering replicas. Replicas on
brokers that may hold no new ones (offline, stopped) stay where they are.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from raylog.base.ids import BrokerId, TopicPartition

Layout = Mapping[TopicPartition, Sequence[BrokerId]]
"""The replicas of each partition, preferred leader first."""


@dataclass(frozen=True, slots=True)
class Move:
    """One partition's replicas before and after; `size_bytes` is what the move has to copy, -1 = not known."""

    partition: TopicPartition
    before: tuple[BrokerId, ...]
    after: tuple[BrokerId, ...]
    size_bytes: int = -1

    @property
    def copies(self) -> int:
        """How many replicas move to another broker; 0 = only the preferred leader changes."""
        return len(set(self.after) - set(self.before))


def plan_balance(
    layout: Layout, nodes: Mapping[BrokerId, str], sizes: Mapping[TopicPartition, int] | None = None
) -> list[Move]:
    """Return the moves that balance the cluster, sorted by partition; none = it is balanced.

    ``nodes``: the node of each broker that may get replicas. ``sizes``: the bytes of one replica, where known.
    """
    if not nodes:
        return []
    plan = _Plan(layout, nodes, sizes or {})
    plan.spread_over_nodes()
    plan.even_out_replicas()
    plan.even_out_leaders()
    moves = []
    for partition in sorted(layout):
        before, after = tuple(layout[partition]), tuple(plan.replicas[partition])
        if before != after:
            copies = len(set(after) - set(before))
            size = (sizes or {}).get(partition, -1)
            moves.append(Move(partition, before, after, size * copies if size >= 0 else -1))
    return moves


class _Plan:
    """A copy of the layout, which the planned moves change one by one."""

    def __init__(self, layout: Layout, nodes: Mapping[BrokerId, str], sizes: Mapping[TopicPartition, int]) -> None:
        self.replicas = {partition: list(brokers) for partition, brokers in layout.items()}
        self._nodes = nodes
        self._brokers = sorted(nodes)
        # Small partitions go first: the same balance for fewer bytes.
        self._order = sorted(layout, key=lambda partition: (sizes.get(partition, 0), partition))
        self._held: dict[BrokerId, set[TopicPartition]] = {broker: set() for broker in self._brokers}
        for partition, brokers in layout.items():
            for broker in brokers:
                if broker in self._held:
                    self._held[broker].add(partition)
        self._rank = {partition: rank for rank, partition in enumerate(self._order)}

    # ------------------------------------------------------------ nodes

    def spread_over_nodes(self) -> None:
        """Spread the replicas of each partition over as many nodes as possible."""
        for partition in self._order:
            while (step := self._wider(partition)) is not None:
                self._move(partition, *step)

    def _wider(self, partition: TopicPartition) -> tuple[BrokerId, BrokerId] | None:
        """Return a (from, to) that spreads the partition over nodes more evenly, or None.

        Of several it is the one from the broker with the most replicas to the one with the fewest.
        """
        used = self._used(partition)
        steps = [
            (self._load(idle) - self._load(crowded), crowded, idle)
            for crowded in self.replicas[partition]
            if crowded in self._nodes
            for idle in self._brokers
            if partition not in self._held[idle] and used[self._nodes[idle]] + 1 < used[self._nodes[crowded]]
        ]
        return min(steps)[1:] if steps else None

    # ------------------------------------------------------------ replicas

    def even_out_replicas(self) -> None:
        """Move replicas from brokers with many to brokers with few until counts differ by one at most."""
        while self._step_down():
            pass

    def _step_down(self) -> bool:
        """Move one replica from a broker to one with at least two fewer; False when no move is possible."""
        by_load = sorted(self._brokers, key=lambda broker: (self._load(broker), broker))
        for full in reversed(by_load):
            for idle in by_load:
                if self._load(full) - self._load(idle) < 2:
                    break
                if self._shift(full, idle) or self._shift_by_way_of_a_third(full, idle):
                    return True
        return False

    def _shift(self, full: BrokerId, idle: BrokerId) -> bool:
        partition = min(self._movable(full, idle), key=lambda move: self._rank[move], default=None)
        if partition is not None:
            self._move(partition, full, idle)
        return partition is not None

    def _shift_by_way_of_a_third(self, full: BrokerId, idle: BrokerId) -> bool:
        """Move one from a third broker to the idle one, and one from the full broker to the third.

        For brokers between which the spread over nodes allows no direct move. False = no third broker fits.
        """
        for third in self._brokers:
            if third not in (full, idle):
                given = min(self._movable(third, idle), key=lambda move: self._rank[move], default=None)
                if given is None:
                    continue
                self._move(given, third, idle)
                if self._shift(full, third):
                    return True
                self._move(given, idle, third)
        return False

    def _movable(self, source: BrokerId, target: BrokerId) -> Iterable[TopicPartition]:
        """Return the partitions of ``source`` that may move to ``target`` and stay as well spread over nodes."""
        same = self._nodes[source] == self._nodes[target]
        for partition in self._held[source] - self._held[target]:
            if same:
                yield partition
                continue
            used = self._used(partition)
            if used[self._nodes[target]] < used[self._nodes[source]]:
                yield partition

    # ------------------------------------------------------------ leaders

    def even_out_leaders(self) -> None:
        """Reorder replicas until no broker leads two partitions more than a broker that ``_pass_on`` can reach."""
        while self._pass_on():
            pass

    def _pass_on(self) -> bool:
        """Even out one leadership along a chain of brokers; False when none is left to even out.

        Each broker of the chain has a replica of a partition that the one before it leads. A breadth-first search
        from a broker that leads many finds the shortest chain to one that leads at least two fewer.
        """
        leads = Counter(dict.fromkeys(self._brokers, 0))
        led: dict[BrokerId, list[TopicPartition]] = {broker: [] for broker in self._brokers}
        for partition in sorted(self.replicas):
            first = self.replicas[partition][0]
            if first in led:
                leads[first] += 1
                led[first].append(partition)
        for full in sorted(self._brokers, key=lambda broker: (-leads[broker], broker)):
            came: dict[BrokerId, tuple[BrokerId, TopicPartition]] = {}
            queue = deque([full])
            while queue:
                at = queue.popleft()
                if leads[full] - leads[at] >= 2:
                    self._hand_over(full, at, came)
                    return True
                for partition in led[at]:
                    for heir in self.replicas[partition]:
                        if heir in led and heir != full and heir not in came:
                            came[heir] = at, partition
                            queue.append(heir)
        return False

    def _hand_over(
        self, full: BrokerId, last: BrokerId, came: Mapping[BrokerId, tuple[BrokerId, TopicPartition]]
    ) -> None:
        """Let each broker of the chain from ``full`` to ``last`` lead one partition of its predecessor."""
        while last != full:
            before, partition = came[last]
            row = self.replicas[partition]
            row.remove(last)
            row.insert(0, last)
            last = before

    # ------------------------------------------------------------ internals

    def _load(self, broker: BrokerId) -> int:
        return len(self._held[broker])

    def _used(self, partition: TopicPartition) -> Counter[str]:
        return Counter(self._nodes[broker] for broker in self.replicas[partition] if broker in self._nodes)

    def _move(self, partition: TopicPartition, source: BrokerId, target: BrokerId) -> None:
        row = self.replicas[partition]
        row[row.index(source)] = target
        self._held[source].discard(partition)
        self._held[target].add(partition)
