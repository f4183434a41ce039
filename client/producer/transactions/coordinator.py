"""Requests to the coordinator of a transactional id, and to that of a group whose offsets a transaction commits.

All are idempotent: the coordinators recognise repetitions. May touch: the network through `ClusterClient`, the event
loop's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from raylog.base.errors import (
    ClusterAuthorizationFailed,
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    InvalidTxnState,
    ProducerFenced,
    RaylogError,
    RequestTimedOut,
    TransactionalIdNotFound,
    UnsupportedVersion,
    from_code,
)
from raylog.base.ids import TopicPartition
from raylog.client.cluster.backoff import Backoff
from raylog.client.cluster.cluster_client import GROUP, TRANSACTION, ClusterClient
from raylog.client.cluster.deadline import Deadline
from raylog.client.config import ProducerConfig
from raylog.client.producer.transactions.state import UNKNOWN, Identity
from raylog.client.types import ConsumerGroupMetadata, OffsetAndMetadata, PreparedTxnState
from raylog.protocol.groups import TXN_OFFSET_COMMIT, OffsetCommitPartition, TxnOffsetCommitRequest
from raylog.protocol.method import Method, ReplyT, RequestT
from raylog.protocol.transactions import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    END_TXN,
    INIT_TRANSACTIONS,
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitTransactionsRequest,
    TxnPartition,
)

FATAL = (
    ProducerFenced,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    InvalidTxnState,
    TransactionalIdNotFound,
    ClusterAuthorizationFailed,
    UnsupportedVersion,
)
"""Errors of the coordinators after which the producer can only be closed."""


class CoordinatorCalls:
    """The requests of one producer; each is retried until it is answered or its deadline is over."""

    def __init__(self, config: ProducerConfig, cluster: ClusterClient, transactional_id: str) -> None:
        self._config = config
        self._cluster = cluster
        self._id = transactional_id

    async def initialize(
        self,
        deadline: Deadline,
        *,
        keep_prepared: bool,
        sender: Identity | None = None,
        timeout_ms: int | None = -1,
    ) -> tuple[Identity, PreparedTxnState | None]:
        """Fence earlier producers of the id. Returns this producer's identity, and a kept prepared transaction.

        `sender`: the identity that the id must still have, else ProducerFenced is raised; None = any. `timeout_ms`: of
        its transactions; None = they never time out, -1 = as configured.
        """
        config = self._config
        if timeout_ms == -1:
            timeout_ms = None if config.transaction_two_phase_commit_enable else config.transaction_timeout_ms
        request = InitTransactionsRequest(
            self._id,
            config.transaction_timeout_ms if timeout_ms is None else timeout_ms,
            *(UNKNOWN if sender is None else sender),
            two_phase_commit=timeout_ms is None,
            keep_prepared=keep_prepared,
        )
        reply = await self._call(INIT_TRANSACTIONS, request, deadline)
        kept = PreparedTxnState(reply.ongoing_producer_id, reply.ongoing_producer_epoch)
        return Identity(reply.producer_id, reply.producer_epoch), None if kept.producer_id < 0 else kept

    async def add_partitions(
        self, identity: Identity, partitions: Sequence[tuple[str, int]], deadline: Deadline
    ) -> dict[tuple[str, int], str]:
        """Add partitions to the transaction; return the topic ids with which they were added.

        Raises UnknownTopicOrPartition for a topic that does not exist.
        """
        rows = [TxnPartition(await self._topic_id(topic, deadline), topic, number) for topic, number in partitions]
        await self._call(ADD_PARTITIONS_TO_TXN, AddPartitionsToTxnRequest(self._id, *identity, rows), deadline)
        return {(row.topic, row.partition): row.topic_id for row in rows}

    async def add_group(self, identity: Identity, group_id: str, deadline: Deadline) -> None:
        """Add a group to the transaction, before its offsets are committed with it."""
        await self._call(ADD_OFFSETS_TO_TXN, AddOffsetsToTxnRequest(self._id, *identity, group_id), deadline)

    async def commit_offsets(
        self,
        identity: Identity,
        group: ConsumerGroupMetadata,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        deadline: Deadline,
    ) -> None:
        """Send offsets to the group's coordinator, where they are pending until the transaction ends."""
        rows = []
        for where, each in offsets.items():
            # The id of the topic that was read; another topic may have its name by now.
            topic_id = each.topic_id or group.topic_ids.get(where)
            if not topic_id:
                found = await self._cluster.topic_with(*where, timeout_s=deadline.left_s, may_create=False)
                topic_id = found.topic_id
            rows.append(OffsetCommitPartition(topic_id, *where, each.offset, each.leader_epoch, each.metadata))
        request = TxnOffsetCommitRequest(
            group.group_id,
            group.generation_id,
            group.member_id,
            group.group_instance_id,
            self._id,
            *identity,
            rows,
        )
        results = await self._until_answered(group.group_id, TXN_OFFSET_COMMIT, request, deadline, GROUP)
        for row in results:
            if row.error_code:
                raise from_code(
                    row.error_code,
                    f"The offset of {row.topic}-{row.partition} was refused by group {group.group_id!r} (error "
                    f"{row.error_code}).",
                )

    async def end(self, identity: Identity, deadline: Deadline, *, committed: bool) -> Identity:
        """Commit or abort the transaction; return, once that is decided, the identity for the next transaction."""
        reply = await self._call(END_TXN, EndTxnRequest(self._id, *identity, committed), deadline)
        return Identity(reply.producer_id, reply.producer_epoch)

    async def _call(self, method: Method[RequestT, ReplyT], request: RequestT, deadline: Deadline) -> ReplyT:
        return await self._until_answered(self._id, method, request, deadline, TRANSACTION)

    async def _until_answered(
        self, key: str, method: Method[RequestT, ReplyT], request: RequestT, deadline: Deadline, kind: str
    ) -> ReplyT:
        backoff = Backoff(self._config.retry_backoff_ms, self._config.retry_backoff_max_ms)
        while True:
            timeout_s = min(deadline.left_s, self._config.request_timeout_ms / 1000)
            try:
                return await self._cluster.call_coordinator(key, method, request, timeout_s=timeout_s, kind=kind)
            except ConcurrentTransactions as failure:
                error: RaylogError = failure
            except RequestTimedOut as failure:
                error = failure
                self._cluster.forget_coordinator(key, kind)
            pause_s = backoff.next_s()
            if deadline.is_over or pause_s >= deadline.left_s:
                raise error
            await asyncio.sleep(pause_s)

    async def _topic_id(self, topic: str, deadline: Deadline) -> str:
        return (await self._cluster.topic(topic, timeout_s=deadline.left_s)).topic_id

    def public_error(self, error: RaylogError) -> RaylogError:
        """The error to raise to the user: for a fenced producer one that says what happened and what to do."""
        if not isinstance(error, ProducerFenced | InvalidProducerEpoch):
            return error
        found = ProducerFenced(
            f"The producer {self._id!r} was fenced: another one has this transactional_id now, or its transaction was "
            f"open for longer than transaction_timeout_ms={self._config.transaction_timeout_ms}. Close it; make a new "
            "one if no other does its work.",
            **error.details,
        )
        found.__cause__ = error
        return found
