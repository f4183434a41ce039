"""Planted bugs in cooperative rebalances, all caught by ``rebalance-cooperative``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raylog.client.assignor import Assignment, PartitionAssignor, RebalanceProtocol, Subscription
from raylog.client.group import membership
from raylog.client.group.assignors import assign
from raylog.client.group.membership import Membership
from raylog.client.group.sticky import CooperativeStickyAssignor, assign_sticky
from tests.simulation.planted.bugs import bugs, nothing

PROFILE = "rebalance-cooperative"


def _most_advanced_of_any(assignors: Sequence[PartitionAssignor]) -> RebalanceProtocol:
    return max(protocol for each in assignors for protocol in each.rebalance_protocols)


def _in_one_round(
    assignors: Sequence[PartitionAssignor],
    name: str,
    subscriptions: Mapping[str, Subscription],
    partition_counts: Mapping[str, int],
    **_: bool,
) -> Assignment:
    if name == CooperativeStickyAssignor.name:
        return assign_sticky(subscriptions, partition_counts)
    return assign(assignors, name, subscriptions, partition_counts)


COOPERATIVE_BUGS = bugs(
    PROFILE,
    ("I15", "L2"),
    ("partitions are given away while others own them", 30, membership, "assign", _in_one_round),
    (
        "a cooperative member claims nothing when it joins",
        30,
        Membership,
        "join_request",
        "frozenset(self.owned if self.is_cooperative else ())",
        "frozenset()",
    ),
    ("no second round follows", 30, Membership, "taken_up", nothing),
    (
        "what a member kept is not lost with its generation",
        60,
        Membership,
        "lose",
        "if self.is_stable or (self.is_cooperative and self.owned):",
        "if self.is_stable:",
    ),
    (
        "a member with an eager assignor reads on",
        60,
        membership,
        "rebalance_protocol_of",
        _most_advanced_of_any,
    ),
    (
        "a member claims what it had before the last round",
        60,
        Membership,
        "synced",
        "self.owned = decode_assignment(assignment)",
        "self.owned = tuple(sorted({*decode_assignment(assignment), *self._claimed}))",
    ),
)
