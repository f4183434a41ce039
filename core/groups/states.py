"""The types and states of groups, and the legal moves of a classic group between its states, as data.

Kafka's table: a group without members is Empty; members gather in PreparingRebalance; CompletingRebalance waits for the
leader's assignment; a Stable group has one. Dead is the end: a dead group is dropped from the coordinator in the same
step, so that a later request meets an unknown group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

AWAY_EPOCH: Final = -2
"""Epoch of a static member that is away: its place stays until its session ends."""


class GroupState(Enum):
    """State of one group; the values are Kafka's spelling and go over the wire."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class ConsumerGroupState(Enum):
    """State of one group of the consumer protocol (KIP-848); the values are Kafka's spelling."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The target assignment of the group's epoch is not computed yet."""
    RECONCILING = "Reconciling"
    """Some member does not have its target assignment yet."""
    STABLE = "Stable"


class GroupType(Enum):
    """The protocol that the members of a group use, or used last; the values are Kafka's spelling."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


STATES_BY_TYPE: Final[Mapping[GroupType, tuple[str, ...]]] = {
    GroupType.CLASSIC: tuple(each.value for each in GroupState if each is not GroupState.DEAD),
    GroupType.CONSUMER: tuple(each.value for each in ConsumerGroupState),
}
"""The states that groups of each type are listed in."""


def named_types(names: Iterable[str]) -> tuple[GroupType, ...]:
    """Return the types of these names, whatever their case. Raises ValueError, which names the valid ones."""
    return tuple(map(GroupType, _named("group type", names, [each.value for each in GroupType])))


def named_states(names: Iterable[str], types: Iterable[GroupType] = ()) -> tuple[str, ...]:
    """Return the states of these names, whatever their case; only those of groups of these types, if any are named.

    Raises ValueError, which names the valid ones.
    """
    known = dict.fromkeys(state for each in tuple(types) or GroupType for state in STATES_BY_TYPE[each])
    return _named("group state", names, known)


def _named(what: str, names: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    spelled = {name.lower(): name for name in known}
    given = [names] if isinstance(names, str) else list(names)
    for name in given:
        if name.lower() not in spelled:
            raise ValueError(f"There is no {what} {name!r}; valid are {', '.join(spelled.values())}.")
    return tuple(spelled[name.lower()] for name in given)


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
