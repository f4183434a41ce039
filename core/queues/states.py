"""The states of a record in a queue, and their form in the log. Pure.

AVAILABLE -> ACQUIRED -> ACKNOWLEDGED
                      -> AVAILABLE   released, its lock ran out, or its member has left
                      -> WAITING     to be retried; AVAILABLE when its time has come
                      -> ARCHIVING   rejected, or handed out too often; ARCHIVED when its dead letter is stored
                                     or to be retried so late that a copy waits; ARCHIVED when the copy is stored
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

AVAILABLE: Final = 0
ACQUIRED: Final = 1
"""Never in the log: a new leader knows no locks, and such a record is available there."""
ACKNOWLEDGED: Final = 2
ARCHIVING: Final = 3
ARCHIVED: Final = 4
WAITING: Final = 5
"""Raylog's own; the others have Kafka's numbers (KIP-932)."""

NAMES: Final[Mapping[int, str]] = {
    AVAILABLE: "available",
    ACQUIRED: "acquired",
    ACKNOWLEDGED: "acknowledged",
    ARCHIVING: "archiving",
    ARCHIVED: "archived",
    WAITING: "waiting",
}
TERMINAL: Final = frozenset({ACKNOWLEDGED, ARCHIVED})
UNFINISHED: Final = (AVAILABLE, ACQUIRED, WAITING, ARCHIVING)

TRANSITIONS: Final[Mapping[int, frozenset[int]]] = {
    AVAILABLE: frozenset(
        {ACQUIRED, AVAILABLE, ACKNOWLEDGED, ARCHIVED}
    ),  # AVAILABLE: with fewer tries; the latter two: no record is there, or it is passed over
    ACQUIRED: frozenset({AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED, WAITING}),
    WAITING: frozenset({AVAILABLE, ARCHIVED}),
    ARCHIVING: frozenset({ARCHIVING, ARCHIVED}),
    ACKNOWLEDGED: frozenset(),
    ARCHIVED: frozenset(),
}
"""What may follow a state, beside a reset of the whole queue."""


POSTPONED: Final = "postponed"
"""Cause of a record that is no dead letter: a copy of it waits in ``__scheduled`` (``archiving/copies.py``)."""


class Cause(NamedTuple):
    """Why a record became a dead letter. ``sequence`` is that of the dead letter; -1 = it has none yet."""

    reason: str
    message: str = ""
    sequence: int = -1


def shortened(text: str, bytes_max: int) -> str:
    """Return the beginning of a text that takes so many bytes at most, in UTF-8."""
    return text.encode(errors="replace")[:bytes_max].decode(errors="ignore")


class Cell(NamedTuple):
    """The state of a range of records.

    ``tries``: how often they were handed out. ``member``, ``since_ms``, ``until_ms``: the member that holds the lock,
    from when, until when; ``lease``: which no other hand-out has. Of a waiting record, ``until_ms`` is when it is
    available again; of one that is postponed, when its copy is due. ``cause``: of one that is archiving.
    """

    state: int
    tries: int = 0
    member: str = ""
    until_ms: int = 0
    since_ms: int = 0
    cause: Cause | None = None
    lease: int = 0


FRESH: Final = Cell(AVAILABLE)
DONE: Final = Cell(ACKNOWLEDGED)
DEAD: Final = Cell(ARCHIVED)

WireRange = tuple[Any, ...]
"""(first, end, state, count, until in ms since 1970, reason, message, sequence); an end of zeros is left out."""


def to_wire(first: int, end: int, cell: Cell, wall_ahead_ms: int) -> WireRange:
    """Return a range as it is stored: locks are left out."""
    if cell.state == WAITING:
        return first, end, WAITING, cell.tries, cell.until_ms + wall_ahead_ms
    if cell.cause is not None:
        until_ms = cell.until_ms + wall_ahead_ms if cell.cause.reason == POSTPONED else 0
        return first, end, cell.state, cell.tries, until_ms, *cell.cause
    if cell.state in TERMINAL:
        return first, end, cell.state
    return first, end, AVAILABLE, cell.tries


def from_wire(row: Sequence[Any], wall_ahead_ms: int) -> tuple[int, int, Cell]:
    """Return a stored range."""
    first, end, state, *more = row
    if state in TERMINAL:
        return first, end, Cell(state)
    count = more[0] if more else 0
    if state == WAITING:
        return first, end, Cell(WAITING, count, until_ms=more[1] - wall_ahead_ms)
    if state == ARCHIVING:
        until_ms = more[1] - wall_ahead_ms if more[2] == POSTPONED else 0
        return first, end, Cell(ARCHIVING, count, until_ms=until_ms, cause=Cause(*more[2:5]))
    return first, end, Cell(AVAILABLE, count)
