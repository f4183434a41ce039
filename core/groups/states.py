"""The states of a classic group and the legal moves between them, as data. Used by ``group.py`` and by its tests.

Kafka's table: a group without members is Empty; members gather in PreparingRebalance; CompletingRebalance waits for the
leader's assignment; Stable has one. Dead is the end: a dead group is dropped from the coordinator in the same step, so
that a later request meets an unknown group.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class GroupState(Enum):
    """State of one group; the values are Kafka's spelling and go over the wire."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


LEGAL_PREDECESSORS: Final[Mapping[GroupState, frozenset[GroupState]]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset({GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE}),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(GroupState),
}


def is_legal_move(before: GroupState, after: GroupState) -> bool:
    """Return whether a group may go from one state to the other in one move."""
    return before in LEGAL_PREDECESSORS[after]
