"""The state of a transactional producer: its identity, its transaction's participants, and which calls are legal.

    uninitialized --init--> ready --begin--> in transaction --commit--> committing --> ready
                                                   |------abort-----> aborting ----> ready
                                                   |--prepare--> prepared --complete, commit, abort-->
    in transaction, committing --a send fails--> abortable error --abort--> aborting
    any --fenced--> fatal error

After a timeout of a call the state stays, and the call may be repeated. Pure; owned by `TransactionManager`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from raylog.base.errors import InvalidProducerEpoch, InvalidTxnState, RaylogError, TransactionAbortable
from raylog.base.invariants import require
from raylog.client.types import PreparedTxnState


class Status(Enum):
    """The states of the producer; the values complete the sentence "The producer ..."."""

    UNINITIALIZED = "has not called init_transactions() yet"
    READY = "has no transaction open"
    IN_TRANSACTION = "has a transaction open"
    PREPARED = "has a prepared transaction, which waits for its end"
    COMMITTING = "has begun to commit its transaction"
    ABORTING = "has begun to abort its transaction"
    ABORTABLE_ERROR = "has a transaction that cannot be committed"
    FATAL_ERROR = "can do nothing any more"


class TransactionCall(Enum):
    """The user's calls; the values are the names of the methods."""

    INIT = "init_transactions"
    BEGIN = "begin_transaction"
    SEND = "send"
    SEND_OFFSETS = "send_offsets_to_transaction"
    PREPARE = "prepare_transaction"
    COMMIT = "commit_transaction"
    ABORT = "abort_transaction"
    COMPLETE = "complete_transaction"


LEGAL: Final[Mapping[Status, tuple[TransactionCall, ...]]] = {
    Status.UNINITIALIZED: (TransactionCall.INIT,),
    Status.READY: (TransactionCall.BEGIN,),
    Status.IN_TRANSACTION: (
        TransactionCall.SEND,
        TransactionCall.SEND_OFFSETS,
        TransactionCall.COMMIT,
        TransactionCall.ABORT,
        TransactionCall.PREPARE,
    ),
    Status.PREPARED: (TransactionCall.COMPLETE, TransactionCall.COMMIT, TransactionCall.ABORT),
    Status.COMMITTING: (TransactionCall.COMMIT,),
    Status.ABORTING: (TransactionCall.ABORT,),
    Status.ABORTABLE_ERROR: (TransactionCall.ABORT,),
    Status.FATAL_ERROR: (),
}
"""The legal calls in each state; all others are refused."""


class Identity(NamedTuple):
    """Producer id and epoch, as in its batches; each transaction has another epoch (KIP-890)."""

    producer_id: int
    producer_epoch: int


UNKNOWN: Final = Identity(-1, -1)


class TransactionState:
    """The state of one transactional producer."""

    def __init__(self, transactional_id: str, *, two_phase_commit: bool = False) -> None:
        self.transactional_id = transactional_id
        self.may_prepare = two_phase_commit
        """Whether a transaction may be prepared: it does not time out, or another process takes it over before."""
        self.status = Status.UNINITIALIZED
        self.identity = UNKNOWN
        self.partitions: dict[tuple[str, int], str] = {}
        """The partitions that the coordinator has added to the open transaction, with their topic ids: a topic that is
        created again with the same name is another participant."""
        self.groups: set[str] = set()
        """The groups that the coordinator has added, whose offsets are committed with the transaction."""
        self.prepared: PreparedTxnState | None = None
        """The state of the prepared transaction; None = none is prepared."""
        self.cause: RaylogError | None = None
        """The error that led to an error state."""

    @property
    def is_sending(self) -> bool:
        """Whether batches may be sent: a transaction is open or being committed, and has not failed."""
        return self.status in (Status.IN_TRANSACTION, Status.COMMITTING)

    @property
    def gives_up(self) -> bool:
        """Whether failed batches are not retried, because the transaction cannot be committed any more."""
        return self.status in (Status.ABORTING, Status.ABORTABLE_ERROR, Status.FATAL_ERROR)

    @property
    def is_begun(self) -> bool:
        """Whether the transaction has begun at the coordinator, which then has to end it."""
        was_kept = self.prepared is not None and self.prepared.producer_id >= 0
        return bool(self.partitions or self.groups) or was_kept

    def refusal(self, call: TransactionCall) -> RaylogError | None:
        """The error for a call that is not legal now, which names the legal ones; None = it is legal."""
        if call in LEGAL[self.status]:
            if call is TransactionCall.PREPARE and not self.may_prepare:
                return InvalidTxnState(
                    "prepare_transaction() needs transaction_two_phase_commit_enable=True: a transaction that is "
                    "prepared must not time out."
                )
            return None
        if self.status is Status.FATAL_ERROR and self.cause is not None:
            return type(self.cause)(self.cause.message)
        if self.status is Status.ABORTABLE_ERROR and self.cause is not None:
            return TransactionAbortable(
                f"The transaction of {self.transactional_id!r} cannot be committed, because something in it failed: "
                f"{self.cause.message} {_next_step(self.cause)}"
            )
        legal = [f"{each.value}()" for each in LEGAL[self.status]]
        named = legal[0] if len(legal) == 1 else f"{', '.join(legal[:-1])} or {legal[-1]}"
        return InvalidTxnState(
            f"{call.value}() is not legal now: the producer {self.transactional_id!r} {self.status.value}. Legal now: "
            f"{named}."
        )

    def check(self, call: TransactionCall) -> None:
        """Raise InvalidTxnState, TransactionAbortable or the fatal error unless the call is legal now."""
        error = self.refusal(call)
        if error is not None:
            raise error

    # Transitions; each follows a successful `check`

    def initialized(self, identity: Identity, kept: PreparedTxnState | None) -> None:
        """The coordinator has given an identity; it has kept a prepared transaction, or no transaction is open."""
        require(self.status is Status.UNINITIALIZED, "a producer is initialized once")
        self.identity = identity
        self.prepared = kept
        self.status = Status.READY if kept is None else Status.PREPARED

    def begin(self) -> None:
        """Begin a transaction. The coordinator learns of it when its first partition or group is added."""
        require(self.status is Status.READY and not self.is_begun, "a transaction begins behind the end of another")
        self.status = Status.IN_TRANSACTION

    def prepare(self) -> PreparedTxnState:
        """All records are stored: prepare the transaction, and return its state."""
        require(self.status is Status.IN_TRANSACTION, "an open transaction is prepared")
        self.prepared = PreparedTxnState(*self.identity) if self.is_begun else PreparedTxnState()
        self.status = Status.PREPARED
        return self.prepared

    def ending(self, *, committed: bool) -> None:
        """Begin to commit or abort: no more records are accepted."""
        self.status = Status.COMMITTING if committed else Status.ABORTING

    def ended(self, identity: Identity) -> None:
        """The commit or abort is decided; `identity` is for the next transaction."""
        require(self.status in (Status.COMMITTING, Status.ABORTING), "only an end that was requested is decided")
        self.identity = identity
        self.partitions.clear()
        self.groups.clear()
        self.prepared = self.cause = None
        self.status = Status.READY

    def failed(self, error: RaylogError) -> bool:
        """A record or request of the transaction has failed; True = this makes the transaction abortable."""
        if not self.is_sending:
            return False
        self.status, self.cause = Status.ABORTABLE_ERROR, error
        return True

    def failed_for_good(self, error: RaylogError) -> None:
        """The producer can only be closed now; of several such errors the first is kept."""
        if self.status is not Status.FATAL_ERROR:
            self.status, self.cause = Status.FATAL_ERROR, error


def _next_step(cause: RaylogError) -> str:
    """What the user should do about a transaction that failed with this error."""
    if isinstance(cause, InvalidProducerEpoch):  # a leader cannot distinguish a fenced producer from a slow one
        return (
            "Either the transaction has timed out, or another producer has this transactional_id now. Call "
            "abort_transaction(): if it raises ProducerFenced, close this producer; else begin another transaction."
        )
    return "Call abort_transaction(), then begin another one."
