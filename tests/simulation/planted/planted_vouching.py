"""Planted bugs in what brokers state about their replicas (`core/vouching.py`), and in the sessions that live by it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from raylog.actors.broker.vouching import Vouching
from raylog.actors.replica import beating
from raylog.core.controller.sessions import BrokerMember, ReplicaMember, Session, Sessions
from raylog.core.vouching import Voucher
from tests.simulation.planted.bugs import bugs


def _whole_directory(self: Sessions, number: int, vouched: Iterable[int] | None, notes: Any, now_ms: int) -> None:
    """The controller takes a statement for one about every replica on the broker's directory."""
    broker = self._brokers.get(number)
    if broker is not None and vouched is not None:
        own = [session for session in self._replicas.values() if _is_on(session, broker)]
        broker.vouched = frozenset(session.life for session in own)
        for session in own:
            self._alone.pop(session.number, None)


def _is_on(session: Session, broker: Session) -> bool:
    return isinstance(session.member, ReplicaMember) and BrokerMember(session.member.broker) == broker.member


VOUCHING_BUGS = bugs(
    "metadata",
    ("metadata", "controller"),
    (
        "replicas rely on a heartbeat that was not confirmed",
        10,
        Vouching,
        "report",
        "self._sent.append(_Sent(request, now_ms, marks))",
        "table.confirm(now_ms)\n    for slot, life in marks:\n        table.mark(slot, life)",
    ),
    (
        "a replica relies on a broker that hangs",
        10,
        beating,
        "is_vouched_for",
        "abs(now_ms - cover.confirmed_ms) <= pace.trusted_ms",
        "True",
    ),
    (
        "the controller does not count a noted silence",
        10,
        Sessions,
        "stated",
        "silent[note.incarnation] = now_ms - note.silent_ms",
        "pass",
    ),
    (
        "a replica that registers again has to beat itself",
        10,
        Sessions,
        "open",
        "if self._voucher(session) is None:",
        "if True:",
    ),
    (
        "a broker vouches for replicas that hang",
        10,
        Voucher,
        "vouch",
        "silent_ms = now_ms - beat.beat_ms",
        "silent_ms = 0",
    ),
    ("a statement counts for the whole directory", 10, Sessions, "stated", _whole_directory),
    (
        "a silent broker takes its replicas along",
        10,
        Sessions,
        "_withdraw",
        "max(session.heartbeat_ms, seen.get(life, broker.heartbeat_ms))",
        "seen.get(life, broker.heartbeat_ms)",
    ),
)
