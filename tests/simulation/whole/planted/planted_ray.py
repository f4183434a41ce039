"""Bugs that a Ray shows which loses calls, does them twice, and ends processes late: `ray-calls`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from raylog.actors.broker.supervisor import ReplicaSupervisor
from raylog.actors.replica.server import ReplicaServer
from raylog.core.controller.coordinators import Coordinators
from tests.simulation.planted.bugs import Edit
from tests.simulation.whole.plan import EVERYTHING
from tests.simulation.whole.planted.bugs import SEEDS, Bug


def _bug(
    name: str,
    features: tuple[str, ...],
    rules: tuple[str, ...],
    target: Any,
    attribute: str,
    patch: Callable[[Any], Any],
    seeds: int = SEEDS,
) -> Bug:
    return Bug(name, target, attribute, patch, rules, seeds, EVERYTHING, 1, ("ray-calls", *features))


RAY_BUGS: Final = (
    _bug(
        "what a broker requested in vain is not requested again",
        (),
        ("W9", "W8", "W1"),
        ReplicaSupervisor,
        "_worked",
        Edit("self._due.add(name)", "pass").of,
    ),
    _bug(
        "a replica takes settings that were overtaken",
        ("settings",),
        ("W87", "W9"),
        ReplicaServer,
        "reconfigure",
        Edit("spec.as_of < self.spec.as_of", "False").of,
        24,
    ),
    _bug(
        "a process that began although its request failed is forgotten",
        ("sleep",),
        ("W9",),
        ReplicaSupervisor,
        "_compare",
        Edit("elif name in self._may_run:", "elif False:").of,
        16,
    ),
    _bug(
        "a coordinator whose start was lost is not started again",
        ("sleep", "transactions"),
        ("W9", "W8", "W1"),
        Coordinators,
        "ensure",
        Edit("decision.now_ms - started >= START_RETRY_MS", "False").of,
        24,
    ),
)
