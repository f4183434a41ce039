"""Clients that write in transactions: tellers send records, copiers copy what they consume, exactly once.

Each place has one transactional id; a process that was killed or given up is followed by another of the same place,
which fences it. Everything goes into the ledger before it is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final

from raylog.base.errors import (
    ClientClosed,
    CommitFailed,
    DeliveryTimedOut,
    FencedInstanceId,
    IllegalGeneration,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    ProducerFenced,
    RaylogError,
    TransactionAbortable,
    TransactionAborted,
    UnknownMemberId,
)
from raylog.base.ids import TopicPartition
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.futures import AsyncSendFuture
from raylog.client.producer.producer import AsyncProducer
from raylog.client.types import RecordMetadata
from tests.simulation.whole.books import At, Sent
from tests.simulation.whole.clients import API_S, DELIVERY_S, LAST_API_S, Client
from tests.simulation.whole.compaction.clients import FEW, HEADER, MANY, REMOVALS
from tests.simulation.whole.transactions.accounts import TxnRow
from tests.simulation.whole.transactions.ledger import Txn
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.transactions.part import Transactions
    from tests.simulation.whole.world import World

END_S: Final = DELIVERY_S + 2 * API_S
"""Longest time that the end of a transaction takes: what is in flight is stored first."""
STRIKE_SHARE: Final = 0.15
"""Share of ends of transactions during which something of them is struck."""
REFUSALS: Final = (
    ProducerFenced,
    InvalidProducerEpoch,
    InvalidTxnState,
    TransactionAbortable,
    TransactionAborted,
    DeliveryTimedOut,
    ClientClosed,
    CommitFailed,
    IllegalGeneration,
    UnknownMemberId,
    FencedInstanceId,
)
"""Errors that end a transaction without being retriable: another life, a timeout or a rebalance came first."""


def refusals(world: World) -> tuple[type[RaylogError], ...]:
    """Return the errors that end a transaction without being retriable.

    Where transactional ids are soon forgotten, one may be between the timeout of its transaction and its end.
    """
    return (*REFUSALS, InvalidProducerIdMapping) if world.plan.forgets_producers_s else REFUSALS


def key_of(client: Client) -> bytes:
    """Draw the key of a record of the compacted topic."""
    return b"key %d" % int(client.between(0, FEW if client.chance(0.9) else MANY))


def summed_up(at: At) -> bytes:
    """Return the key under which copiers note up to which offset they have copied a partition."""
    return b"copied %d" % at.partition


class GivenUp(Exception):
    """This life cannot go on; the next one of the place begins."""


class Transactor(Client):
    """One life of one place: a producer with the place's transactional id."""

    def __init__(self, world: World, name: str, place: str) -> None:
        """``name`` names the life, ``place`` is the transactional id."""
        super().__init__(world, name)
        self.place = place
        part = world.transactions
        assert part is not None
        self.part: Transactions = part
        self.ledger = part.ledger
        self._count = 0

    async def begun(self) -> AsyncProducer | None:
        """Return a producer that has initialised its transactions; None = this life is superseded."""
        while self.part.is_latest(self.place, self.name):
            producer = self._producer()
            if await self.tried("start", producer.start(), LAST_API_S):
                if await self.tried("init", producer.init_transactions(), API_S, *refusals(self.world)):
                    return producer
                await self.ended(producer)
            await asyncio.sleep(self.between(0.1, 0.5))
        return None

    def _producer(self) -> AsyncProducer:
        options = self.world.plan.producer_options(self.world.scheduler.random)
        return AsyncProducer(
            transactional_id=self.place,
            transaction_timeout_ms=int(self.part.timeout_s * 1000),
            delivery_timeout_ms=int(DELIVERY_S * 1000),
            max_block_ms=int(API_S * 1000),
            **options,
        )

    async def ended(self, producer: AsyncProducer) -> None:
        """Stop a producer; what is in flight then may take its delivery timeout."""
        await self.call("stop", producer.stop(), DELIVERY_S + 10.0)

    async def send(self, producer: AsyncProducer, txn: Txn, at: At, source: tuple[At, int] | None = None) -> None:
        """Send a record in a transaction; whether it is stored is known when the transaction is."""
        self._count += 1
        filler = "x" * int(self.between(0, 200) if self.chance(0.97) else self.between(0, 4000))
        copied = "" if source is None else f"<-{source[0].partition}@{source[1]}"
        value = f"{self.name}/{self._count}{copied}/{filler}".encode()
        self.world.books.sent[value] = Sent(self.name, at, "all", True, self.world.now_s, self._count)
        self.ledger.sends(txn, at, value, source)
        future = await self._step("send", producer.send(at.topic, value, partition=at.partition), API_S)
        _ = self.beside(self._wait(value, future))

    async def put(
        self,
        producer: AsyncProducer,
        txn: Txn,
        at: At,
        key: bytes | None = None,
        value: bytes | None = None,
        *,
        filler: int = 0,
    ) -> None:
        """Send a record of a key to the compacted topic in a transaction; without `key`, of any."""
        self._count += 1
        name = f"{self.name}/{self._count}".encode()
        if key is None:
            key = key_of(self)
            value = None if self.chance(REMOVALS) else name + b"x" * int(self.between(filler, filler + 150))
        self.ledger.sends(txn, at, name)
        row = self.part.account_books.enter(txn, at, key, value, name)
        work = producer.send(at.topic, value, key=key, headers=[(HEADER, name)], partition=at.partition)
        _ = self.beside(self._wait_for_row(row, await self._step("send", work, API_S)))

    async def _wait_for_row(self, row: TxnRow, future: AsyncSendFuture) -> None:
        stored = await self._stored(row.name, future)
        if stored is not None:
            self.part.account_books.stored(row, stored.offset)

    async def _wait(self, value: bytes, future: AsyncSendFuture) -> None:
        stored = await self._stored(value, future)
        if stored is not None:
            at = TopicPartition(stored.topic, stored.partition)
            self.world.books.stored(value, at, stored.offset, self.world.now_s)

    async def _stored(self, value: bytes, future: AsyncSendFuture) -> RecordMetadata | None:
        """Return where a record is stored; None = it is not known to be."""
        try:
            return await future
        except RaylogError as error:
            if not (error.retriable or isinstance(error, refusals(self.world))):
                raise Violation("W8", f"{self.name}: {value[:40]!r} failed for good: {error!r}") from error
        return None

    async def _step(self, what: str, work: Awaitable[Any], timeout_s: float) -> Any:
        """Await a call of a transaction; raises RaylogError where it may fail, else a violation."""
        try:
            return await self.call(what, work, timeout_s)
        except RaylogError as error:
            if not (error.retriable or isinstance(error, refusals(self.world))):
                raise Violation("W8", f"{self.name}: {what} failed for good: {error!r}") from error
            self.world.log(self.name, f"{what}: {error!r}")
            raise

    async def commit(self, producer: AsyncProducer, txn: Txn) -> None:
        """Commit, and again where the outcome is unknown. Raises RaylogError: it is unknown, or must be aborted."""
        self.part.ends(self.name)
        self.ledger.commits(txn)
        for _ in range(2):
            try:
                await self._step("commit", producer.commit_transaction(), END_S)
            except RaylogError as error:
                if not error.retriable:
                    raise
            else:
                self.ledger.committed(txn)
                self.part.commits += 1
                return
        raise GivenUp

    async def abort(self, producer: AsyncProducer, txn: Txn) -> None:
        """Abort; raises GivenUp where that failed."""
        self.part.ends(self.name)
        try:
            await self._step("abort", producer.abort_transaction(), END_S)
        except RaylogError as error:
            raise GivenUp from error
        self.ledger.aborted(txn)
        self.part.aborts += 1


class Teller(Transactor):
    """Sends some records to some partitions in each transaction, and commits or aborts it."""

    async def run(self) -> None:
        """Work in one transaction after another, through several producers, until the world is quiet."""
        while not self.world.is_quiet and self.part.is_latest(self.place, self.name):
            producer = await self.begun()
            if producer is None:
                return
            lives_until_s = self.world.now_s + self.between(4.0, 30.0)
            try:
                while not self.world.is_quiet and self.world.now_s < lives_until_s:
                    await self._transaction(producer)
                    await asyncio.sleep(self.between(0.0, self.world.plan.send_pause_s))
            except GivenUp:
                pass
            if self.world.is_quiet or self.chance(0.8):
                await self.ended(producer)
            else:
                _ = self.beside(self.ended(producer))  # the next one fences it in the middle of its end

    async def _transaction(self, producer: AsyncProducer) -> None:
        txn = self.ledger.begin(f"transaction {self.part.number()} of {self.name}")
        await producer.begin_transaction()
        try:
            for _ in range(int(self.between(1, 4))):
                at = self.pick(self.part.inputs)
                for _ in range(int(self.between(1, 4))):
                    await self.send(producer, txn, at)
                if self.part.accounts and self.chance(0.7):
                    await self.put(producer, txn, self.pick(self.part.accounts))
                if self.chance(0.2):
                    await asyncio.sleep(self.between(0.0, 1.0))
            if self.chance(0.25):
                await self.abort(producer, txn)
            else:
                if self.chance(0.04):  # it takes longer than it may
                    await asyncio.sleep(self.between(0.0, 2.0 * self.part.timeout_s))
                await self.commit(producer, txn)
        except RaylogError:
            await self.abort(producer, txn)


class Copier(Transactor):
    """Consumes committed records as a member of a group, and stores a copy of each with the group's offsets."""

    async def run(self) -> None:
        """Copy until the world is out of work."""
        while not self.world.is_over and self.part.is_latest(self.place, self.name):
            producer = await self.begun()
            if producer is None:
                return
            consumer = self._consumer()
            if await self.tried("start", consumer.start(), LAST_API_S):
                consumer.subscribe([self.part.inputs[0].topic])
                lives_until_s = self.world.now_s + self.between(5.0, 40.0)
                try:
                    while not self.world.is_over and (self.world.now_s < lives_until_s or self.world.is_quiet):
                        await self._round(consumer, producer)
                except GivenUp:
                    pass
                await self.call("stop", consumer.stop(), 35.0)
            await self.ended(producer)

    def _consumer(self) -> AsyncConsumer:
        options = self.world.plan.consumer_options(self.world.scheduler.random)
        return AsyncConsumer(
            group_id=self.part.group,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            default_api_timeout_ms=int(API_S * 1000),
            **options,
        )

    async def _round(self, consumer: AsyncConsumer, producer: AsyncProducer) -> None:
        wait_s = self.between(0.0, 1.0)
        try:
            found = await self.call("getmany", consumer.getmany(timeout_ms=wait_s * 1000), wait_s + 1.0)
        except RaylogError as error:
            if not error.retriable:
                raise Violation("W8", f"{self.name}: poll failed for good: {error!r}") from error
            await asyncio.sleep(0.1)
            return
        if not found:
            return
        txn = self.ledger.begin(f"transaction {self.part.number()} of {self.name}")
        await producer.begin_transaction()
        try:
            offsets: dict[At, int] = {}
            for at, records in found.items():
                out = self.part.outputs[at.partition]
                for record in records:
                    self.world.books.seen(self.name, at, record.offset, record.value)
                    self.ledger.seen(self.name, at, record.offset, record.value)
                    await self.send(producer, txn, out, (at, record.offset))
                    offsets[at] = record.offset + 1
            for at, offset in offsets.items() if self.part.accounts else ():
                await self.put(producer, txn, self.part.account_of(at), summed_up(at), b"%d" % offset)
            self.ledger.moves(txn, offsets)
            work = producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
            await self._step("send offsets", work, END_S)
            if self.chance(0.1):
                raise TransactionAbortable("the copier changes its mind")
            await self.commit(producer, txn)
        except RaylogError:
            await self.abort(producer, txn)
            await self._rewind(consumer)

    async def _rewind(self, consumer: AsyncConsumer) -> None:
        """Go back to what the group has committed: the copies were aborted."""
        if not await self.tried("rewind", consumer.seek_to_committed(), API_S):
            raise GivenUp


class Careless(Transactor):
    """Sends to partitions that it has not added to its transaction, as a broken client does; none of it is stored."""

    async def run(self) -> None:
        """Try now and then, each time as a new producer, until the world is quiet."""
        while not self.world.is_quiet:
            producer = await self.begun()
            if producer is None:
                return
            try:
                await self._send_unasked(producer)
            except RaylogError as error:
                self.world.log(self.name, f"gives up: {error!r}")
            await self.ended(producer)
            await asyncio.sleep(self.between(1.0, 8.0))

    async def _send_unasked(self, producer: AsyncProducer) -> None:
        at, engine = self.pick(self.part.inputs), producer._engine
        await producer.begin_transaction()
        topic = await self._step("metadata", engine.cluster.topic(at.topic, timeout_s=API_S), API_S)
        engine.transactions.state.partitions[tuple(at)] = topic.topic_id
        future = await self._step("send", producer.send(at.topic, b"unasked", partition=at.partition), API_S)
        stored = await self._stored(b"unasked", future)
        if stored is not None:
            raise Violation("W25", f"{at} has a record at {stored.offset} in a transaction that it was not added to")
        await self._step("abort", producer.abort_transaction(), END_S)


class Plain(Client):
    """Sends records outside of all transactions to the same partitions, with an idempotent producer."""

    async def run(self) -> None:
        """Produce until the world is quiet."""
        part = self.world.transactions
        assert part is not None
        producer = AsyncProducer(delivery_timeout_ms=int(DELIVERY_S * 1000), max_block_ms=int(API_S * 1000))
        while not await self.tried("start", producer.start(), LAST_API_S):
            producer = AsyncProducer(delivery_timeout_ms=int(DELIVERY_S * 1000), max_block_ms=int(API_S * 1000))
            await asyncio.sleep(0.5)
        number = 0
        while not self.world.is_quiet:
            number += 1
            at = self.pick(part.inputs)
            value = f"{self.name}/{number}/".encode()
            self.world.books.sent[value] = Sent(self.name, at, "all", True, self.world.now_s, number)
            record = part.ledger.begin(f"{value!r}, sent plainly")
            part.ledger.sends(record, at, value)
            part.ledger.commits(record)
            try:
                future = await self.call("send", producer.send(at.topic, value, partition=at.partition), API_S)
            except RaylogError as error:
                self.world.log(self.name, f"send: {error!r}")
            else:
                _ = self.beside(self._wait(record, value, future))
            await asyncio.sleep(self.between(0.0, 2.0 * self.world.plan.send_pause_s))
        await self.call("stop", producer.stop(), DELIVERY_S + 10.0)

    async def _wait(self, record: Txn, value: bytes, future: AsyncSendFuture) -> None:
        part = self.world.transactions
        assert part is not None
        try:
            stored = await future
        except RaylogError as error:
            if not (error.retriable or isinstance(error, (DeliveryTimedOut, ClientClosed))):
                raise Violation("W8", f"{self.name}: {value!r} failed for good: {error!r}") from error
        else:
            part.ledger.committed(record)
            at = TopicPartition(stored.topic, stored.partition)
            self.world.books.stored(value, at, stored.offset, self.world.now_s)
