"""The committed offsets of all groups of one coordinator: commit, fetch, delete, expiry.

The store holds only the log's records: it changes only through ``apply``. Whether a commit is accepted depends on the
group's state (Kafka's table). Called by ``coordinator.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from raylog.base.errors import (
    GroupSubscribedToTopic,
    InvalidRequest,
    LimitReached,
    OffsetMetadataTooLarge,
    RaylogError,
    RebalanceInProgress,
    RecordTooLarge,
    UnknownMemberId,
    UnstableOffsetCommit,
)
from raylog.core.coordinators.sizes import row_bytes
from raylog.core.groups.decision import GroupDecision
from raylog.core.groups.figures import OffsetFigures
from raylog.core.groups.group import Group
from raylog.core.groups.records import OffsetCommitted, OffsetKey
from raylog.core.groups.settings import GroupSettings
from raylog.core.groups.states import GroupState
from raylog.core.groups.use import GroupUse
from raylog.core.received import Received
from raylog.protocol.groups import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchPartition,
    TxnOffsetCommitRequest,
)
from raylog.protocol.rows import Tombstone

_NO_OFFSETS: Final[dict[OffsetKey, OffsetCommitted]] = {}


class OffsetStore:
    """Committed offsets by group, then by (group, topic id, topic, partition)."""

    def __init__(self) -> None:
        """Start without offsets."""
        self._by_group: dict[str, dict[OffsetKey, OffsetCommitted]] = {}
        self._notes_bytes: dict[str, int] = {}
        """Bytes of notes (commit metadata) by group, of groups that have any."""

    def apply(self, record: OffsetCommitted | Tombstone) -> None:
        """Store or delete one offset: the only mutator, for live traffic and replay alike."""
        key = OffsetKey(*record.key)
        held = self._by_group.get(key.group)
        self._count_notes(key.group, None if held is None else held.get(key), record)
        if isinstance(record, OffsetCommitted):
            if held is None:
                held = self._by_group[key.group] = {}
            held[key] = record
        elif held is not None:
            held.pop(key, None)
            if not held:
                del self._by_group[key.group]

    def _count_notes(self, group: str, before: OffsetCommitted | None, after: OffsetCommitted | Tombstone) -> None:
        more = _note_bytes(after) - _note_bytes(before)
        if more:
            self._notes_bytes[group] = self._notes_bytes.get(group, 0) + more
            if not self._notes_bytes[group]:
                del self._notes_bytes[group]

    def notes_bytes(self, group: str) -> int:
        """Return the bytes of all notes of the group."""
        return self._notes_bytes.get(group, 0)

    def groups(self) -> list[str]:
        """Return the names of the groups that have offsets."""
        return sorted(self._by_group)

    def of(self, group: str) -> list[OffsetCommitted]:
        """Return the group's offsets in order of their keys."""
        held = self._by_group.get(group, {})
        return [held[key] for key in sorted(held)]

    def count(self, group: str) -> int:
        """Return how many offsets the group has."""
        return len(self._by_group.get(group, _NO_OFFSETS))

    def figures(self, group: str) -> list[OffsetFigures]:
        """Return the group's offsets for the metrics."""
        return [
            OffsetFigures(item.key.topic_id, item.key.topic, item.key.partition, item.offset) for item in self.of(group)
        ]

    def has(self, group: str) -> bool:
        """Return whether the group has any offset."""
        return group in self._by_group

    def has_older(self, group: str, than_ms: int) -> bool:
        """Return whether the group has an offset that was committed at this time of day or before."""
        return any(0 <= held.committed_ms <= than_ms for held in self._by_group.get(group, _NO_OFFSETS).values())

    def get(self, key: OffsetKey) -> OffsetCommitted | None:
        """Return one offset, or None."""
        return self._by_group.get(key.group, {}).get(key)

    def to_wire(self) -> list[object]:
        """Return everything as comparable wire rows, in order."""
        return [record.to_wire() for group in self.groups() for record in self.of(group)]


def commit_error(group: Group, message: OffsetCommitRequest | TxnOffsetCommitRequest) -> RaylogError | None:
    """Return the error for a commit of this sender at this time, or None when it may commit.

    A member of a generation that is not assigned yet may commit what it read before with a transaction, as in Kafka.
    """
    if message.generation_id < 0 and group.state is GroupState.EMPTY:
        return None
    if message.generation_id < 0 and message.member_id == "" and message.group_instance_id is None:
        return UnknownMemberId(
            f"Group {group.name!r} has members: only they may commit. Use another group_id for consumers "
            "that assign partitions themselves."
        )
    error = group.fence(message.member_id, message.group_instance_id, message.generation_id)
    if isinstance(message, TxnOffsetCommitRequest):
        return error
    if error is None and group.state is GroupState.COMPLETING_REBALANCE:
        error = RebalanceInProgress(f"Group {group.name!r} is rebalancing; join again.")
    return error


def commit(store: OffsetStore, event: Received[OffsetCommitRequest], decision: GroupDecision) -> list[OffsetKey]:
    """Handle OffsetCommit of a sender that may commit; return the keys of what was committed.

    Replies [[topic, partition, error code]...].
    """
    rows: list[list[object]] = []
    keys: list[OffsetKey] = []
    for row in event.message.offsets:
        committed = committed_row(event.message.group_id, row, decision.wall_ms)
        code = row_error(committed, decision.settings) or room_error(store, committed, decision.settings)
        if code == 0:
            decision.write(committed)
            keys.append(committed.key)
        rows.append([row.topic, row.partition, code])
    decision.reply_rows(event.request, rows)
    return keys


def committed_row(group: str, row: OffsetCommitPartition, wall_ms: int) -> OffsetCommitted:
    """Return the row of an offset that a group commits at this time of day."""
    position = row.committed_offset, row.committed_leader_epoch, row.committed_metadata
    return OffsetCommitted(group, row.topic_id, row.topic, row.partition, *position, wall_ms)


def row_error(committed: OffsetCommitted, settings: GroupSettings) -> int:
    """Return the error code with which this offset of a commit is refused, whatever the group has; 0 = none."""
    if committed.offset < 0:
        return InvalidRequest.code  # -1 means "none" in a fetch's reply; to forget an offset there is OffsetDelete
    if len(committed.metadata.encode()) > settings.offset_metadata_bytes_max:
        return OffsetMetadataTooLarge.code
    if _is_too_large(committed, settings):
        return RecordTooLarge.code
    return 0


def room_error(store: OffsetStore, committed: OffsetCommitted, settings: GroupSettings, *, others: int = 0) -> int:
    """Return the error code for an offset, or its note, that the group has no room for; 0 = there is room.

    ``others``: how many new offsets are to be added besides.
    """
    key, known = committed.key, store.get(committed.key)
    if known is None and store.count(key.group) + others >= settings.offsets_max:
        return LimitReached.code
    more = _note_bytes(committed) - _note_bytes(known)
    if more > 0 and store.notes_bytes(key.group) + more > settings.notes_bytes_max:
        return OffsetMetadataTooLarge.code
    return 0


def _note_bytes(record: OffsetCommitted | Tombstone | None) -> int:
    return len(record.metadata.encode()) if isinstance(record, OffsetCommitted) and record.metadata else 0


def _is_too_large(committed: OffsetCommitted, settings: GroupSettings) -> bool:
    key = committed.key
    characters = len(key.group) + len(key.topic_id) + len(key.topic) + len(committed.metadata)
    # Almost all records are far below the limit; only the others are measured exactly.
    return 8 * characters > settings.record_bytes_max and row_bytes(*committed.to_wire()) > settings.record_bytes_max


def fetch(
    store: OffsetStore,
    group: str,
    partitions: Sequence[OffsetFetchPartition] | None,
    *,
    sees: Callable[[str, str, str, int], bool] | None = None,
) -> list[object]:
    """Return [[topic id, topic, partition, offset, leader epoch, metadata]...]; offset -1 = none.

    ``partitions`` None: all partitions with a committed offset that the sender may see (``sees``; None = all).
    """
    if partitions is None:
        keys = [each.key for each in store.of(group) if sees is None or sees(*each.key)]
    else:
        keys = [OffsetKey(group, row.topic_id, row.topic, row.partition) for row in partitions]
    rows: list[object] = []
    for key in keys:
        found = store.get(key)
        where = [key.topic_id, key.topic, key.partition]
        rows.append(
            [*where, -1, -1, ""] if found is None else [*where, found.offset, found.leader_epoch, found.metadata]
        )
    return rows


def delete(
    store: OffsetStore,
    use: GroupUse,
    event: Received[OffsetDeleteRequest],
    decision: GroupDecision,
    *,
    pending: Collection[OffsetKey],
) -> None:
    """Handle OffsetDelete. Replies [[topic, partition, error code]...]; deleting a missing offset is no error.

    Offsets of topics that members subscribe to are refused and stay (KIP-496); while the subscriptions are not known,
    those of all topics. ``pending``: offsets that a transaction is about to commit; they are refused as unstable and
    stay.
    """
    if not use.are_consumers and (active := use.active_error()) is not None:
        decision.refuse(event.request, active)
        return
    rows: list[object] = []
    for row in event.message.partitions:
        key = OffsetKey(use.group, row.topic_id, row.topic, row.partition)
        code = 0
        if use.reads(row.topic):
            code = GroupSubscribedToTopic.code
        elif key in pending:
            code = UnstableOffsetCommit.code
        elif store.get(key) is not None:
            decision.write(Tombstone(OffsetCommitted, key))
        rows.append([row.topic, row.partition, code])
    decision.reply_proved(event.request, rows)


def expired(store: OffsetStore, use: GroupUse, wall_ms: int, settings: GroupSettings) -> list[OffsetKey]:
    """Return the offsets whose retention is over.

    In an empty group that once had members, retention counts from the moment when it became empty, or from a later
    commit (an administrator's reset), so that such a commit cannot vanish at once. In a group that never had members it
    counts from the commit. In a stable group, only offsets of topics that no member subscribes to expire, counted from
    the commit (KIP-211); amid a round none does. Offsets without a known time stay.
    """
    since_ms = use.counts_from_ms
    if since_ms is None or wall_ms < 0:
        return []
    return [
        record.key
        for record in store.of(use.group)
        if not use.reads(record.key.topic)
        and record.committed_ms >= 0
        and wall_ms - max(record.committed_ms, since_ms) >= settings.offsets_retention_ms
    ]
