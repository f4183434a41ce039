"""Connections between member processes and lives of the coordinator: ordered, and broken as a whole.

As in production, a message sent over a connection that breaks may still arrive, long after the client has reconnected
elsewhere; its answer is lost. A cut link holds messages back until it is open again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from raylog.core.errors import RaylogError
from tests.simulation.groups.faults import LATE_MS

if TYPE_CHECKING:
    from tests.simulation.groups.coordinator import Coordinator
    from tests.simulation.groups.member import Member
    from tests.simulation.groups.simulation import GroupSimulation

Answer = Callable[[object, RaylogError | None], None]
"""Takes the result, or the error."""
_ARRIVES_ALL_THE_SAME = 0.7


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
