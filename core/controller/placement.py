"""Placement of the replicas of a new topic on brokers. Pure; called by the controller when a topic is created.

Laws: never two replicas of a partition on one broker; a partition's replicas are on as many nodes as there are, up to
the replication factor, and evenly so; the preferred leaders of a topic rotate over the brokers, so that their counts
differ by at most one. Ties go to the brokers with less load in the whole cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from raylog.base.ids import BrokerId
from raylog.base.invariants import require

Assignment = tuple[tuple[BrokerId, ...], ...]
"""The brokers of each partition, preferred leader in front."""


def place_replicas(
    nodes: Mapping[BrokerId, str],
    *,
    partitions: int,
    replication_factor: int,
    leaders: Mapping[BrokerId, int] | None = None,
    replicas: Mapping[BrokerId, int] | None = None,
) -> Assignment:
    """Choose brokers for ``partitions`` partitions.

    ``nodes`` has the node of each broker that may be chosen; ``leaders`` and ``replicas`` how many preferred
    leaderships and replicas each holds already, over all topics. The caller has checked that there are enough brokers.
    """
    require(0 < replication_factor <= len(nodes), "there are as many brokers as replicas of a partition")
    busy_leading, busy_holding = Counter(leaders or {}), Counter(replicas or {})
    order = _interleaved(nodes)
    rank = {broker: position for position, broker in enumerate(order)}
    leads: Counter[BrokerId] = Counter()
    holds: Counter[BrokerId] = Counter()
    chosen: list[tuple[BrokerId, ...]] = []
    for _ in range(partitions):
        leader = min(
            order, key=lambda broker: (leads[broker], busy_leading[broker], busy_holding[broker], rank[broker])
        )
        members = [leader]
        used = Counter([nodes[leader]])
        for _ in range(replication_factor - 1):
            follower = min(
                (broker for broker in order if broker not in members),
                key=lambda broker: (
                    used[nodes[broker]],
                    holds[broker],
                    busy_holding[broker],
                    # The distance from the leader spreads one broker's followers over all others.
                    (rank[broker] - rank[leader]) % len(order),
                ),
            )
            members.append(follower)
            used[nodes[follower]] += 1
        leads[leader] += 1
        busy_leading[leader] += 1
        holds.update(members)
        busy_holding.update(members)
        chosen.append(tuple(members))
    return tuple(chosen)


def _interleaved(nodes: Mapping[BrokerId, str]) -> list[BrokerId]:
    """Return the brokers so that neighbours are on different nodes as far as possible."""
    by_node: dict[str, list[BrokerId]] = {}
    for broker in sorted(nodes):
        by_node.setdefault(nodes[broker], []).append(broker)
    turns = [(turn, node, broker) for node, brokers in by_node.items() for turn, broker in enumerate(brokers)]
    return [broker for _, _, broker in sorted(turns)]
