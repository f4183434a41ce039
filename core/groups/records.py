"""The records of ``__consumer_offsets``: a key and a value each, as wire lists.

The log is compacted: the last value of a key counts, and a null value (tombstone) removes the key. Written and replayed
by ``coordinator.py``; the shell only turns lists into bytes and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from raylog.core.groups.consumer.records import CONSUMER_KINDS, ConsumerRecord, consumer_record_from_wire
from raylog.core.groups.fields import as_bytes, as_int, as_list, as_str
from raylog.core.groups.states import GroupState

OFFSET_KIND: Final = "offset"
GROUP_KIND: Final = "group"
TXN_KIND: Final = "txn"
VERSION: Final = 1
"""Version of the value layouts below. Fields are added at the end, where older readers ignore them; a change that they
may not ignore takes the next version, which a reader refuses instead of guessing."""


class OffsetKey(NamedTuple):
    """Key of an offset, with the topic id: a topic that is created again under its old name starts without offsets."""

    group: str
    topic_id: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitted:
    """A group's position in a partition: ``offset`` is the next record to read.

    ``leader_epoch`` is that of the last record read, -1 = unknown. ``metadata`` is the member's note. ``committed_ms``
    is the time of day (since 1970) of the commit, -1 = unknown.
    """

    key: OffsetKey
    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int

    def to_wire(self) -> tuple[list[object], list[object] | None]:
        """Return key and value as wire lists."""
        value: list[object] = [VERSION, self.offset, self.leader_epoch, self.metadata, self.committed_ms]
        return [OFFSET_KIND, *self.key], value


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleted:
    """Tombstone of a group's position in a partition."""

    key: OffsetKey

    def to_wire(self) -> tuple[list[object], list[object] | None]:
        """Return key and tombstone."""
        return [OFFSET_KIND, *self.key], None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    """One member of a generation. ``assignment`` is empty until the leader has assigned."""

    member_id: str
    instance_id: str | None
    client_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    client_host: str = ""
    """Where its last join came from, "" = not known."""

    def metadata(self, protocol: str) -> bytes:
        """Return the member's metadata for that assignor, empty when it has none."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    def to_wire(self) -> list[object]:
        """Return the wire form."""
        return [
            self.member_id,
            self.instance_id,
            self.client_id,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            [[name, metadata] for name, metadata in self.protocols],
            self.assignment,
            self.client_host,
        ]

    @classmethod
    def from_wire(cls, row: Sequence[object]) -> MemberRecord:
        """Read the wire form."""
        member_id, instance_id, client_id, session_timeout_ms, rebalance_timeout_ms, protocols, assignment, *rest = row
        pairs = [as_list(pair) for pair in as_list(protocols)]
        return cls(
            member_id=as_str(member_id),
            instance_id=None if instance_id is None else as_str(instance_id),
            client_id=as_str(client_id),
            session_timeout_ms=as_int(session_timeout_ms),
            rebalance_timeout_ms=as_int(rebalance_timeout_ms),
            protocols=tuple((as_str(name), as_bytes(metadata)) for name, metadata, *_ in pairs),
            assignment=as_bytes(assignment),
            client_host=as_str(rest[0]) if rest else "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChanged:
    """The whole state of one generation of a group.

    ``state`` is Empty (no members), CompletingRebalance (members and leader are fixed, no partition is assigned) or
    Stable (assignments are given). Kafka writes no record at CompletingRebalance and lets the generation fall back
    after a restart; here it is written before any member receives the generation, so generations never fall.
    ``changed_ms`` is the time of day (since 1970) of this record, -1 = unknown.
    """

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

    def to_wire(self) -> tuple[list[object], list[object] | None]:
        """Return key and value as wire lists."""
        value: list[object] = [
            VERSION,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader,
            self.state.value,
            self.changed_ms,
            [member.to_wire() for member in self.members],
        ]
        return [GROUP_KIND, self.group], value


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDeleted:
    """Tombstone of a group. Its offsets are deleted by their own records."""

    group: str

    def to_wire(self) -> tuple[list[object], list[object] | None]:
        """Return key and tombstone."""
        return [GROUP_KIND, self.group], None


PendingOffset = tuple[str, str, int, int, int, str]
"""Topic id, topic, partition, offset, leader epoch or -1, note."""


class TxnKey(NamedTuple):
    """Key of the offsets that a producer's transaction has pending in a group."""

    group: str
    producer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsets:
    """All offsets that a producer's open transaction has pending in a group; empty once it has ended.

    ``producer_epoch`` is that of the open transaction; once it has ended, that of the producer's next one.
    ``coordinator_epoch`` is that of the transaction coordinator that wrote the last end, -1 = none was written.
    ``changed_ms`` is the time of day (since 1970) of this record, -1 = unknown.
    """

    key: TxnKey
    producer_epoch: int
    coordinator_epoch: int
    offsets: tuple[PendingOffset, ...]
    changed_ms: int

    def to_wire(self) -> tuple[list[object], list[object] | None]:
        """Return key and value as wire lists."""
        rows = [list(item) for item in self.offsets]
        value: list[object] = [VERSION, self.producer_epoch, self.coordinator_epoch, rows, self.changed_ms]
        return [TXN_KIND, *self.key], value


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnForgotten:
    """Tombstone of a producer's row in a group."""

    key: TxnKey

    def to_wire(self) -> tuple[list[object], list[object] | None]:
        """Return key and tombstone."""
        return [TXN_KIND, *self.key], None


Record = OffsetCommitted | OffsetDeleted | GroupChanged | GroupDeleted | TxnOffsets | TxnForgotten | ConsumerRecord


def record_from_wire(key: Sequence[object], value: Sequence[object] | None) -> Record:
    """Read one record of the log.

    Raises ValueError for a kind or version that this release does not know: a coordinator that skipped such a record
    would serve a wrong view.
    """
    kind, group = as_str(key[0]), as_str(key[1])
    if kind == OFFSET_KIND:
        offset_key = OffsetKey(group, as_str(key[2]), as_str(key[3]), as_int(key[4]))
        if value is None:
            return OffsetDeleted(key=offset_key)
        _check_version(value)
        _, offset, leader_epoch, metadata, committed_ms, *_ = value
        return OffsetCommitted(
            key=offset_key,
            offset=as_int(offset),
            leader_epoch=as_int(leader_epoch),
            metadata=as_str(metadata),
            committed_ms=as_int(committed_ms),
        )
    if kind == GROUP_KIND:
        return GroupDeleted(group=group) if value is None else _group_changed(group, value)
    if kind == TXN_KIND:
        return _txn_record(TxnKey(group, as_int(key[2])), value)
    if kind in CONSUMER_KINDS:
        return consumer_record_from_wire(key, value)
    raise ValueError(f"A record of kind {kind!r} is in __consumer_offsets; a newer release is needed to read it.")


def _group_changed(group: str, value: Sequence[object]) -> GroupChanged:
    _check_version(value)
    _, generation, protocol_type, protocol, leader, state, changed_ms, members, *_ = value
    return GroupChanged(
        group=group,
        generation=as_int(generation),
        protocol_type=as_str(protocol_type),
        protocol=as_str(protocol),
        leader=as_str(leader),
        state=GroupState(state),
        changed_ms=as_int(changed_ms),
        members=tuple(MemberRecord.from_wire(as_list(member)) for member in as_list(members)),
    )


def _txn_record(key: TxnKey, value: Sequence[object] | None) -> TxnOffsets | TxnForgotten:
    if value is None:
        return TxnForgotten(key=key)
    _check_version(value)
    _, producer_epoch, coordinator_epoch, offsets, changed_ms, *_ = value
    return TxnOffsets(
        key=key,
        producer_epoch=as_int(producer_epoch),
        coordinator_epoch=as_int(coordinator_epoch),
        offsets=tuple(_pending_offset(as_list(item)) for item in as_list(offsets)),
        changed_ms=as_int(changed_ms),
    )


def _pending_offset(item: Sequence[object]) -> PendingOffset:
    topic_id, topic, partition, offset, leader_epoch, metadata, *_ = item
    return as_str(topic_id), as_str(topic), as_int(partition), as_int(offset), as_int(leader_epoch), as_str(metadata)


def _check_version(value: Sequence[object]) -> None:
    if value[0] != VERSION:
        raise ValueError(f"A record of version {value[0]!r} is in __consumer_offsets; a newer release is needed.")
