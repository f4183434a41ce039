"""Bugs of the kinds that shipped once and were found from outside, seen in a mixture of features.

Those that a world of one machine sees are in ``tests/simulation/planted``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from raylog.actors.broker.supervisor import ReplicaSupervisor
from raylog.client.producer.scheduling import Scheduling
from raylog.core.queues.machine import QueueMachine
from raylog.core.scheduling.lanes import TargetLane
from tests.simulation.planted.bugs import Edit
from tests.simulation.whole.plan import EVERYTHING
from tests.simulation.whole.planted.bugs import SEEDS, Bug


def _bug(
    name: str,
    target: Any,
    attribute: str,
    patch: Callable[[Any], Any],
    rules: tuple[str, ...],
    *features: str,
) -> Bug:
    return Bug(name, target, attribute, patch, rules, SEEDS, EVERYTHING, 1, features)


MENDED_BUGS: Final = (
    _bug(
        "offsets without records are handed out",
        QueueMachine,
        "_without_gaps",
        Edit("for low, high in gaps:", "for low, high in ():").of,
        ("W47", "W42", "W9"),
        "queues",
    ),
    _bug(
        "a delivery that failed is not repeated",
        TargetLane,
        "answered",
        Edit("self.open.failed(sequence, event.trouble, event.now_ms)", "self.open.stored(sequence)").of,
        ("W9", "W32", "W31"),
        "delays",
    ),
    _bug(
        "a producer keeps what it knows of a delayed record's topic",
        Scheduling,
        "known",
        Edit("return found if info is None or info.topic_id == found.topic_id else None", "return found").of,
        ("W9", "W70"),
        "topic-created-again",
        "delays",
    ),
    _bug(
        "a broker leaves the processes of deleted topics",
        ReplicaSupervisor,
        "_compare",
        Edit("self._work(name, self._end(name))", "pass").of,
        ("W9",),
        "topic-created-again",
    ),
    _bug(
        "a broker leaves the folders of deleted topics",
        ReplicaSupervisor,
        "_end",
        Edit("if not self._holds(spec, await self._newest.get()):", "if False:").of,
        ("W9",),
        "topic-created-again",
    ),
)
