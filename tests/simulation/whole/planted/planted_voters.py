"""Bugs in the quorum of voters, in recovery and in elections, which two controllers or a lost last replica reveal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import CodeType
from typing import Any, Final

from raylog.actors.metadata.voter import Files
from raylog.client.producer.delivery import Delivery
from raylog.core.controller import leadership
from raylog.core.quorum.changes import majority
from raylog.core.quorum.voter import VoterMachine
from raylog.storage.log.producer_state import ProducerState
from raylog.storage.log.recovery import Recovery
from tests.simulation.whole.plan import LAST_MAN, VOTERS
from tests.simulation.whole.planted.bugs import Bug


def _one(_: CodeType) -> CodeType:
    """Elections and proposers import the function: its code is the one place that both of them have."""
    return (lambda voters: 1).__code__


def _any_epoch(original: Callable[..., Any]) -> Callable[..., bool]:
    def is_from_leader(self: VoterMachine, event: Any, outbox: Any) -> bool:
        original(self, event, outbox)
        return True

    return is_from_leader


def _no_producers(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self: original(self)._replace(producers=ProducerState())


def _no_epoch(original: Callable[..., None]) -> Callable[..., None]:
    """The file says which copy it is, and not what it has promised."""
    return lambda self, promise: original(self, replace(promise, epoch=0, candidate=""))


def _never(_: object) -> Callable[..., None]:
    return lambda *_: None


def _leavers_are_forgotten(original: Callable[..., Any]) -> Callable[..., Any]:
    """A replica that leaves the ISR is not eligible, even if no record can be committed without it."""

    def eligible(state: Any, isr: Any, min_isr: int, lost: Any = ()) -> Any:
        return tuple(broker for broker in original(state, isr, min_isr, lost) if broker in state.elr)

    return eligible


VOTER_BUGS: Final = (
    Bug("one voter is a majority", majority, "__code__", _one, ("W10", "W11", "W4", "W15", "W17"), profile=VOTERS),
    Bug(
        "a voter takes appends of any epoch",
        VoterMachine,
        "_is_from_leader",
        _any_epoch,
        ("W10", "W11", "W9"),
        profile=VOTERS,
    ),
    Bug("a voter forgets its promise", Files, "save_promise", _no_epoch, ("W18",), profile=VOTERS),
    Bug("recovery forgets producers", Recovery, "run", _no_producers, ("W14",), profile=VOTERS),
    Bug("late records are never given up", Delivery, "expire", _never, ("W1",), profile=VOTERS),
    Bug("a leaver is not eligible", leadership, "eligible", _leavers_are_forgotten, ("W16",), profile=LAST_MAN),
)
