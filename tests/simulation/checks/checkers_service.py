"""Obligations to clients: each request is answered in time and once, and a writable partition accepts writes.

Checked after each tick of a replica, from outside: requests that arrived, logs, sessions and pauses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.partition.requests import Arrived, ArrivedRead
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.partition.replica import ReplicaProcess
    from tests.simulation.partition.simulation import Simulation

_MARGIN_MS = 5_000
"""A lost proposal, its retry, a fetch that is abandoned, and the notification of a change."""


class AnswersInTime:
    """L6: after a replica's tick, no request is overdue, and no consumer waits for records that are available."""

    RULE = Arrived.RULE

    def looked(self, process: ReplicaProcess) -> None:
        """A replica has finished its tick."""
        now_ms, machine = process.world.now_ms, process.machine
        process.owed = owed = [request for request in process.owed if not (request.is_answered or request.is_deserted)]
        for request in owed:
            what = f"{type(request).__name__} at broker {process.broker}"
            if request.deadline_ms <= now_ms:
                raise Violation(self.RULE, f"{what} is not answered {now_ms - request.deadline_ms} ms after its time")
            if isinstance(request, ArrivedRead) and machine is not None and request.is_due(machine.high_watermark):
                raise Violation(self.RULE, f"{what} waits, and the watermark is {machine.high_watermark}")


class TakesWrites:
    """L7: a leader with enough members in sync and a link to the controller commits what it has on disk."""

    RULE = "L7"

    def __init__(self) -> None:
        """Begin with no pending entry."""
        self._since_ms: dict[tuple[int, int], tuple[int, int]] = {}

    def looked(self, simulation: Simulation, process: ReplicaProcess) -> None:
        """A replica has finished its tick."""
        machine, controller = process.machine, simulation.controller
        if machine is None or machine.role != "leader":
            return
        key, now_ms = (process.broker, process.life), simulation.world.now_ms
        committed = machine.high_watermark
        can_commit = (
            process.leads(controller.state)
            and len(machine.isr) >= machine.settings.min_insync_replicas
            and controller.running
            and not controller.paused
            and simulation.links[process.broker].registered
        )
        watched = self._since_ms.get(key)
        if not can_commit or process.log.durable_end <= committed or watched is None or watched[0] != committed:
            self._since_ms[key] = (committed, now_ms)
            return
        faults = simulation.faults
        if now_ms - watched[1] > faults.lag_max_ms + faults.fetch_wait_ms + _MARGIN_MS:
            raise Violation(
                self.RULE,
                f"broker {process.broker} has {process.log.durable_end} on disk and has committed {committed} since "
                f"{watched[1]} ms, with {machine.isr} in sync",
            )
