"""A broker vouches for the replicas on its data directory, so that these need no heartbeats of their own. Pure.

Each replica notes the time of its beats in a table that it shares with its broker (``actors/beats/beat_table.py``).
With each of its own heartbeats the broker states which incarnations have just beaten; the controller takes that for a
heartbeat of each. A replica sends its own ones while it does not see that the controller has confirmed such a
statement lately.

This is safe whatever the broker does. A replica stays silent for at most ``trusted_ms`` and one beat, counted from when
its broker sent a heartbeat that named it and that the controller confirmed. The controller received that heartbeat
later than it was sent, and its session timeout is longer than the silence (:meth:`Pace.of`). Used by the shells of
brokers and replicas, and by the simulator.

A replica that its broker has stopped because it is at rest (``core/dozing``) writes no beats. The broker vouches for it
all the same, and continues it as soon as it may not rely on that. A process that anything else has stopped is silent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple, Self

NO_LIFE: Final = -1
"""Stands for "no incarnation" and for "no controller epoch"."""
LONGEST_BEAT_MS: Final = 500
NONE_RESTS: Final[Mapping[int, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The times of vouching, in milliseconds."""

    beat_ms: int
    """Longest time between two beats of a replica that is not busy."""
    silent_after_ms: int
    """A broker vouches for no replica whose last beat is older than this."""
    trusted_ms: int
    """For how long after a confirmed heartbeat of its broker a replica sends none itself."""
    hung_after_ms: int
    """Replicas that a broker has stopped are continued this long after the broker's last confirmed heartbeat, or after
    the broker itself last ran."""

    @classmethod
    def of(cls, heartbeat_ms: int, session_timeout_ms: int) -> Self:
        """Return the times for a heartbeat interval and a session timeout, which is at least twice as long.

        A replica sends its first own heartbeat after ``trusted_ms`` and one beat, so after three quarters of the
        session timeout at the latest.
        """
        return cls(
            beat_ms=max(1, min(LONGEST_BEAT_MS, heartbeat_ms, session_timeout_ms // 4)),
            silent_after_ms=2 * heartbeat_ms,
            trusted_ms=min(2 * heartbeat_ms, session_timeout_ms // 2),
            hung_after_ms=session_timeout_ms // 2,
        )


class Beat(NamedTuple):
    """One replica's slot in the table, as its broker reads it. Times are those of the machine's monotonic clock."""

    slot: int
    incarnation: int
    beat_ms: int
    disk_hanging_ms: int
    vouched: int
    """The incarnation that the broker has marked as vouched for, or NO_LIFE."""


class Note(NamedTuple):
    """What a broker reports about one replica: how long it has been silent, or how long its disk has been hanging."""

    incarnation: int
    silent_ms: int
    disk_hanging_ms: int


class Statement(NamedTuple):
    """What a broker states with one heartbeat."""

    vouched: frozenset[int]
    """The incarnations that it vouches for."""
    is_new: bool
    """Whether ``vouched`` differs from the previous statement of this session; true for the first statement."""
    notes: tuple[Note, ...]


class Voucher:
    """Decides, heartbeat by heartbeat, for which replicas a broker vouches. One session with a controller at a time."""

    def __init__(self, pace: Pace) -> None:
        """Begin a session: the controller knows of no statement."""
        self._pace = pace
        self.stated: frozenset[int] = frozenset()
        """The incarnations of the last statement."""
        self._is_first = True

    def vouch(self, now_ms: int, beats: Iterable[Beat], rested: Mapping[int, int] = NONE_RESTS) -> Statement:
        """State which replicas beat; a replica that no longer does is noted once, with the time of its silence.

        ``rested``: for each incarnation whose process this broker had stopped, the time at which the stop ended;
        ``now_ms`` for a process that is still stopped.
        """
        before, alive, notes = self.stated, set(), []
        for beat in beats:
            silent_ms = now_ms - beat.beat_ms
            if beat.incarnation in rested:
                silent_ms = min(silent_ms, max(0, now_ms - rested[beat.incarnation]))
            if -self._pace.silent_after_ms <= silent_ms <= self._pace.silent_after_ms:
                alive.add(beat.incarnation)
                if beat.disk_hanging_ms:
                    notes.append(Note(beat.incarnation, 0, beat.disk_hanging_ms))
            elif beat.incarnation in before and silent_ms > 0:
                notes.append(Note(beat.incarnation, silent_ms, beat.disk_hanging_ms))
        is_new = self._is_first or alive != before
        self._is_first = False
        if is_new:
            self.stated = frozenset(alive)
        return Statement(self.stated, is_new, tuple(notes))


class Cover(NamedTuple):
    """What a replica reads in the table of its broker's statements."""

    controller_epoch: int
    """The controller with which the broker is registered."""
    confirmed_ms: int
    """When the broker sent the last heartbeat that this controller has confirmed."""
    vouched: int
    """The incarnation in this replica's slot for which that controller has confirmed a statement."""


def is_vouched_for(now_ms: int, incarnation: int, controller_epoch: int, pace: Pace, cover: Cover) -> bool:
    """Return whether a replica may leave its heartbeats to its broker now.

    ``controller_epoch`` is that of the controller with which the replica itself is registered.
    """
    return (
        cover.vouched == incarnation != NO_LIFE
        and cover.controller_epoch == controller_epoch != NO_LIFE
        and abs(now_ms - cover.confirmed_ms) <= pace.trusted_ms
    )
