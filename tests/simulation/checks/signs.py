"""When each member last showed the controller that it runs, by bookkeeping apart from the controller's own.

A session is over when its member showed nothing for the session timeout, and not before. A member shows that it runs by
its own requests, a replica also by the statements of its broker.
"""

from __future__ import annotations

from raylog.base.ids import BrokerId
from raylog.core.controller import events as ctl
from raylog.core.controller.controller import ControllerMachine
from raylog.core.controller.sessions import BrokerMember, Member, ReplicaMember
from raylog.core.outbox import Outbox
from raylog.core.received import Received
from raylog.protocol.controller import SessionHeartbeatRequest
from tests.simulation.world import Violation


class Signs:
    """The signs of life that one controller has received."""

    RULE = "controller"

    def __init__(self, machine: ControllerMachine) -> None:
        """Watch a controller from its start on."""
        self._machine = machine
        self._timeout_ms = machine._settings.session_timeout_ms
        self._now_ms = machine._now_ms
        self._members: dict[int, tuple[Member, int]] = {}
        """Member and incarnation by session."""
        self._own_ms: dict[int, int] = {}
        """The last request of each session."""
        self._stated: dict[int, frozenset[int]] = {}
        """The incarnations of the last statement, by the broker's session."""
        self._vouched_ms: dict[tuple[BrokerId, int], int] = {}
        """When a broker last vouched for an incarnation."""

    def stepped(self, event: ctl.Event, out: Outbox[ctl.Effect]) -> None:
        """Take an event, and check which sessions the step ended."""
        self._forgive(event.now_ms)
        number = session_of(event)
        message = event.message if isinstance(event, Received) else None
        if number is not None and number in self._own_ms:
            self._own_ms[number] = event.now_ms
            if isinstance(message, SessionHeartbeatRequest):
                self._state(message, number, event.now_ms)
        for effect in out.after_sync:
            if isinstance(effect, ctl.CloseSession) and effect.reason.startswith("no heartbeat"):
                silent_ms = event.now_ms - self._last_ms(effect.session)
                if silent_ms <= self._timeout_ms:
                    member = self._members[effect.session]
                    raise Violation(self.RULE, f"{member} was seen {silent_ms} ms ago, and its session is over")
        if not isinstance(message, SessionHeartbeatRequest):
            self._compare(number, event.now_ms)
        if isinstance(event, ctl.Tick):
            for number in self._members:
                if event.now_ms - self._last_ms(number) > self._timeout_ms:
                    member = self._members[number]
                    raise Violation(
                        self.RULE, f"{member} is kept at {event.now_ms} ms, last seen {self._last_ms(number)}"
                    )

    def _forgive(self, now_ms: int) -> None:
        """A pause of the controller itself counts for nothing."""
        pause_ms, self._now_ms = now_ms - self._now_ms, now_ms
        if pause_ms > self._timeout_ms // 3:
            for times in (self._own_ms, self._vouched_ms):
                for key in times:
                    times[key] += pause_ms  # type: ignore[index]

    def _state(self, message: SessionHeartbeatRequest, session: int, now_ms: int) -> None:
        member, _ = self._members[session]
        if not isinstance(member, BrokerMember):
            return
        before = self._stated.get(session, frozenset())
        stated = before if message.vouched is None else frozenset(message.vouched)
        self._stated[session] = stated
        for life in stated:
            self._vouched_ms[member.broker, life] = now_ms
        for note in message.notes:
            if note.silent_ms and note.incarnation in before - stated:
                self._vouched_ms[member.broker, note.incarnation] = now_ms - note.silent_ms

    def _last_ms(self, number: int) -> int:
        member, life = self._members[number]
        own_ms = self._own_ms[number]
        if isinstance(member, ReplicaMember):
            return max(own_ms, self._vouched_ms.get((member.broker, life), own_ms))
        return own_ms

    def _compare(self, opened: int | None, now_ms: int) -> None:
        """Take over which sessions there are after the step."""
        sessions = self._machine._sessions
        for number in [number for number in self._members if sessions.get(number) is None]:
            for table in (self._members, self._own_ms, self._stated):
                table.pop(number, None)
        session = None if opened is None else sessions.get(opened)
        if session is not None and self._members.get(session.number) != (session.member, session.life):
            self._members[session.number] = (session.member, session.life)
            self._own_ms[session.number] = now_ms
            self._stated.pop(session.number, None)


def session_of(event: ctl.Event) -> int | None:
    """Return the session that an event comes from; None for time, and for what clients request through brokers."""
    if isinstance(event, ctl.SessionLost):
        return event.session
    if isinstance(event, Received) and not isinstance(event.message, ctl.ClientRequest):
        return event.sender.session
    return None
