"""The brokers' reaction to metadata: start the replicas placed on them, end and remove those taken away.

Follows the actors' supervisor, for one partition. Each broker learns of changes in order and late, at a pace of its
own. Before it removes a folder it requests the current metadata version from the controller, which may take long or
fail, and waits until its own metadata is as new: the replica may have been placed on it again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from raylog.base.ids import BrokerId
from raylog.core.partition import PartitionState
from tests.simulation.partition.network import CONTROLLER
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.partition.simulation import Simulation

_ANSWER_TIMEOUT_US = 1_500_000
_AGAIN_US = 1_000_000


class Hosts:
    """The brokers of one run, in their role as supervisors of replicas."""

    def __init__(self, simulation: Simulation) -> None:
        """Begin with the initial metadata."""
        self.simulation = simulation
        self.world = simulation.world
        faults = simulation.faults
        self.busy: set[int] = set()
        """Brokers that have ended a replica and do not know yet whether to remove its folder."""
        self._placed = {broker: broker <= faults.brokers for broker in simulation.brokers}
        self._started = dict(self._placed)
        self._under_way: dict[int, deque[int]] = {broker: deque() for broker in simulation.brokers}
        self._newest: dict[int, int] = {}
        self._question = 0
        self._queries: dict[int, int] = {}
        moves = faults.reassign_rate > 0
        self._pace_ms = {
            broker: faults.metadata_ms * self.world.random.random() if moves else 0.0 for broker in simulation.brokers
        }
        self._last_us = dict.fromkeys(simulation.brokers, 0)

    def wants(self, broker: int) -> bool:
        """True when the broker should run a replica."""
        return self._started[broker] and broker not in self.busy

    def changed(self, state: PartitionState) -> None:
        """The durable metadata changes the partition's replicas."""
        version = self.simulation.controller.public.version
        for broker in self.simulation.brokers:
            delay_us = self.world.between_us(0.5, 1.5 * self._pace_ms[broker] + 1)
            self._last_us[broker] = max(self._last_us[broker] + 1, self.world.now_us + delay_us)
            self._under_way[broker].append(version)
            self.world.at(self._last_us[broker], self._learn, broker, broker in state.replicas)

    def _learn(self, broker: int, placed: bool) -> None:
        self._under_way[broker].popleft()
        self._placed[broker] = placed
        if broker in self.busy:
            self._conclude(broker)
        else:
            self._compare(broker)

    def _compare(self, broker: int) -> None:
        if self._placed[broker] and not self._started[broker]:
            self._started[broker] = True
            self.world.log("broker {} learns that it is to have a replica", broker)
            self.simulation.start_replica(broker)
        elif self._started[broker] and not self._placed[broker]:
            self._remove(broker)

    def _remove(self, broker: int) -> None:
        """End the replica before querying the controller, so that no process can register any more."""
        self.busy.add(broker)
        self.simulation.crash(broker, "it was moved elsewhere")
        self._call(broker)

    # ------------------------------------------------------------ the query to the controller

    def _call(self, broker: int) -> None:
        self._question += 1
        self._queries[broker] = self._question
        self.world.after(_ANSWER_TIMEOUT_US, self._give_up, broker, self._question)
        self.simulation.network.send(broker, CONTROLLER, self._reaches_controller, broker, self._question)

    def _reaches_controller(self, broker: int, question: int) -> None:
        controller = self.simulation.controller
        if not controller.running or controller.waits(self._reaches_controller, broker, question):
            return
        version = controller.public.version
        self.simulation.network.send(CONTROLLER, broker, self._answered, broker, question, version)

    def _answered(self, broker: int, question: int, version: int) -> None:
        if self._queries.get(broker) == question:
            self._newest[broker] = version
            self._conclude(broker)

    def _conclude(self, broker: int) -> None:
        """Remove the folder, or restart the replica, once the broker's metadata is as new as the answer."""
        newest, under_way = self._newest.get(broker), self._under_way[broker]
        if newest is None or (under_way and under_way[0] <= newest):
            return
        self._done(broker)
        self._started[broker] = False
        if not self._placed[broker]:
            self._remove_folder(broker)
        self._compare(broker)

    def _give_up(self, broker: int, question: int) -> None:
        if self._queries.get(broker) == question:
            self._queries.pop(broker)
            self._newest.pop(broker, None)
            self.world.log("broker {} gets no answer whether its folder may be removed", broker)
            self.world.after(_AGAIN_US, self._look_again, broker)

    def _look_again(self, broker: int) -> None:
        self._done(broker)
        if self._placed[broker]:
            self.simulation.start_replica(broker)
        else:
            self._remove(broker)

    def _done(self, broker: int) -> None:
        self.busy.discard(broker)
        self._queries.pop(broker, None)
        self._newest.pop(broker, None)

    def _remove_folder(self, broker: int) -> None:
        simulation = self.simulation
        log, now = simulation.logs[broker], simulation.controller.state
        if now is not None and BrokerId(broker) in (*now.isr, *now.elr):
            raise Violation("I7", f"broker {broker} removes its folder with end {log.end}, and is in {now}")
        self.world.log("broker {} removes its folder with end {}", broker, log.end)
        simulation.replace_folder(broker)
