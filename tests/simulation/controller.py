"""The simulator's controller process and the control sessions of replicas: shells around the real ControllerMachine.

The metadata log lies on a virtual disk whose unsynced tail may be lost; effects leave only after the sync of the
records that they rest on. A crash may come between any two effects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from raylog.core.controller.controller import ControllerMachine, ControllerSettings
from raylog.core.controller.events import (
    CloseSession,
    Effect,
    Event,
    IsrChangeReceived,
    LeaderResigned,
    Refuse,
    ReplicaRegistrationReceived,
    Reply,
    SendPartitionState,
    SessionHeard,
    SessionLost,
    Tick,
    WriteRecords,
)
from raylog.core.controller.image import MetadataImage
from raylog.core.controller.records import BrokerRegistered, ClusterCreated, MetadataRecord, TopicCreated
from raylog.core.errors import UnknownTopicOrPartition
from raylog.core.ids import NO_INCARNATION, BrokerId, Incarnation, TopicPartition
from raylog.core.invariants import InvariantBroken
from raylog.core.outbox import Outbox
from raylog.core.replication.events import ProposeIsr, ResignLeadership
from raylog.core.replication.state import PartitionState
from tests.simulation.network import Session
from tests.simulation.pausing import Pausable
from tests.simulation.replica import ReplicaProcess
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

PARTITION = TopicPartition("orders", 0)
TOPIC_ID = "t" * 32
_TICK_US = 50_000
_RECONNECT_MS = (5, 60)
_IMBALANCE_CHECK_MS = 3000
_REMOVED_PAUSE_US = 300_000


class ControllerNode(Pausable):
    """Lives of the controller, one after another, on one metadata log."""

    def __init__(self, simulation: Simulation) -> None:
        """Prepare a metadata log that knows the topic already; :meth:`start` begins the first life."""
        super().__init__(simulation.world)
        self.simulation = simulation
        self.life = 0
        self.machine: ControllerMachine | None = None
        self.records: list[MetadataRecord] = []
        self.durable = 0
        self.public = MetadataImage()
        """What was ever durable: the only metadata that anybody outside may act on."""
        self.history: list[tuple[int, PartitionState]] = []
        self.crash_after_effects: int | None = None
        self.warned = False
        """Somebody was told that a partition's only in-sync copy is lost."""
        self._links: dict[int, ReplicaLink] = {}
        self._sessions: dict[int, Session] = {}
        self._requests: dict[int, tuple[ReplicaLink | None, int]] = {}
        self._last_number = 0
        self._waiting: deque[tuple[int, list[Effect]]] = deque()
        self._syncing = False
        brokers = tuple(BrokerId(broker) for broker in simulation.brokers)
        replicas = brokers[: simulation.faults.brokers]
        minimum = simulation.faults.topic_min_insync_replicas or simulation.faults.min_insync_replicas
        config = {"min.insync.replicas": str(minimum)}
        self.records.append(ClusterCreated(cluster_id="c" * 32, config={}))
        for broker in brokers:
            self.records.append(_registered(broker))
        self.records.append(
            TopicCreated(topic_id=TOPIC_ID, topic=PARTITION.topic, config=config, partitions=(replicas,))
        )
        self._synced_up_to(len(self.records))

    @property
    def running(self) -> bool:
        """True while a life of the controller is up."""
        return self.machine is not None

    @property
    def state(self) -> PartitionState | None:
        """The partition's durable state."""
        return self.public.partition(PARTITION)

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Begin a life: replay the log, take the next controller epoch."""
        if self.machine is not None:
            return
        self.life += 1
        faults = self.simulation.faults
        image = MetadataImage()
        for record in self.records:
            image.apply(record)
        settings = ControllerSettings(
            new_topic_id=lambda: TOPIC_ID,
            session_timeout_ms=faults.session_timeout_ms,
            registration_grace_ms=faults.registration_grace_ms,
            initial_leader_wait_ms=faults.initial_leader_wait_ms,
            auto_leader_rebalance=faults.elect_rate > 0,
            leader_imbalance_check_ms=_IMBALANCE_CHECK_MS,
        )
        self.machine = ControllerMachine(image, settings=settings, now_ms=self.world.now_ms, cluster_config={})
        self.world.tell("controller life {} starts on {} records", self.life, len(self.records))
        self._carry_out(self.machine.start(self.world.now_ms))
        self._tick(self.life)

    def crash(self) -> None:
        """End the life; the tail of the log that was not synced is lost in part or whole."""
        if self.machine is None:
            return
        kept = self.world.random.randint(self.durable, len(self.records))
        self.world.tell("controller life {} crashes, {} records lost", self.life, len(self.records) - kept)
        del self.records[kept:]
        self.machine = None
        self.crash_after_effects = None
        self.paused_until_us = 0
        self.forget_inbox()
        self._waiting.clear()
        self._syncing = False
        self._requests.clear()
        for session in self._sessions.values():
            session.break_off()
        self._sessions.clear()
        self._links.clear()
        # What survived is what the next life reads, so it is as good as synced.
        self._synced_up_to(kept)

    def _asleep(self, call: Callable[..., None], *args: object) -> bool:
        """True when no life runs, or this one is paused: then it takes the call when it wakes up."""
        return self.machine is None or self.waits(call, *args)

    def _tick(self, life: int) -> None:
        if self.life == life and not self._asleep(self._tick, life):
            self.world.after(_TICK_US, self._tick, life)
            self._step(Tick(cause="tick", now_ms=self.world.now_ms))

    # ------------------------------------------------------------ steps

    def _step(self, event: Event) -> None:
        machine = self.machine
        if machine is None:
            return
        try:
            out = machine.step(event)
            if self.simulation.validate:
                machine.validate()
        except InvariantBroken as broken:
            raise Violation("controller", broken.claim) from broken
        self._carry_out(out)

    def _carry_out(self, out: Outbox[Effect]) -> None:
        life = self.life
        for effect in out.now:
            if not isinstance(effect, WriteRecords):
                raise Violation("controller", f"{type(effect).__name__} is in now; only WriteRecords may be")
            self.records.extend(effect.records)
            if self._dies_here(life):
                return
        if out.after_sync:
            self._waiting.append((len(self.records), out.after_sync))
        self._release()
        if self.life == life and self.machine is not None and not self._syncing and self.durable < len(self.records):
            self._syncing = True
            self.world.after(self.simulation.sync_us(), self._synced, life, len(self.records))

    def _dies_here(self, life: int) -> bool:
        if self.crash_after_effects is not None:
            self.crash_after_effects -= 1
            if self.crash_after_effects <= 0:
                self.simulation.crash_controller()
        return self.life != life or self.machine is None

    def _synced(self, life: int, end: int) -> None:
        if life != self.life or self._asleep(self._synced, life, end):
            return
        self._syncing = False
        self._synced_up_to(end)
        self._carry_out(Outbox())

    def _synced_up_to(self, end: int) -> None:
        for record in self.records[self.durable : end]:
            before = self.public.partition(PARTITION)
            self.public.apply(record)
            after = self.public.partition(PARTITION)
            if after is not None and after is not before:
                self.history.append((self.world.now_us, after))
                self.world.note(after.leader, after.leader_epoch, after.partition_epoch)
                if before is not None:
                    self.simulation.checks.metadata_changed(before, after)
                    if before.replicas != after.replicas:
                        self.simulation.placed(after)
        self.durable = max(self.durable, end)

    def _release(self) -> None:
        life = self.life
        while self._waiting and self._waiting[0][0] <= self.durable:
            _, effects = self._waiting.popleft()
            for effect in effects:
                if self._dies_here(life):
                    return
                self._effect(effect)

    def _effect(self, effect: Effect) -> None:
        match effect:
            case SendPartitionState():
                self._send_state(effect)
            case Reply():
                self.warned = self.warned or bool(effect.warning)
                link, number = self._requests.pop(effect.request)
                self._answer(link, number, 0, effect.result)
            case Refuse():
                link, number = self._requests.pop(effect.request)
                self._answer(link, number, effect.error.code, [])
            case CloseSession():
                session = self._sessions.pop(effect.session, None)
                if session is not None:
                    session.break_off()
            case _:
                pass  # metadata for brokers: clients of the simulator read the durable image instead

    def _send_state(self, effect: SendPartitionState) -> None:
        link = self._links.get(effect.session)
        if link is not None:
            link.session_of_controller(effect.session, link.told, effect.incarnation, effect.state)
        self.simulation.maybe_late_state(effect)

    def _answer(self, link: ReplicaLink | None, number: int, code: int, result: object) -> None:
        if link is None:
            self.world.tell("a command is answered with error {}", code)
            return
        link.session_of_controller(link.number, link.answered, number, code, result)

    # ------------------------------------------------------------ what sessions bring

    def connect(self, link: ReplicaLink) -> Session | None:
        """Accept a connection; None when the controller is down."""
        if self.machine is None:
            return None
        self._last_number += 1
        number, life = self._last_number, self.life
        session = Session(
            self.simulation.network,
            number,
            link.process.broker,
            on_controller_lost=lambda: link.lost(number),
            on_replica_lost=lambda: self.lost(number, life),
        )
        self._sessions[number] = session
        self._links[number] = link
        return session

    def lost(self, number: int, life: int) -> None:
        """A session's connection is seen to be broken."""
        if life == self.life and not self._asleep(self.lost, number, life):
            self._sessions.pop(number, None)
            self._links.pop(number, None)
            self._step(SessionLost(cause="lost", now_ms=self.world.now_ms, session=number))

    def heard(self, number: int) -> None:
        """A heartbeat arrives."""
        if self._asleep(self.heard, number):
            return
        self._step(SessionHeard(cause="heard", now_ms=self.world.now_ms, session=number))

    def register(self, link: ReplicaLink, session: int, number: int, incarnation: int) -> None:
        """A replica's registration arrives."""
        if self._asleep(self.register, link, session, number, incarnation):
            return
        process = link.process
        self._step(
            ReplicaRegistrationReceived(
                cause="register",
                now_ms=self.world.now_ms,
                session=session,
                request=self._request(link, number),
                topic_id=TOPIC_ID,
                partition=PARTITION,
                broker=BrokerId(process.broker),
                incarnation=Incarnation(incarnation),
                host="host",
                port=1000 * process.broker + process.life,
                log_lost=process.log_is_new and incarnation == NO_INCARNATION,
                log_id=process.log.identity,
            )
        )

    def change_isr(self, link: ReplicaLink, session: int, number: int, effect: ProposeIsr, incarnation: int) -> None:
        """An ISR proposal arrives."""
        if self._asleep(self.change_isr, link, session, number, effect, incarnation):
            return
        before = self.machine.image.partition(PARTITION) if self.machine is not None else None
        self._step(
            IsrChangeReceived(
                cause="isr",
                now_ms=self.world.now_ms,
                session=session,
                request=self._request(link, number),
                topic_id=TOPIC_ID,
                partition=PARTITION,
                broker=BrokerId(link.process.broker),
                incarnation=Incarnation(incarnation),
                leader_epoch=effect.leader_epoch,
                partition_epoch=effect.partition_epoch,
                isr=effect.isr,
                drops_eligible=effect.drops_eligible,
            )
        )
        after = self.machine.image.partition(PARTITION) if self.machine is not None else None
        if before is not None and after is not None and after.partition_epoch != before.partition_epoch:
            self.simulation.checks.metadata.accepted(before, effect.partition_epoch)

    def resign(self, link: ReplicaLink, session: int, effect: ResignLeadership, incarnation: int) -> None:
        """A leader asks that another replica leads."""
        if self._asleep(self.resign, link, session, effect, incarnation) or self.machine is None:
            return
        before = self.machine.image.partition(PARTITION)
        broker = BrokerId(link.process.broker)
        self._step(
            LeaderResigned(
                cause="resign",
                now_ms=self.world.now_ms,
                session=session,
                request=self._request(link, 0),
                topic_id=TOPIC_ID,
                partition=PARTITION,
                broker=broker,
                incarnation=Incarnation(incarnation),
                leader_epoch=effect.leader_epoch,
            )
        )
        after = self.machine.image.partition(PARTITION) if self.machine is not None else None
        if before is not None and after is not None and after.partition_epoch != before.partition_epoch:
            epoch, now = effect.leader_epoch, self.world.now_ms
            self.simulation.checks.resigning.resigned(broker, epoch, before, after, now)

    def command(self, make: Callable[[int, int], Event]) -> None:
        """An administrator's command arrives; ``make`` takes the time and the request's number."""
        if self.machine is not None and not self._asleep(self.command, make):
            self._step(make(self.world.now_ms, self._request(None, 0)))

    def _request(self, link: ReplicaLink | None, number: int) -> int:
        self._last_number += 1
        self._requests[self._last_number] = (link, number)
        return self._last_number


def _registered(broker: BrokerId) -> BrokerRegistered:
    """The broker has a place in the metadata; its process plays no part here, its replica has a session of its own."""
    return BrokerRegistered(
        broker=broker,
        incarnation=Incarnation(1 + broker),
        node_id=f"node{broker}",
        host="host",
        port=1,
        directory_id=f"directory{broker}",
    )


class ReplicaLink:
    """A replica's end of its control session: registers, keeps alive, registers again when the session broke."""

    def __init__(self, simulation: Simulation, process: ReplicaProcess) -> None:
        """Belong to one life of a replica."""
        self.simulation = simulation
        self.world = simulation.world
        self.process = process
        self.number = 0
        self._session: Session | None = None
        self._registered = False
        self._asked: dict[int, int] = {}
        self._last_ask = 0
        process.uplink = self

    def connect(self) -> None:
        """Open a session and register over it; try again soon when that fails."""
        process, controller = self.process, self.simulation.controller
        if not process.alive or self._session is not None:
            return
        session = controller.connect(self)
        if session is None or process.paused:
            self.world.after(self.world.between_us(*_RECONNECT_MS), self.connect)
            return
        self._session, self.number, self._registered = session, session.number, False
        machine = process.machine
        incarnation = NO_INCARNATION if machine is None else machine.incarnation
        session.send(True, controller.register, self, session.number, self._ask(0), incarnation)
        self._heartbeat(session)

    @property
    def registered(self) -> bool:
        """True while a session stands over which this life has registered."""
        return self._session is not None and not self._session.broken and self._registered

    def propose(self, effect: ProposeIsr) -> None:
        """Send an ISR proposal; without a session its outcome is unknown at once."""
        session, machine = self._session, self.process.machine
        if session is None or machine is None or not self._registered:
            self.world.after(1_000, self.process.isr_answered, effect.request, 1001, None)
            return
        controller, ask = self.simulation.controller, self._ask(effect.request)
        session.send(True, controller.change_isr, self, session.number, ask, effect, machine.incarnation)

    def resign(self, effect: ResignLeadership) -> None:
        """Send a resignation; the machine repeats it, so nobody waits for the answer."""
        session, machine = self._session, self.process.machine
        if session is not None and machine is not None and self._registered:
            session.send(True, self.simulation.controller.resign, self, session.number, effect, machine.incarnation)

    def break_off(self) -> None:
        """The connection breaks for no reason that either end knows."""
        if self._session is not None:
            self._session.break_off()

    def session_of_controller(self, number: int, deliver: object, *args: object) -> None:
        """Send something from the controller over the session of that number, if it is still ours."""
        session = self._session
        if session is not None and session.number == number and callable(deliver):
            session.send(False, deliver, *args)

    def told(self, incarnation: int, state: PartitionState) -> None:
        """A partition state arrives."""
        self.process.told(incarnation, state)

    def answered(self, ask: int, code: int, result: object) -> None:
        """The controller's answer to a registration or a proposal arrives."""
        request = self._asked.pop(ask, None)
        if request is None:
            return
        if request:
            state = PartitionState.from_wire(result[0]) if isinstance(result, list) and result else None
            self.process.isr_answered(request, code, state)
        elif code == 0 and isinstance(result, list):
            self._registered = True
            self.process.registered(result[0], PartitionState.from_wire(result[1]))
        elif code == UnknownTopicOrPartition.code:
            # A reassignment took it away; its broker ends it once it hears of that, or it is added again.
            self.world.after(_REMOVED_PAUSE_US, self._leave_and_connect, self.number)
        else:
            self.simulation.crash(self.process.broker, f"registration refused with {code}")

    def _leave_and_connect(self, number: int) -> None:
        if self._session is not None and self._session.number == number:
            self._session.break_off()

    def lost(self, number: int) -> None:
        """Our end sees the session broken."""
        if self._session is None or self._session.number != number:
            return
        self._session, self._registered = None, False
        asked, self._asked = self._asked, {}
        for request in asked.values():
            if request:
                self.process.isr_answered(request, 1001, None)
        self.world.after(self.world.between_us(*_RECONNECT_MS), self.connect)

    def _ask(self, request: int) -> int:
        self._last_ask += 1
        self._asked[self._last_ask] = request
        return self._last_ask

    def _heartbeat(self, session: Session) -> None:
        if self._session is not session or not self.process.alive:
            return
        if not self.process.paused:
            session.send(True, self.simulation.controller.heard, session.number)
        self.world.after(self.simulation.faults.session_timeout_ms * 250, self._heartbeat, session)
