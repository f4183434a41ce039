"""Brokers, replicas and coordinators of the metadata world: members with a control session and no data.

Brokers vouch for their replicas by the shipped code on both sides of the table. Members hang, and heartbeats of brokers
are late; some members are of the release before, which knows nothing of that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raylog.actors.broker.vouching import Vouching
from raylog.actors.replica.beating import Beating
from raylog.base.features import SUPPORTED
from raylog.base.ids import BrokerId, Incarnation, TopicPartition
from raylog.core.controller.events import ControllerRequest
from raylog.core.partition import PartitionState
from raylog.core.vouching import Pace
from raylog.protocol.controller import (
    AlterPartitionRequest,
    IsrMember,
    RegisterBrokerRequest,
    RegisterCoordinatorRequest,
    RegisterReplicaRequest,
    SessionHeartbeatReply,
    SessionHeartbeatRequest,
)
from raylog.protocol.message import Message
from raylog.protocol.notifications import ClusterConfigUpdate, PartitionStateUpdate, StopReplica
from tests.simulation.quorum.disk import Broken

if TYPE_CHECKING:
    from tests.simulation.metadata.controller import MetadataController
    from tests.simulation.metadata.world import MetadataWorld

_PORT = 9000
SESSION_MS = 800
HEARTBEAT_MS = 250
PACE = Pace.of(HEARTBEAT_MS, SESSION_MS)
LATE_MS = 2 * SESSION_MS + 3 * HEARTBEAT_MS + 300
"""After so long a replica that hangs is fenced, even if heartbeats of its broker were on their way for long."""


class Member:
    """One member over all its lives: connects to the leading controller, registers, sends heartbeats."""

    PAUSE_MS = (200, 350)
    hung_since_ms = 0

    def __init__(self, world: MetadataWorld) -> None:
        self.world = world
        self.up = self.is_running = True
        self.life = Incarnation(-1)
        self.is_registered = False
        self.hung_until_ms = 0
        self.unsteady_ms = world.now_ms
        """Until when its heartbeats were not as they should be."""
        self._controller: MetadataController | None = None
        self._session = 0
        self.turn()

    def turn(self) -> None:
        world = self.world
        if not self.is_wanted():
            self.drop()
            self.is_running = False
            return
        controller = self._controller
        is_hung = world.now_ms < self.hung_until_ms
        if self.up and controller is None and not is_hung:
            leading = world.leading()
            if leading:
                self._controller = controller = world.random.choice(leading)
                self._session = controller.connect(self)
                self.unsteady_ms = max(self.unsteady_ms, world.now_ms)
                controller.request(self.registration(), self._registered, self._session)
        elif self.up and controller is not None and not is_hung:
            self.beat(controller)
            self.act()
        world.after(world.random.randint(*self.PAUSE_MS), self.turn)

    def beat(self, controller: MetadataController) -> None:
        """Send a heartbeat."""
        controller.heartbeat(self._session)

    def hang(self, for_ms: int) -> None:
        """Stand still for a time; the connection stays."""
        if self.world.now_ms >= self.hung_until_ms:
            self.hung_since_ms = self.world.now_ms
            self.hung_until_ms = self.unsteady_ms = self.world.now_ms + for_ms

    def is_steady(self, controller: MetadataController, session: int) -> bool:
        """Whether it has run and sent its heartbeats on this session for longer than the session timeout."""
        is_here = self.up and self.is_registered and (self._controller, self._session) == (controller, session)
        return is_here and self.world.now_ms - self.unsteady_ms > 2 * SESSION_MS

    def is_wanted(self) -> bool:
        return True

    def registration(self) -> ControllerRequest:
        raise NotImplementedError

    def accepted(self, result: list[Any]) -> None:
        self.life = Incarnation(result[0])

    def act(self) -> None:
        """Do the work of a registered member."""

    def request(
        self, message: ControllerRequest, answered: Callable[[int, Any], None] = lambda code, result: None
    ) -> None:
        """Send a request."""
        if self._controller is not None and self.is_registered:
            self._controller.request(message, answered, self._session)

    def _registered(self, code: int, result: Any) -> None:
        if self._controller is None:
            return
        if code == 0:
            self.is_registered = True
            self.accepted(result)
        else:
            self.restart()

    def notified(self, message: Message) -> None:
        """Only replicas use it."""

    def lost(self) -> None:
        self._controller, self.is_registered = None, False

    def drop(self) -> None:
        """Break the connection."""
        controller, self._controller, self.is_registered = self._controller, None, False
        if controller is not None:
            controller.hang_up(self._session)

    def restart(self) -> None:
        """End this life, and begin the next one."""
        self.drop()
        self.life = Incarnation(-1)

    def go_down(self, down_ms: int) -> None:
        """Crash, and come back later."""
        self.restart()
        self.up = False
        self.world.after(down_ms, self.come_up)

    def come_up(self) -> None:
        self.up = True


class BrokerEnd(Member):
    """A broker, which vouches for its replicas."""

    PAUSE_MS = (150, HEARTBEAT_MS)

    def __init__(self, world: MetadataWorld, number: int) -> None:
        self.number = number
        self.unsent_until_ms = 0
        """Its heartbeats are held until then."""
        self.vouching = self._new_vouching(world)
        super().__init__(world)

    def _new_vouching(self, world: MetadataWorld) -> Vouching:
        vouching = Vouching(lambda: world.now_ms, world.open_pages)
        vouching.open(f"b{self.number}")
        return vouching

    def accepted(self, result: list[Any]) -> None:
        super().accepted(result)
        self.vouching.begin(result[2], PACE)

    def beat(self, controller: MetadataController) -> None:
        report, session = self.vouching.report(), self._session
        held_ms = max(0, self.unsent_until_ms - self.world.now_ms)
        self.world.after(held_ms, lambda: controller.heartbeat(session, report, self._answered))

    def _answered(self, report: SessionHeartbeatRequest, reply: SessionHeartbeatReply) -> None:
        if self.world.now_ms >= self.hung_until_ms:
            self.vouching.confirmed(report, reply)

    def hold_heartbeats(self, for_ms: int) -> None:
        """Hold what it sends for a time, in the order of sending, as a connection over a link that is cut."""
        # A shorter hold within a longer one ends with it: what is sent later does not overtake what is held.
        self.unsent_until_ms = max(self.unsent_until_ms, self.world.now_ms + for_ms)
        self.unsteady_ms = max(self.unsteady_ms, self.unsent_until_ms)

    def restart(self) -> None:
        super().restart()
        self.vouching = self._new_vouching(self.world)

    def registration(self) -> ControllerRequest:
        return RegisterBrokerRequest(
            broker=self.number,
            incarnation=self.life,
            node_id=f"n{self.number}",
            host="h",
            port=_PORT,
            directory_id=f"d{self.number}",
            cluster_id="",
            lowest_level=SUPPORTED.lowest,
            highest_level=SUPPORTED.highest,
        )


class CoordinatorEnd(Member):
    """A group coordinator, which gets a producer id and epoch of its own."""

    def __init__(self, world: MetadataWorld, kind: str, index: int) -> None:
        self.kind, self.index = kind, index
        self.settings: dict[str, str] = {}
        super().__init__(world)

    @property
    def has_settings(self) -> bool:
        """Whether it is registered, and of a release to which controllers send the cluster's settings."""
        return self.is_registered and self._controller is not None

    def registration(self) -> ControllerRequest:
        return RegisterCoordinatorRequest(kind=self.kind, index=self.index, epoch=int(self.life), host="h", port=_PORT)

    def accepted(self, result: list[Any]) -> None:
        is_new = self.life == -1
        super().accepted(result)
        self.settings = dict(result[3]) if len(result) > 3 else {}
        if is_new:
            self.world.facts.coordinator(result[1], result[2])

    def notified(self, message: Message) -> None:
        if isinstance(message, ClusterConfigUpdate):
            self.settings = dict(message.config)


class ReplicaEnd(Member):
    """A replica, whose log has an identity; as leader, it proposes the running replicas that keep up for the ISR."""

    PAUSE_MS = (100, PACE.beat_ms)

    def __init__(self, world: MetadataWorld, topic_id: str, partition: TopicPartition, broker: int) -> None:
        self.topic_id, self.partition, self.broker = topic_id, partition, BrokerId(broker)
        self.log_number = 1
        self.unsynced_lost = False
        """This life began without unsynced records, and has not reported that yet."""
        self.incomplete = False
        """It lost unsynced records, and has not been in the ISR since."""
        self.end_cut = False
        """This life began by cutting the log's end, and has not reported that yet."""
        self.short = False
        """Its end was cut, and it has not joined the ISR since."""
        self.state: PartitionState | None = None
        self.beating = self._new_beating(world)
        super().__init__(world)

    def _new_beating(self, world: MetadataWorld) -> Beating:
        beating = Beating(self.topic_id, self.partition.partition, PACE, world.open_pages)
        beating.name = f"b{self.broker}"
        return beating

    def beat(self, controller: MetadataController) -> None:
        if not self.beating.beat(self.world.now_ms, 0):
            self.world.own_heartbeats += 1
            controller.heartbeat(self._session)

    @property
    def is_vouched_for(self) -> bool:
        """Whether its broker is to vouch for it, once nothing disturbs it."""
        return self.up and self.is_registered and self._controller is not None

    def drop(self) -> None:
        super().drop()
        if not self.is_wanted():
            self.beating.close()

    def restart(self) -> None:
        super().restart()
        self.beating = self._new_beating(self.world)

    @property
    def log_id(self) -> str:
        return f"{self.partition}-{self.broker}-{self.log_number}"

    def is_wanted(self) -> bool:
        state = self.world.image.partition(self.partition, self.topic_id)
        return state is not None and self.broker in state.replicas

    def registration(self) -> ControllerRequest:
        return RegisterReplicaRequest(
            topic_id=self.topic_id,
            topic=self.partition.topic,
            partition=self.partition.partition,
            broker=self.broker,
            incarnation=self.life,
            host="h",
            port=_PORT + self.broker,
            log_id=self.log_id,
            unsynced_lost=self.unsynced_lost and self.life == -1,
            end_cut=self.end_cut and self.life == -1,
            log_lost=False,
        )

    def accepted(self, result: list[Any]) -> None:
        super().accepted(result)
        self.state = PartitionState.from_wire(result[1])
        if self.end_cut:
            self._leaves_the_lead(self.state)
        self.unsynced_lost = self.end_cut = False
        self.beating.registered(self.life, result[2])

    def _leaves_the_lead(self, state: PartitionState) -> None:
        """No member of the ISR that may run, and was not cut, is led by this one, whose end was."""
        lost = {broker for partition, broker in self.world.image.lost_logs if partition == self.partition}
        members = [int(broker) for broker in state.isr if broker not in lost]
        others = [self.world.replicas.get((self.topic_id, self.partition, broker)) for broker in members]
        if state.leader == self.broker and any(other is not None and not other.short for other in others):
            raise Broken(f"a replica whose end was cut leads, although others of the ISR run: {state}")

    @property
    def leads(self) -> bool:
        """Whether it runs, and is its partition's leader."""
        return self.up and self.state is not None and self.state.leader == self.broker

    def cut_end(self) -> None:
        """Crash, and lose the log's end as a torn write."""
        self.end_cut = self.short = True
        self.go_down(self.world.random.choice([10, 300]))

    def notified(self, message: Message) -> None:
        if isinstance(message, StopReplica):
            self.drop()
        elif isinstance(message, PartitionStateUpdate) and message.incarnation == self.life:
            self.state = PartitionState.from_wire(message.state)

    def act(self) -> None:
        state = self.state
        if state is None or state.leader != self.broker or not self.is_registered:
            return
        isr = tuple(
            IsrMember(place.broker, place.incarnation)
            for place in state.places
            if place.broker == self.broker or (place.port and not self._lags())
        )
        if {member.broker for member in isr} == set(state.isr):
            return
        self.request(
            AlterPartitionRequest(
                topic_id=self.topic_id,
                topic=self.partition.topic,
                partition=self.partition.partition,
                broker=self.broker,
                incarnation=self.life,
                leader_epoch=state.leader_epoch,
                partition_epoch=state.partition_epoch,
                isr=isr,
            ),
            lambda code, result: self._changed(result[0]) if code == 0 else None,
        )

    def _lags(self) -> bool:
        """Whether a follower that runs is found behind: its leader drops it, and takes it back later."""
        return not self.world.is_healed and self.world.random.random() < 0.1

    def _changed(self, wire: Any) -> None:
        """Take the state in the answer to an ISR change, unless a later one has arrived before it."""
        state = PartitionState.from_wire(wire)
        if self.state is not None and state.partition_epoch > self.state.partition_epoch:
            self.state = state

    def crash(self) -> None:
        """Crash; outside the ISR the unsynced records may be lost, anywhere the log's end may be cut, or all of it."""
        world = self.world
        state = world.image.partition(self.partition, self.topic_id)
        outside = state is not None and self.broker not in state.isr
        if world.random.random() < 0.2:
            self.log_number += 1
        elif outside and world.random.random() < 0.5:
            self.unsynced_lost = self.incomplete = True
        elif world.random.random() < 0.2:
            self.end_cut = self.short = True
        self.go_down(world.random.choice([10, 300, 2_000]))
