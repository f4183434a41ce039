"""Events and effects of a transaction coordinator, besides those of every one in ``core/coordinators/events.py``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from raylog.core.coordinators.events import (
    AppendRecords,
    CoordinatorEvent,
    ProposeSleep,
    RequestDropped,
    SleepRefused,
    SleepRequested,
    StoreProof,
    Tick,
)
from raylog.core.decision import Refuse, Reply
from raylog.core.received import Received
from raylog.core.transactions.records import ProducerIdentity
from raylog.core.transactions.waiting import Participant
from raylog.protocol.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionRequest,
    EndTxnRequest,
    InitTransactionsRequest,
    ListTransactionsRequest,
    TxnPartition,
    VerifyTransactionRequest,
)

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerWritten(CoordinatorEvent):
    """A participant of an :class:`EndTxn` has ended the transaction, or does not exist any more.

    ``writer`` identifies the transaction.
    """

    transactional_id: str
    writer: ProducerIdentity
    participant: Participant


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsGranted(CoordinatorEvent):
    """The controller has granted ``count`` producer ids from ``first`` on; 0 = it could not be reached."""

    first: int
    count: int


ProducerRequest: TypeAlias = (
    InitTransactionsRequest
    | AddPartitionsToTxnRequest
    | AddOffsetsToTxnRequest
    | EndTxnRequest
    | VerifyTransactionRequest
)
"""Requests with the identity that a producer was given; without one in an initialisation, it has none yet."""
TxnRequest: TypeAlias = ProducerRequest | ListTransactionsRequest | DescribeTransactionRequest
Notice: TypeAlias = RequestDropped | Tick | SleepRequested | SleepRefused | MarkerWritten | ProducerIdsGranted
"""Events that are answered to no client."""
Event: TypeAlias = Received[TxnRequest] | Notice

# ---------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTxn:
    """End a decided transaction in each of its participants, and feed :class:`MarkerWritten` for each that has done so.

    Always in ``after_sync``: the outcome is stored. The shell repeats it without a limit. A coordinator that loads a
    decided transaction sends everything again; participants recognise repetitions by the epochs.
    """

    cause: str
    transactional_id: str
    writer: ProducerIdentity
    marker_epoch: int
    committed: bool
    partitions: Sequence[TxnPartition]
    groups: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestProducerIds:
    """Take ``count`` producer ids from the controller; :class:`ProducerIdsGranted` follows in any case."""

    cause: str
    count: int


Effect: TypeAlias = AppendRecords | StoreProof | Reply | Refuse | EndTxn | RequestProducerIds | ProposeSleep
"""A :class:`Reply` is always in ``after_sync``; so is a :class:`Refuse` that depends on what is stored."""
