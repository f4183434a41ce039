"""Sends the requests of `commits` to the coordinators: the driver's shell of exactly-once.

The decision is stored as committed offsets of the group whose name is the prefix, for partitions of
`__transaction_state`. The offset is the number of the batch; the metadata of the partitions, joined, are the decision
as JSON. May touch: the network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from raylog.base.errors import InvalidRecord, RaylogError, RequestTimedOut
from raylog.base.ids import TopicPartition
from raylog.client.admin.transactions import TRANSACTIONS_TOPIC, AsyncTransactionAdmin
from raylog.client.cluster.backoff import Backoff
from raylog.client.cluster.cluster_client import GROUP, ClusterClient
from raylog.client.cluster.deadline import Deadline
from raylog.client.config import ProducerConfig
from raylog.client.producer.transactions.coordinator import CoordinatorCalls
from raylog.client.producer.transactions.state import Identity as ProducerIdentity
from raylog.client.types import ConsumerGroupMetadata, OffsetAndMetadata
from raylog.protocol.groups import (
    DESCRIBE_GROUP,
    OFFSET_FETCH,
    DescribeGroupRequest,
    OffsetFetchRequest,
    OffsetFetchResult,
)
from raylog.spark.writing.commits import (
    Decision,
    End,
    Fence,
    Identity,
    Init,
    Initialised,
    Prepared,
    Read,
    Release,
    Request,
    Store,
    Talk,
    driver_id,
    task_id,
)

METADATA_CHARACTERS = 3_900
"""Most characters in the metadata of one committed offset; a group takes 4,096 bytes (offset.metadata.max.bytes)."""
OPEN = "Ongoing"
DRIVER_TIMEOUT_MS = 60_000
"""Timeout of the transaction that stores a decision."""
Result = TypeVar("Result")
Answer = Callable[[Request], Awaitable[Any]]


class _Row(msgspec.Struct, array_like=True):
    """A decision as it is stored; transactions as (task, attempt, producer id, epoch)."""

    owner: str
    batch: int
    transactions: list[tuple[int, int, int, int]]
    replaced: list[str] = []
    run: str = ""


def decision_texts(decision: Decision) -> list[str]:
    """A decision as the metadata of partitions 0, 1, ...: each is "count:part", the number of parts and one of them."""
    rows = []
    for prepared in decision.transactions:
        _, partition, attempt = prepared.transactional_id.rsplit("-", 2)
        rows.append((int(partition), int(attempt), prepared.producer_id, prepared.epoch))
    text = msgspec.json.encode(
        _Row(decision.owner, decision.batch, rows, list(decision.replaced), decision.run)
    ).decode()
    parts = [text[at : at + METADATA_CHARACTERS] for at in range(0, len(text), METADATA_CHARACTERS)]
    return [f"{len(parts)}:{part}" for part in parts]


def parsed_decision(prefix: str, committed: dict[int, OffsetAndMetadata]) -> Decision | None:
    """The decision from the committed offsets by partition; None if there is none. Raises InvalidRecord."""
    first = committed.get(0)
    if first is None:
        return None
    try:
        count = int(first.metadata.split(":", 1)[0])
        # Later partitions still hold the end of an earlier decision that was longer.
        text = "".join(committed[number].metadata.split(":", 1)[1] for number in range(count))
        row = msgspec.json.decode(text, type=_Row)
    except (ValueError, IndexError, KeyError, msgspec.MsgspecError) as error:
        raise InvalidRecord(
            f"The group {prefix!r} has committed offsets that are no decision of a write: choose another "
            "transactionalIdPrefix, which no consumer group has as its name."
        ) from error
    names = tuple(Prepared(task_id(prefix, *held[:2]), *held[2:]) for held in row.transactions)
    return Decision(row.owner, row.batch, names, tuple(row.replaced), row.run)


class Coordinators:
    """The coordinators of one prefix, with one deadline for all requests."""

    def __init__(self, cluster: ClusterClient, config: ProducerConfig, prefix: str, *, timeout_s: float) -> None:
        """`config` has the transaction timeout of the tasks."""
        self._cluster = cluster
        self._config = config
        self._prefix = prefix
        self._deadline = Deadline(timeout_s)

    async def answer(self, request: Request) -> Any:
        """Send one request, and return its answer. Raises RaylogError."""
        match request:
            case Init():
                calls = self._calls(request.transactional_id)
                sender = None if request.sender is None else ProducerIdentity(*request.sender)
                identity, kept = await calls.initialize(
                    self._deadline,
                    keep_prepared=True,
                    sender=sender,
                    timeout_ms=None if request.for_good else self._config.transaction_timeout_ms,
                )
                name = request.transactional_id
                found = None if kept is None else Prepared(name, kept.producer_id, kept.epoch)
                return Initialised(Identity(*identity), found)
            case Fence():
                calls = self._calls(driver_id(self._prefix))
                fenced, _ = await calls.initialize(self._deadline, keep_prepared=False, timeout_ms=DRIVER_TIMEOUT_MS)
                return Identity(*fenced)
            case End():
                calls = self._calls(request.transactional_id)
                ended = await calls.end(
                    ProducerIdentity(*request.identity), self._deadline, committed=request.committed
                )
                return Identity(*ended)
            case Read():
                if request.driver is None:
                    return await self._read_early()
                return await self._read(ProducerIdentity(*request.driver))
            case Release():
                calls = self._calls(driver_id(self._prefix))
                await calls.end(ProducerIdentity(*request.driver), self._deadline, committed=False)
                return None
            case Store():
                return await self._store(ProducerIdentity(*request.driver), request.decision)

    def _calls(self, name: str) -> CoordinatorCalls:
        return CoordinatorCalls(self._config, self._cluster, name)

    async def _read_early(self) -> Decision | None:
        """The last decision, read without a fence; one that a driver is about to store is not seen."""
        try:
            return await self._fetched(is_stable=False)
        except InvalidRecord:  # its coordinator died between two parts, and the next one is about to store the rest
            return await self._fetched(is_stable=True)

    async def _fetched(self, *, is_stable: bool) -> Decision | None:
        request = OffsetFetchRequest(self._prefix, None, require_stable=is_stable)
        rows = await self._cluster.call_coordinator(
            self._prefix, OFFSET_FETCH, request, timeout_s=self._deadline.left_s, kind=GROUP
        )
        return parsed_decision(self._prefix, _committed(rows))

    async def _read(self, driver: ProducerIdentity) -> Decision | None:
        """The last decision (R-READ), from a coordinator that has stored a mark of this driver since the fence.

        Only the present coordinator can have stored it.
        """
        calls = self._calls(driver_id(self._prefix))
        backoff = Backoff(self._config.retry_backoff_ms, self._config.retry_backoff_max_ms)
        await calls.add_group(driver, self._prefix, self._deadline)
        while True:
            mark = {TopicPartition(TRANSACTIONS_TOPIC, 0): OffsetAndMetadata(0, "")}
            await calls.commit_offsets(driver, ConsumerGroupMetadata(self._prefix), mark, self._deadline)
            group = await self._cluster.call_coordinator(
                self._prefix,
                DESCRIBE_GROUP,
                DescribeGroupRequest(self._prefix),
                timeout_s=self._deadline.left_s,
                kind=GROUP,
            )
            if driver in [(row.producer_id, row.producer_epoch) for row in group.pending_offsets]:
                return parsed_decision(self._prefix, _committed(group.offsets))
            # This coordinator was replaced without noticing it, or this driver's transaction has ended.
            if self._deadline.is_over:
                raise RequestTimedOut(f"The coordinator of the group {self._prefix!r} could not be read; try again.")
            self._cluster.forget_coordinator(self._prefix, GROUP)
            await asyncio.sleep(min(backoff.next_s(), self._deadline.left_s))

    async def _store(self, driver: ProducerIdentity, decision: Decision) -> None:
        texts = decision_texts(decision)
        topic = await self._cluster.topic(TRANSACTIONS_TOPIC, timeout_s=self._deadline.left_s)
        if len(texts) > len(topic.partitions):
            raise InvalidRecord(
                f"A batch of {len(decision.transactions)} tasks has too many transactions to be decided at once: use "
                "fewer partitions (coalesce) before the write."
            )
        calls = self._calls(driver_id(self._prefix))
        await calls.add_group(driver, self._prefix, self._deadline)
        offsets = {
            TopicPartition(TRANSACTIONS_TOPIC, number): OffsetAndMetadata(decision.batch, text)
            for number, text in enumerate(texts)
        }
        await calls.commit_offsets(driver, ConsumerGroupMetadata(self._prefix), offsets, self._deadline)
        await calls.end(driver, self._deadline, committed=True)

    async def open_ids(self) -> list[str]:
        """The transactional ids that begin with the prefix and have an open transaction."""
        admin = AsyncTransactionAdmin()
        admin.cluster = self._cluster
        found = await admin.list_transactions([OPEN], prefix=self._prefix, timeout_s=self._deadline.left_s)
        return [row.transactional_id for row in found]


def _committed(rows: Sequence[OffsetFetchResult]) -> dict[int, OffsetAndMetadata]:
    return {
        row.partition: OffsetAndMetadata(row.committed_offset, row.committed_metadata)
        for row in rows
        if row.topic == TRANSACTIONS_TOPIC and row.committed_offset >= 0
    }


async def hold(talk: Talk[Result], answer: Answer) -> Result:
    """Run a conversation of `commits` to its end: send the requests of each step at once; returns its result."""

    async def answered(request: Request) -> Any:
        try:
            return await answer(request)
        except RaylogError as error:
            return error

    try:
        requests: Sequence[Request] = next(talk)
        while True:
            requests = talk.send(list(await asyncio.gather(*(answered(each) for each in requests))))
    except StopIteration as end:
        result: Result = end.value
        return result
