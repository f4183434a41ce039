"""A bare controller on a bench: sessions, clock and log are plain values. Shared by the unit and the property tests.

After every step the bench checks the invariants: the machine's own claims; only ``WriteRecords`` leaves before the
sync; the log replayed into a fresh image equals the machine's image, and so does its snapshot; each prefix of the
step's records is a legal image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raylog.base.features import SUPPORTED, LevelRange
from raylog.base.ids import BrokerId, LeaderEpoch, PartitionEpoch, TopicPartition
from raylog.core.controller.controller import ControllerMachine
from raylog.core.controller.decision import ControllerSettings
from raylog.core.controller.events import (
    CloseSession,
    ControllerRequest,
    Effect,
    Event,
    PublishMetadata,
    SendPartitionState,
    SessionLost,
    StopReplica,
    Tick,
    WriteRecords,
)
from raylog.core.decision import Refuse, Reply
from raylog.core.metadata.capacity import UNKNOWN, Capacity
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import MetadataRecord, record_from_wire
from raylog.core.outbox import Outbox
from raylog.core.partition import PartitionState
from raylog.core.received import Received, Sender
from raylog.protocol.admin import (
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DescribeClusterRequest,
    ListPartitionReassignmentsRequest,
    ReassignablePartition,
)
from raylog.protocol.controller import (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    EnsureCoordinatorRequest,
    IsrMember,
    RegisterBrokerRequest,
    RegisterCoordinatorRequest,
    RegisterReplicaRequest,
    SessionHeartbeatRequest,
)
from raylog.protocol.message import Message


def received(message: ControllerRequest, now_ms: int, number: int = 1, session: int = 0) -> Received[ControllerRequest]:
    """Return a request as an event of the machine."""
    return Received(message=message, cause="test", request=number, now_ms=now_ms, sender=Sender(session=session))


T0 = TopicPartition("flights", 0)
AWAKE = {"replica.sleep.after.ms": "-1"}
"""Unless a test says otherwise, partitions are awake from their creation on."""
TIMEOUT_MS = 3_000
GRACE_MS = 6_000
WAIT_MS = 2_000
CHECK_MS = 30_000
DEFAULTS = {
    **AWAKE,
    "leader.imbalance.check.interval.seconds": str(CHECK_MS // 1000),
    "default.replication.factor": "2",
    "num.partitions": "2",
}


@dataclass(slots=True)
class Bench:
    """One controller, or a series of its incarnations, with all effects."""

    log: list[MetadataRecord] = field(default_factory=list)
    now: int = 1_000
    silent: set[int] = field(default_factory=set)
    """Sessions that send no heartbeats while time passes."""
    effects: list[Effect] = field(default_factory=list)
    """Effects of the last step that wait for the sync."""
    sessions: dict[object, int] = field(default_factory=dict)
    """The last session of ("broker", 1), (T0, 1), ("group", 0), ..."""
    lives: dict[object, int] = field(default_factory=dict)
    """Incarnation or epoch granted last."""
    leaders: dict[tuple[str, TopicPartition, int], tuple[int, int]] = field(default_factory=dict)
    """Leader of each epoch: (topic id, partition, leader epoch) -> (broker, incarnation)."""
    closed: set[int] = field(default_factory=set)
    last_written: int = 0
    """Number of records that the last step wrote."""
    lives_before: dict[object, int] = field(default_factory=dict)
    leaders_before: dict[tuple[str, TopicPartition, int], tuple[int, int]] = field(default_factory=dict)
    """Grants and leaders before the last step."""
    _last: int = 0
    _ids: int = 0
    _machine: ControllerMachine | None = None

    # ------------------------------------------------------------ the controller

    @property
    def machine(self) -> ControllerMachine:
        assert self._machine is not None, "the bench was started"
        return self._machine

    @property
    def image(self) -> MetadataImage:
        return self.machine.image

    def start(self, config: dict[str, str] | None = None, *, lose: int = 0, of: str = "") -> Bench:
        """Start the first or the next incarnation of the controller.

        ``lose``: the last incarnation died before its last step was synced, and that many of the step's records are
        lost. ``of``: names the start of the cluster.
        """
        if lose:
            assert lose <= self.last_written, "what came before the last step was synced, and members have received it"
            del self.log[-lose:]
            self.lives, self.leaders = self.lives_before, self.leaders_before
        image = MetadataImage()
        for record in self.log:
            image.apply(record)
        settings = ControllerSettings(
            new_topic_id=self._new_id,
            session_timeout_ms=TIMEOUT_MS,
            registration_grace_ms=GRACE_MS,
            initial_leader_wait_ms=WAIT_MS,
        )
        self._machine = ControllerMachine(
            image,
            settings=settings,
            now_ms=self.now,
            cluster_config={**DEFAULTS, **(config or {})},
            cluster_start=of,
        )
        self.sessions.clear()
        self._take(self.machine.start(self.now))
        return self

    def step(self, event: Event | ControllerRequest, session: int = 0) -> list[Effect]:
        """Take a step; ``session``: that on which a request arrives."""
        if isinstance(event, Message):
            event = received(event, self.now, self.number(), session)
        return self._take(self.machine.step(event))

    def _take(self, out: Outbox[Effect]) -> list[Effect]:
        prefix = MetadataImage()
        for record in self.log:
            prefix.apply(record)
        self.last_written = 0
        self.lives_before, self.leaders_before = dict(self.lives), dict(self.leaders)
        for effect in out.now:
            assert isinstance(effect, WriteRecords), f"{effect} leaves before the sync"
            for record in effect.records:
                read = record_from_wire(record.to_wire())
                assert read == record, "a record survives the wire"
                prefix.apply(read)
                prefix.validate()
                self.log.append(record)
                self.last_written += 1
        assert prefix == self.image, "the log adds up to the image"
        assert MetadataImage.restore(self.image.version, self.image.to_records()) == self.image, "so does the snapshot"
        self.machine.validate()
        for state in self.image.partitions():
            if state.leader >= 0:
                place = state.place(state.leader)
                assert place is not None
                led = self.leaders.setdefault(
                    (state.topic_id, state.partition, state.leader_epoch), (state.leader, place.incarnation)
                )
                assert led == (state.leader, place.incarnation), f"{state.partition} has one leader an epoch"
        assert not any(isinstance(effect, WriteRecords) for effect in out.after_sync)
        self.effects = out.after_sync
        for effect in self.effects:
            if isinstance(effect, (CloseSession, StopReplica)):
                self.closed.add(effect.session)
            if isinstance(effect, SendPartitionState):
                self.image_has(effect.state)
        return self.effects

    def image_has(self, state: PartitionState) -> None:
        assert self.image.partition(state.partition) == state, "a sent state is the committed one"

    def _new_id(self) -> str:
        self._ids += 1
        return f"{self._ids:032x}"

    def number(self) -> int:
        self._last += 1
        return self._last

    # ------------------------------------------------------------ events

    def broker(
        self,
        broker: int,
        *,
        incarnation: int = -1,
        node: str = "",
        directory: str = "",
        cluster: str = "",
        session: int | None = None,
        levels: LevelRange = SUPPORTED,
        capacity: Capacity = UNKNOWN,
    ) -> list[object]:
        number = self.number() if session is None else session
        result = self.call(
            RegisterBrokerRequest(
                broker=broker,
                incarnation=incarnation,
                node_id=node or f"node-{broker}",
                host="host",
                port=9000 + broker,
                directory_id=directory or f"directory-{broker}",
                cluster_id=cluster,
                lowest_level=levels.lowest,
                highest_level=levels.highest,
                capacity=capacity.to_row(),
            ),
            number,
        )
        self._entered(("broker", result[5]), number, result)
        return result

    def replica(
        self,
        broker: int,
        partition: TopicPartition = T0,
        *,
        incarnation: int = -1,
        log_lost: bool = False,
        unsynced_lost: bool = False,
        end_cut: bool = False,
        log_id: str = "",
        topic_id: str | None = None,
        port: int | None = None,
        session: int | None = None,
    ) -> list[object]:
        number = self.number() if session is None else session
        result = self.call(
            RegisterReplicaRequest(
                topic_id=self.topic_id(partition.topic) if topic_id is None else topic_id,
                topic=partition.topic,
                partition=partition.partition,
                broker=broker,
                incarnation=incarnation,
                host="host",
                port=10_000 + broker if port is None else port,
                log_lost=log_lost,
                log_id=log_id,
                unsynced_lost=unsynced_lost,
                end_cut=end_cut,
            ),
            number,
        )
        self._entered((partition, broker), number, result)
        return result

    def back(self, broker: int, partition: TopicPartition = T0) -> list[object]:
        """The same incarnation of a replica registers again."""
        return self.replica(broker, partition, incarnation=self.lives[partition, broker])

    def coordinator(self, index: int = 0, *, epoch: int = -1, kind: str = "group") -> list[object]:
        number = self.number()
        result = self.call(RegisterCoordinatorRequest(kind, index, epoch, "host", 20_000 + index), number)
        self._entered((kind, index), number, result)
        return result

    def _entered(self, member: object, number: int, result: list[object]) -> None:
        life = result[0]
        assert isinstance(life, int)
        self.sessions[member], self.lives[member] = number, life

    def lose(self, member: object) -> list[Effect]:
        """The member's connection breaks."""
        return self.step(SessionLost(cause="test", now_ms=self.now, session=self.sessions.pop(member)))

    def lose_replica(self, broker: int, partition: TopicPartition = T0) -> list[Effect]:
        return self.lose((partition, broker))

    def create(
        self,
        topic: str = "flights",
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        assignment: Sequence[Sequence[int]] | None = None,
        config: Mapping[str, Any] | None = None,
        validate_only: bool = False,
    ) -> list[object]:
        return self.call(
            CreateTopicRequest(topic, partitions, replication_factor, assignment, config or {}, validate_only, 0)
        )

    def isr(
        self,
        leader: int,
        members: Sequence[int],
        *,
        partition: TopicPartition = T0,
        leader_epoch: int | None = None,
        partition_epoch: int | None = None,
        incarnations: dict[int, int] | None = None,
        incarnation: int | None = None,
        drops_eligible: bool = False,
    ) -> list[object]:
        """The leader proposes an ISR, with the current epochs and incarnations by default."""
        state = self.state(partition)
        lives = {place.broker: place.incarnation for place in state.places} | (incarnations or {})
        return self.call(
            AlterPartitionRequest(
                topic_id=state.topic_id,
                topic=partition.topic,
                partition=partition.partition,
                broker=leader,
                incarnation=lives[BrokerId(leader)] if incarnation is None else incarnation,
                leader_epoch=state.leader_epoch if leader_epoch is None else LeaderEpoch(leader_epoch),
                partition_epoch=state.partition_epoch if partition_epoch is None else PartitionEpoch(partition_epoch),
                isr=[IsrMember(member, lives[BrokerId(member)]) for member in members],
                drops_eligible=drops_eligible,
            ),
            self.sessions.get((partition, leader), 0),
        )

    def reassign(
        self, target: Sequence[int] | None, partition: TopicPartition = T0, *, throttle: int | None = None
    ) -> list[object]:
        """Reassign a partition to these brokers; None = cancel its move."""
        return self.reassign_all([(partition.topic, partition.partition, target)], throttle=throttle)

    def reassign_all(
        self, changes: Sequence[tuple[str, int, Sequence[int] | None]], *, throttle: int | None = None
    ) -> list[object]:
        return self.call(
            AlterPartitionReassignmentsRequest([ReassignablePartition(*change) for change in changes], throttle)
        )

    def moving(self) -> list[object]:
        return self.call(ListPartitionReassignmentsRequest())

    def grow(self, total: int, topic: str = "flights", assignment: Sequence[Sequence[int]] | None = None) -> None:
        self.call(CreatePartitionsRequest(topic, total, assignment))

    def ensure(self, index: int = 0, kind: str = "group") -> list[object]:
        return self.call(EnsureCoordinatorRequest(kind=kind, index=index))

    def producer_ids(self, count: int = 1000) -> list[object]:
        return self.call(AllocateProducerIdsRequest(count=count))

    def call(self, request: ControllerRequest, session: int = 0) -> list[object]:
        """Send a request; return the reply's list, or raise the refusal."""
        answers = [found for found in self.step(request, session) if isinstance(found, (Reply, Refuse))]
        assert len(answers) == 1, f"{request} is answered once"
        answer = answers[0]
        assert answer.request == self._last
        if isinstance(answer, Refuse):
            raise answer.error
        assert isinstance(answer.result, list)
        return answer.result

    def described(self) -> dict[str, Any]:
        """Return the description of the cluster."""
        [reply] = self.step(DescribeClusterRequest())
        assert isinstance(reply, Reply)
        assert isinstance(reply.result, dict)
        return reply.result

    def wait(self, ms: int, *, tick_ms: int = 500) -> list[Effect]:
        """Let time pass: heartbeats from all sessions not silent, a tick each ``tick_ms``; returns all effects."""
        effects: list[Effect] = []
        end = self.now + ms
        while self.now < end:
            self.now = min(end, self.now + tick_ms)
            for number in sorted(self.sessions.values()):
                if number not in self.silent:
                    self.step(SessionHeartbeatRequest(), number)
            effects += self.step(Tick(cause="test", now_ms=self.now))
        self.sessions = {member: number for member, number in self.sessions.items() if number not in self.closed}
        return effects

    # ------------------------------------------------------------ results

    def state(self, partition: TopicPartition = T0) -> PartitionState:
        state = self.image.partition(partition)
        assert state is not None
        return state

    def topic_id(self, topic: str = "flights") -> str:
        return self.image.topics[topic].topic_id

    def summary(self, partition: TopicPartition = T0) -> tuple[int, int, tuple[int, ...]]:
        """Return (leader, leader epoch, ISR)."""
        state = self.state(partition)
        return state.leader, state.leader_epoch, state.isr

    def sent_states(self) -> dict[int, PartitionState]:
        """Return the states sent in the last step, by session."""
        return {found.session: found.state for found in self.effects if isinstance(found, SendPartitionState)}

    def published(self) -> list[PublishMetadata]:
        return [found for found in self.effects if isinstance(found, PublishMetadata)]


def three_brokers() -> Bench:
    """Return a bench with brokers 1, 2, 3 on three nodes and no topics."""
    bench = Bench().start()
    for broker in (1, 2, 3):
        bench.broker(broker)
    return bench


def new_topic(min_insync: int = 2) -> Bench:
    """Return a bench with one partition on brokers 1, 2, 3, none of whose replicas has ever run."""
    bench = three_brokers()
    bench.create(assignment=[[1, 2, 3]], config={"min.insync.replicas": min_insync})
    return bench


def running_topic(*, config: dict[str, object] | None = None) -> Bench:
    """Return a bench with one partition on brokers 1, 2, 3; broker 1 leads, all are in sync.

    One replica is enough for a write unless ``config`` sets more: then no replica outside the ISR is eligible.
    """
    bench = three_brokers()
    bench.create(assignment=[[1, 2, 3]], config={"min.insync.replicas": 1, **(config or {})})
    for broker in (2, 3, 1):  # the leader comes last: then all are online when the ISR is settled
        bench.replica(broker)
    assert bench.summary() == (1, 1, (1, 2, 3))
    return bench
