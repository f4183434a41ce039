"""What brokers do with the metadata: start the replicas that it places on them, end and remove those it takes away.

Does what the actors' supervisor does, for one partition. Each broker learns of changes in order and late, at a pace of
its own; the replica processes have sessions of their own and may know more than their broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylog.core.ids import BrokerId
from raylog.core.replication.state import PartitionState
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation


class Hosts:
    """The brokers of one run, as far as they look after replicas."""

    def __init__(self, simulation: Simulation) -> None:
        """Begin with what the metadata says at first."""
        self.simulation = simulation
        self.world = simulation.world
        faults = simulation.faults
        self._wanted = {broker: broker <= faults.brokers for broker in simulation.brokers}
        moves = faults.reassign_rate > 0
        self._pace_ms = {
            broker: faults.metadata_ms * self.world.random.random() if moves else 0.0 for broker in simulation.brokers
        }
        self._last_us = dict.fromkeys(simulation.brokers, 0)

    def wants(self, broker: int) -> bool:
        """True when the broker is to have a replica, as far as it knows."""
        return self._wanted[broker]

    def changed(self, state: PartitionState) -> None:
        """The durable metadata places the partition elsewhere."""
        version = self.simulation.controller.public.version
        for broker in self.simulation.brokers:
            delay_us = self.world.between_us(0.5, 1.5 * self._pace_ms[broker] + 1)
            self._last_us[broker] = max(self._last_us[broker] + 1, self.world.now_us + delay_us)
            self.world.at(self._last_us[broker], self._learn, broker, state, version)

    def _learn(self, broker: int, state: PartitionState, version: int) -> None:
        simulation = self.simulation
        wanted = broker in state.replicas
        if wanted and not self._wanted[broker]:
            self._wanted[broker] = True
            self.world.tell("broker {} hears that it is to have a replica", broker)
            simulation.start_replica(broker)
        elif not wanted and self._wanted[broker]:
            self._remove(broker, version)

    def _remove(self, broker: int, version: int) -> None:
        simulation = self.simulation
        self._wanted[broker] = False
        process = simulation.processes.get(broker)
        if process is not None and process.alive:
            simulation.crash(broker, "it was moved elsewhere")
        log = simulation.logs[broker]
        if self._is_newer(broker, version):
            self.world.tell("broker {} keeps a folder that is newer than what it heard", broker)
            return
        now = simulation.controller.state
        if now is not None and BrokerId(broker) in (*now.isr, *now.elr):
            raise Violation("I7", f"broker {broker} removes its folder with end {log.end}, and is in {now}")
        self.world.tell("broker {} removes its folder with end {}", broker, log.end)
        simulation.replace_folder(broker)

    def _is_newer(self, broker: int, version: int) -> bool:
        """True when the replica was registered again after the change that the broker heard of just now."""
        return self.simulation.logs[broker].incarnation > version
