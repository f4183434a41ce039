"""Bugs of the scheduler's role, seen by the clients of delayed records; those of its machine are in tests/property."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from raylog.actors.roles.time_of_day import TimeOfDay
from raylog.actors.scheduling import requests, role
from raylog.actors.scheduling.decoded_batches import Bodies, DecodedBatch
from raylog.actors.scheduling.delivering import Deliveries
from raylog.actors.scheduling.role import SchedulerRole
from raylog.core.scheduling.machine import SchedulerMachine
from tests.simulation.planted.bugs import Edit
from tests.simulation.whole.plan import EVERYTHING
from tests.simulation.whole.planted.bugs import Bug


def _edit(*texts: str) -> Callable[[Any], Any]:
    return Edit(*texts).of


def _bug(
    name: str, target: Any, attribute: str, patch: Callable[[Any], Any], rules: tuple[str, ...], seeds: int = 12
) -> Bug:
    return Bug(name, target, attribute, patch, rules, seeds, EVERYTHING, 1, ("delays",))


SCHEDULE_BUGS: Final = (
    _bug(
        "a delivery that failed counts as done",
        Deliveries,
        "deliver",
        _edit("trouble = trouble_of(error)", "trouble = None"),
        ("W32", "W9"),
    ),
    _bug(
        "each leader delivers under another producer id",
        Deliveries,
        "_encoded",
        _edit(
            "machine.writer(batch.epoch),",
            "(machine.producer_ids[0] + self._owner.host.leader_epoch, batch.epoch),",
        ),
        ("W31",),
        30,
    ),
    _bug(
        "every record of a batch gets the first one's body",
        Bodies,
        "read",
        _edit("decoded, index = self._at(offset)", "decoded, index = self._at(offset)[0], 0"),
        ("W30", "W31", "W32", "W33", "W9"),
    ),
    _bug(
        "a cancellation is answered before it is committed",
        requests,
        "_cancel",
        _edit(
            "await _cancelled(role, request.method, there)",
            "CancelScheduledReply(['DONE'] * len(there))",
        ),
        ("W33",),
    ),
    _bug(
        "a new leader believes the clock of its machine",
        TimeOfDay,
        "set",
        _edit("if abs(first_ms - host.wall_ms()) < STEP_MS:", "if True:"),
        ("W30",),
        60,
    ),
    _bug(
        "a record is stated to be replaced, and is not",
        SchedulerMachine,
        "_named",
        _edit("self._cancel(earlier) is Outcome.DONE", "True"),
        ("W34",),
    ),
    _bug(
        "what was moved is read one record too far in front",
        DecodedBatch,
        "index_of",
        _edit("return index + 1 if", "return index if"),
        ("W30", "W31", "W32", "W33", "W34", "W9"),
        20,
    ),
    _bug(
        "what was moved is read at its first place",
        Bodies,
        "_find",
        _edit("place = offset if row is None else row", "place = offset"),
        ("W31", "W32", "W9", "W10"),
        20,
    ),
    _bug(
        "what was moved has no headers",
        role,
        "copies_for",
        _edit("headers = None if body.headers is None else list(body.headers)", "headers = None"),
        ("W32", "W9"),
        20,
    ),
    _bug(
        "a new leader leaves out the last of its log",
        SchedulerRole,
        "_load",
        _edit("await self._replay(offset, end)", "await self._replay(offset, end - 3)"),
        ("W31", "W32", "W33", "W9", "W10", "W8"),
        30,
    ),
)
