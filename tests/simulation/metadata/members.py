"""Brokers, replicas and coordinators of the metadata world: members with a control session and no data."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raylog.core.controller import events as ctl
from raylog.core.features import SUPPORTED
from raylog.core.ids import BrokerId, Incarnation, TopicPartition
from raylog.core.partition import PartitionState
from raylog.protocol.message import Message
from raylog.protocol.notifications import PartitionStateUpdate, StopReplica

if TYPE_CHECKING:
    from tests.simulation.metadata.controller import MetadataController
    from tests.simulation.metadata.world import MetadataWorld

_PORT = 9000


class Member:
    """One member over all its lives: connects to the leading controller, registers, sends heartbeats."""

    def __init__(self, world: MetadataWorld) -> None:
        self.world = world
        self.up = self.is_running = True
        self.life = Incarnation(-1)
        self.is_registered = False
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
        if self.up and controller is None:
            leading = world.leading()
            if leading:
                self._controller = controller = world.random.choice(leading)
                self._session = controller.connect(self)
                controller.request(lambda now, number: self.registration(now, number, self._session), self._registered)
        elif self.up and controller is not None:
            controller.heartbeat(self._session)
            self.act()
        world.after(world.random.randint(200, 350), self.turn)

    def is_wanted(self) -> bool:
        return True

    def registration(self, now_ms: int, request: int, session: int) -> ctl.Event:
        raise NotImplementedError

    def accepted(self, result: list[Any]) -> None:
        self.life = Incarnation(result[0])

    def act(self) -> None:
        """Do the work of a registered member."""

    def request(self, event_for: Any, answered: Callable[[int, Any], None] = lambda code, result: None) -> None:
        """Send a request."""
        session = self._session
        if self._controller is not None and self.is_registered:
            self._controller.request(lambda now, number: event_for(now, number, session), answered)

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
    """A broker."""

    def __init__(self, world: MetadataWorld, number: int) -> None:
        self.number = number
        super().__init__(world)

    def registration(self, now_ms: int, request: int, session: int) -> ctl.Event:
        return ctl.BrokerRegistrationReceived(
            cause="broker",
            now_ms=now_ms,
            request=request,
            session=session,
            broker=BrokerId(self.number),
            incarnation=self.life,
            node_id=f"n{self.number}",
            host="h",
            port=_PORT,
            directory_id=f"d{self.number}",
            levels=SUPPORTED,
        )


class CoordinatorEnd(Member):
    """A group coordinator, which gets a producer id and epoch of its own."""

    def __init__(self, world: MetadataWorld, kind: str, index: int) -> None:
        self.kind, self.index = kind, index
        super().__init__(world)

    def registration(self, now_ms: int, request: int, session: int) -> ctl.Event:
        return ctl.CoordinatorRegistrationReceived(
            cause="coordinator",
            now_ms=now_ms,
            request=request,
            session=session,
            kind=self.kind,
            index=self.index,
            epoch=int(self.life),
            host="h",
            port=_PORT,
        )

    def accepted(self, result: list[Any]) -> None:
        is_new = self.life == -1
        super().accepted(result)
        if is_new:
            self.world.facts.coordinator(result[1], result[2])


class ReplicaEnd(Member):
    """A replica, whose log has an identity; as leader, it proposes the running replicas that keep up for the ISR."""

    def __init__(self, world: MetadataWorld, topic_id: str, partition: TopicPartition, broker: int) -> None:
        self.topic_id, self.partition, self.broker = topic_id, partition, BrokerId(broker)
        self.log_number = 1
        self.unsynced_lost = False
        """This life began without unsynced records, and has not reported that yet."""
        self.incomplete = False
        """It lost unsynced records, and has not been in the ISR since."""
        self.state: PartitionState | None = None
        super().__init__(world)

    @property
    def log_id(self) -> str:
        return f"{self.partition}-{self.broker}-{self.log_number}"

    def is_wanted(self) -> bool:
        state = self.world.image.partition(self.partition, self.topic_id)
        return state is not None and self.broker in state.replicas

    def registration(self, now_ms: int, request: int, session: int) -> ctl.Event:
        return ctl.ReplicaRegistrationReceived(
            cause="replica",
            now_ms=now_ms,
            request=request,
            session=session,
            topic_id=self.topic_id,
            partition=self.partition,
            broker=self.broker,
            incarnation=self.life,
            host="h",
            port=_PORT + self.broker,
            log_id=self.log_id,
            unsynced_lost=self.unsynced_lost and self.life == -1,
        )

    def accepted(self, result: list[Any]) -> None:
        super().accepted(result)
        self.unsynced_lost = False
        self.state = PartitionState.from_wire(result[1])

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
            (place.broker, place.incarnation)
            for place in state.places
            if place.broker == self.broker or (place.port and not self._lags())
        )
        if {broker for broker, _ in isr} == set(state.isr):
            return
        self.request(
            lambda now, number, session: ctl.IsrChangeReceived(
                cause="isr",
                now_ms=now,
                request=number,
                session=session,
                topic_id=self.topic_id,
                partition=self.partition,
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
        """Crash; outside the ISR the unsynced records may be lost, anywhere the whole log."""
        world = self.world
        state = world.image.partition(self.partition, self.topic_id)
        outside = state is not None and self.broker not in state.isr
        if world.random.random() < 0.2:
            self.log_number += 1
        elif outside and world.random.random() < 0.5:
            self.unsynced_lost = self.incomplete = True
        self.go_down(world.random.choice([10, 300, 2_000]))
