"""The simulator's controller process: the shipped runner, with a virtual metadata log and virtual sessions.

The log lies on a virtual disk whose unsynced tail may be lost. A crash may come between any two effects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from raylog.actors.controller.runner import ControllerRunner
from raylog.base.errors import BrokerIdNotRegistered, RaylogError
from raylog.base.ids import NO_INCARNATION, BrokerId, Incarnation, TopicPartition
from raylog.base.invariants import InvariantBroken, require
from raylog.core.controller.controller import ControllerMachine, ControllerSettings
from raylog.core.controller.events import (
    ControllerRequest,
    Effect,
    Event,
    Tick,
    WriteRecords,
)
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import BrokerRegistered, ClusterCreated, MetadataRecord, TopicCreated
from raylog.core.outbox import Outbox
from raylog.core.partition import PartitionState
from raylog.core.received import Received
from raylog.core.replication.events import ProposeIsr, ResignLeadership
from raylog.protocol.controller import (
    AlterPartitionRequest,
    IsrMember,
    RegisterReplicaRequest,
    ResignLeaderRequest,
    SessionHeartbeatRequest,
)
from raylog.protocol.message import Message
from raylog.protocol.notifications import PartitionStateUpdate
from raylog.rpc.framing import NO_PAYLOAD, Buffers
from tests.simulation.partition.network import Session
from tests.simulation.partition.pausing import Pausable
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.partition.replica_link import ReplicaLink
    from tests.simulation.partition.simulation import Simulation

PARTITION = TopicPartition("orders", 0)
TOPIC_ID = "t" * 32
_TICK_US = 50_000
_IMBALANCE_CHECK_S = 3
_IDLE_STEPS = 16
"""Every 16th tick or heartbeat without an effect is checked too: the step looks at each partition, and so does this."""


class CheckedMachine(ControllerMachine):
    """Checks itself at each step that decides something, and at some of the others."""

    _idle = 0

    def step(self, event: Event) -> Outbox[Effect]:
        """Take a step; its records come first."""
        out = super().step(event)
        is_heartbeat = isinstance(event, Received) and isinstance(event.message, SessionHeartbeatRequest)
        if not (out.now or out.after_sync) and (is_heartbeat or isinstance(event, Tick)):
            self._idle += 1
            if self._idle % _IDLE_STEPS:
                return out
        self.validate()
        wrong = [type(effect).__name__ for effect in out.now if not isinstance(effect, WriteRecords)]
        require(not wrong, f"only WriteRecords may be in now, not {wrong}")
        return out


class Request:
    """A request of a replica's link, or of an administrator (None)."""

    is_deserted = False

    def __init__(self, node: ControllerNode, link: ReplicaLink | None, number: int) -> None:
        """``number`` is the link's request number."""
        self._node, self.link, self.number = node, link, number

    def reply(self, args: object = None, payload: Buffers = NO_PAYLOAD) -> None:
        """Answer."""
        self._node.answer(self, 0, args)

    def fail(self, error: BaseException) -> None:
        """Answer with an error's code."""
        self._node.answer(self, error.code if isinstance(error, RaylogError) else -1, [])


Runner = ControllerRunner[Request]


class ControllerNode(Pausable):
    """Lives of the controller, one after another, on one metadata log."""

    def __init__(self, simulation: Simulation) -> None:
        """Prepare a metadata log that knows the topic already; :meth:`start` begins the first life."""
        super().__init__(simulation.world)
        self.simulation = simulation
        self.life = 0
        self.runner: Runner | None = None
        self.records: list[MetadataRecord] = []
        self.durable = 0
        self.public = MetadataImage()
        """All state that was ever durable: the only metadata visible to other processes."""
        self.history: list[tuple[int, PartitionState]] = []
        self.crash_after_effects: int | None = None
        self.warned = False
        """Whether the operator was warned that a partition's only in-sync copy is lost."""
        self._links: dict[int, ReplicaLink] = {}
        self._sessions: dict[int, Session] = {}
        self._last_number = 0
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
        return self.runner is not None

    @property
    def state(self) -> PartitionState | None:
        """The partition's durable state."""
        return self.public.partition(PARTITION)

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Begin a life: replay the log, take the next controller epoch."""
        if self.runner is not None:
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
        )
        config = {
            "auto.leader.rebalance.enable": str(faults.elect_rate > 0).lower(),
            "leader.imbalance.check.interval.seconds": str(_IMBALANCE_CHECK_S),
        }
        kind = CheckedMachine if self.simulation.validate else ControllerMachine
        machine = kind(image, settings=settings, now_ms=self.world.now_ms, cluster_config=config)
        self.runner = ControllerRunner(machine, self, self, on_records=lambda _: None, on_defect=lambda _: None)
        self.world.log("controller life {} starts on {} records", self.life, len(self.records))
        self._run(lambda runner: runner.start(None, {}))
        self._tick(self.life)

    def crash(self) -> None:
        """End the life; the unsynced tail of the log is lost in part or whole."""
        if self.runner is None:
            return
        kept = self.world.random.randint(self.durable, len(self.records))
        self.world.log("controller life {} crashes, {} records lost", self.life, len(self.records) - kept)
        del self.records[kept:]
        self.runner.end()
        self.runner = None
        self.crash_after_effects = None
        self.paused_until_us = 0
        self.forget_inbox()
        self._syncing = False
        for session in self._sessions.values():
            session.break_off()
        self._sessions.clear()
        self._links.clear()
        # The next life reads the surviving tail, so it counts as synced.
        self._synced_up_to(kept)

    def _asleep(self, call: Callable[..., None], *args: object) -> bool:
        """True when no life runs, or this one is paused: a paused life takes the call when it resumes."""
        return self.runner is None or self.waits(call, *args)

    def _tick(self, life: int) -> None:
        if self.life == life and not self._asleep(self._tick, life):
            self.world.after(_TICK_US, self._tick, life)
            self._run(lambda runner: runner.tick())

    # ------------------------------------------------------------ the runner's log and ports

    @property
    def log_end_offset(self) -> int:
        """The end of this life's log."""
        return len(self.records)

    @property
    def committed_offset(self) -> int:
        """The end of the synced log."""
        return self.durable

    @property
    def confirmed_question(self) -> int:
        """There are no other controllers."""
        return 0

    def question(self) -> int:
        """Answered at once."""
        return 0

    def append(self, records: Sequence[MetadataRecord], controller_epoch: int) -> None:
        """Write records; their sync takes a while."""
        self.records.extend(records)
        if not self._dies_here():
            self._kick()

    def offer(self, image: MetadataImage) -> None:
        """Keep the log whole."""

    def want_voters(self, voters: Sequence[int]) -> None:
        """Keep the log in place."""

    def now_ms(self) -> int:
        """Virtual time."""
        return self.world.now_ms

    def notify(self, session: int, method: str, args: Message) -> None:
        """Send a partition state; clients read the durable image instead of metadata for brokers."""
        if self._dies_here() or not isinstance(args, PartitionStateUpdate):
            return
        incarnation, state = args.incarnation, PartitionState.from_wire(args.state)
        link = self._links.get(session)
        if link is not None:
            link.session_of_controller(session, link.notified, incarnation, state)
        self.simulation.maybe_late_state(incarnation, state)

    def close_session(self, session: int, reason: str) -> None:
        """Break a session's connection."""
        if self._dies_here():
            return
        broken = self._sessions.pop(session, None)
        if broken is not None:
            broken.break_off()

    def start_coordinator(self, kind: str, index: int) -> None:
        """There are no coordinators here."""
        self._dies_here()

    def end_coordinator(self, kind: str, index: int) -> None:
        """There are no coordinators here."""
        self._dies_here()

    def warn(self, warning: str) -> None:
        """For the operator; ignored."""
        self.warned = True

    def answer(self, request: Request, code: int, result: object) -> None:
        """Send an answer over the link's current session."""
        if self._dies_here():
            return
        link = request.link
        if link is None:
            self.world.log("a command is answered with error {}", code)
        else:
            link.session_of_controller(link.number, link.answered, request.number, code, result)

    def _dies_here(self) -> bool:
        """Count an effect; returns whether this life has ended by now."""
        if self.crash_after_effects is not None:
            self.crash_after_effects -= 1
            if self.crash_after_effects <= 0:
                self.simulation.crash_controller()
        return self.runner is None

    def _kick(self) -> None:
        if self.runner is not None and not self._syncing and self.durable < len(self.records):
            self._syncing = True
            self.world.after(self.simulation.sync_us(), self._synced, self.life, len(self.records))

    def _synced(self, life: int, end: int) -> None:
        if life != self.life or self._asleep(self._synced, life, end):
            return
        self._syncing = False
        self._synced_up_to(end)
        self._run(lambda runner: runner.release())
        self._kick()

    def _synced_up_to(self, end: int) -> None:
        for record in self.records[self.durable : end]:
            before = self.public.partition(PARTITION)
            lost = {int(broker) for _, broker in self.public.lost_logs}
            self.public.apply(record)
            after = self.public.partition(PARTITION)
            if after is not None and after is not before:
                self.history.append((self.world.now_us, after))
                self.world.note(after.leader, after.leader_epoch, after.partition_epoch)
                if before is not None:
                    self.simulation.checks.metadata_changed(before, after, lost)
                    if before.replicas != after.replicas:
                        self.simulation.placed(after)
        self.durable = max(self.durable, end)

    def _run(self, work: Callable[[Runner], object]) -> None:
        """Call the runner, if a life is up."""
        if self.runner is None:
            return
        try:
            work(self.runner)
        except InvariantBroken as broken:
            raise Violation("controller", broken.claim) from broken

    # ------------------------------------------------------------ session events

    def connect(self, link: ReplicaLink) -> Session | None:
        """Accept a connection; None when the controller is down."""
        if self.runner is None:
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
        """A session's connection is found broken."""
        if life == self.life and not self._asleep(self.lost, number, life):
            self._sessions.pop(number, None)
            self._links.pop(number, None)
            self._run(lambda runner: runner.session_lost(number, "lost"))

    def heartbeat(self, number: int) -> None:
        """A heartbeat arrives."""
        if self._asleep(self.heartbeat, number):
            return
        with suppress(BrokerIdNotRegistered):  # the connection of a session that is over breaks by itself
            self._run(lambda runner: runner.heartbeat(SessionHeartbeatRequest(), number))

    def register(self, link: ReplicaLink, session: int, number: int, incarnation: int) -> None:
        """A replica's registration arrives."""
        if self._asleep(self.register, link, session, number, incarnation):
            return
        process = link.process
        self._take(
            Request(self, link, number),
            RegisterReplicaRequest(
                topic_id=TOPIC_ID,
                topic=PARTITION.topic,
                partition=PARTITION.partition,
                broker=process.broker,
                incarnation=incarnation,
                host="host",
                port=1000 * process.broker + process.life,
                log_lost=process.log_is_new and incarnation == NO_INCARNATION,
                log_id=process.log.identity,
                unsynced_lost=False,
            ),
            session,
        )

    def change_isr(self, link: ReplicaLink, session: int, number: int, effect: ProposeIsr, incarnation: int) -> None:
        """An ISR proposal arrives."""
        if self._asleep(self.change_isr, link, session, number, effect, incarnation):
            return
        before = self._decided()
        self._take(
            Request(self, link, number),
            AlterPartitionRequest(
                topic_id=TOPIC_ID,
                topic=PARTITION.topic,
                partition=PARTITION.partition,
                broker=link.process.broker,
                incarnation=incarnation,
                leader_epoch=effect.leader_epoch,
                partition_epoch=effect.partition_epoch,
                isr=[IsrMember(*member) for member in effect.isr],
                drops_eligible=effect.drops_eligible,
            ),
            session,
        )
        after = self._decided()
        if before is not None and after is not None and after.partition_epoch != before.partition_epoch:
            self.simulation.checks.metadata.accepted(before, effect.partition_epoch)

    def resign(self, link: ReplicaLink, session: int, effect: ResignLeadership, incarnation: int) -> None:
        """A leader requests that another replica lead."""
        if self._asleep(self.resign, link, session, effect, incarnation):
            return
        before = self._decided()
        broker = BrokerId(link.process.broker)
        self._take(
            Request(self, link, 0),
            ResignLeaderRequest(
                topic_id=TOPIC_ID,
                topic=PARTITION.topic,
                partition=PARTITION.partition,
                broker=broker,
                incarnation=incarnation,
                leader_epoch=effect.leader_epoch,
            ),
            session,
        )
        after = self._decided()
        if before is not None and after is not None and after.partition_epoch != before.partition_epoch:
            epoch, now = effect.leader_epoch, self.world.now_ms
            self.simulation.checks.resigning.resigned(broker, epoch, before, after, now)

    def command(self, message: ControllerRequest) -> None:
        """An administrator's command arrives."""
        if not self._asleep(self.command, message):
            self._take(Request(self, None, 0), message)

    def _decided(self) -> PartitionState | None:
        """Return the partition in this life's latest decision, durable or not."""
        return None if self.runner is None else self.runner.machine.image.partition(PARTITION)

    def _take(self, request: Request, message: ControllerRequest, session: int = 0) -> None:
        self._run(lambda runner: runner.take(request, type(message).__name__, message, session))


def _registered(broker: BrokerId) -> BrokerRegistered:
    """The broker is registered in the metadata; its process is not simulated; its replica has its own session."""
    return BrokerRegistered(
        broker=broker,
        incarnation=Incarnation(1 + broker),
        node_id=f"node{broker}",
        host="host",
        port=1,
        directory_id=f"directory{broker}",
    )
