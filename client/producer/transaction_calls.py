"""The public methods for transactions, which `Producer` and `AsyncProducer` inherit.

May touch: the network, through the engine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from raylog.base.ids import TopicPartition
from raylog.client.arguments import checked_offset, checked_partition
from raylog.client.checked import checks_arguments
from raylog.client.producer.engine import ProducerEngine
from raylog.client.runtime import Runtime, blocking
from raylog.client.types import ConsumerGroupMetadata, OffsetAndMetadata, PreparedTxnState

Result = TypeVar("Result")
Offsets = Mapping[TopicPartition, "OffsetAndMetadata | int"]


@checks_arguments()
class AsyncTransactions:
    """Transactions of an `AsyncProducer` with a transactional id.

    Every `timeout` is in seconds; None = `max_block_ms`. After RequestTimedOut a call may be repeated. A call that is
    not legal in the present state raises InvalidTxnState, which names the legal ones. After a failed record or request
    every call but `abort_transaction()` raises TransactionAbortable. After ProducerFenced this producer can only be
    closed.
    """

    def __init__(self, engine: ProducerEngine) -> None:
        self._engine = engine

    async def init_transactions(
        self,
        keep_prepared_txn: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109  # the name users know
    ) -> PreparedTxnState | None:
        """Fence earlier producers of this id, and end their open transaction. Once, before the first transaction.

        With `keep_prepared_txn` their transaction is kept for `complete_transaction()`, and its state is returned.
        """
        return await self._engine.transactions.initialize(keep_prepared=keep_prepared_txn, timeout_s=timeout)

    async def begin_transaction(self) -> None:
        """Begin a transaction: records sent from now on are committed or aborted together."""
        await self._engine.transactions.begin()

    async def send_offsets_to_transaction(
        self,
        offsets: Offsets,
        group_metadata: ConsumerGroupMetadata,
        timeout: float | None = None,  # noqa: ASYNC109  # the name users know
    ) -> None:
        """Commit a group's offsets (of the next records to read) together with the transaction's records.

        `group_metadata` comes from `consumer.group_metadata()` of a consumer with `enable_auto_commit=False`. Raises
        CommitFailed if that consumer has lost its partitions; then abort the transaction.
        """
        await self._engine.transactions.send_offsets(_checked_offsets(offsets), _checked_group(group_metadata), timeout)

    async def prepare_transaction(self, timeout: float | None = None) -> PreparedTxnState:  # noqa: ASYNC109
        """Store all records that were sent, and leave the outcome open; return the prepared state (KIP-939).

        `complete_transaction()` ends the transaction, here or in another producer of this id, at any time. Needs
        `transaction_two_phase_commit_enable`.
        """
        return await self._engine.transactions.prepare(timeout)

    async def complete_transaction(
        self,
        prepared_state: PreparedTxnState,
        timeout: float | None = None,  # noqa: ASYNC109  # the name users know
    ) -> bool:
        """Commit the prepared transaction if this is its state, else abort it; return whether it was committed."""
        return await self._engine.transactions.complete(prepared_state, timeout)

    async def commit_transaction(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Wait until all records are stored, then commit. Raises TransactionAbortable if a record has failed."""
        await self._engine.transactions.commit(timeout)

    async def abort_transaction(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Abort: `read_committed` consumers never see the transaction's records. Records not sent yet fail."""
        await self._engine.transactions.abort(timeout)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A transaction as an `async with` block: committed at the end of the block, aborted if the block raises."""
        await self.begin_transaction()
        try:
            yield
        except BaseException:  # an interrupt too
            await self._abort_if_possible()
            raise
        try:
            await self.commit_transaction()
        except BaseException:  # the commit has failed, or was interrupted
            await self._abort_if_possible()
            raise

    async def _abort_if_possible(self) -> None:
        if self._engine.transactions.may_abort:
            await self.abort_transaction()


class Transactions:
    """Transactions of a `Producer` with a transactional id: the methods of `AsyncTransactions`, blocking."""

    _engine: ProducerEngine
    _runtime: Runtime

    @property
    def _asynchronous(self) -> AsyncTransactions:
        return AsyncTransactions(self._engine)

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._runtime.run(work)

    init_transactions = blocking(AsyncTransactions.init_transactions)
    begin_transaction = blocking(AsyncTransactions.begin_transaction)
    send_offsets_to_transaction = blocking(AsyncTransactions.send_offsets_to_transaction)
    prepare_transaction = blocking(AsyncTransactions.prepare_transaction)
    complete_transaction = blocking(AsyncTransactions.complete_transaction)
    commit_transaction = blocking(AsyncTransactions.commit_transaction)
    abort_transaction = blocking(AsyncTransactions.abort_transaction)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction as a `with` block: committed at the end of the block, aborted if the block raises."""
        self.begin_transaction()
        try:
            yield
        except BaseException:  # an interrupt too
            self._abort_if_possible()
            raise
        try:
            self.commit_transaction()
        except BaseException:  # the commit has failed, or was interrupted
            self._abort_if_possible()
            raise

    def _abort_if_possible(self) -> None:
        if self._engine.transactions.may_abort:
            self.abort_transaction()


def _checked_offsets(offsets: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
    if not isinstance(offsets, Mapping):
        raise TypeError(f"The offsets must be a mapping of TopicPartition to offsets, not {offsets!r:.100}.")
    return {(at := checked_partition(each)): checked_offset(at, offset) for each, offset in offsets.items()}


def _checked_group(group: ConsumerGroupMetadata) -> ConsumerGroupMetadata:
    if not isinstance(group, ConsumerGroupMetadata):
        raise TypeError(f"The group must be what consumer.group_metadata() returns, not {group!r:.100}.")
    return group
