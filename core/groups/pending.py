"""Offsets that are committed with a transaction: they are pending until the transaction ends (KIP-98, KIP-447).

The coordinator itself takes part in the transaction, not its partition. The offsets that a producer has pending in a
group are one row of the log. The row stays when nothing is pending any more, and keeps the producer's epoch: so a
repeated end changes nothing, and a late commit of an earlier transaction is refused by its epoch. The store holds only
the log's records. Called by ``coordinator.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from raylog.base.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidRequest,
    RaylogError,
    RecordTooLarge,
    TransactionCoordinatorFenced,
)
from raylog.core.coordinators.sizes import row_bytes
from raylog.core.groups.decision import GroupDecision
from raylog.core.groups.offsets import OffsetStore, committed_row, room_error, row_error
from raylog.core.groups.records import OffsetKey, TxnKey, TxnOffsets
from raylog.core.groups.settings import GroupSettings
from raylog.core.received import Received
from raylog.protocol.groups import (
    EndTxnOffsetsRequest,
    OffsetCommitPartition,
    OffsetFetchPartition,
    TxnOffsetCommitRequest,
)
from raylog.protocol.rows import Tombstone, wire_of

_NO_PRODUCERS: Final[dict[int, TxnOffsets]] = {}


class PendingStore:
    """The rows of producers, by group, then by producer id.

    Invariant: ``_open`` has, by group, the producers whose rows have pending offsets.
    """

    def __init__(self) -> None:
        """Start without rows."""
        self._by_group: dict[str, dict[int, TxnOffsets]] = {}
        self._open: dict[str, set[int]] = {}

    def apply(self, record: TxnOffsets | Tombstone) -> None:
        """Store or delete one row: the only mutator, for live traffic and replay alike."""
        group, producer_id = TxnKey(*record.key)
        if isinstance(record, TxnOffsets):
            self._by_group.setdefault(group, {})[producer_id] = record
            is_open = bool(record.offsets)
        else:
            self._by_group.get(group, {}).pop(producer_id, None)
            if not self._by_group.get(group, True):
                del self._by_group[group]
            is_open = False
        if is_open:
            self._open.setdefault(group, set()).add(producer_id)
        elif group in self._open:
            self._open[group].discard(producer_id)
            if not self._open[group]:
                del self._open[group]

    def get(self, key: TxnKey) -> TxnOffsets | None:
        """Return a producer's row, or None."""
        return self._by_group.get(key.group, _NO_PRODUCERS).get(key.producer_id)

    def groups(self) -> list[str]:
        """Return the names of the groups that have rows."""
        return sorted(self._by_group)

    def open_groups(self) -> list[str]:
        """Return the names of the groups that have something pending."""
        return sorted(self._open)

    def is_open(self, group: str) -> bool:
        """Return whether anything is pending in the group."""
        return group in self._open

    def of(self, group: str) -> list[TxnOffsets]:
        """Return the group's rows in order of the producers' ids."""
        return [row for _, row in sorted(self._by_group.get(group, _NO_PRODUCERS).items())]

    def open_of(self, group: str) -> list[TxnOffsets]:
        """Return those rows of the group that have something pending, in order of the producers' ids."""
        return [self._by_group[group][producer_id] for producer_id in sorted(self._open.get(group, ()))]

    def pending_keys(self, group: str) -> set[OffsetKey]:
        """Return the keys of the group's offsets that are pending."""
        return {_key(group, item) for row in self.open_of(group) for item in row.offsets}

    def to_wire(self) -> list[object]:
        """Return everything as comparable wire rows, in order."""
        return [row.to_wire() for group in self.groups() for row in self.of(group)]


def txn_commit(
    store: PendingStore, committed: OffsetStore, event: Received[TxnOffsetCommitRequest], decision: GroupDecision
) -> None:
    """Handle TxnOffsetCommit of a sender that may commit. Replies [[topic, partition, error code]...].

    ``committed``: the committed offsets, with which the pending ones share the group's room.
    """
    message = event.message
    error = _commit_error(store, message)
    if error is not None:
        decision.refuse(event.request, error)
        return
    key = TxnKey(message.group_id, message.producer_id)
    known = store.get(key)
    pending: dict[OffsetKey, OffsetCommitPartition] = {}
    if known is not None:
        pending = {_key(message.group_id, item): item for item in known.offsets}
    rows: list[list[object]] = []
    taken: list[OffsetCommitPartition] = []
    for item in message.offsets:
        offset = committed_row(message.group_id, item, decision.wall_ms)
        code = row_error(offset, decision.settings)
        if code == 0 and offset.key not in pending:
            code = room_error(committed, offset, decision.settings, others=len(pending))
        if code == 0:
            taken.append(item)
            pending[offset.key] = item
        rows.append([item.topic, item.partition, code])
    row = TxnOffsets(
        *key,
        producer_epoch=message.producer_epoch,
        coordinator_epoch=-1 if known is None else known.coordinator_epoch,
        offsets=tuple(pending.values()),
        changed_ms=decision.wall_ms,
    )
    if row_bytes(*row.to_wire()) > decision.settings.record_bytes_max:
        decision.refuse(
            event.request,
            RecordTooLarge(
                f"The offsets that transaction {message.transactional_id!r} has pending in group {message.group_id!r} "
                "do not fit into one record; commit fewer partitions in one transaction."
            ),
        )
        return
    if taken or known is None or known.producer_epoch < message.producer_epoch:
        decision.write(row)
    decision.reply_rows(event.request, rows)


def _commit_error(store: PendingStore, message: TxnOffsetCommitRequest) -> RaylogError | None:
    if message.producer_id < 0 or message.producer_epoch < 0:
        return InvalidRequest(
            "Offsets are committed with a transaction by a producer id; call init_transactions first."
        )
    known = store.get(TxnKey(message.group_id, message.producer_id))
    if known is None or known.producer_epoch == message.producer_epoch:
        return None
    if known.producer_epoch > message.producer_epoch:
        return InvalidProducerEpoch(
            f"The transaction of {message.transactional_id!r} in group {message.group_id!r} has ended, or a newer "
            f"producer has its id: epoch {message.producer_epoch} is over."
        )
    if known.offsets:
        return ConcurrentTransactions(
            f"The transaction of {message.transactional_id!r} before this one is still being ended in group "
            f"{message.group_id!r}; try again."
        )
    return None


def end(store: PendingStore, event: Received[EndTxnOffsetsRequest], decision: GroupDecision) -> None:
    """Handle EndTxnOffsets. Replies []; a repetition changes nothing.

    The row is emptied after the offsets are written: if a crash cuts that short, the next coordinator finds the row
    open, and the end is repeated.
    """
    message = event.message
    key = TxnKey(message.group_id, message.producer_id)
    known = store.get(key)
    if known is not None and 0 <= message.coordinator_epoch < known.coordinator_epoch:
        decision.refuse(
            event.request,
            TransactionCoordinatorFenced(
                f"Coordinator epoch {message.coordinator_epoch} is over: {known.coordinator_epoch} has ended a "
                f"transaction of producer {message.producer_id} in group {message.group_id!r}."
            ),
        )
        return
    if known is not None and message.producer_epoch < known.producer_epoch:
        decision.refuse(
            event.request,
            InvalidProducerEpoch(
                f"Producer {message.producer_id} has epoch {known.producer_epoch} in group {message.group_id!r}, not "
                f"{message.producer_epoch}."
            ),
        )
        return
    if known is None or message.producer_epoch > known.producer_epoch:
        if known is not None and message.committed:
            for item in known.offsets:
                decision.write(committed_row(message.group_id, item, decision.wall_ms))
        decision.write(
            TxnOffsets(
                *key,
                producer_epoch=message.producer_epoch,
                coordinator_epoch=max(message.coordinator_epoch, -1 if known is None else known.coordinator_epoch),
                offsets=(),
                changed_ms=decision.wall_ms,
            )
        )
    decision.reply(event.request, [])


def supersede(store: PendingStore, group: str, keys: Iterable[OffsetKey], decision: GroupDecision) -> None:
    """Drop pending offsets of partitions that were just committed without a transaction: the later commit counts."""
    if not store.is_open(group):
        return
    later = set(keys)
    for row in store.open_of(group):
        left = tuple(item for item in row.offsets if _key(group, item) not in later)
        if len(left) < len(row.offsets):
            decision.write(row.replaced(offsets=left, changed_ms=decision.wall_ms))


def is_unstable(store: PendingStore, group: str, partitions: Sequence[OffsetFetchPartition] | None) -> bool:
    """Return whether an offset of these partitions is pending; None = of any partition."""
    if not store.is_open(group):
        return False
    return partitions is None or not store.pending_keys(group).isdisjoint(
        OffsetKey(group, row.topic_id, row.topic, row.partition) for row in partitions
    )


def described(
    store: PendingStore, group: str, *, sees: Callable[[str, str, str, int], bool] | None = None
) -> list[object]:
    """Return [[producer id, epoch, topic id, topic, partition, offset, leader epoch, metadata]...] of pending offsets.

    ``sees``: whether the sender may see a partition; None = all.
    """
    return [
        [row.producer_id, row.producer_epoch, *wire_of(item)]
        for row in store.open_of(group)
        for item in sorted(row.offsets, key=wire_of)
        if sees is None or sees(*_key(group, item))
    ]


def expired(store: PendingStore, group: str, wall_ms: int, settings: GroupSettings) -> list[TxnKey]:
    """Return the rows without pending offsets that are so old that no late commit can come any more."""
    if wall_ms < 0:
        return []
    return [
        row.key
        for row in store.of(group)
        if not row.offsets and 0 <= row.changed_ms <= wall_ms - settings.txn_fence_retention_ms
    ]


def _key(group: str, item: OffsetCommitPartition) -> OffsetKey:
    return OffsetKey(group, item.topic_id, item.topic, item.partition)
