"""What a request does to a transactional id: pure functions from its record to the next one, or to a refusal.

Used by ``coordinator.py``, which writes the record, answers, and sends the markers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from raylog.base.errors import (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTransactionTimeout,
    InvalidTxnState,
    ProducerFenced,
    RaylogError,
)
from raylog.core.coordinators.sizes import row_bytes
from raylog.core.transactions.events import ProducerRequest
from raylog.core.transactions.records import MARKER_EPOCH_MAX, NEVER, NO_IDENTITY, ProducerIdentity, TxnChanged
from raylog.core.transactions.settings import TxnSettings
from raylog.core.transactions.states import TxnState
from raylog.protocol.transactions import InitTransactionsRequest, TxnPartition, VerifyTransactionRequest

TakeId = Callable[[], int]
"""Returns a producer id that was never used."""


STATE_BYTES: Final = 16
"""By how much the name of a later state may be longer: a record that fits with this margin can also be ended."""


def fits(txn: TxnChanged, bytes_max: int) -> bool:
    """Return whether the log takes this record of an id, and the later ones that end its transaction."""
    return row_bytes(*txn.to_wire()) + STATE_BYTES <= bytes_max


def timeout_error(request: InitTransactionsRequest, settings: TxnSettings) -> RaylogError | None:
    """Return why a producer may not have the timeout that it requests, or None."""
    if request.two_phase_commit:
        if settings.two_phase_commit:
            return None
        return InvalidRequest(
            "This cluster has no transactions without a timeout: set transaction.two.phase.commit.enable=true, or "
            "leave two-phase commit off."
        )
    if 1 <= request.transaction_timeout_ms <= settings.max_timeout_ms:
        return None
    return InvalidTransactionTimeout(
        f"transaction_timeout_ms is {request.transaction_timeout_ms}; it has to be within 1 and "
        f"{settings.max_timeout_ms} (transaction.max.timeout.ms)."
    )


def identity_of(request: ProducerRequest) -> ProducerIdentity:
    """Return the identity that a request's sender claims."""
    return ProducerIdentity(request.producer_id, request.producer_epoch)


def identity_error(txn: TxnChanged | None, request: ProducerRequest) -> RaylogError | None:
    """Return why the sender of a request may not act for the transactional id, or None."""
    name = request.transactional_id
    if txn is None or txn.producer.producer_id != request.producer_id:
        return InvalidProducerIdMapping(
            f"Producer id {request.producer_id} is not that of the transactional id {name!r}; call init_transactions() "
            "in a new producer."
        )
    if txn.producer.epoch != request.producer_epoch:
        return fenced(name)
    return None


def fenced(name: str) -> ProducerFenced:
    """Return the error for a producer that was replaced."""
    return ProducerFenced(
        f"A newer producer has the transactional id {name!r}, or its transaction took longer than its timeout and was "
        "aborted; close this producer."
    )


def may_initialise(txn: TxnChanged | None, request: InitTransactionsRequest) -> bool:
    """Return whether the sender of an initialisation has no identity, the present one, or repeats its request."""
    sender = identity_of(request)
    return sender.is_none or (txn is not None and sender in (txn.producer, txn.last))


def next_identity(held: ProducerIdentity, take_id: TakeId) -> ProducerIdentity:
    """Return the identity that replaces another: the next epoch, or epoch 0 of a new producer id after the last."""
    return ProducerIdentity(take_id(), 0) if held.is_last else ProducerIdentity(held.producer_id, held.epoch + 1)


def initialised(txn: TxnChanged | None, request: InitTransactionsRequest, take_id: TakeId, wall_ms: int) -> TxnChanged:
    """Return the id with its next producer. No transaction may be open, unless it is kept for another process.

    A repeated request of the same producer gets the same identity.
    """
    timeout_ms = NEVER if request.two_phase_commit else request.transaction_timeout_ms
    if txn is None:
        return TxnChanged(
            transactional_id=request.transactional_id,
            producer_id=take_id(),
            producer_epoch=0,
            state=TxnState.EMPTY,
            timeout_ms=timeout_ms,
            changed_ms=wall_ms,
        )
    sender = identity_of(request)
    is_repeated = not sender.is_none and sender == txn.last
    return txn.changed(
        wall_ms,
        producer=txn.producer if is_repeated else next_identity(txn.producer, take_id),
        last=NO_IDENTITY if sender.is_none else sender,
        state=txn.state if txn.state.is_open else TxnState.EMPTY,
        timeout_ms=timeout_ms,
    )


def added(
    txn: TxnChanged, partitions: Iterable[TxnPartition], groups: Iterable[str], wall_ms: int
) -> TxnChanged | RaylogError:
    """Return the id with more participants in its transaction, or an error; the first participants begin it."""
    if txn.state is not TxnState.ONGOING:
        return txn.changed(
            wall_ms,
            state=TxnState.ONGOING,
            last=NO_IDENTITY,
            writer=txn.producer,
            partitions=tuple(dict.fromkeys(partitions)),
            groups=tuple(dict.fromkeys(groups)),
            started_ms=wall_ms,
        )
    if txn.writer != txn.producer:
        return InvalidTxnState(
            f"The transaction of {txn.transactional_id!r} was prepared by another process: commit or abort it first "
            "(complete_transaction)."
        )
    both = tuple(dict.fromkeys((*txn.partitions, *partitions))), tuple(dict.fromkeys((*txn.groups, *groups)))
    if both == (txn.partitions, txn.groups):
        return txn
    return txn.changed(wall_ms, partitions=both[0], groups=both[1])


def claim_error(txn: TxnChanged | None, request: VerifyTransactionRequest) -> RaylogError | None:
    """Return why no batch of this producer may open a transaction in the partition; None = it may.

    Only a partition that was added gets a marker, whatever becomes of the transaction. A transaction that was kept for
    another process takes no more records: its writer is not the producer any more.
    """
    name = request.transactional_id
    if (
        txn is not None
        and txn.producer.producer_id == request.producer_id
        and request.producer_epoch < txn.producer.epoch
    ):
        return InvalidProducerEpoch(
            f"The transaction of {name!r} with epoch {request.producer_epoch} has ended, or a newer producer has the "
            "transactional id."
        )
    if (
        txn is None
        or txn.producer != identity_of(request)
        or txn.state is not TxnState.ONGOING
        or txn.writer != txn.producer
    ):
        return InvalidTxnState(
            f"Producer {request.producer_id} with epoch {request.producer_epoch} has no open transaction of {name!r}: "
            "begin one, and add the partition to it, before its records are sent."
        )
    if any((each.topic_id, each.partition) == (request.topic_id, request.partition) for each in txn.partitions):
        return None
    return InvalidTxnState(
        f"Partition {request.partition} of the topic with id {request.topic_id!r} was not added to the open "
        f"transaction of {name!r}: add it before its records are sent."
    )


def decided(txn: TxnChanged, committed: bool, last: ProducerIdentity, take_id: TakeId, wall_ms: int) -> TxnChanged:
    """Return the id with the outcome of its open transaction; ``last``: the identity that may repeat its request."""
    # With another id than the producer's, the writer's id is not used any more: the highest epoch fences all of it.
    is_same = txn.writer.producer_id == txn.producer.producer_id
    return txn.changed(
        wall_ms,
        state=TxnState.PREPARE_COMMIT if committed else TxnState.PREPARE_ABORT,
        producer=next_identity(txn.producer, take_id),
        last=last,
        marker_epoch=txn.producer.epoch + 1 if is_same else MARKER_EPOCH_MAX,
    )


def aborted_unbegun(txn: TxnChanged, take_id: TakeId, wall_ms: int) -> TxnChanged:
    """Return the id after an abort without a transaction: the producer did not know whether one had begun."""
    producer = next_identity(txn.producer, take_id)
    return txn.changed(wall_ms, state=TxnState.COMPLETE_ABORT, producer=producer, last=txn.producer)


def completed(txn: TxnChanged, wall_ms: int) -> TxnChanged:
    """Return the id without a transaction: every participant has its marker."""
    return txn.changed(
        wall_ms,
        state=TxnState.COMPLETE_COMMIT if txn.state.outcome else TxnState.COMPLETE_ABORT,
        writer=NO_IDENTITY,
        marker_epoch=-1,
        partitions=(),
        groups=(),
        started_ms=-1,
    )


def end_error(txn: TxnChanged | None, request: ProducerRequest, committed: bool) -> RaylogError | None:
    """Return why this request may not end the transaction; None = it may, or it repeats an earlier end."""
    name = request.transactional_id
    if txn is not None and is_repeated_end(txn, request):
        if txn.state.outcome is committed:
            return None
        was = "committed" if txn.state.outcome else "aborted"
        return InvalidTxnState(f"The transaction of {name!r} was {was}; its outcome is final.")
    error = identity_error(txn, request)
    if error is None and txn is not None and committed and txn.state is not TxnState.ONGOING:
        return InvalidTxnState(
            f"No transaction of {name!r} is open (state {txn.state.value}): nothing was added to one; begin it."
        )
    return error


def is_repeated_end(txn: TxnChanged, request: ProducerRequest) -> bool:
    """Return whether the same sender has already ended this transaction."""
    return txn.state.outcome is not None and not txn.last.is_none and identity_of(request) == txn.last
