"""Errors of transactions and their coordinators. Pure."""

from __future__ import annotations

from raylog.base.errors.base import RaylogError, RetriableError


class InvalidTxnState(RaylogError):
    """The call is not legal in the transaction's present state."""

    code = 48


class InvalidProducerIdMapping(RaylogError):
    """The producer id is not the one that the coordinator gave to this transactional id."""

    code = 49


class InvalidTransactionTimeout(RaylogError):
    """The transaction timeout is longer than ``transaction.max.timeout.ms``."""

    code = 50


class ConcurrentTransactions(RetriableError):
    """The transaction before this one is still being ended."""

    code = 51


class TransactionCoordinatorFenced(RaylogError):
    """A newer incarnation of the transaction coordinator has written a marker already."""

    code = 52


class UnstableOffsetCommit(RetriableError):
    """A transaction that is still open has offsets of this group."""

    code = 88


class ProducerFenced(RaylogError):
    """A newer producer has the same transactional id; this one must end."""

    code = 90


class TransactionalIdNotFound(RaylogError):
    """The coordinator knows no such transactional id."""

    code = 105


class TransactionAbortable(RaylogError):
    """The transaction cannot be committed any more; abort it, and begin another one."""

    code = 120
