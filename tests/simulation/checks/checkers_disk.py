"""L5: a leader whose disk completes no sync stops leading while another replica could lead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.partition.replica import ReplicaProcess
    from tests.simulation.partition.simulation import Simulation

_MARGIN_MS = 1_500
"""Ticks, a resignation that is repeated once, an election, and its notification."""


class GivesWay:
    """Watches leaders at their ticks; uses only what an operator could see of both disks and of the metadata."""

    RULE = "L5"

    def __init__(self) -> None:
        """Begin with no disk watched."""
        self._since_ms: dict[tuple[int, int, int], int] = {}

    def looked(self, simulation: Simulation, process: ReplicaProcess) -> None:
        """A replica ticked. Time counts while it leads, hangs and runs, and another replica could take over."""
        state, machine = simulation.controller.state, process.machine
        if not simulation.faults.hang_rate or state is None or machine is None:
            return
        now_ms = simulation.world.now_ms
        key = (process.broker, process.life, machine.leader_epoch)
        leads = state.leader == process.broker and process.leads(state) and not process.paused
        if not leads or process.sync_since_ms is None or not self._heirs(simulation, process.broker):
            self._since_ms.pop(key, None)
            return
        since_ms = max(self._since_ms.setdefault(key, now_ms), process.sync_since_ms)
        if now_ms - since_ms > simulation.faults.sync_time_max_ms + _MARGIN_MS:
            raise Violation(
                self.RULE,
                f"r{process.broker} leads epoch {machine.leader_epoch} though its disk hangs since "
                f"{process.sync_since_ms} ms, and {self._heirs(simulation, process.broker)} could lead",
            )

    @staticmethod
    def _heirs(simulation: Simulation, leader: int) -> list[int]:
        state = simulation.controller.state
        if state is None or not simulation.controller.running or simulation.controller.paused:
            return []
        running = [place.broker for place in state.places if place.port and place.broker in state.isr]
        return [
            broker
            for broker in running
            if broker != leader
            and not simulation.processes[broker].paused
            and simulation.links[broker].registered
            and simulation.links[leader].registered
        ]
