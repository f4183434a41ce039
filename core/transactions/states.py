"""The states of a transactional id and the legal moves between them, as data. Used by ``records.py`` and by its tests.

Kafka's table for clients that raise the epoch with every end (KIP-890), with two differences: an abort of nothing is
complete at once, because no partition has to be notified, and an id that is initialised moves to Empty from any state
without an open transaction. Dead is the end: the id is dropped in the same step.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class TxnState(Enum):
    """State of a transactional id; the values are Kafka's spelling and go over the wire."""

    EMPTY = "Empty"
    """It has a producer, and no transaction yet."""
    ONGOING = "Ongoing"
    """Partitions or groups were added to a transaction."""
    PREPARE_COMMIT = "PrepareCommit"
    """The transaction is committed; not all of its participants have their marker."""
    PREPARE_ABORT = "PrepareAbort"
    """The transaction is aborted; not all of its participants have their marker."""
    COMPLETE_COMMIT = "CompleteCommit"
    """The last transaction is committed everywhere."""
    COMPLETE_ABORT = "CompleteAbort"
    """The last transaction is aborted everywhere."""
    DEAD = "Dead"
    """The id was not used for too long."""

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is decided, and not all participants have their marker."""
        return self in _PREPARED

    @property
    def is_open(self) -> bool:
        """Whether there is a transaction that has participants."""
        return self is TxnState.ONGOING or self in _PREPARED

    @property
    def outcome(self) -> bool | None:
        """Whether the last transaction was committed; None = none has ended yet, or one is open."""
        if self in (TxnState.PREPARE_COMMIT, TxnState.COMPLETE_COMMIT):
            return True
        return False if self in (TxnState.PREPARE_ABORT, TxnState.COMPLETE_ABORT) else None


_PREPARED: Final = frozenset({TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT})
_IDLE: Final = frozenset({TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT})

LEGAL_PREDECESSORS: Final[Mapping[TxnState, frozenset[TxnState]]] = {
    TxnState.EMPTY: _IDLE,
    TxnState.ONGOING: _IDLE | {TxnState.ONGOING},
    TxnState.PREPARE_COMMIT: frozenset({TxnState.ONGOING}),
    TxnState.PREPARE_ABORT: frozenset({TxnState.ONGOING}),
    TxnState.COMPLETE_COMMIT: frozenset({TxnState.PREPARE_COMMIT}),
    TxnState.COMPLETE_ABORT: _IDLE | {TxnState.PREPARE_ABORT},
    TxnState.DEAD: _IDLE,
}


def is_legal_move(before: TxnState, after: TxnState) -> bool:
    """Return whether a transactional id may go from one state to the other in one move."""
    return before in LEGAL_PREDECESSORS[after]
