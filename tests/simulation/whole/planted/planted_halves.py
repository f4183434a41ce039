"""Bugs of half messages, seen by the bank and by readers; those of their machine are in tests/property."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from raylog.actors.scheduling import rows
from raylog.client.half_messages.checking import GroupChecker
from raylog.client.producer.scheduling import Waiting
from raylog.core.scheduling.halves import Halves
from tests.simulation.planted.bugs import Edit
from tests.simulation.whole.plan import HALVES
from tests.simulation.whole.planted.bugs import Bug


def _edit(*texts: str) -> Callable[[Any], Any]:
    return Edit(*texts).of


def _bug(
    name: str, target: Any, attribute: str, patch: Callable[[Any], Any], rules: tuple[str, ...], seeds: int = 12
) -> Bug:
    return Bug(name, target, attribute, patch, rules, seeds, HALVES)


HALF_BUGS: Final = (
    _bug(
        "a half message is due when it is prepared",
        Waiting,
        "held_ms",
        _edit("HELD_MS + now_ms()", "now_ms()"),
        ("W60", "W61"),
    ),
    _bug(
        "a checker that does not know commits",
        GroupChecker,
        "_verdict",
        _edit("HalfVerdict.UNKNOWN if stated is None", "HalfVerdict.COMMIT if stated is None"),
        ("W60", "W61"),
    ),
    _bug(
        "every record of a batch is part of the first one's half message",
        rows,
        "_held",
        _edit("HalfName.of(headers[index])", "HalfName.of(headers[0])"),
        ("W60", "W61", "W62", "W63", "W9"),
    ),
    _bug(
        "a commit after a rollback releases the records",
        Halves,
        "decide",
        _edit("released = tuple(half.offsets) if is_committed or is_dead else ()", "released = tuple(half.offsets)"),
        ("W60",),
    ),
    _bug(
        "a half message without decision is checked once",
        Halves,
        "query",
        _edit("self._schedule(half)", "pass"),
        ("W63", "W9"),
        24,
    ),
    _bug(
        "a record that is added is not held",
        Halves,
        "prepared",
        _edit("half.offsets.append(offset)", "half.offsets = half.offsets or [offset]"),
        ("W61", "W62"),
    ),
)
