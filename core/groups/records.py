"""The rows of ``__consumer_offsets``. Written and replayed by ``coordinator.py``; the shell turns them into bytes."""

from __future__ import annotations

from typing import ClassVar, Final, NamedTuple

from raylog.core.groups.consumer_records import CONSUMER_ROWS
from raylog.core.groups.states import GroupState
from raylog.protocol.groups import JoinGroupProtocol, OffsetCommitPartition
from raylog.protocol.message import Message
from raylog.protocol.rows import Row, RowKinds

Protocols = tuple[JoinGroupProtocol, ...]
"""The assignors of a member with its metadata for each, in its order of preference."""


class OffsetKey(NamedTuple):
    """Key of an offset, with the topic id: a topic that is created again under its old name starts without offsets."""

    group: str
    topic_id: str
    topic: str
    partition: int


class OffsetCommitted(Row, frozen=True):
    """A group's position in a partition: ``offset`` is the next record to read.

    ``leader_epoch`` is that of the last record read, -1 = unknown. ``metadata`` is the member's note. ``committed_ms``
    is the time of day (since 1970) of the commit, -1 = unknown.
    """

    KIND: ClassVar[str] = "offset"
    KEY: ClassVar[int] = 4

    group: str
    topic_id: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int

    @property
    def key(self) -> OffsetKey:
        """The fields of the key."""
        return OffsetKey(self.group, self.topic_id, self.topic, self.partition)


class MemberRecord(Message, frozen=True):
    """One member of a generation. ``assignment`` is empty until the leader has assigned."""

    member_id: str
    instance_id: str | None
    client_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    client_host: str = ""
    """Where its last join came from, "" = not known."""

    def metadata(self, protocol: str) -> bytes:
        """Return the member's metadata for that assignor, empty when it has none."""
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")


class GroupChanged(Row, frozen=True):
    """The whole state of one generation of a group.

    ``state`` is Empty (no members), CompletingRebalance (members and leader are fixed, no partition is assigned) or
    Stable (assignments are given). Kafka writes no record at CompletingRebalance and lets the generation fall back
    after a restart; here it is written before any member receives the generation, so generations never fall.
    ``changed_ms`` is the time of day (since 1970) of this record, -1 = unknown. The tombstone leaves the group's
    offsets, which are deleted by their own.
    """

    KIND: ClassVar[str] = "group"
    KEY: ClassVar[int] = 1

    group: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    state: GroupState
    changed_ms: int
    members: tuple[MemberRecord, ...] = ()

    def member(self, member_id: str) -> MemberRecord | None:
        """Return that member, or None."""
        return next((member for member in self.members if member.member_id == member_id), None)


class TxnKey(NamedTuple):
    """Key of the offsets that a producer's transaction has pending in a group."""

    group: str
    producer_id: int


class TxnOffsets(Row, frozen=True):
    """All offsets that a producer's open transaction has pending in a group; empty once it has ended.

    ``producer_epoch`` is that of the open transaction; once it has ended, that of the producer's next one.
    ``coordinator_epoch`` is that of the transaction coordinator that wrote the last end, -1 = none was written.
    ``changed_ms`` is the time of day (since 1970) of this record, -1 = unknown.
    """

    KIND: ClassVar[str] = "txn"
    KEY: ClassVar[int] = 2

    group: str
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    offsets: tuple[OffsetCommitPartition, ...]
    changed_ms: int

    @property
    def key(self) -> TxnKey:
        """The fields of the key."""
        return TxnKey(self.group, self.producer_id)


GROUP_ROWS: Final = RowKinds("__consumer_offsets", (OffsetCommitted, GroupChanged, TxnOffsets, *CONSUMER_ROWS))
