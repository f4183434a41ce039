"""The records of ``__consumer_offsets``: a key and a value each, as wire lists.

The log is compacted: the last value of a key counts, and a null value (tombstone) removes the key. Written and replayed
by ``coordinator.py``; the shell only turns lists into bytes and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from raylog.core.groups.states import GroupState

OFFSET_KIND: Final = "offset"
GROUP_KIND: Final = "group"
TXN_KIND: Final = "txn"
VERSION: Final = 1
"""Version of the value layouts below. Fields are added at the end, where older readers ignore them; a change that they
may not ignore takes the next version, which a reader refuses instead of guessing."""


class OffsetKey(NamedTuple):
    """Key of an offset, including the topic id: a topic recreated under its old name starts without offsets."""

    group: str
    topic_id: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitted:
    """A group's position in a partition: ``offset`` is the next record to read.

    ``committed_ms`` is the time of day (since 1970) of the commit, -1 = unknown.
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
        pairs = [_list(pair) for pair in _list(protocols)]
        return cls(
            member_id=_str(member_id),
            instance_id=None if instance_id is None else _str(instance_id),
            client_id=_str(client_id),
            session_timeout_ms=_int(session_timeout_ms),
            rebalance_timeout_ms=_int(rebalance_timeout_ms),
            protocols=tuple((_str(name), _bytes(metadata)) for name, metadata, *_ in pairs),
            assignment=_bytes(assignment),
            client_host=_str(rest[0]) if rest else "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChanged:
    """One generation of a group, whole.

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
    """Key of what a producer's transaction has pending in a group."""

    group: str
    producer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsets:
    """The offsets that a producer's open transaction has pending in a group, all of them; none when it has ended.

    ``producer_epoch`` is that of the open transaction, or of its end: that of the next one. ``coordinator_epoch`` is
    the transaction coordinator's that wrote the last end, -1 = none was written. ``changed_ms`` is the time of day
    (since 1970) of this record, -1 = unknown.
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


Record = OffsetCommitted | OffsetDeleted | GroupChanged | GroupDeleted | TxnOffsets | TxnForgotten


def record_from_wire(key: Sequence[object], value: Sequence[object] | None) -> Record:
    """Read one record of the log.

    Raises ValueError for a kind or version that this release does not know: a coordinator that skipped such a record
    would serve a wrong view.
    """
    kind, group = _str(key[0]), _str(key[1])
    if kind == OFFSET_KIND:
        offset_key = OffsetKey(group, _str(key[2]), _str(key[3]), _int(key[4]))
        if value is None:
            return OffsetDeleted(key=offset_key)
        _check_version(value)
        _, offset, leader_epoch, metadata, committed_ms, *_ = value
        return OffsetCommitted(
            key=offset_key,
            offset=_int(offset),
            leader_epoch=_int(leader_epoch),
            metadata=_str(metadata),
            committed_ms=_int(committed_ms),
        )
    if kind == GROUP_KIND:
        return GroupDeleted(group=group) if value is None else _group_changed(group, value)
    if kind == TXN_KIND:
        return _txn_record(TxnKey(group, _int(key[2])), value)
    raise ValueError(f"A record of kind {kind!r} is in __consumer_offsets; a newer release is needed to read it.")


def _group_changed(group: str, value: Sequence[object]) -> GroupChanged:
    _check_version(value)
    _, generation, protocol_type, protocol, leader, state, changed_ms, members, *_ = value
    return GroupChanged(
        group=group,
        generation=_int(generation),
        protocol_type=_str(protocol_type),
        protocol=_str(protocol),
        leader=_str(leader),
        state=GroupState(state),
        changed_ms=_int(changed_ms),
        members=tuple(MemberRecord.from_wire(_list(member)) for member in _list(members)),
    )


def _txn_record(key: TxnKey, value: Sequence[object] | None) -> TxnOffsets | TxnForgotten:
    if value is None:
        return TxnForgotten(key=key)
    _check_version(value)
    _, producer_epoch, coordinator_epoch, offsets, changed_ms, *_ = value
    return TxnOffsets(
        key=key,
        producer_epoch=_int(producer_epoch),
        coordinator_epoch=_int(coordinator_epoch),
        offsets=tuple(_pending_offset(_list(item)) for item in _list(offsets)),
        changed_ms=_int(changed_ms),
    )


def _pending_offset(item: Sequence[object]) -> PendingOffset:
    topic_id, topic, partition, offset, leader_epoch, metadata, *_ = item
    return _str(topic_id), _str(topic), _int(partition), _int(offset), _int(leader_epoch), _str(metadata)


def _check_version(value: Sequence[object]) -> None:
    if value[0] != VERSION:
        raise ValueError(f"A record of version {value[0]!r} is in __consumer_offsets; a newer release is needed.")


def _int(value: object) -> int:
    if isinstance(value, int):
        return value
    raise TypeError(f"expected a whole number in a group record, got {value!r}")


def _str(value: object) -> str:
    if isinstance(value, str):
        return value
    raise TypeError(f"expected text in a group record, got {value!r}")


def _bytes(value: object) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"expected bytes in a group record, got {value!r}")


def _list(value: object) -> Sequence[object]:
    if isinstance(value, (list, tuple)):
        return value
    raise TypeError(f"expected a list in a group record, got {value!r}")
