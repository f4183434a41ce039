"""Events and effects of a transaction coordinator, besides those of every one in ``core/coordinators/events.py``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raylog.core.coordinators.events import (
    AppendRecords,
    CoordinatorEvent,
    CoordinatorRequest,
    ProposeSleep,
    RequestDropped,
    SleepRefused,
    SleepRequested,
    StoreProof,
    Tick,
)
from raylog.core.decision import Refuse, Reply
from raylog.core.transactions.identity import Identity
from raylog.core.transactions.records import TxnPartition

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnRequest(CoordinatorRequest):
    """A request about one transactional id."""

    transactional_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerRequest(TxnRequest):
    """A request of the producer that has the transactional id, with the identity that it was given."""

    producer_id: int
    producer_epoch: int

    @property
    def identity(self) -> Identity:
        """The sender's identity."""
        return Identity(self.producer_id, self.producer_epoch)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingRequest(ProducerRequest):
    """A request that may make an id or its transaction larger.

    ``prefix``: the prefix of the transactional ids that the sender's token grants; empty = it has the cluster's secret.
    """

    prefix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitReceived(GrowingRequest):
    """InitProducerId request for a transactional id; without an identity the sender has none yet.

    ``two_phase_commit``: its transactions never time out. ``keep_prepared``: the open transaction is not aborted.
    """

    transaction_timeout_ms: int
    two_phase_commit: bool = False
    keep_prepared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsReceived(GrowingRequest):
    """AddPartitionsToTxn request: (topic id, topic, partition) each."""

    partitions: Sequence[tuple[str, str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOffsetsReceived(GrowingRequest):
    """AddOffsetsToTxn request: a group whose offsets are to be committed with the transaction."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReceived(ProducerRequest):
    """A leader queries whether the producer's transaction is open, and has its partition."""

    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndReceived(ProducerRequest):
    """EndTxn request: the outcome of the transaction."""

    committed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ListReceived(CoordinatorRequest):
    """List the transactional ids with a prefix, in these states (none = all), open for so long (-1 = all)."""

    states: Sequence[str] = ()
    longer_than_ms: int = -1
    transactional_id_prefix: str = ""
    coordinator: int = -1
    """The coordinator whose list is requested; -1 = not named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeReceived(TxnRequest):
    """Describe a transactional id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerWritten(CoordinatorEvent):
    """A participant of an :class:`EndTxn` has ended the transaction, or does not exist any more.

    ``writer`` identifies the transaction. Either ``partition`` or ``group`` is given.
    """

    transactional_id: str
    writer: Identity
    partition: TxnPartition | None = None
    group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsGranted(CoordinatorEvent):
    """The controller has granted ``count`` producer ids from ``first`` on; 0 = it could not be reached."""

    first: int
    count: int


WaitingRequest = InitReceived | AddPartitionsReceived | AddOffsetsReceived
"""Requests that may wait for a transaction to end, or for producer ids."""
RequestEvent = WaitingRequest | EndReceived | VerifyReceived | ListReceived | DescribeReceived
Notice = RequestDropped | Tick | SleepRequested | SleepRefused | MarkerWritten | ProducerIdsGranted
"""Events that are answered to no client."""
Event = RequestEvent | Notice

# ---------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTxn:
    """End a decided transaction in each of its participants, and feed :class:`MarkerWritten` for each that has done so.

    Always in ``after_sync``: the outcome is stored. The shell repeats it without a limit. A coordinator that loads a
    decided transaction sends everything again; participants recognise repetitions by the epochs.
    """

    cause: str
    transactional_id: str
    writer: Identity
    marker_epoch: int
    committed: bool
    partitions: Sequence[TxnPartition]
    groups: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestProducerIds:
    """Take ``count`` producer ids from the controller; :class:`ProducerIdsGranted` follows in any case."""

    cause: str
    count: int


Effect = AppendRecords | StoreProof | Reply | Refuse | EndTxn | RequestProducerIds | ProposeSleep
"""A :class:`Reply` is always in ``after_sync``; so is a :class:`Refuse` that depends on what is stored."""
