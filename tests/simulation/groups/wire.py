"""Connections between member processes and lives of the coordinator: ordered, and broken as a whole.

As in production, a message sent over a connection that breaks may still arrive, long after the client has reconnected
elsewhere; its answer is lost. A cut link holds messages back until it is open again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from raylog.base.errors import CoordinatorLoadInProgress, NotCoordinator, RaylogError
from tests.simulation.groups.faults import LATE_MS
from tests.simulation.groups.transactions.ledgers import POT
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.groups.coordinator import Coordinator
    from tests.simulation.groups.member import Member
    from tests.simulation.groups.simulation import GroupSimulation

Answer = Callable[[object, RaylogError | None], None]
"""Takes the result, or the error."""
_ARRIVES_ALL_THE_SAME = 0.7
MEMBER_CALLS = ("join_group", "sync_group", "heartbeat", "offset_commit")
UNDECIDED = (CoordinatorLoadInProgress, NotCoordinator)
"""Errors that the shell and the runner send by themselves."""


class Wire:
    """One connection."""

    __slots__ = ("_last_us", "_under_way", "_waiting", "broken", "coordinator", "member", "simulation")

    def __init__(self, simulation: GroupSimulation, member: Member, coordinator: Coordinator) -> None:
        """Open a connection from a member process to a life of the coordinator."""
        self.simulation = simulation
        self.member = member
        self.coordinator = coordinator
        self.broken = False
        self._waiting: dict[int, Answer] = {}
        self._under_way: dict[int, tuple[str, list[object]]] = {}
        self._last_us = [0, 0]
        simulation.wires.append(self)

    def call(self, number: int, method: str, args: list[object], answer: Answer) -> None:
        """Send a request; ``answer`` is called once, unless :meth:`forget` comes first."""
        self._waiting[number] = answer
        self._under_way[number] = (method, args)
        world, simulation = self.simulation.world, self.simulation
        self._send(0, self._arrive, number)
        if method != "offset_commit" and not simulation.is_calm and world.chance(simulation.faults.duplicate):
            world.after(world.between_us(0, LATE_MS), self._arrive_again, number, method, args)

    def forget(self, number: int) -> None:
        """The client stops waiting."""
        self._waiting.pop(number, None)

    def answer(self, number: int, result: object, error: RaylogError | None) -> None:
        """The coordinator answers."""
        if not self.broken:
            self._send(1, self._answered, number, result, error)

    def break_off(self) -> None:
        """Break; the client learns of it soon, the coordinator at its next tick."""
        if self.broken:
            return
        self.broken = True
        world = self.simulation.world
        for number, (method, args) in self._under_way.items():
            if world.chance(_ARRIVES_ALL_THE_SAME):
                world.after(world.between_us(0, LATE_MS), self._arrive_again, number, method, args)
        self._under_way.clear()
        world.after(world.between_us(0.5, 50), self._lost)

    def _lost(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for number in waiting:
            self.member.connection_lost(number)

    def _send(self, direction: int, deliver: Callable[..., None], *args: object) -> None:
        simulation, world = self.simulation, self.simulation.world
        delay = simulation.delay_us()
        when = max(world.now_us, simulation.cut_until_us.get(self.member.slot, 0)) + delay
        when = max(when, self._last_us[direction] + 1)
        self._last_us[direction] = when
        world.at(when, deliver, *args)

    def _arrive(self, number: int) -> None:
        request = self._under_way.pop(number, None)
        if request is not None:
            self.coordinator.receive(self, number, *request)

    def _arrive_again(self, number: int, method: str, args: list[object]) -> None:
        self.coordinator.receive(self, number, method, args)

    def _answered(self, number: int, result: object, error: RaylogError | None) -> None:
        answer = self._waiting.pop(number, None)
        if answer is not None and not self.broken:
            answer(result, error)


class Call:
    """One request received by a life of the coordinator, as its runner sees it."""

    __slots__ = (
        "_is_answered",
        "_life",
        "args",
        "at_end",
        "came_ms",
        "decided",
        "mark",
        "method",
        "number",
        "request",
        "wire",
    )

    def __init__(self, life: Coordinator, wire: Wire, number: int, method: str, args: Any) -> None:
        """``number`` is the request's number on the wire."""
        self._life = life
        self.wire = wire
        self.number = number
        self.method = method
        self.args = args
        self.came_ms = life.world.now_ms
        self.at_end = life.simulation.topic.end
        """Log end offset when the request arrived."""
        self.request = 0
        """The runner's number."""
        self.decided: object = None
        """The answer that the machine has decided: a result or an error."""
        self._is_answered = False
        self.mark = life.simulation.ledgers.mark(self.group) if self.is_of_pot else {}

    @property
    def is_of_pot(self) -> bool:
        """Whether the ledgers check it, and the other books do not."""
        return self.group.startswith(POT)

    @property
    def member_id(self) -> str:
        """The member that sent the request."""
        at = 1 if self.method == "join_group" else 2
        return str(self.args[at]) if self.method in MEMBER_CALLS else ""

    @property
    def grant(self) -> None:
        """It has proved a secret."""

    @property
    def peer_host(self) -> str:
        """The host of the sender's process."""
        return f"10.0.0.{self.wire.member.slot}"

    @property
    def group(self) -> str:
        """The group of the request."""
        return str(self.args[0]) if self.args else ""

    @property
    def is_deserted(self) -> bool:
        """Whether the connection broke."""
        return self.wire.broken

    def reply(self, args: object = None, payload: object = b"") -> None:
        """Answer, unless the process dies first."""
        self._answer(args, None)

    def fail(self, error: BaseException) -> None:
        """Answer with an error, unless the process dies first."""
        self._answer(None, cast(RaylogError, error))

    def _answer(self, result: object, error: RaylogError | None) -> None:
        if self._is_answered:
            raise Violation("L6", f"{self.method} of {self.member_id!r} is answered twice")
        self._is_answered = True
        if self.decided is not (result if error is None else error) and not isinstance(error, UNDECIDED):
            raise Violation("I15", f"{self.method} of {self.member_id!r} is answered, but not as the machine decided")
        self._life.answer(self, result, error)
