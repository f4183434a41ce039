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
"""Never in the log: a new leader knows no locks, so the record is available to it."""
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
    ),  # AVAILABLE: with a lower count; ACKNOWLEDGED: the offset has no record; ARCHIVED: its record is deleted
    ACQUIRED: frozenset({AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED, WAITING}),
    WAITING: frozenset({AVAILABLE, ARCHIVED}),
    ARCHIVING: frozenset({ARCHIVING, ARCHIVED}),
    ACKNOWLEDGED: frozenset(),
    ARCHIVED: frozenset(),
}
"""The states that may follow each state; a reset of the whole queue apart."""


POSTPONED: Final = "postponed"
"""Reason of a record that leaves without a dead letter: a copy waits in ``__scheduled`` (``letters.py``)."""


class Cause(NamedTuple):
    """Why a record becomes a dead letter. ``sequence``: the sequence of its dead letter; -1 = it has none yet."""

    reason: str
    message: str = ""
    sequence: int = -1


def shortened(text: str, bytes_max: int) -> str:
    """Return the beginning of a text that takes so many bytes at most, in UTF-8."""
    return text.encode(errors="replace")[:bytes_max].decode(errors="ignore")


class Cell(NamedTuple):
    """The state of a range of records.

    ``tries``: how often they were handed out (Kafka's delivery count). ``member``: the holder of the lock, which lasts
    from ``since_ms`` until ``until_ms``. ``lease``: number of this hand-out, which no other hand-out has. ``cause``:
    why a record is archiving. ``until_ms`` of a waiting record: when it is available again; of a postponed one: when
    its copy is due. Times are those of the machine's clock.
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
"""(first, end, state, count, until in ms since 1970, reason, message, sequence); trailing fields may be left out."""


def to_wire(first: int, end: int, cell: Cell, wall_ahead_ms: int) -> WireRange:
    """Return a range as it is stored: locks are left out. ``wall_ahead_ms``: wall clock minus the machine's clock."""
    if cell.state == WAITING:
        return first, end, WAITING, cell.tries, cell.until_ms + wall_ahead_ms
    if cell.cause is not None:
        until_ms = cell.until_ms + wall_ahead_ms if cell.cause.reason == POSTPONED else 0
        return first, end, cell.state, cell.tries, until_ms, *cell.cause
    if cell.state in TERMINAL:
        return first, end, cell.state
    return first, end, AVAILABLE, cell.tries


def from_wire(row: Sequence[Any], wall_ahead_ms: int) -> tuple[int, int, Cell]:
    """Return the range (first, end, cell) of its stored form."""
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
