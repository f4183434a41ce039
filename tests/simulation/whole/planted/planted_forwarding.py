"""Bugs of forwarders, what is stored of them, and redrives, seen by the readers of dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from raylog.actors.forwarding import forwarder, pieces
from raylog.actors.forwarding.expiring import Expiry
from raylog.actors.forwarding.forwarder import Forwarder
from raylog.core import dead_letters
from raylog.core.forwarding import machine as forwarder_machine
from raylog.core.forwarding.machine import ForwarderMachine
from raylog.core.forwarding.states import ForwarderStates
from raylog.core.lane import Trouble
from tests.simulation.planted.bugs import Edit
from tests.simulation.whole.plan import FORWARDING
from tests.simulation.whole.planted.bugs import Bug


def _edit(*texts: str) -> Callable[[Any], Any]:
    return Edit(*texts).of


def _bug(
    name: str, target: Any, attribute: str, patch: Callable[[Any], Any], rules: tuple[str, ...], seeds: int = 12
) -> Bug:
    return Bug(name, target, attribute, patch, rules, seeds, FORWARDING)


FORWARDING_BUGS: Final = (
    _bug(
        "a parcel that failed counts as sent",
        Forwarder,
        "_send",
        _edit("trouble = trouble_of(error)", "trouble = None"),
        ("W53", "W9", "W52"),
    ),
    _bug(
        "each leader forwards under another producer id",
        Forwarder,
        "_send",
        _edit("machine.progress.producer_id,", "machine.progress.producer_id + self._host.leader_epoch,"),
        ("W51", "W52"),
        30,
    ),
    _bug(
        "records go before they expire",
        Expiry,
        "due_ms",
        _edit("+ ttl_ms(self.settings)", "+ ttl_ms(self.settings) - 4_000"),
        ("W50",),
    ),
    _bug(
        "the progress of forwarders is in memory alone",
        ForwarderStates,
        "_write_state",
        _edit(
            "self._write(state, decision)",
            "self.states[state.name] = state",
        ),
        ("W51", "W52", "W53", "W9"),
        30,
    ),
    _bug(
        "a successor begins behind what was decided",
        ForwarderMachine,
        "_loaded",
        _edit(
            "self.progress = self._saved = event.progress",
            "self.progress = self._saved = replace(event.progress, position=event.progress.decided_end)",
        ),
        ("W53", "W9", "W51"),
        30,
    ),
    _bug(
        "parcels are sent before the decision is stored",
        ForwarderMachine,
        "_save",
        _edit("self._out.now.append(ev.Save(self.progress))", "self._is_saved(0)"),
        ("W51", "W52", "W53"),
        30,
    ),
    _bug(
        "a parcel that is too large is undeliverable as a whole",
        forwarder_machine,
        "_refused",
        _edit("if not half:", "if True:"),
        ("W53",),
        30,
    ),
    _bug(
        "hops are not counted",
        dead_letters,
        "hops_of",
        lambda original: lambda headers: 0,
        ("W54", "W53", "W9"),
    ),
    _bug(
        "a redrive keeps the headers of the dead letter",
        pieces,
        "without_cause",
        lambda original: lambda headers: list(headers or ()),
        ("W54",),
    ),
    _bug(
        "a target that was away is left out",
        forwarder,
        "trouble_of",
        lambda original: lambda error: Trouble.REFUSED,
        ("W53",),
    ),
)
