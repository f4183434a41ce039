"""The fault injector: draws faults at the rates of the run's profile until the heal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from raylog.base.ids import BrokerId
from raylog.protocol.admin import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ReassignablePartition,
    ResumeBrokerRequest,
    StopBrokerRequest,
)
from tests.simulation.partition.network import CONTROLLER

if TYPE_CHECKING:
    from tests.simulation.partition.simulation import Simulation

_QUIET_START_MS = 500
_EFFECTS_UNTIL_CRASH_MAX = 6
BATCHES_RETAINED_MAX = 100


class Nemesis:
    """Schedules crashes, pauses, cuts, clogs and fences."""

    def __init__(self, simulation: Simulation) -> None:
        """Belong to one run."""
        self.simulation = simulation
        self.world = simulation.world
        self._stopped = False

    def begin(self) -> None:
        """Put the first fault of each kind on the agenda."""
        faults = self.simulation.faults
        kinds: tuple[tuple[float, Callable[[], None]], ...] = (
            (faults.crash_rate, self._crash),
            (faults.pause_rate, self._pause),
            (faults.cut_rate, self._cut),
            (faults.clog_rate, self._clog),
            (faults.fence_rate, self._fence),
            (faults.controller_crash_rate, self._crash_controller),
            (faults.retention, self._retain),
            (faults.wipe_rate, self._wipe),
            (faults.full_rate, self._fill),
            (faults.controller_pause_rate, self._pause_controller),
            (faults.elect_rate, self._elect),
            (faults.stop_rate, self._stop),
            (faults.reassign_rate, self._reassign),
            (faults.delete_rate, self.simulation.administrator.delete),
            (faults.refuse_rate, self._refuse),
            (faults.hang_rate, self._hang),
        )
        for rate, strike in kinds:
            if rate > 0:
                self.world.after(_QUIET_START_MS * 1000, self._next, rate, strike)

    def stop(self) -> None:
        """Stop injecting faults, and restart every stopped broker."""
        self._stopped = True
        for broker in self.simulation.brokers:
            if self.simulation.faults.stop_rate > 0:
                self._resume(broker)

    def _next(self, rate: float, strike: Callable[[], None]) -> None:
        self.world.after(int(self.world.random.expovariate(rate) * 1e6), self._strike, rate, strike)

    def _strike(self, rate: float, strike: Callable[[], None]) -> None:
        if not self._stopped:
            strike()
            self._next(rate, strike)

    def _victim(self) -> int:
        """The leader, as the controller sees it, or any broker."""
        simulation = self.simulation
        state = simulation.controller.state
        if state is not None and state.leader > 0 and self.world.chance(simulation.faults.crash_leader):
            return state.leader
        return self.world.random.choice(simulation.brokers)

    def _crash(self) -> None:
        broker = self._victim()
        process = self.simulation.processes.get(broker)
        if process is None or not process.alive:
            return
        log = process.log
        pending = log.end > log.durable_end
        if pending or self.world.chance(0.3):
            self.simulation.crash(broker, "at once")
        else:
            process.crash_after(self.world.random.randint(1, _EFFECTS_UNTIL_CRASH_MAX))

    def _crash_controller(self) -> None:
        controller = self.simulation.controller
        if self.world.chance(0.3):
            self.simulation.crash_controller()
        elif controller.running:
            controller.crash_after_effects = self.world.random.randint(1, _EFFECTS_UNTIL_CRASH_MAX)

    def _pause_controller(self) -> None:
        controller = self.simulation.controller
        if controller.running and not controller.paused:
            ms = self.world.random.uniform(0.1, 1.5) * self.simulation.faults.controller_pause_ms
            self.world.log("the controller is paused for {:.0f} ms", ms)
            controller.paused_until_us = self.world.now_us + int(ms * 1000)

    def _elect(self) -> None:
        self.world.log("an administrator requests the election of the preferred replica")
        self.simulation.controller.command(ElectLeadersRequest(partitions=None, unclean=False))

    def _reassign(self) -> None:
        """Move the partition to some brokers, or cancel, or remove a replica and add it again at once."""
        state = self.simulation.controller.state
        if state is None:
            return
        draw = self.world.random
        if draw.random() < 0.2:
            self._move(None)
        elif draw.random() < 0.4 and len(state.replicas) > 1:
            removed = draw.choice(state.replicas)
            self._move([broker for broker in state.replicas if broker != removed])
            self.world.after(self.world.between_us(1, 400), self._move, list(state.replicas))
        else:
            size = draw.choice((1, 2, 2, 3, 3))
            self._move(draw.sample(self.simulation.brokers, min(size, len(self.simulation.brokers))))

    def _move(self, target: list[int] | None) -> None:
        if self._stopped:
            return
        self.world.log("the partition is to move to {}", target)
        self.simulation.controller.command(
            AlterPartitionReassignmentsRequest([ReassignablePartition("orders", 0, target)], None)
        )

    def _stop(self) -> None:
        broker, force = self._victim(), self.world.chance(0.3)
        self.world.log("broker {} is to be stopped, force {}", broker, force)
        self.simulation.controller.command(StopBrokerRequest(broker=broker, force=force))
        if self.world.chance(0.5):
            self.world.after(self.world.between_us(50, 500), self._end_stopped, broker)
        self.world.after(self.world.between_us(100, 3000), self._resume, broker)

    def _end_stopped(self, broker: int) -> None:
        """Its processes end as requested, if the controller has agreed."""
        if not self._stopped and self.simulation.controller.public.is_stopped(BrokerId(broker)):
            self.simulation.crash(broker, "stopped on purpose")

    def _resume(self, broker: int) -> None:
        controller = self.simulation.controller
        if not controller.running:
            self.world.after(200_000, self._resume, broker)
            return
        controller.command(ResumeBrokerRequest(broker=broker))
        self.world.after(2_000_000, self._resume_again, broker)

    def _resume_again(self, broker: int) -> None:
        """A stop delayed by a pause of the controller may have come after the resumption."""
        if self.simulation.controller.public.is_stopped(BrokerId(broker)):
            self._resume(broker)

    def _wipe(self) -> None:
        broker = self._victim()
        self.simulation.wipe(broker)
        if self.world.chance(self.simulation.faults.restore):
            self.world.after(self.world.between_us(100, 4000), self.simulation.restore, broker)

    def _fill(self) -> None:
        broker = self._victim()
        ms = self.world.random.uniform(0.3, 1.5) * self.simulation.faults.full_ms
        self.world.log("the disk of r{} is full for {:.0f} ms", broker, ms)
        self.simulation.full_until_us[broker] = self.world.now_us + int(ms * 1000)

    def _refuse(self) -> None:
        broker = self._victim()
        ms = self.world.random.uniform(0.3, 1.5) * self.simulation.faults.refuse_ms
        self.world.log("the disk of r{} refuses records for {:.0f} ms", broker, ms)
        self.simulation.refusing_until_us[broker] = self.world.now_us + int(ms * 1000)

    def _hang(self) -> None:
        broker = self._victim()
        ms = self.world.random.uniform(0.3, 1.5) * self.simulation.faults.hang_ms
        self.world.log("the disk of r{} hangs for {:.0f} ms", broker, ms)
        self.simulation.hung_until_us[broker] = self.world.now_us + int(ms * 1000)

    def _pause(self) -> None:
        broker = self._victim()
        process = self.simulation.processes.get(broker)
        if process is not None and process.alive and not process.paused:
            ms = self.world.random.uniform(0.3, 1.5) * self.simulation.faults.pause_ms
            self.world.log("r{} is paused for {:.0f} ms", broker, ms)
            process.paused_until_us = self.world.now_us + int(ms * 1000)

    def _cut(self) -> None:
        source, target = self._link()
        both = self.world.chance(0.5)
        ms = self.world.random.uniform(0.2, 1.5) * self.simulation.faults.cut_ms
        self.world.log("cut {} -> {} (both ways: {}) for {:.0f} ms", source, target, both, ms)
        network = self.simulation.network
        for item, other in ((source, target), (target, source))[: 2 if both else 1]:
            network.cut(item, other)
            self.world.after(int(ms * 1000), network.join, item, other)

    def _clog(self) -> None:
        source, target = self._link()
        faults = self.simulation.faults
        ms = self.world.random.uniform(0.2, 1.0) * faults.clog_ms
        network = self.simulation.network
        network.clog(source, target, ms)
        self.world.after(self.world.between_us(200, 2000), network.clog, source, target, 0)

    def _link(self) -> tuple[int, int]:
        simulation = self.simulation
        addresses = [CONTROLLER, *simulation.brokers, *simulation.brokers, -1]
        source = self.world.random.choice(addresses)
        target = self.world.random.choice([address for address in addresses if address != source])
        return source, target

    def _fence(self) -> None:
        broker = self._victim()
        link = self.simulation.links.get(broker)
        if link is not None:
            self.world.log("the session of r{} breaks", broker)
            link.break_off()

    def _retain(self) -> None:
        """Drop committed entries, also what producers may retry: all replicas know their producers all the same."""
        process = self.simulation.processes.get(self.world.random.choice(self.simulation.brokers))
        if process is None or process.machine is None or not process.alive:
            return
        if not process.paused:
            to = process.machine.high_watermark - self.world.random.choice((0, 0, BATCHES_RETAINED_MAX))
            self.simulation.checks.deleted.requested(to)
            process.drop_below(to)
