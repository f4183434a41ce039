"""Bugs in what brokers state about their replicas, and in what replicas and the controller make of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from raylog.actors.replica import beating
from raylog.core.controller.sessions import ReplicaMember, Sessions
from raylog.core.vouching import Voucher
from tests.simulation.whole.plan import SLEEPERS
from tests.simulation.whole.planted.bugs import Bug


def _all_beat(original: Callable[..., Any]) -> Callable[..., Any]:
    """A broker vouches for every replica that has a slot, whenever it beat last."""
    return lambda self, now_ms, beats, _: original(self, now_ms, [beat._replace(beat_ms=now_ms) for beat in beats])


def _at_any_time(original: Callable[..., bool]) -> Callable[..., bool]:
    """A replica relies on its broker, however long ago that one's last heartbeat was confirmed."""
    return lambda now_ms, incarnation, epoch, pace, cover: original(
        now_ms, incarnation, epoch, pace, cover._replace(confirmed_ms=now_ms)
    )


def _none_to_watch(original: Callable[..., None]) -> Callable[..., None]:
    """The controller does not look at a replica any more for which a broker has vouched."""

    def withdraw(self: Sessions, *rest: Any) -> None:
        original(self, *rest)
        for number, session in list(self._alone.items()):
            if isinstance(session.member, ReplicaMember):
                del self._alone[number]

    return withdraw


def _by_broker_alone(original: Callable[..., None]) -> Callable[..., None]:
    """The end of a broker's session makes its replicas as silent as itself, whatever they send."""

    def withdraw(self: Sessions, broker: Any, lives: Any, *rest: Any) -> None:
        for life in lives:
            session = self._replica_of(broker, life)
            if session is not None:
                session.heartbeat_ms = 0
        original(self, broker, lives, *rest)

    return withdraw


def _no_old_statement(original: Callable[..., None]) -> Callable[..., None]:
    """A heartbeat without a list takes back the one before."""
    return lambda self, number, vouched, notes, now_ms: original(self, number, vouched or (), notes, now_ms)


def _all_present(_: object) -> Callable[..., list[int]]:
    """No replica notices that its connection has ended at the controller's side alone."""
    return lambda self, number: []


def _over_or_not(original: Callable[..., list[int]]) -> Callable[..., list[int]]:
    """The controller confirms heartbeats on a connection whose session is over, as long as it is open."""
    return lambda self, number: [] if self.get(number) is None else original(self, number)


VOUCHING_BUGS: Final = (
    Bug("a broker vouches for a replica that hangs", Voucher, "vouch", _all_beat, ("W22",), 50),
    Bug("a replica relies on a broker that died", beating, "is_vouched_for", _at_any_time, ("W22",), 14),
    Bug("a replica that hangs is watched no more", Sessions, "_withdraw", _none_to_watch, ("W22", "W10")),
    Bug("a broker that hangs fences its replicas", Sessions, "_withdraw", _by_broker_alone, ("W22",), 18),
    Bug("absent replicas are not sent back", Sessions, "absent", _all_present, ("W22",), profile=SLEEPERS),
    Bug("a session that is over is confirmed", Sessions, "absent", _over_or_not, ("W22",), profile=SLEEPERS),
    Bug("a statement is forgotten", Sessions, "stated", _no_old_statement, ("W22",)),
)
