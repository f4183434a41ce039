"""Methods of a transaction coordinator: beginning, filling and ending transactions, as in Kafka (KIP-98, 890, 939)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from raylog.protocol.message import NONE, Description, Empty, Int16, Int32, Int64, Message, Names, Rows
from raylog.protocol.method import CLUSTER, TOKEN, Endpoint, Method, TokenScope


class InitTransactionsRequest(Message, frozen=True):
    """Get the identity of a transactional id's producer, and fence the producers that had it before.

    A transaction that such a producer has left open is aborted first, unless ``keep_prepared`` (KIP-939).
    ``producer_id`` and ``producer_epoch``: the caller's present identity; -1 = it has none.
    ``two_phase_commit``: the caller's transactions never time out, because another system decides on them.
    """

    transactional_id: str
    transaction_timeout_ms: Int64
    producer_id: Int64 = NONE
    producer_epoch: Int16 = NONE
    two_phase_commit: bool = False
    keep_prepared: bool = False


class InitTransactionsReply(Message, frozen=True):
    """The producer's identity; and, if a transaction was kept, that of the transaction, else -1."""

    producer_id: Int64
    producer_epoch: Int16
    ongoing_producer_id: Int64 = NONE
    ongoing_producer_epoch: Int16 = NONE


class TxnPartition(Message, frozen=True):
    """A partition of a transaction."""

    topic_id: str
    topic: str
    partition: Int32


class AddPartitionsToTxnRequest(Message, frozen=True):
    """Add partitions to a transaction, before the first record is sent to them; the first ones begin it.

    Answered when the transaction before it is ended in every partition.
    """

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    partitions: Rows[TxnPartition]


class AddOffsetsToTxnRequest(Message, frozen=True):
    """Add a group to a transaction, before offsets are committed to it; the first one begins it."""

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    group_id: str


class EndTxnRequest(Message, frozen=True):
    """Commit or abort a transaction; answered when the decision is stored.

    The same request may be repeated with the same epoch when its answer was lost.
    """

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    committed: bool


class EndTxnReply(Message, frozen=True):
    """The producer's identity in its next transaction (KIP-890: every end raises the epoch)."""

    producer_id: Int64
    producer_epoch: Int16


class ListTransactionsRequest(Message, frozen=True):
    """List the transactional ids of this coordinator.

    ``states``: as in Kafka, such as ``Ongoing``; none = all. ``longer_than_ms``: open for so long; -1 = any.
    ``transactional_id_prefix``: only ids that begin with it. ``coordinator``: the number of the coordinator that the
    sender takes this one for; another one refuses. -1 = any.
    """

    states: Names = ()
    longer_than_ms: Int64 = NONE
    transactional_id_prefix: str = ""
    coordinator: Int64 = NONE


class ListedTransaction(Message, frozen=True):
    """``state``: as in Kafka: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort."""

    transactional_id: str
    producer_id: Int64
    state: str


class DescribeTransactionRequest(Message, frozen=True):
    """Describe a transactional id and its transaction."""

    transactional_id: str


class DescribeTransactionReply(Description, frozen=True):
    """``started_ms``: since 1970, -1 = none is open; ``timeout_ms`` -1: it does not time out."""

    transactional_id: str
    coordinator: Int64
    producer_id: Int64
    producer_epoch: Int16
    state: str
    timeout_ms: Int64
    started_ms: Int64
    partitions: Sequence[TxnPartition]
    groups: Sequence[str]


class VerifyTransactionRequest(Message, frozen=True):
    """Check that the transaction of this producer is open, and has the partition.

    Sent by a leader before it appends the first batch of a transaction (KIP-890). InvalidTxnState: it is not, or the
    partition was not added; InvalidProducerEpoch: it has ended, or another producer has the transactional id.
    """

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int16
    topic_id: str
    partition: Int32


class TransactionMetricsRequest(Message, frozen=True):
    """Get how many transactions of this coordinator are in which state, and what its process uses."""


class TransactionMetricsReply(Description, frozen=True):
    """``loaded`` False: the coordinator still reads its log. ``states``: state to number of transactional ids.

    ``counters``: since the process started. ``longest_open_ms``: age of the oldest open transaction; -1 = none is open.
    ``rows_unreadable``: rows of its log that it passed over, because they cannot be read.
    """

    process: Mapping[str, Any]
    loaded: bool
    states: Mapping[str, Int64]
    counters: Mapping[str, Int64]
    longest_open_ms: Int64 = NONE
    rows_unreadable: Int64 = 0


INIT_TRANSACTIONS: Final = Method(
    "init_transactions",
    InitTransactionsRequest,
    InitTransactionsReply,
    TOKEN,
    TokenScope.TRANSACTION,
    waits=True,
)
ADD_PARTITIONS_TO_TXN: Final = Method(
    "add_partitions_to_txn",
    AddPartitionsToTxnRequest,
    Empty,
    TOKEN,
    TokenScope.TRANSACTION_PARTITIONS,
    waits=True,
)
ADD_OFFSETS_TO_TXN: Final = Method(
    "add_offsets_to_txn",
    AddOffsetsToTxnRequest,
    Empty,
    TOKEN,
    TokenScope.TRANSACTION_OFFSETS,
    waits=True,
)
END_TXN: Final = Method("end_txn", EndTxnRequest, EndTxnReply, TOKEN, TokenScope.TRANSACTION)
LIST_TRANSACTIONS: Final = Method(
    "list_transactions",
    ListTransactionsRequest,
    list[ListedTransaction],
    TOKEN,
    TokenScope.PREFIX,
)
DESCRIBE_TRANSACTION: Final = Method(
    "describe_transaction",
    DescribeTransactionRequest,
    DescribeTransactionReply,
    TOKEN,
    TokenScope.TRANSACTION,
)
VERIFY_TRANSACTION: Final = Method("verify_transaction", VerifyTransactionRequest, Empty, CLUSTER)
TRANSACTION_METRICS: Final = Method("transaction_metrics", TransactionMetricsRequest, TransactionMetricsReply, CLUSTER)

TRANSACTION_COORDINATOR: Final = Endpoint.of(
    "transaction coordinator",
    (
        INIT_TRANSACTIONS,
        ADD_PARTITIONS_TO_TXN,
        ADD_OFFSETS_TO_TXN,
        END_TXN,
        LIST_TRANSACTIONS,
        DESCRIBE_TRANSACTION,
        VERIFY_TRANSACTION,
        TRANSACTION_METRICS,
    ),
)
