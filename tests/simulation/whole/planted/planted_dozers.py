"""Bugs in the dozes of replicas: what offers, what stops, what continues, and what others make of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from raylog.actors.broker.dozers import Dozers
from raylog.actors.dozing import keeper
from raylog.actors.dozing.guard import Guard
from raylog.core.dozing.rest import Quiet
from raylog.core.dozing.watch import Act, ProcessWatch
from raylog.core.replication.leader import Leader
from raylog.core.replication.replica import ReplicaMachine
from tests.simulation.whole.plan import DOZERS
from tests.simulation.whole.planted.bugs import Bug

SEEDS: Final = 20


def _nothing(_: object) -> Callable[..., None]:
    return lambda *_, **__: None


def _none(_: object) -> Callable[..., list[Act]]:
    return lambda *_, **__: []


def _not_watched(original: Callable[..., list[Act]]) -> Callable[..., list[Act]]:
    """A broker stops a process without a watch over its sockets."""
    return lambda self, until_ms: [act for act in original(self, until_ms) if act is not Act.WATCH]


def _word_ignored(_: object) -> Callable[..., list[Act]]:
    """A broker does not continue a process that sent word before it was stopped."""

    def awoken(self: ProcessWatch) -> list[Act]:
        self._offered_until_ms = None
        return [] if self.is_stopped else [Act.UNWATCH]

    return awoken


def _without_timer(original: Callable[..., None]) -> Callable[..., None]:
    """A broker stops processes until something comes in, however late."""

    def stop(self: Dozers, dozer: Any) -> None:
        original(self, dozer)
        if dozer.timer is not None:
            dozer.timer.cancel()

    return stop


def _none_rests(_: object) -> Callable[..., dict[int, int]]:
    return lambda self, now_ms: {}


class _AnyNumber(int):
    """Equal to each number of open requests."""

    def __ne__(self, _: object) -> bool:
        return False


def _busy_too(original: Callable[..., Any]) -> Callable[..., Any]:
    """A leader rests while produce requests wait for followers."""

    def quiet(self: ReplicaMachine, otherwise_ms: int) -> Any:
        found = original(self, otherwise_ms)
        if found is None and self._leader is not None and self._leader.produces.is_busy:
            return Quiet(since_ms=0, parked=_AnyNumber(), due_ms=otherwise_ms)
        return found

    return quiet


def _no_due(original: Callable[..., Any]) -> Callable[..., Any]:
    """A leader rests for as long as it may, whatever waits for a time."""

    def quiet(self: Leader, otherwise_ms: int) -> Any:
        found = original(self, otherwise_ms)
        return None if found is None else replace(found, due_ms=otherwise_ms)

    return quiet


def _only_woken(_: object) -> Callable[..., None]:
    """A leader counts followers as lagging whose fetches waited."""
    return lambda self, now_ms, out: self.wake_fetches(out)


def _never_released(original: Callable[..., Any]) -> Callable[..., Any]:
    """A process that joins during a call to its name is held awake when the call has ended."""

    @contextmanager
    def held_awake(self: Dozers, name: str) -> Iterator[None]:
        before = set(self._named(name))
        with original(self, name):
            yield
        for dozer in set(self._named(name)) - before:
            dozer.watch.hold()

    return held_awake


def _bug(name: str, target: Any, attribute: str, patch: Callable[[Any], Any], *rules: str) -> Bug:
    return Bug(name, target, attribute, patch, rules, SEEDS, profile=DOZERS)


DOZER_BUGS: Final = (
    _bug("a process is stopped unwatched", ProcessWatch, "offered", _not_watched, "W23"),
    _bug("a stopped process is not continued when it can read", ProcessWatch, "readable", _none, "W23"),
    _bug("a process that has sent word stays stopped", ProcessWatch, "awoken", _word_ignored, "W23"),
    _bug("a process is stopped while a call to it waits", ProcessWatch, "hold", _none, "W23", "W9"),
    _bug("a call holds those awake that join during it", Dozers, "held_awake", _never_released, "W9"),
    _bug("a process is stopped for longer than it offered", Dozers, "_stop", _without_timer, "W23"),
    _bug("a keeper continues nothing", keeper, "continue_noted", _none, "W23", "W22"),
    _bug("a broker notes nothing for its keeper", Guard, "note", _nothing, "W23"),
    _bug("a broker vouches for no replica that rests", Dozers, "rested", _none_rests, "W23", "W22"),
    _bug("a replica offers with open requests", ReplicaMachine, "quiet", _busy_too, "W23"),
    _bug("a leader oversleeps its deadlines", Leader, "quiet", _no_due, "W23"),
    _bug("time at rest counts as lag", Leader, "records_came", _only_woken, "W23"),
)
