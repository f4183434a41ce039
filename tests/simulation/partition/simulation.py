"""One run: a cluster on a virtual clock, faults until T, then heal, convergence and the final checks."""

from __future__ import annotations

from collections.abc import Callable

from raylog.base.ids import NO_LEADER
from raylog.core.partition import PartitionState
from raylog.core.replication.events import SendFetch
from tests.simulation.checks.checks import Checks
from tests.simulation.partition.clients import Administrator, Consumer, Producer
from tests.simulation.partition.controller import ControllerNode
from tests.simulation.partition.disk import VirtualLog
from tests.simulation.partition.hosts import Hosts
from tests.simulation.partition.nemesis import Nemesis
from tests.simulation.partition.network import Network
from tests.simulation.partition.replica import ReplicaProcess
from tests.simulation.partition.replica_link import ReplicaLink
from tests.simulation.partition.requests import ArrivedRead, DeleteRequest, ProduceRequest, Take
from tests.simulation.partition.survivor import leave_one
from tests.simulation.profiles import Faults
from tests.simulation.world import Violation, World

_HANG_LOOK_US = 50_000
_KEEP_US = 100_000
_KEEP_TURNS = 5
"""Each broker persists its watermarks during 100 ms out of every 500 ms."""


class Simulation:
    """A cluster of one partition: brokers with disks, one controller, clients, and a network between them."""

    def __init__(
        self,
        seed: int,
        faults: Faults,
        *,
        validate: bool = True,
    ) -> None:
        """Set up everything; :meth:`run` plays it. ``validate``: each machine checks itself at each step."""
        self.faults = faults
        self.validate = validate
        self.world = World(seed)
        self.network = Network(self.world, faults)
        self.brokers = tuple(range(1, faults.brokers + faults.spares + 1))
        self.hosts = Hosts(self)
        self._folders = 0
        self.logs = {broker: self._new_folder() for broker in self.brokers}
        self.full_until_us = dict.fromkeys(self.brokers, 0)
        self.refusing_until_us = dict.fromkeys(self.brokers, 0)
        self.hung_until_us = dict.fromkeys(self.brokers, 0)
        self.processes: dict[int, ReplicaProcess] = {}
        self.links: dict[int, ReplicaLink] = {}
        self.lives = dict.fromkeys(self.brokers, 0)
        self.kept_down: set[int] = set()
        """Brokers that do not restart by themselves."""
        self.healed = False
        self.survived = 0
        """How often a last replica served all acknowledged records."""
        self.acks = 0
        self.deletions = 0
        self.machine_steps = 0
        self.checks = Checks(self)
        self.controller = ControllerNode(self)
        self.producers = [self._producer(number) for number in range(1, faults.producers + 1)]
        self.consumers = [Consumer(self, -100 - number) for number in range(faults.consumers)]
        self.administrator = Administrator(self, -200)
        self.nemesis = Nemesis(self)

    def _producer(self, number: int) -> Producer:
        """The first producer is idempotent with acks=all; acks=1 may lose batches, so it cannot be idempotent."""
        acks = 1 if number > 1 and self.world.chance(self.faults.acks_one) else -1
        idempotent = number == 1 or (acks == -1 and self.world.chance(0.6))
        return Producer(self, -number, idempotent=idempotent, acks=acks)

    # ------------------------------------------------------------ the run

    def run(self) -> None:
        """Run to the end; raises Violation."""
        faults, world = self.faults, self.world
        self.controller.start()
        for broker in self.brokers[: faults.brokers]:
            world.after(world.between_us(1, 100), self.start_replica, broker)
        for client in self.producers:
            world.after(world.between_us(300, 800), client.begin)
        for consumer in self.consumers:
            world.after(world.between_us(300, 800), consumer.poll)
        self.nemesis.begin()
        end_us = world.now_us + int(faults.chaos_s * 1e6)
        world.run_until(end_us)
        self.heal()
        if faults.survivor:
            leave_one(self)
        self._converge()

    def heal(self) -> None:
        """End all faults: links open, all processes up and awake."""
        self.world.log("heal")
        self.healed = True
        self.network.heal()
        self.full_until_us = dict.fromkeys(self.brokers, 0)
        self.refusing_until_us = dict.fromkeys(self.brokers, 0)
        self.hung_until_us = dict.fromkeys(self.brokers, 0)
        self.controller.crash_after_effects = None
        self.controller.wake()
        self.controller.start()
        self.nemesis.stop()
        for broker in self.brokers:
            process = self.processes.get(broker)
            if process is None or not process.alive:
                self.start_replica(broker)
            else:
                process.crash_after(None)
                process.wake()

    def _converge(self) -> None:
        """L1 and L2: producers finish their batches, the ISR is full again, all logs are equal."""
        world = self.world
        half_us = int(self.faults.converge_s * 5e5)
        deadline_us = world.now_us + 2 * half_us
        world.run_until(world.now_us + half_us)
        for producer in self.producers:
            producer.stopping = True
        while world.now_us < deadline_us and not self.known_as_lost and self.unsettled() is not None:
            world.run_until(world.now_us + 200_000)
        if self.known_as_lost:
            self.checks.finish_without_leader()
            return
        unsettled = self.unsettled()
        if unsettled is not None:
            raise Violation("L2", f"{self.faults.converge_s} s after heal, {unsettled}")
        self.checks.finish()

    @property
    def elections(self) -> int:
        """Number of elections."""
        return self.checks.elections

    @property
    def committed(self) -> int:
        """Number of committed batches."""
        return self.checks.committed.end

    @property
    def known_as_lost(self) -> bool:
        """True when the only ISR member lost its log: no replica may lead, and the operator was warned."""
        controller, state = self.controller, self.controller.state
        if state is None or len(state.isr) != 1 or state.leader != NO_LEADER:
            return False
        return (state.partition, state.isr[0]) in controller.public.lost_logs and controller.warned

    def unsettled(self) -> str | None:
        """Return how the cluster differs from a healthy one, or None."""
        state = self.controller.state
        process = self.leader()
        if state is None or process is None or process.machine is None:
            return f"no replica leads: {state}"
        if set(state.isr) != set(state.replicas) or state.adding or state.removing:
            return f"the ISR is {state.isr} of {state.replicas}, adding {state.adding}, removing {state.removing}"
        for producer in self.producers:
            if not producer.idle:
                return f"producer {producer.address} waits for batch {producer.sent}"
        if not any(producer.sent for producer in self.producers):
            return "nothing was produced"
        end = process.machine.high_watermark
        if self.hosts.busy:
            return f"brokers {sorted(self.hosts.busy)} are not done with what was moved elsewhere"
        for broker in sorted(set(self.brokers) - set(state.replicas)):
            if self.processes.get(broker) is not None and self.processes[broker].alive:
                return f"the replica on broker {broker} runs on, though it was moved elsewhere"
        for broker in state.replicas:
            log, other = self.logs[broker], self.processes[broker].machine
            if log.end != end or other is None or log.entry(end - 1) != process.log.entry(end - 1):
                return f"broker {broker} ends at {log.end}, committed is {end}"
        for consumer in self.consumers:
            if consumer.position != end:
                return f"consumer {consumer.address} is at {consumer.position} of {end}"
        return None

    def leader(self) -> ReplicaProcess | None:
        """Return the leader by the controller's durable state, if its process knows that it leads."""
        state = self.controller.state
        process = self.processes.get(state.leader) if state is not None else None
        if state is None or process is None or not process.alive or process.machine is None:
            return None
        leads = process.machine.role == "leader" and process.machine.leader_epoch == state.leader_epoch
        return process if leads else None

    # ------------------------------------------------------------ processes

    def start_replica(self, broker: int) -> None:
        """Begin a life of a replica."""
        running = self.processes.get(broker)
        if not self.hosts.wants(broker) or broker in self.kept_down:
            return
        if running is not None and running.alive:
            return
        self.lives[broker] += 1
        process = ReplicaProcess(self, broker, self.logs[broker], self.lives[broker])
        self.world.log("r{}.{} starts at end {}", broker, process.life, process.log.end)
        self.processes[broker] = process
        self.links[broker] = ReplicaLink(self, process)
        self.links[broker].connect()
        if process.log_is_new and process.log.lost is not None and not self.healed and self.world.chance(0.4):
            self.world.after(self.world.between_us(0, 20), self._crash_life, process)

    def _crash_life(self, process: ReplicaProcess) -> None:
        """End the life that made a new folder, perhaps before it could report that to the controller."""
        if process.alive:
            self.crash(process.broker, "with a new folder")

    def crash(self, broker: int, why: str) -> None:
        """End a life of a replica; its disk loses unsynced entries, and the replica is restarted."""
        process = self.processes.get(broker)
        if process is None or not process.alive:
            return
        process.kill()
        lost = self.logs[broker].crash(self.world.random, self.faults.unsynced_survives, self.world.now_ms)
        self.world.log("r{}.{} crashes ({}), {} entries lost", broker, process.life, why, lost)
        self.links[broker].break_off()
        down_us = 50_000 if self.healed else self.world.between_us(0.2, 2) * max(1, int(self.faults.down_ms))
        self.world.after(down_us, self.start_replica, broker)

    def wipe(self, broker: int) -> None:
        """End a life of a replica and remove or damage its folder, which has the same effect."""
        self.crash(broker, "its disk is lost")
        self.world.log("the folder of r{} with end {} is lost", broker, self.logs[broker].end)
        self.replace_folder(broker)

    def restore(self, broker: int) -> None:
        """An operator restores a lost folder, in place of the current one."""
        present = self.logs[broker]
        again = present.lost
        if self.healed or again is None:
            return
        self.crash(broker, "to get its old folder back")
        self.world.log("r{} gets {} back, with end {}", broker, again.identity, again.end)
        present.lost, again.lost, again.restored = again.lost, present, True
        self.logs[broker] = again

    def replace_folder(self, broker: int) -> None:
        """Put an empty folder in the place of a broker's."""
        self.logs[broker] = self._new_folder(self.logs[broker])

    def placed(self, state: PartitionState) -> None:
        """The set of replicas has changed: each broker learns of it after its own delay."""
        self.hosts.changed(state)

    def _new_folder(self, replaces: VirtualLog | None = None) -> VirtualLog:
        self._folders += 1
        log = VirtualLog(f"log{self._folders}", replaces)
        log.writes_through = self.faults.writes_through
        return log

    def keeps_watermark(self, process: ReplicaProcess) -> bool:
        """True when a replica's high watermark is due to be persisted, and its disk accepts writes."""
        turn = self.world.now_us // _KEEP_US % _KEEP_TURNS == process.broker % _KEEP_TURNS
        return turn and process.alive and not process.paused and not self.disk_is_full(process.broker)

    def disk_is_full(self, broker: int) -> bool:
        """True while that broker's disk accepts no writes."""
        return self.full_until_us[broker] > self.world.now_us

    def disk_refuses(self, broker: int) -> bool:
        """True while that broker's disk accepts no records: it is full, or failing in part."""
        return self.disk_is_full(broker) or self.refusing_until_us[broker] > self.world.now_us

    def hangs(self, broker: int, ended: Callable[..., None], *args: object) -> bool:
        """True when that broker's disk hangs: the sync then ends with the hang, or soon after the heal."""
        until_us = self.hung_until_us[broker]
        if until_us <= self.world.now_us:
            return False
        self.world.at(min(until_us, self.world.now_us + _HANG_LOOK_US), ended, *args)
        return True

    def crash_controller(self) -> None:
        """End the controller's life; it starts again by itself."""
        self.controller.crash()
        down_us = self.world.between_us(0.2, 2) * max(1, int(self.faults.controller_down_ms))
        self.world.after(down_us, self.controller.start)

    # ------------------------------------------------------------ deliveries by name

    def deliver_produce(self, broker: int, request: ProduceRequest) -> None:
        """A produce request reaches the current process on that broker."""
        process = self.processes.get(broker)
        if process is not None and process.alive:
            process.produce(request)

    def deliver_deletion(self, broker: int, request: DeleteRequest) -> None:
        """A request to delete records reaches the current process on that broker."""
        process = self.processes.get(broker)
        if process is not None and process.alive:
            process.delete_records(request)

    def deliver_read(self, broker: int, client: Consumer, call: str, take: Take, *args: int) -> None:
        """A consumer's request reaches the current process on that broker."""
        process = self.processes.get(broker)
        if process is not None and process.alive:
            if call == "look_up":
                process.look_up(ArrivedRead(process, take), client.leader_epoch, *args)
            else:
                process.read(ArrivedRead(process, take, *args), client.leader_epoch)

    def deliver_fetch(self, sender: ReplicaProcess, fetch: SendFetch) -> None:
        """A fetch reaches the current process on the leader's broker."""
        process = self.processes.get(fetch.leader)
        if process is not None and process.alive:
            process.fetch(sender, fetch)

    def maybe_late_state(self, incarnation: int, state: PartitionState) -> None:
        """A copy of a partition state may reach the replica late, perhaps in its next life."""
        if not self.healed and self.world.chance(self.faults.late_states):
            broker = next(place.broker for place in state.places if place.incarnation == incarnation)
            self.world.after(self.world.between_us(1, 1500), self._late_state, broker, incarnation, state)

    def _late_state(self, broker: int, incarnation: int, state: PartitionState) -> None:
        process = self.processes.get(broker)
        if process is not None and process.alive:
            process.notified(incarnation, state)

    def sync_us(self) -> int:
        """Draw the duration of a sync."""
        if not self.healed and self.world.chance(self.faults.slow_sync):
            return self.world.between_us(1, self.faults.slow_sync_ms)
        return self.world.between_us(0.1, self.faults.sync_ms)
