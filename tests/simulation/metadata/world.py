"""The metadata world: controllers on their replicated log, with members and administrators.

The quorum's world with all its faults and checks, but with the shipped controllers: the log holds their decisions, and
snapshots are of their images. Brokers, replicas and coordinators start and stop. Administrators create, grow,
configure, move and delete topics and take producer ids. Further checks: acknowledged facts hold in every adopted log
and in the committed state (:mod:`tests.simulation.metadata.facts`), an elected leader holds the committed records, and
moves end at their target. Each step of a controller is checked (:mod:`tests.simulation.checks.decisions`), and at last
voters and ISRs are complete.
"""

from __future__ import annotations

import random

from raylog.base.ids import NO_LEADER, BrokerId, TopicPartition
from raylog.base.invariants import InvariantBroken
from raylog.core.controller.sessions import ReplicaMember
from raylog.core.metadata.records import BrokerStopped, MetadataRecord, PartitionChanged
from raylog.core.partition import PartitionState
from raylog.core.quorum import majority
from tests.simulation.checks.checkers import MetadataLine
from tests.simulation.metadata.admin import REQUEST_MS, Administrator
from tests.simulation.metadata.controller import MetadataController, SessionEnd
from tests.simulation.metadata.facts import Facts
from tests.simulation.metadata.members import LATE_MS, BrokerEnd, CoordinatorEnd, ReplicaEnd
from tests.simulation.quorum.disk import Broken
from tests.simulation.quorum.play import heal
from tests.simulation.quorum.simulation import World
from tests.simulation.shared_pages import SimPages, open_in
from tests.simulation.world import Violation

_LOOK_MS = 100
_REST_MS = 2_000
_HANGS = 12
_HANG_MS = (300, 1_500, 6_000)
_SETTLE_S = 10
"""Seconds in which voters and ISRs are complete once the administrators are done."""


class MetadataWorld(World):
    """Voters, controllers, members and administrators."""

    def __init__(self, seed: int, voters: int, spares: int) -> None:
        """``voters`` brokers found the cluster; ``spares`` more may vote later."""
        super().__init__(seed, voters, spares)
        heals = self.random.random() < 0.3
        self.config = {
            "auto.heal.after.ms": "1500" if heals else "-1",
            "default.replication.factor": "2",
            "leader.imbalance.check.interval.seconds": "2",
            "group.max.size": "50",
            "metadata.voters.max": "3",
            "replica.sleep.after.ms": "-1",
        }
        self.facts = Facts(heals=heals, given=self.config)
        self.short = self.random.choice([0, 10, 30])
        self.warnings = 0
        self.elections = 0
        self.may_be_unclean: set[TopicPartition] = set()
        """Partitions with a requested unclean election."""
        self.forced: set[int] = set()
        """Brokers that were once stopped by force."""
        self.is_healed = False
        """No more faults: every running replica keeps up."""
        self.own_heartbeats = 0
        """Heartbeats that replicas have sent themselves."""
        self._pages: dict[str, SimPages] = {}
        self._topic_ids = 0
        self._coordinators: dict[tuple[str, int], CoordinatorEnd] = {}
        self.brokers = {number: BrokerEnd(self, number) for number in self.numbers}
        self.replicas: dict[tuple[str, TopicPartition, int], ReplicaEnd] = {}
        self.administrators = [Administrator(self, f"a{number}") for number in range(2)]
        self._look()

    def new_topic_id(self) -> str:
        self._topic_ids += 1
        return f"{self._topic_ids:032d}"

    def open_pages(self, name: str, *, make: bool) -> SimPages | None:
        """Open the memory that a broker shares with its replicas; a crash of the broker's process leaves it."""
        return open_in(self._pages, name, make=make)

    def leading(self) -> list[MetadataController]:
        """Return the controllers that accept requests, including replaced ones that have not noticed."""
        return [
            controller
            for controller in self.controllers
            if isinstance(controller, MetadataController)
            and controller.alive
            and controller.leads
            and controller.known_end > 0
        ]

    def start_controller(self) -> MetadataController:
        controller = MetadataController(self, f"c{len(self.controllers) + 1}")
        self.controllers.append(controller)
        return controller

    def start_coordinator(self, kind: str, index: int) -> None:
        if (kind, index) not in self._coordinators:
            self._coordinators[kind, index] = CoordinatorEnd(self, kind, index)

    def _look(self) -> None:
        """Start the replicas that should run by the committed state."""
        for state in self.image.partitions():
            for broker in state.replicas:
                key = (state.topic_id, state.partition, int(broker))
                if key not in self.replicas or not self.replicas[key].is_running:
                    self.replicas[key] = ReplicaEnd(self, *key)
        for controller in self.leading():
            for replica in self.replicas.values():
                self._hangs(controller, replica)
        self.after(_LOOK_MS, self._look)

    # ------------------------------------------------------------ checks

    def other_settings(self) -> str:
        """Return which coordinator does not have the cluster's settings that are committed; empty = none."""
        for (kind, index), end in self._coordinators.items():
            if end.has_settings and end.settings != self.image.config:
                return f"{kind} coordinator {index} has the settings {end.settings}, and {self.image.config} count"
        return ""

    def _hangs(self, controller: MetadataController, replica: ReplicaEnd) -> None:
        """A replica that hangs is fenced soon, whatever its broker does."""
        if self.now_ms >= replica.hung_until_ms or not replica.up or controller.controller is None:
            return
        hung_ms = self.now_ms - max(replica.hung_since_ms, controller.paused_until_ms)
        member = ReplicaMember(replica.topic_id, replica.partition, replica.broker)
        if hung_ms > LATE_MS and controller.controller.machine.is_present(member):
            raise Broken(f"{member} hangs for {hung_ms} ms and is present at {controller.name}")

    def silenced(self, controller: MetadataController, end: SessionEnd, reason: str) -> None:
        """A controller has ended the session of a member that was never silent."""
        raise Broken(f"{vars(end)} runs, and {controller.name} ends its session: {reason}")

    def rests(self) -> None:
        """While nothing happens, no replica sends heartbeats that has a broker to vouch for it."""
        before = self.own_heartbeats
        self.run(_REST_MS)
        replicas = [replica for replica in self.replicas.values() if replica.is_running]
        if all(replica.is_vouched_for for replica in replicas) and self.own_heartbeats != before:
            raise Broken(f"{self.own_heartbeats - before} heartbeats of replicas while nothing happened")

    def apply(self, record: MetadataRecord) -> None:
        """Check the change of a record to its partition, and what stopping a broker leaves."""
        if isinstance(record, BrokerStopped):
            running = {str(broker.broker) for broker in self.image.online_brokers() if not broker.stopped}
            left = set(self.image.voters) & running - {str(record.broker)}
            if str(record.broker) in self.image.voters and len(left) < majority(len(self.image.voters)):
                raise Broken(f"broker {record.broker} may stop, and leaves {left} of the voters {self.image.voters}")
        if not isinstance(record, PartitionChanged):
            super().apply(record)
            return
        place = TopicPartition(record.topic, record.partition)
        before = self.image.partition(place)
        lost = {broker for partition, broker in self.image.lost_logs if partition == place}
        super().apply(record)
        self._changed(place, before, lost)

    def _changed(self, place: TopicPartition, before: PartitionState | None, lost: set[BrokerId]) -> None:
        """A partition's committed state changed; ``lost`` were replicas without their logs."""
        after = self.image.partition(place)
        if after is None:
            return
        if before is not None:
            topic = self.image.topics[place.topic]
            MetadataLine(int(topic.config.get("min.insync.replicas", "0"))).changed(before, after, lost)
            gives_up = before.leader != NO_LEADER == after.leader and self.image.is_stopped(before.leader)
            if gives_up and int(before.leader) not in self.forced:
                raise Broken(f"broker {before.leader} was not forced to stop, and no replica leads after it: {after}")
        if before is not None and after.leader_epoch > before.leader_epoch and after.leader != NO_LEADER:
            self.elections += 1
            self._elected(before, after)
        for broker in (*after.isr, *after.elr):
            replica = self.replicas.get((after.topic_id, place, int(broker)))
            if replica is not None and broker in after.isr and (before is None or broker not in before.isr):
                replica.incomplete = replica.short = False

    def _elected(self, before: PartitionState, after: PartitionState) -> None:
        """A leader holds all committed records: it was in the ISR, or left it with all of them."""
        if after.unclean_leader_epoch == after.leader_epoch:
            topic = self.image.topics[after.partition.topic]
            allowed = topic.config.get("unclean.leader.election.enable") == "true"
            if not allowed and after.partition not in self.may_be_unclean:
                raise Broken(f"an unclean election that was not allowed: {before} and then {after}")
            return
        if after.leader not in (*before.isr, *before.elr):
            raise Broken(f"a leader that does not hold what is committed: {before} and then {after}")
        replica = self.replicas.get((after.topic_id, after.partition, int(after.leader)))
        place = after.place(after.leader)
        if replica is None or place is None or place.incarnation != replica.life:
            return  # a life that has not registered: the controller elected the one before
        if replica.incomplete and after.leader not in before.isr:
            raise Broken(f"a leader that has lost what was not synced: {before} and then {after}")


def play(seed: int, *, steps: int = 30) -> MetadataWorld:
    """Play one seed: faults for a while, then heal, and everything must settle. Raises :class:`Broken`."""
    draw = random.Random(seed * 6007 + 3)
    founders = draw.choice([1, 3, 3, 3])
    world = MetadataWorld(seed, founders, spares=draw.choice([0, 1, 2]) if founders > 1 else 2)
    try:
        world.start_controller()
        for _ in range(steps):
            world.run(draw.choice([50, 200, 500, 1_000]))
            _fault(world, draw)
        _heal(world, draw)
    except (InvariantBroken, Violation) as broken:
        raise Broken(str(broken)) from broken
    return world


def _fault(world: MetadataWorld, draw: random.Random) -> None:
    alive = [controller for controller in world.controllers if controller.alive]
    number, kind = draw.choice(world.numbers), draw.random()
    if kind < 0.15:
        world.crash_voter(number, draw.choice([10, 200, 2_000]))
    elif kind < 0.25:
        world.lose_directory(number)
    elif kind < 0.35 and alive:
        draw.choice(alive).paused_until_ms = world.now_ms + draw.choice([100, 1_000, 3_000])
    elif kind < 0.5 and alive:
        draw.choice(alive).die()
    elif kind < 0.55:
        world.cut = set() if world.cut else {number}
    elif kind < 0.65:
        world.brokers[number].go_down(draw.choice([10, 500, 3_000]))
    elif kind < 0.7:
        _hang(world, draw)
    elif kind < 0.95 and world.replicas:
        for replica in draw.sample(sorted(world.replicas.values(), key=lambda replica: replica.log_id), 1):
            replica.crash()
    elif leading := [replica for _, replica in sorted(world.replicas.items()) if replica.leads]:
        draw.choice(leading).cut_end()
        for controller in alive:
            controller.die()
    if sum(controller.alive for controller in world.controllers) < (2 if draw.random() < 0.3 else 1):
        world.start_controller()


def _hang(world: MetadataWorld, draw: random.Random) -> None:
    """A broker hangs, is cut off, or dies; replicas of it hang, too or instead, or lose their connections."""
    number = draw.choice(world.numbers)
    broker, kind = world.brokers[number], draw.random()
    for_ms = draw.choice(_HANG_MS)
    if kind < 0.3:
        broker.hang(for_ms)
    elif kind < 0.5:
        broker.hold_heartbeats(for_ms)
    elif kind < 0.6:
        broker.go_down(for_ms)
    own = [replica for _, replica in sorted(world.replicas.items()) if replica.broker == number and replica.up]
    for replica in own if draw.random() < 0.2 else own[:1] if draw.random() < 0.6 else []:
        replica.hang(draw.choice(_HANG_MS))
    for replica in own[1:2]:
        replica.drop()


def _heal(world: MetadataWorld, draw: random.Random) -> None:
    world.is_healed = True
    if not heal(world):
        return
    before = world.decided
    for _ in range(5):  # a controller that meets a promise to a dead candidate ends, and Ray starts another
        if not any(controller.alive for controller in world.controllers):
            world.start_controller()
        world.run(5_000)
    for _ in range(_HANGS):  # now that there is a controller that sees them
        _hang(world, draw)
        world.run(draw.choice([100, 500, 2_500]))
        if draw.random() < 0.1:
            draw.choice([controller for controller in world.controllers if controller.alive]).die()
            world.start_controller()
    world.run(_HANG_MS[-1])
    for administrator in world.administrators:
        administrator.stopping = True
    world.run(REQUEST_MS)  # a broker may still be stopped by a request on its way
    _resume(world)
    world.run(8_000)
    if not world.leading() or world.decided <= before:
        raise Broken("no controller got going after all was healed")
    world.facts.hold_in(world.image, "what is committed at the end")
    for _ in range(_SETTLE_S):
        if not _unsettled(world):
            break
        _resume(world)
        world.run(1_000)
    if unsettled := _unsettled(world):
        raise Broken(f"{unsettled} after all was healed")
    world.rests()
    for name, known in world.facts.topics.items():
        for number, target in known.targets.items():
            state = world.image.topics[name].partitions[number]
            stuck = state.leader == NO_LEADER  # its only copies are lost; an operator must decide
            if target is not None and not stuck and state.replicas != target and not world.facts.heals:
                raise Broken(f"{state} was to move to {target}, and has not after all was healed")


def _resume(world: MetadataWorld) -> None:
    for broker in world.image.brokers.values():
        if broker.stopped:
            world.administrators[0].resume(broker.broker)


def _unsettled(world: MetadataWorld) -> str:
    """Return what is not as it should be when all brokers run; empty = nothing."""
    if other := world.other_settings():
        return other
    wanted = 3 if len(world.numbers) > 2 else 1
    if len(world.image.voters) != wanted:
        return f"brokers {world.numbers} run, {wanted} of them are to vote, and {world.image.voters} do"
    for state in world.image.partitions():
        if state.leader != NO_LEADER and (set(state.isr) != set(state.replicas) or state.elr):
            return f"not all replicas are in sync: {state}"
    return ""
