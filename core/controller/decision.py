"""One step's decision of the controller, and its settings. Made by ``controller.py``, filled by its handlers.

Decide, then apply: a handler checks first, then calls :meth:`ControllerDecision.write`, which applies the record to the
image at once and keeps it for the log. All other effects of a step wait for the log's sync, including refusals: they
may depend on records that are not yet durable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from raylog.base.errors import InvalidRequest, RaylogError
from raylog.base.ids import NO_LEADER, Incarnation, TopicPartition
from raylog.core.controller.events import (
    CloseSession,
    Effect,
    PublishMetadata,
    SendPartitionState,
    SessionId,
    WriteRecords,
)
from raylog.core.controller.sessions import Member, ReplicaMember, Sessions
from raylog.core.decision import LoggedDecision, Refuse, Reply, RequestId, Result, Story
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import MetadataRecord, PartitionChanged, ReplicaPlaced, TopicDeleted
from raylog.core.outbox import Outbox
from raylog.core.partition import PartitionState


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Settings that do not change while the controller runs; the others are in the image. Times are milliseconds."""

    new_topic_id: Callable[[], str]
    """Gives a fresh 32-character id."""
    cluster_id: str = ""
    """Identity of a cluster that is created now; empty = a fresh id."""
    session_timeout_ms: int = 3_000
    """Session timeout: a session without a heartbeat for longer is over."""
    registration_grace_ms: int = 6_000
    """Grace period after the controller's start: members that have not re-registered by its end count as dead."""
    initial_leader_wait_ms: int = 3_000
    """A new partition waits this long for its preferred leader before another replica leads."""


class ControllerDecision(LoggedDecision[Effect, MetadataRecord]):
    """Records, and the effects that wait for them; the image and the sessions that the handlers decide on."""

    __slots__ = ("_audience", "_changed", "_from_version", "_informed", "image", "sessions")

    def __init__(self, cause: str, now_ms: int, *, image: MetadataImage, sessions: Sessions, story: Story) -> None:
        """Begin a step on an image that only :meth:`write` changes."""
        super().__init__(cause, now_ms, apply=image.apply, story=story)
        self.image = image
        self.sessions = sessions
        self._from_version = image.version
        # A broker that registers within this step gets a snapshot that has this step's records.
        self._audience = sessions.brokers()
        self._changed: set[TopicPartition] = set()
        self._informed: set[SessionId] = set()
        """Sessions that the step's answer gives their partition's state."""

    def write(self, record: MetadataRecord) -> None:
        """Decide: apply the record to the image and keep it for the log."""
        # The caller checks the level first; a record that brokers cannot read would end all of them.
        self.require(self.image.feature_level >= record.LEVEL, f"feature level {record.LEVEL} allows {record}")
        if isinstance(record, PartitionChanged):
            self._check_transition(record)
        if isinstance(record, (PartitionChanged, ReplicaPlaced)):
            self._changed.add(TopicPartition(record.topic, record.partition))
        if isinstance(record, TopicDeleted):
            self._changed = {partition for partition in self._changed if partition.topic != record.topic}
        super().write(record)
        self.story.append((self.now_ms, self.cause, record))

    def reply(self, request: RequestId, result: Result, warning: str = "") -> None:
        """Answer a request."""
        self.after_sync.append(Reply(cause=self.cause, request=request, result=result, warning=warning))

    def refuse(self, request: RequestId, error: RaylogError) -> None:
        """Answer a request with an error."""
        self.after_sync.append(Refuse(cause=self.cause, request=request, error=error))

    def close(self, session: SessionId, reason: str) -> None:
        """End a session: remove it and close its connection."""
        self.sessions.close(session)
        self.after_sync.append(CloseSession(cause=self.cause, session=session, reason=reason))

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

    def skip_state(self, session: SessionId) -> None:
        """Do not send the session its partition's state: the answer of this step carries it."""
        self._informed.add(session)

    def send_state(self, session: SessionId, incarnation: Incarnation, state: PartitionState) -> None:
        """Send a partition's state, which this step does not change, to a replica whose request shows an older one."""
        self.after_sync.append(
            SendPartitionState(cause=self.cause, session=session, incarnation=incarnation, state=state)
        )

    def resend_state(self, partition: TopicPartition) -> None:
        """Undo :meth:`skip_state` for a partition: its state has changed since the answer was made."""
        for number in sorted(self._informed):
            session = self.sessions.get(number)
            member = None if session is None else session.member
            if isinstance(member, ReplicaMember) and member.partition == partition:
                self._informed.discard(number)

    @property
    def changed(self) -> frozenset[TopicPartition]:
        """The partitions that this step has changed so far."""
        return frozenset(self._changed)

    def finish(self) -> Outbox[Effect]:
        """End the step and return its effects."""
        audience = tuple(session for session in self._audience if self.sessions.get(session) is not None)
        if self.records and audience:
            publish = PublishMetadata(
                cause=self.cause, sessions=audience, from_version=self._from_version, records=tuple(self.records)
            )
            self.after_sync.insert(0, publish)
        for partition in sorted(self._changed):
            self.after_sync.extend(self._states(partition))
        return super().finish()

    def _store(self) -> Effect:
        return WriteRecords(cause=self.cause, records=tuple(self.records))

    def _states(self, partition: TopicPartition) -> list[Effect]:
        state = self.image.partition(partition)
        self.require(state is not None, f"{partition} changed, so it exists")
        effects: list[Effect] = []
        if state is None:
            return effects
        for place in state.places:
            session = self.sessions.of(ReplicaMember(state.topic_id, partition, place.broker))
            if session is not None and session.number not in self._informed:
                self.require(place.incarnation == session.life, "a session is of the placed life")
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
        self.require(old is not None, f"partition {name} exists")
        if old is None:
            return
        self.require(record.partition_epoch == old.partition_epoch + 1, f"the partition epoch of {name} rises by one")
        if record.leader_epoch == old.leader_epoch:
            self.require(record.leader in (old.leader, NO_LEADER), f"each leader epoch of {name} has one leader")
        else:
            self.require(record.leader_epoch == old.leader_epoch + 1, f"the leader epoch of {name} rises by one")
            self.require(record.leader != NO_LEADER, f"a leader epoch of {name} begins with an election")
