"""The records of ``__transaction_state``: a key and a value each, as wire lists.

The log is compacted: the last value of a key counts, and a null value (tombstone) removes the key. A record is the
whole state of a transactional id, so the last one is all there is to know. Written and replayed by ``coordinator.py``;
the shell only turns lists into bytes and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from raylog.base.invariants import require
from raylog.core.transactions.identity import MARKER_EPOCH_MAX, NO_IDENTITY, PRODUCER_EPOCH_MAX, Identity
from raylog.core.transactions.states import TxnState, is_legal_move

TXN_KIND: Final = "txn"
VERSION: Final = 1
"""Version of the value's layout. Fields are added at the end, where older readers ignore them; a change that they may
not ignore takes the next version, which a reader refuses instead of guessing."""
NEVER: Final = -1
"""Timeout of transactions that another system decides on."""


class TxnPartition(NamedTuple):
    """A partition of a transaction, with its topic id: in a topic that was deleted there is nothing to end."""

    topic_id: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnChanged:
    """The whole state of a transactional id. :meth:`validate` checks its invariants."""

    transactional_id: str
    producer: Identity
    """The identity that the next request and the next transaction's records have to carry; earlier ones are fenced."""
    last: Identity
    """The identity that ``producer`` replaced at the request of its holder; NO_IDENTITY = at another's request.

    Its holder may repeat that request, and gets ``producer`` again."""
    state: TxnState
    timeout_ms: int
    """How long a transaction may stay open; NEVER = another system decides (two-phase commit)."""
    writer: Identity = NO_IDENTITY
    """Identity in the open transaction's records; NO_IDENTITY = no transaction is open. It is earlier than ``producer``
    once the outcome is decided, or if the transaction is kept for another process."""
    marker_epoch: int = -1
    """Epoch of the markers that end the transaction, with the writer's producer id; -1 = its outcome is not decided."""
    partitions: tuple[TxnPartition, ...] = ()
    groups: tuple[str, ...] = ()
    started_ms: int = -1
    """Time of day at which the open transaction began; -1 = none is open, or the time was not known."""
    changed_ms: int = -1
    """Time of day of this record; -1 = not known."""

    def to_wire(self) -> tuple[list[object], list[object] | None]:
        """Return key and value as wire lists."""
        value: list[object] = [
            VERSION,
            *self.producer,
            *self.last,
            self.state.value,
            self.timeout_ms,
            *self.writer,
            self.marker_epoch,
            [list(partition) for partition in self.partitions],
            list(self.groups),
            self.started_ms,
            self.changed_ms,
        ]
        return [TXN_KIND, self.transactional_id], value

    def validate(self) -> None:
        """Check the invariants between the fields; raises InvariantBroken."""
        state, producer, writer = self.state, self.producer, self.writer
        require(producer.producer_id >= 0 and 0 <= producer.epoch <= PRODUCER_EPOCH_MAX, "an id has a producer")
        require(self.last != producer, "an identity is replaced by another one")
        require(state.is_open == (not writer.is_none), "a transaction has a writer while it is open")
        require(state.is_open == bool(self.partitions or self.groups), "and participants")
        require(state.is_prepared == (self.marker_epoch >= 0), "a marker has an epoch once the outcome is decided")
        if state.is_open and writer.producer_id == producer.producer_id:
            require(writer.epoch <= producer.epoch, "an epoch never falls")
        if state.is_prepared:
            require(writer.epoch < self.marker_epoch <= MARKER_EPOCH_MAX, "a marker is newer than the records it ends")
            require(producer != writer, "the writer of a decided transaction is fenced")
            if writer.producer_id == producer.producer_id:
                require(self.marker_epoch <= producer.epoch, "a marker does not fence the next transaction")
        require(state is not TxnState.DEAD, "a dead id has no record")


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnDeleted:
    """Tombstone of a transactional id that was not used for too long."""

    transactional_id: str

    def to_wire(self) -> tuple[list[object], list[object] | None]:
        """Return key and tombstone."""
        return [TXN_KIND, self.transactional_id], None


Record = TxnChanged | TxnDeleted


def check_move(before: TxnChanged | None, after: TxnChanged) -> None:
    """Check that a record may follow another one (None = it is the first); raises InvariantBroken."""
    after.validate()
    if before is None:
        require(after.state is TxnState.EMPTY, "an id begins without a transaction")
        return
    require(is_legal_move(before.state, after.state), f"{before.state.value} is not followed by {after.state.value}")
    if before.producer.producer_id == after.producer.producer_id:
        require(before.producer.epoch <= after.producer.epoch, "an epoch never falls")
    if before.state.is_open and after.state.is_open:
        require(before.writer == after.writer, "the writer of an open transaction stays")
        kept = set(before.partitions) <= set(after.partitions) and set(before.groups) <= set(after.groups)
        require(kept, "a participant stays in its transaction")


def record_from_wire(key: Sequence[object], value: Sequence[object] | None) -> Record:
    """Read one record of the log.

    Raises ValueError for a kind or version that this release does not know, and TypeError for a malformed one: a
    coordinator that skipped such a record would serve a wrong view.
    """
    kind, name = _str(key[0]), _str(key[1])
    if kind != TXN_KIND:
        raise ValueError(f"A record of kind {kind!r} is in __transaction_state; a newer release is needed to read it.")
    if value is None:
        return TxnDeleted(transactional_id=name)
    if value[0] != VERSION:
        raise ValueError(f"A record of version {value[0]!r} is in __transaction_state; a newer release is needed.")
    _, producer_id, epoch, last_id, last_epoch, state, timeout_ms, writer_id, writer_epoch, *rest = value
    marker_epoch, partitions, groups, started_ms, changed_ms, *_ = rest
    return TxnChanged(
        transactional_id=name,
        producer=Identity(_int(producer_id), _int(epoch)),
        last=Identity(_int(last_id), _int(last_epoch)),
        state=TxnState(state),
        timeout_ms=_int(timeout_ms),
        writer=Identity(_int(writer_id), _int(writer_epoch)),
        marker_epoch=_int(marker_epoch),
        partitions=tuple(_partition(row) for row in _list(partitions)),
        groups=tuple(_str(group) for group in _list(groups)),
        started_ms=_int(started_ms),
        changed_ms=_int(changed_ms),
    )


def _partition(row: object) -> TxnPartition:
    topic_id, topic, partition, *_ = _list(row)
    return TxnPartition(_str(topic_id), _str(topic), _int(partition))


def _int(value: object) -> int:
    if isinstance(value, int):
        return value
    raise TypeError(f"expected a whole number in a transaction's record, got {value!r}")


def _str(value: object) -> str:
    if isinstance(value, str):
        return value
    raise TypeError(f"expected text in a transaction's record, got {value!r}")


def _list(value: object) -> Sequence[object]:
    if isinstance(value, (list, tuple)):
        return value
    raise TypeError(f"expected a list in a transaction's record, got {value!r}")
