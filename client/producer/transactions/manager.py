"""`TransactionManager`: begins and ends the transactions of one producer, and adds partitions to them.

The user's calls run one at a time. Deliveries call `may_send` before they send: it adds all partitions that wait for it
to the transaction, in one request, and then has the sender make another pass. A batch that fails makes the transaction
abortable, and batches that are not sent yet fail with it. Owned by the engine, on its loop. May touch: the network
through `CoordinatorCalls`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

from raylog.base.errors import (
    ClientClosed,
    CommitFailed,
    FencedInstanceId,
    FencedMemberEpoch,
    IllegalGeneration,
    InvalidTxnState,
    RaylogError,
    RebalanceInProgress,
    RequestTimedOut,
    StaleMemberEpoch,
    TransactionAborted,
    UnknownMemberId,
)
from raylog.base.ids import TopicPartition
from raylog.client.cluster.backoff import as_raylog_error
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.cluster.deadline import Deadline, now_s
from raylog.client.config import ProducerConfig
from raylog.client.producer.transactions.coordinator import FATAL, CoordinatorCalls
from raylog.client.producer.transactions.state import Identity, Status, TransactionCall, TransactionState
from raylog.client.tasks import LastingTask
from raylog.client.types import ConsumerGroupMetadata, OffsetAndMetadata, PreparedTxnState

TIMED = {
    TransactionCall.INIT: "txn-init-time-ns-total",
    TransactionCall.BEGIN: "txn-begin-time-ns-total",
    TransactionCall.SEND_OFFSETS: "txn-send-offsets-time-ns-total",
    TransactionCall.PREPARE: "txn-prepare-time-ns-total",
    TransactionCall.COMMIT: "txn-commit-time-ns-total",
    TransactionCall.ABORT: "txn-abort-time-ns-total",
}
"""The calls whose time is measured, with Kafka's metric names."""
ABORT_AT_CLOSE_S = 5.0
"""How long a producer that is closed tries to abort its open transaction; after that its timeout aborts it."""
LOOK_S = 0.5
"""How often a call that waits for partitions to be added checks whether the transaction has failed."""
_LOST_MEMBERS = (
    *(IllegalGeneration, StaleMemberEpoch, FencedMemberEpoch),
    *(UnknownMemberId, FencedInstanceId, RebalanceInProgress),
)


class Sending(Protocol):
    """What the manager needs of the sender."""

    def refuse(self, error: RaylogError) -> None:
        """Have every `send()` raise this error, until `accept`."""

    def accept(self) -> None:
        """Accept records again."""

    def drop_unsent(self, error: RaylogError) -> None:
        """Fail all batches without a request in flight."""

    def abandon(self, error: RaylogError) -> object:
        """Fail all records that are not stored, and every later `send()`."""

    def look_again(self) -> None:
        """Schedule a pass over all queues."""

    async def flush(self) -> None:
        """Wait until all records sent before are stored or have failed."""


class TransactionManager:
    """The transactions of one producer."""

    def __init__(
        self, config: ProducerConfig, cluster: ClusterClient, sending: Sending, check_usable: Callable[[], None]
    ) -> None:
        """`check_usable` raises ClientClosed if the producer is not open."""
        transactional_id = config.transactional_id
        if transactional_id is None:
            raise InvalidTxnState("This producer has no transactional_id; give it one to use transactions.")
        self._sending = sending
        self._check_usable = check_usable
        self._default_s = config.max_block_ms / 1000
        self._request_s = config.request_timeout_ms / 1000
        self.state = TransactionState(transactional_id, two_phase_commit=config.transaction_two_phase_commit_enable)
        self._coordinator = CoordinatorCalls(config, cluster, transactional_id)
        self._one_call = asyncio.Lock()
        self._taken_s = dict.fromkeys(TIMED, 0.0)
        self._wanted: set[tuple[str, int]] = set()
        """Partitions that have batches, and are still to be added to the transaction."""
        self._adding: LastingTask | None = None
        self._refuse()

    # Called by deliveries

    @property
    def identity(self) -> Identity:
        """Producer id and epoch for the batches of the open transaction."""
        return self.state.identity

    @property
    def gives_up(self) -> bool:
        """Whether failed batches are not retried, because the transaction cannot be committed any more."""
        return self.state.gives_up

    def may_send(self, topic: str, partition: int) -> bool:
        """Whether the partition is in the transaction; if not, it is added, and then the sender makes another pass."""
        state, where = self.state, (topic, partition)
        if not state.is_sending:
            return False
        if where in state.partitions and where not in self._wanted:
            return True
        self.add_again(topic, partition)
        return False

    def topic_id(self, topic: str, partition: int) -> str:
        """The id of the partition's topic when it was added to the transaction; "" = it was not added."""
        return self.state.partitions.get((topic, partition), "")

    def add_again(self, topic: str, partition: int) -> None:
        """Add a partition, even if one of that name was added before: another topic may have the name now."""
        if (topic, partition) not in self._wanted:
            self._wanted.add((topic, partition))
            if self._adding is None:
                self._adding = LastingTask(self._add_partitions, "raylog-add-partitions")

    def failed(self, error: RaylogError) -> None:
        """A batch has failed: the transaction cannot be committed."""
        if self.state.failed(error):
            self._refuse()
            # Not at once: the delivery that reports the failure is changing its line.
            asyncio.get_running_loop().call_soon(self._drop_unsent)

    @property
    def may_abort(self) -> bool:
        """Whether `abort_transaction` is legal now. From any thread."""
        return self.state.refusal(TransactionCall.ABORT) is None

    # The user's calls

    async def initialize(
        self, *, keep_prepared: bool, timeout_s: float | None, sender: Identity | None = None
    ) -> PreparedTxnState | None:
        """`init_transactions`; returns the kept prepared transaction, if any.

        With `sender`, raises ProducerFenced unless the id still has this identity.
        """
        async with self._call(TransactionCall.INIT, timeout_s) as deadline:
            try:
                identity, kept = await self._coordinator.initialize(
                    deadline, keep_prepared=keep_prepared, sender=sender
                )
            except RaylogError as error:
                raise self._coordinator.public_error(error) from None
            self.state.initialized(identity, kept)
            self._refuse()
            return kept

    async def begin(self) -> None:
        """`begin_transaction`. It sends no request: at the coordinator the first partition or group begins it."""
        async with self._call(TransactionCall.BEGIN, None):
            self.state.begin()
            self._sending.accept()

    async def send_offsets(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: ConsumerGroupMetadata,
        timeout_s: float | None,
    ) -> None:
        """`send_offsets_to_transaction`."""
        async with self._call(TransactionCall.SEND_OFFSETS, timeout_s) as deadline:
            if not offsets:
                return
            state = self.state
            try:
                if group.group_id not in state.groups:
                    await self._coordinator.add_group(state.identity, group.group_id, deadline)
                    state.groups.add(group.group_id)
                await self._coordinator.commit_offsets(state.identity, group, offsets, deadline)
            except _LOST_MEMBERS as error:
                raise self._aborting(
                    CommitFailed(
                        f"The offsets of group {group.group_id!r} cannot be committed with the transaction: its member "
                        f"has lost its partitions ({error.message}). Abort the transaction, and poll again."
                    )
                ) from error
            except RaylogError as error:
                raise self._aborting(error) from None

    async def prepare(self, timeout_s: float | None) -> PreparedTxnState:
        """`prepare_transaction`: when it returns, all records are stored, and the transaction waits for its end."""
        async with self._call(TransactionCall.PREPARE, timeout_s) as deadline:
            self._sending.refuse(InvalidTxnState("send() is not legal while the transaction is being prepared."))
            try:
                await self._stored(TransactionCall.PREPARE, deadline)
            except RequestTimedOut:
                self._sending.accept()  # the transaction stays open; the call may be repeated
                raise
            prepared = self.state.prepare()
            self._refuse()
            return prepared

    async def complete(self, prepared: PreparedTxnState, timeout_s: float | None) -> bool:
        """`complete_transaction`: commit if this is the prepared state, else abort; return whether it was committed."""
        async with self._call(TransactionCall.COMPLETE, timeout_s) as deadline:
            committed = self.state.prepared == prepared
            await self._end(deadline, committed=committed)
            return committed

    async def commit(self, timeout_s: float | None) -> None:
        """`commit_transaction`."""
        async with self._call(TransactionCall.COMMIT, timeout_s) as deadline:
            await self._end(deadline, committed=True)

    async def abort(self, timeout_s: float | None) -> None:
        """`abort_transaction`."""
        async with self._call(TransactionCall.ABORT, timeout_s) as deadline:
            await self._end(deadline, committed=False)

    async def close(self, timeout_s: float) -> None:
        """Try to abort an open transaction, for at most `ABORT_AT_CLOSE_S`; a prepared transaction stays."""
        try:
            async with asyncio.timeout(min(timeout_s, ABORT_AT_CLOSE_S)):
                async with self._one_call:
                    if self.state.refusal(TransactionCall.ABORT) is None and self.state.status is not Status.PREPARED:
                        await self._end(Deadline(timeout_s), committed=False)
        except (RaylogError, TimeoutError):
            pass  # its timeout aborts the transaction, or the next producer of the id
        finally:
            if self._adding is not None:
                self._adding.cancel()

    # Ending

    async def _end(self, deadline: Deadline, *, committed: bool) -> None:
        state = self.state
        call = TransactionCall.COMMIT if committed else TransactionCall.ABORT
        state.ending(committed=committed)
        self._refuse()
        if not committed:
            self._drop_unsent()
        await self._stored(call, deadline)
        try:
            identity = state.identity
            if state.is_begun:
                identity = await self._coordinator.end(identity, deadline, committed=committed)
        except RaylogError as error:
            raise self._aborting(error) from None
        state.ended(identity)
        self._refuse()

    async def _stored(self, call: TransactionCall, deadline: Deadline) -> None:
        """Wait until all records are stored, and all partitions added. Raises if the transaction has failed."""
        state = self.state
        try:
            async with asyncio.timeout(deadline.left_s):
                while not state.gives_up or state.status is Status.ABORTING:
                    await self._sending.flush()
                    if self._adding is None:
                        break
                    await asyncio.wait([self._adding.task], timeout=LOOK_S)
        except TimeoutError:
            raise RequestTimedOut(
                f"{call.value}() of {state.transactional_id!r} could not wait for all records in flight; call it again."
            ) from None
        if state.status in (Status.ABORTABLE_ERROR, Status.FATAL_ERROR):
            state.check(call)

    # Partitions

    async def _add_partitions(self) -> None:
        state = self.state
        try:
            while state.is_sending and (wanted := sorted(self._wanted)):
                await self._added(wanted)
        except Exception as failure:  # any error: otherwise the batches would wait until their timeout
            self._aborting(as_raylog_error(failure))
        self._adding = None
        self._wanted.clear()
        self._sending.look_again()

    async def _added(self, wanted: list[tuple[str, int]]) -> None:
        """Add partitions, with retries, since without an answer it is unknown whether the transaction has begun."""
        added: dict[tuple[str, int], str] = {}
        while True:
            try:
                limit = Deadline(self._request_s)
                added = await self._coordinator.add_partitions(self.state.identity, wanted, limit)
                break
            except RaylogError as error:
                if not error.retriable or self.state.status is Status.FATAL_ERROR or "topic" in error.details:
                    raise
        self.state.partitions.update(added)
        self._wanted.difference_update(wanted)

    # Errors

    def _aborting(self, error: RaylogError) -> RaylogError:
        """Apply an error, and return it as the user gets it.

        A fatal one ends the producer. Others make the transaction abortable, unless the call may be repeated.
        """
        error = self._coordinator.public_error(error)
        if isinstance(error, FATAL):
            self.state.failed_for_good(error)
            self._sending.abandon(error)
        elif isinstance(error, ClientClosed):
            pass  # there will be no other call
        elif (not error.retriable or self.state.status is Status.IN_TRANSACTION) and self.state.failed(error):
            self._refuse()
            self._drop_unsent()
        return error

    def _drop_unsent(self) -> None:
        if self.state.gives_up:
            self._sending.drop_unsent(
                TransactionAborted("The record was not sent, because its transaction has failed or was aborted.")
            )

    def _refuse(self) -> None:
        """Refuse records, unless `send` is legal in the present state."""
        error = self.state.refusal(TransactionCall.SEND)
        if error is not None:
            self._sending.refuse(error)

    @asynccontextmanager
    async def _call(self, call: TransactionCall, timeout_s: float | None) -> AsyncIterator[Deadline]:
        """Wrap one call of the user: after the calls before it, check that it is legal; measure its time."""
        deadline = Deadline(self._default_s if timeout_s is None else timeout_s)
        self._check_usable()
        began_s = now_s()
        try:
            async with self._one_call:
                self.state.check(call)
                yield deadline
        finally:
            if call in TIMED:
                self._taken_s[call] += now_s() - began_s

    def metrics(self) -> dict[str, float]:
        """The total time of the user's calls, by Kafka's names, in nanoseconds."""
        return {name: self._taken_s[call] * 1e9 for call, name in TIMED.items()}
