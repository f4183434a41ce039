"""A replica's end of its control session with the simulated controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylog.base.errors import UnknownTopicOrPartition
from raylog.base.ids import NO_INCARNATION
from raylog.core.partition import PartitionState
from raylog.core.replication.events import ProposeIsr, ResignLeadership
from tests.simulation.partition.network import Session
from tests.simulation.partition.replica import ReplicaProcess

if TYPE_CHECKING:
    from tests.simulation.partition.simulation import Simulation

_RECONNECT_MS = (5, 60)
_REMOVED_PAUSE_US = 300_000


class ReplicaLink:
    """A replica's end of its control session: registers, keeps alive, re-registers after the session broke."""

    def __init__(self, simulation: Simulation, process: ReplicaProcess) -> None:
        """Belong to one life of a replica."""
        self.simulation = simulation
        self.world = simulation.world
        self.process = process
        self.number = 0
        self._session: Session | None = None
        self._registered = False
        self._pending: dict[int, int] = {}
        self._last_request = 0
        process.uplink = self

    def connect(self) -> None:
        """Open a session and register over it; retry soon when that fails."""
        process, controller = self.process, self.simulation.controller
        if not process.alive or self._session is not None:
            return
        session = controller.connect(self)
        if session is None or process.paused:
            self.world.after(self.world.between_us(*_RECONNECT_MS), self.connect)
            return
        self._session, self.number, self._registered = session, session.number, False
        machine = process.machine
        incarnation = NO_INCARNATION if machine is None else machine.incarnation
        session.send(True, controller.register, self, session.number, self._new_request(0), incarnation)
        self._heartbeat(session)

    @property
    def registered(self) -> bool:
        """True while this life is registered over an open session."""
        return self._session is not None and not self._session.broken and self._registered

    def propose(self, effect: ProposeIsr) -> None:
        """Send an ISR proposal; without a session its outcome is unknown at once."""
        session, machine = self._session, self.process.machine
        if session is None or machine is None or not self._registered:
            self.world.after(1_000, self.process.isr_answered, effect.request, 1001, None)
            return
        controller, number = self.simulation.controller, self._new_request(effect.request)
        session.send(True, controller.change_isr, self, session.number, number, effect, machine.incarnation)

    def resign(self, effect: ResignLeadership) -> None:
        """Send a resignation; the machine repeats it, so there is no wait for the answer."""
        session, machine = self._session, self.process.machine
        if session is not None and machine is not None and self._registered:
            session.send(True, self.simulation.controller.resign, self, session.number, effect, machine.incarnation)

    def break_off(self) -> None:
        """The connection breaks without a cause known to either end."""
        if self._session is not None:
            self._session.break_off()

    def session_of_controller(self, number: int, deliver: object, *args: object) -> None:
        """Send something from the controller over the session with this number, if it is still current."""
        session = self._session
        if session is not None and session.number == number and callable(deliver):
            session.send(False, deliver, *args)

    def notified(self, incarnation: int, state: PartitionState) -> None:
        """A partition state arrives."""
        self.process.notified(incarnation, state)

    def answered(self, number: int, code: int, result: object) -> None:
        """The controller's answer to a registration or a proposal arrives."""
        request = self._pending.pop(number, None)
        if request is None:
            return
        if request:
            state = PartitionState.from_wire(result[0]) if isinstance(result, list) and result else None
            self.process.isr_answered(request, code, state)
        elif code == 0 and isinstance(result, list):
            self._registered = True
            self.process.registered(result[0], PartitionState.from_wire(result[1]))
        elif code == UnknownTopicOrPartition.code:
            # A reassignment took it away; its broker ends it when it learns of that, or it is added again.
            self.world.after(_REMOVED_PAUSE_US, self._leave_and_connect, self.number)
        else:
            self.simulation.crash(self.process.broker, f"registration refused with {code}")

    def _leave_and_connect(self, number: int) -> None:
        if self._session is not None and self._session.number == number:
            self._session.break_off()

    def lost(self, number: int) -> None:
        """The replica's end finds the session broken."""
        if self._session is None or self._session.number != number:
            return
        self._session, self._registered = None, False
        pending, self._pending = self._pending, {}
        for request in pending.values():
            if request:
                self.process.isr_answered(request, 1001, None)
        self.world.after(self.world.between_us(*_RECONNECT_MS), self.connect)

    def _new_request(self, request: int) -> int:
        self._last_request += 1
        self._pending[self._last_request] = request
        return self._last_request

    def _heartbeat(self, session: Session) -> None:
        if self._session is not session or not self.process.alive:
            return
        if not self.process.paused:
            session.send(True, self.simulation.controller.heartbeat, session.number)
        self.world.after(self.simulation.faults.session_timeout_ms * 250, self._heartbeat, session)
