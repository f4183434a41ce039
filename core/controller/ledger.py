"""Ledger: turns the controller's decisions into records and effects. Used by its handlers, one step at a time.

Decide, then apply: a handler checks first, then calls :meth:`Ledger.write`, which applies the record to the image at
once and keeps it for the log. All other effects of a step wait for the log's sync, including refusals: they may depend
on records that are not yet durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from raylog.core.controller.events import (
    CloseSession,
    Effect,
    PublishMetadata,
    Refuse,
    Reply,
    RequestId,
    SendPartitionState,
    SessionId,
    WriteRecords,
)
from raylog.core.controller.sessions import Member, ReplicaMember, Sessions
from raylog.core.errors import InvalidRequest, RaylogError
from raylog.core.ids import NO_LEADER, TopicPartition
from raylog.core.invariants import require
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import MetadataRecord, PartitionChanged, ReplicaPlaced, TopicDeleted
from raylog.core.outbox import Outbox

STORY_STEPS_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Settings of the controller. Times are in milliseconds."""

    new_topic_id: Callable[[], str]
    """Gives a fresh 32-character id."""
    cluster_id: str = ""
    """Identity of a cluster that is created now; empty = a fresh id."""
    session_timeout_ms: int = 3_000
    """Session timeout: a session without a heartbeat for longer is over."""
    registration_grace_ms: int = 6_000
    """Grace period after the controller's start: members that have not re-registered by its end count as gone."""
    initial_leader_wait_ms: int = 3_000
    """A new partition waits this long for its preferred leader before another replica leads."""
    default_replication_factor: int = 1
    default_partitions: int = 1
    offsets_topic_partitions: int = 1
    """Partitions of each internal topic, hence the greatest number of coordinators of a kind."""
    offsets_topic_replication_factor: int = 3
    """Replication factor of internal topics; where fewer brokers are online, as many as there are."""
    auto_leader_rebalance: bool = True
    """Whether leadership returns to preferred replicas automatically."""
    leader_imbalance_check_ms: int = 300_000
    leader_imbalance_percentage: int = 10
    """Share of a broker's preferred partitions that others may lead before leadership goes back."""


class Ledger:
    """The image, the sessions, and the decisions of the current step."""

    def __init__(self, image: MetadataImage, now_ms: int) -> None:
        """Take over an image; from now on only :meth:`write` changes it."""
        self.image = image
        self.sessions = Sessions()
        self.now_ms = now_ms
        self.cause = ""
        self.records: list[MetadataRecord] = []
        self.story: deque[str] = deque(maxlen=STORY_STEPS_MAX)
        self._from_version = image.version
        self._audience: tuple[SessionId, ...] = ()
        self._effects: list[Effect] = []
        self._changed: set[TopicPartition] = set()
        self._told: set[SessionId] = set()

    def begin(self, cause: str, now_ms: int) -> None:
        """Start a step. Time in here never goes backwards, even if the clock does."""
        self.now_ms = max(self.now_ms, now_ms)
        self.cause = cause
        self.records = []
        self._from_version = self.image.version
        # A broker that registers within this step gets a snapshot that has this step's records.
        self._audience = self.sessions.brokers()
        self._effects = []
        self._changed = set()
        self._told = set()

    def write(self, record: MetadataRecord) -> None:
        """Decide: apply the record to the image and keep it for the log."""
        # The caller checks the level first; a record that brokers cannot read would end all of them.
        require(self.image.feature_level >= record.LEVEL, f"feature level {record.LEVEL} allows {record}", self.story)
        if isinstance(record, PartitionChanged):
            self._check_transition(record)
        if isinstance(record, (PartitionChanged, ReplicaPlaced)):
            self._changed.add(TopicPartition(record.topic, record.partition))
        if isinstance(record, TopicDeleted):
            self._changed = {partition for partition in self._changed if partition.topic != record.topic}
        self.image.apply(record)
        self.records.append(record)
        self.story.append(f"{self.now_ms} {self.cause}: {record}")

    def do(self, effect: Effect) -> None:
        """Add an effect for the shell, carried out once everything decided so far is durable."""
        self._effects.append(effect)

    def reply(self, request: RequestId, result: list[object] | dict[str, object], warning: str = "") -> None:
        """Answer a request."""
        self.do(Reply(cause=self.cause, request=request, result=result, warning=warning))

    def refuse(self, request: RequestId, error: RaylogError) -> None:
        """Answer a request with an error."""
        self.do(Refuse(cause=self.cause, request=request, error=error))

    def close(self, session: SessionId, reason: str) -> None:
        """End a session: remove it and close its connection."""
        self.sessions.close(session)
        self.do(CloseSession(cause=self.cause, session=session, reason=reason))

    def supersede(self, number: SessionId, member: Member) -> None:
        """End the earlier session of a member that opens a new one.

        Raises InvalidRequest when the new session has already registered another member.
        """
        present = self.sessions.get(number)
        if present is not None and present.member != member:
            raise InvalidRequest(f"This connection is already registered as {present.member}; open another one.")
        earlier = self.sessions.of(member)
        if earlier is None:
            return
        if earlier.number == number:
            self.sessions.close(number)
        else:
            self.close(earlier.number, f"{member} has registered again on another connection")

    def told(self, session: SessionId) -> None:
        """Note that the answer of this step carries this partition state to this session; a second copy is not sent."""
        self._told.add(session)

    def retell(self, partition: TopicPartition) -> None:
        """Also send the partition's state to sessions that received it in this step: it has changed once more."""
        for number in sorted(self._told):
            session = self.sessions.get(number)
            member = None if session is None else session.member
            if isinstance(member, ReplicaMember) and member.partition == partition:
                self._told.discard(number)

    @property
    def changed(self) -> frozenset[TopicPartition]:
        """The partitions that this step has changed so far."""
        return frozenset(self._changed)

    def finish(self) -> Outbox[Effect]:
        """End the step and return its effects."""
        outbox: Outbox[Effect] = Outbox()
        if self.records:
            records = tuple(self.records)
            outbox.now.append(WriteRecords(cause=self.cause, records=records))
            audience = tuple(session for session in self._audience if self.sessions.get(session) is not None)
            if audience:
                outbox.after_sync.append(
                    PublishMetadata(
                        cause=self.cause, sessions=audience, from_version=self._from_version, records=records
                    )
                )
        outbox.after_sync.extend(self._effects)
        for partition in sorted(self._changed):
            outbox.after_sync.extend(self._states(partition))
        return outbox

    def _states(self, partition: TopicPartition) -> list[Effect]:
        state = self.image.partition(partition)
        require(state is not None, f"{partition} changed, so it exists", self.story)
        effects: list[Effect] = []
        for broker in state.replicas if state is not None else ():
            session = self.sessions.of(ReplicaMember(state.topic_id, partition, broker)) if state is not None else None
            if state is not None and session is not None and session.number not in self._told:
                place = state.place(broker)
                require(
                    place is not None and place.incarnation == session.life,
                    "a session is of the placed life",
                    self.story,
                )
                if place is not None:
                    effects.append(
                        SendPartitionState(
                            cause=self.cause, session=session.number, incarnation=place.incarnation, state=state
                        )
                    )
        return effects

    def _check_transition(self, record: PartitionChanged) -> None:
        """Check the laws of a partition's history; the image alone cannot, because it also reads snapshots."""
        name = f"{record.topic}-{record.partition}"
        old = self.image.partition(TopicPartition(record.topic, record.partition))
        require(old is not None, f"partition {name} exists", self.story)
        if old is None:
            return
        require(
            record.partition_epoch == old.partition_epoch + 1, f"the partition epoch of {name} rises by one", self.story
        )
        if record.leader_epoch == old.leader_epoch:
            require(record.leader in (old.leader, NO_LEADER), f"each leader epoch of {name} has one leader", self.story)
        else:
            require(record.leader_epoch == old.leader_epoch + 1, f"the leader epoch of {name} rises by one", self.story)
            require(record.leader != NO_LEADER, f"a leader epoch of {name} begins with an election", self.story)
