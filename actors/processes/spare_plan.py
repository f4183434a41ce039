"""Decides when spares are made and ended, and which spare becomes a replica. Pure; used by ``spares.py``.

A spare is an actor of a replica's class that has no replica yet. Once it has become a replica, that is its role until
it ends, so a known role stays true.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

QUIET_MS: Final = 2_000
"""A spare is made only after no replica was started for so long: replicas that a client waits for come first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What is known of a broker's spares."""

    idle: Collection[str]
    """Actors that answered and have no replica, in the order in which they were made."""
    unknown: Collection[str] = ()
    """Actors without a reply and without a noted role: they are starting, or hang. None of them is a replica."""
    stray: Collection[str] = ()
    """Actors that serve a replica without a noted role: after a restart by Ray they would not find their role."""
    wanted: int = 0
    starting: int = 0
    """Replicas that are starting."""
    quiet_ms: int = 0
    """Time since the last start of a replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The spare to make and the actors to end."""

    make: bool
    end: tuple[str, ...]


def plan(sight: Sight) -> Plan:
    """Return whether to make one spare, and which actors to end.

    Spares are made one at a time, and none while replicas start: a start takes half a second of CPU, and the creation
    of a topic waits for its replicas. Surplus actors are ended at once, including those without a reply, which may
    hang. The newest are ended first, because the others are certainly ready.
    """
    known_first = (*sight.idle, *sight.unknown)
    surplus = known_first[sight.wanted :]
    have = len(sight.idle) + len(sight.unknown)
    quiet = sight.starting == 0 and sight.quiet_ms >= QUIET_MS
    return Plan(make=quiet and have < sight.wanted, end=(*sight.stray, *surplus))


def choose(idle: Collection[str], roles: Mapping[str, str], barred: Collection[str], replica: str) -> str | None:
    """Return the spare that becomes ``replica``; None: it gets a process of its own.

    ``roles``: the actors' names by replica. A replica that could not start in a spare is ``barred``, so that it does
    not use up one spare after the other.
    """
    if replica in roles or replica in barred:
        return None
    taken = set(roles.values())
    return next((name for name in idle if name not in taken), None)
