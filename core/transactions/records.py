"""The rows of ``__transaction_state``, decided and applied by ``coordinator.py``. Pure.

A row is the whole state of a transactional id, so the last one is all there is to know.

A producer's epoch rises with every end of a transaction, and with every initialisation. The marker that ends a
transaction has a higher epoch than its records, so that a record that arrives after the marker is refused.
"""

from __future__ import annotations

from typing import ClassVar, Final, NamedTuple, TypeAlias

from raylog.base.invariants import require
from raylog.core.transactions.states import TxnState, is_legal_move
from raylog.protocol.rows import Row, RowKinds, Tombstone
from raylog.protocol.transactions import TxnPartition

NEVER: Final = -1
"""Timeout of transactions that another system decides on."""
MARKER_EPOCH_MAX: Final = 32_767
"""The highest epoch that fits into a batch. Only markers have it."""
PRODUCER_EPOCH_MAX: Final = MARKER_EPOCH_MAX - 1
"""The highest epoch of a producer: its marker needs a higher one. After it comes another producer id."""


class ProducerIdentity(NamedTuple):
    """What distinguishes a producer from those before it: a producer id, and its epoch."""

    producer_id: int
    epoch: int

    @property
    def is_none(self) -> bool:
        """Whether it stands for no producer."""
        return self.producer_id < 0

    @property
    def is_last(self) -> bool:
        """Whether the next identity needs another producer id."""
        return self.epoch >= PRODUCER_EPOCH_MAX


NO_IDENTITY: Final = ProducerIdentity(-1, -1)


class TxnChanged(Row, frozen=True, kw_only=True):
    """The whole state of a transactional id. :meth:`validate` checks its invariants."""

    KIND: ClassVar[str] = "txn"
    KEY: ClassVar[int] = 1

    transactional_id: str
    producer_id: int
    producer_epoch: int
    last_id: int = -1
    last_epoch: int = -1
    state: TxnState
    timeout_ms: int
    """How long a transaction may stay open; NEVER = another system decides (two-phase commit)."""
    writer_id: int = -1
    writer_epoch: int = -1
    marker_epoch: int = -1
    """Epoch of the markers that end the transaction, with the writer's producer id; -1 = its outcome is not decided."""
    partitions: tuple[TxnPartition, ...] = ()
    groups: tuple[str, ...] = ()
    started_ms: int = -1
    """Time of day at which the open transaction began; -1 = none is open, or the time was not known."""
    changed_ms: int = -1
    """Time of day of this record; -1 = not known."""

    @property
    def producer(self) -> ProducerIdentity:
        """The identity that the next request and the next transaction's records carry; earlier ones are fenced."""
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def last(self) -> ProducerIdentity:
        """The identity that ``producer`` replaced at the request of its holder; NO_IDENTITY = at another's request.

        Its holder may repeat that request, and gets ``producer`` again.
        """
        return ProducerIdentity(self.last_id, self.last_epoch)

    @property
    def writer(self) -> ProducerIdentity:
        """The identity in the open transaction's records; NO_IDENTITY = no transaction is open.

        It is earlier than ``producer`` once the outcome is decided, or if the transaction is kept for another process.
        """
        return ProducerIdentity(self.writer_id, self.writer_epoch)

    def changed(
        self,
        changed_ms: int,
        *,
        producer: ProducerIdentity | None = None,
        last: ProducerIdentity | None = None,
        writer: ProducerIdentity | None = None,
        **others: object,
    ) -> TxnChanged:
        """Return the row that follows at this time of day; identities and fields that are not given stay."""
        for name, identity in (("producer", producer), ("last", last), ("writer", writer)):
            if identity is not None:
                others |= {f"{name}_id": identity.producer_id, f"{name}_epoch": identity.epoch}
        return self.replaced(changed_ms=changed_ms, **others)

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


Record: TypeAlias = TxnChanged | Tombstone
ROWS: Final = RowKinds("__transaction_state", (TxnChanged,))
"""Reads the rows of the log."""


def deleted(transactional_id: str) -> Tombstone:
    """Return the tombstone of a transactional id that was not used for too long."""
    return Tombstone(TxnChanged, (transactional_id,))


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
