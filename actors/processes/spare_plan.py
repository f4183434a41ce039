"""Which processes are spares, and when one is made or ended. Pure; used by ``spares.py``.

A spare is an actor of a replica's class that has no replica yet. Once it has taken a role it keeps it to its end, so
what is known of a role never becomes wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

QUIET_MS: Final = 2_000
"""How long no replica must have been started before a spare is made: replicas that a client waits for come first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """The state of a broker's spares."""

    idle: Collection[str]
    """Actors that answered and have no replica, in the order in which they were made."""
    unknown: Collection[str] = ()
    """Actors without a reply and without a noted role: they start, or hang. None of them is a replica."""
    stray: Collection[str] = ()
    """Actors that serve a replica without a noted role: after a restart by Ray they could not find out their role."""
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

    One at a time, and none while replicas start: a start costs half a second of CPU, and the creation of a topic waits
    for its replicas. Surplus actors are ended at once, including those without a reply: a hanging one may never reply.
    The newest go, because the others are surely warm.
    """
    known_first = (*sight.idle, *sight.unknown)
    surplus = known_first[sight.wanted :]
    have = len(sight.idle) + len(sight.unknown)
    quiet = sight.starting == 0 and sight.quiet_ms >= QUIET_MS
    return Plan(make=quiet and have < sight.wanted, end=(*sight.stray, *surplus))


def choose(idle: Collection[str], roles: Mapping[str, str], barred: Collection[str], replica: str) -> str | None:
    """Return the spare that becomes ``replica``; None = it gets a process of its own.

    ``roles`` are the actors' names by replica. A replica that could not start in a spare is ``barred``: it shall not
    use up one after the other.
    """
    if replica in roles or replica in barred:
        return None
    taken = set(roles.values())
    return next((name for name in idle if name not in taken), None)
