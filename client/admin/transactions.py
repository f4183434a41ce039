"""Administration of transactions: list and describe them, fence producers, find and abort hanging transactions.

A part of `AsyncAdmin`. May touch: the network through `ClusterClient`, the clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from raylog.base.errors import InvalidTxnState, RaylogError, TransactionalIdNotFound
from raylog.base.ids import LATEST, TopicPartition
from raylog.client.admin.groups import COORDINATORS_AT_ONCE, keys_of_each_coordinator
from raylog.client.cluster.cluster_client import TRANSACTION, ClusterClient
from raylog.client.cluster.deadline import Deadline
from raylog.client.tasks import side_by_side
from raylog.protocol.replica import (
    DESCRIBE_PRODUCERS,
    WRITE_TXN_MARKERS,
    DescribeProducersRequest,
    WriteTxnMarkersRequest,
)
from raylog.protocol.transactions import (
    DESCRIBE_TRANSACTION,
    INIT_TRANSACTIONS,
    LIST_TRANSACTIONS,
    DescribeTransactionReply,
    DescribeTransactionRequest,
    InitTransactionsRequest,
    ListTransactionsRequest,
)

TRANSACTIONS_TOPIC = "__transaction_state"
_BY_ADMINISTRATOR = -1
"""The coordinator epoch of a marker that no coordinator writes, but an administrator."""
_FENCING_TIMEOUT_MS = 1
"""The transaction timeout of a producer that begins no transaction; any `transaction.max.timeout.ms` allows it."""
_OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """One transactional id; `state` as in Kafka: Empty, Ongoing, PrepareCommit, ..."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """One transactional id and its transaction.

    `timeout_ms`: None = it does not time out. `started_ms`: since 1970; None = no transaction is open.
    """

    transactional_id: str
    coordinator: int
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int | None
    started_ms: int | None
    partitions: tuple[TopicPartition, ...]
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProducerDescription:
    """A producer's state in a partition. `txn_start_offset`: of its open transaction's first record; None = none."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    txn_start_offset: int | None


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """An open transaction in a partition that no coordinator knows of: it would stay open for good."""

    partition: TopicPartition
    producer: ProducerDescription


class AsyncTransactionAdmin:
    """Transaction methods of `AsyncAdmin`."""

    cluster: ClusterClient

    async def list_transactions(
        self,
        states: Iterable[str] = (),
        *,
        longer_than_ms: int | None = None,
        prefix: str = "",
        timeout_s: float = 30.0,
    ) -> list[TransactionListing]:
        """All transactional ids that begin with `prefix`, sorted.

        `states` and `longer_than_ms` limit the list to ids in one of these states, and with a transaction that has been
        open for longer. A client with a token has to give the prefix that the token grants.
        """
        deadline = Deadline(timeout_s)
        await self.cluster.refresh((TRANSACTIONS_TOPIC,), timeout_s=deadline.left_s)
        topic = self.cluster.metadata.topic(TRANSACTIONS_TOPIC)
        if topic is None:
            return []  # no producer has had a transactional id yet
        at_once = asyncio.Semaphore(COORDINATORS_AT_ONCE)
        request = ListTransactionsRequest(sorted(states), -1 if longer_than_ms is None else longer_than_ms, prefix)

        async def of(partition: int, key: str) -> list[TransactionListing]:
            if not await self._was_written(partition, deadline):
                return []
            async with at_once:
                rows = await self.cluster.call_coordinator(
                    key,
                    LIST_TRANSACTIONS,
                    msgspec.structs.replace(request, coordinator=partition),
                    timeout_s=deadline.left_s,
                    kind=TRANSACTION,
                )
            return [TransactionListing(row.transactional_id, row.producer_id, row.state) for row in rows]

        keys = keys_of_each_coordinator(len(topic.partitions), prefix)
        found = await side_by_side(lambda each: of(*each), enumerate(keys))
        return sorted((row for rows in found for row in rows), key=lambda row: row.transactional_id)

    async def _was_written(self, partition: int, deadline: Deadline) -> bool:
        """Whether a coordinator ever wrote to its partition; True if not known. The query wakes no partition."""
        try:
            limit_s = deadline.left_s / 2
            end = await self.cluster.list_offset((TRANSACTIONS_TOPIC, partition), LATEST, timeout_s=limit_s)
        except RaylogError:
            return True
        return end.offset > 0

    async def describe_transactions(
        self, transactional_ids: Iterable[str], *, timeout_s: float = 30.0
    ) -> dict[str, TransactionDescription]:
        """These transactional ids as they are now. Raises TransactionalIdNotFound."""
        wanted = list(transactional_ids)
        found = await side_by_side(lambda each: self._describe(each, timeout_s), wanted)
        return dict(zip(wanted, found, strict=True))

    async def _transaction(self, transactional_id: str, timeout_s: float) -> DescribeTransactionReply:
        return await self.cluster.call_coordinator(
            transactional_id,
            DESCRIBE_TRANSACTION,
            DescribeTransactionRequest(transactional_id),
            timeout_s=timeout_s,
            kind=TRANSACTION,
        )

    async def _describe(self, transactional_id: str, timeout_s: float) -> TransactionDescription:
        found = await self._transaction(transactional_id, timeout_s)
        return TransactionDescription(
            found.transactional_id,
            found.coordinator,
            found.state,
            found.producer_id,
            found.producer_epoch,
            None if found.timeout_ms < 0 else found.timeout_ms,
            None if found.started_ms < 0 else found.started_ms,
            tuple(sorted(TopicPartition(row.topic, row.partition) for row in found.partitions)),
            tuple(sorted(found.groups)),
        )

    async def describe_producers(
        self, partitions: Iterable[tuple[str, int]], *, timeout_s: float = 30.0
    ) -> dict[TopicPartition, tuple[ProducerDescription, ...]]:
        """The idempotent and transactional producers of each partition. Raises UnknownTopicOrPartition."""
        wanted = [TopicPartition(*each) for each in partitions]
        at_once = asyncio.Semaphore(COORDINATORS_AT_ONCE)

        async def of(where: TopicPartition) -> tuple[ProducerDescription, ...]:
            async with at_once:
                rows, _ = await self.cluster.call_leader(
                    *where, DESCRIBE_PRODUCERS, DescribeProducersRequest, timeout_s=timeout_s
                )
            return tuple(
                ProducerDescription(
                    row.producer_id,
                    row.producer_epoch,
                    row.last_sequence,
                    row.last_timestamp,
                    row.coordinator_epoch,
                    None if row.txn_start_offset < 0 else row.txn_start_offset,
                )
                for row in rows
            )

        found = await side_by_side(of, wanted)
        return dict(zip(wanted, found, strict=True))

    async def fence_producers(self, transactional_ids: Iterable[str], *, timeout_s: float = 30.0) -> None:
        """Fence the producers of these transactional ids: their next call raises ProducerFenced.

        Their open and prepared transactions are aborted. Raises TransactionalIdNotFound for an unknown id.
        """
        wanted = list(transactional_ids)
        await self.describe_transactions(wanted, timeout_s=timeout_s)  # raises; the request would create an unknown id
        for each in wanted:
            request = InitTransactionsRequest(each, _FENCING_TIMEOUT_MS)
            await self.cluster.call_coordinator(each, INIT_TRANSACTIONS, request, timeout_s=timeout_s, kind=TRANSACTION)

    async def abort_transaction(self, partition: tuple[str, int], producer_id: int, *, timeout_s: float = 30.0) -> None:
        """Abort a hanging transaction: a producer's open transaction in one partition, without its coordinator.

        Raises InvalidTxnState when none is open there. `fence_producers` aborts a transaction that does not hang.
        """
        deadline = Deadline(timeout_s)
        where = TopicPartition(*partition)
        known = (await self.describe_producers([where], timeout_s=deadline.left_s))[where]
        producer = next((each for each in known if each.producer_id == producer_id), None)
        if producer is None or producer.txn_start_offset is None:
            raise InvalidTxnState(f"Producer {producer_id} has no open transaction in {where}; nothing was aborted.")
        epoch = producer.producer_epoch + 1  # a marker has the epoch of the producer's next transaction
        limit_ms = max(1, int(deadline.left_s * 1000 - min(500.0, deadline.left_s * 100)))

        def request(topic_id: str, number: int, leader_epoch: int) -> WriteTxnMarkersRequest:
            return WriteTxnMarkersRequest(
                topic_id, number, leader_epoch, producer_id, epoch, _BY_ADMINISTRATOR, False, limit_ms
            )

        await self.cluster.call_leader(*where, WRITE_TXN_MARKERS, request, timeout_s=deadline.left_s)

    async def find_hanging_transactions(
        self,
        topics: Iterable[str] | None = None,
        *,
        longer_than_ms: int | None = None,
        timeout_s: float = 60.0,
    ) -> list[HangingTransaction]:
        """Open transactions that no coordinator knows of, so none will end them.

        They hold back consumers that read committed records; `abort_transaction` ends them. Looks at these topics, None
        = at all that are not internal; wakes none of their partitions. `longer_than_ms`: only those whose last record
        has a timestamp older than that (producers choose timestamps).
        """
        deadline = Deadline(timeout_s)
        await self.cluster.refresh(None, timeout_s=deadline.left_s)
        metadata = self.cluster.metadata
        names = [info.name for info in metadata.topics.values() if not info.internal] if topics is None else topics
        partitions = [
            TopicPartition(info.name, row.partition)
            for info in [await self.cluster.topic(name, timeout_s=deadline.left_s) for name in names]
            for row in info.partitions
            if not row.is_asleep  # a partition with an open transaction does not fall asleep
        ]
        before_ms = None if longer_than_ms is None else int(time.time() * 1000) - longer_than_ms
        suspects = [
            each
            for each in await self._open_in(partitions, deadline)
            if before_ms is None or each.producer.last_timestamp_ms <= before_ms
        ]
        if not suspects:
            return []
        owned = await self._owned(deadline)
        ids = {info.name: info.topic_id for info in metadata.topics.values()}

        def is_owned(each: HangingTransaction) -> bool:
            where = each.partition
            return (ids.get(where.topic), where.partition, each.producer.producer_id) in owned

        suspects = [each for each in suspects if not is_owned(each)]
        # A coordinator may have ended a suspect meanwhile. It writes the markers before it forgets the transaction, so
        # a second look at the partitions does not show it as open.
        still_open = await self._open_in({each.partition for each in suspects}, deadline)
        opened = {(each.partition, each.producer.producer_id, each.producer.txn_start_offset) for each in still_open}
        return sorted(
            (
                each
                for each in suspects
                if (each.partition, each.producer.producer_id, each.producer.txn_start_offset) in opened
            ),
            key=lambda each: (each.partition, each.producer.producer_id),
        )

    async def _open_in(self, partitions: Iterable[TopicPartition], deadline: Deadline) -> list[HangingTransaction]:
        """The transactions that are open in these partitions, whether they hang or not."""
        found = await self.describe_producers(partitions, timeout_s=deadline.left_s)
        return [
            HangingTransaction(where, producer)
            for where, known in found.items()
            for producer in known
            if producer.txn_start_offset is not None
        ]

    async def _owned(self, deadline: Deadline) -> set[tuple[str | None, int, int]]:
        """The (topic id, partition, producer id) of every open transaction that a coordinator knows.

        Each transaction is described, because its producer id in the list may be that of the next producer: it differs
        from the writer's once the epochs of that id are used up.
        """
        listed = await self.list_transactions(_OPEN_STATES, timeout_s=deadline.left_s)
        at_once = asyncio.Semaphore(COORDINATORS_AT_ONCE)

        async def of(transactional_id: str) -> set[tuple[str | None, int, int]]:
            async with at_once:
                try:
                    found = await self._transaction(transactional_id, deadline.left_s)
                except TransactionalIdNotFound:
                    return set()  # it has expired since it was listed
            return {(row.topic_id, row.partition, found.producer_id) for row in found.partitions}

        return set().union(*await side_by_side(of, [row.transactional_id for row in listed]))
