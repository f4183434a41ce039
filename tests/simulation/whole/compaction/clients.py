"""Clients of compacted topics: they write records of a few keys, and read tables from their start again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from raylog.base.errors import (
    ClientClosed,
    DeliveryTimedOut,
    InvalidReplicaAssignment,
    NoReassignmentInProgress,
    OffsetOutOfRange,
    RaylogError,
)
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.futures import AsyncSendFuture
from raylog.client.producer.producer import AsyncProducer
from tests.simulation.whole.clients import API_S, DELIVERY_S, LAST_API_S, Client
from tests.simulation.whole.compaction.keyed import At, Row
from tests.simulation.whole.plan import BRIEF
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.world import World

HEADER: Final = "name"
REMOVALS: Final = 0.15
"""Share of records without a value."""
FEW: Final = 4
"""Keys that most records have."""
MANY: Final = 40


class TableWriter(Client):
    """Writes records of a few keys in bursts, until the world is quiet."""

    def __init__(self, world: World, name: str) -> None:
        """One producer."""
        super().__init__(world, name)
        self._count = 0

    async def run(self) -> None:
        """Produce until the work is over, then flush and stop."""
        producer = self._producer()
        while not await self.tried("start", producer.start(), LAST_API_S):
            producer = self._producer()
            await asyncio.sleep(0.5)
        waits: set[asyncio.Task[None]] = set()
        while not self.world.is_quiet:
            for _ in range(int(self.between(2, 20))):
                waiting = await self.put(producer, self.pick(self.world.tables))
                if waiting is not None:
                    waits.add(waiting)
                    waiting.add_done_callback(waits.discard)
            await asyncio.sleep(self.between(0.0, self.world.plan.send_pause_s))
        await self.call("stop", producer.stop(), DELIVERY_S + 10.0)
        while waits:
            await asyncio.wait(set(waits))

    def _producer(self) -> AsyncProducer:
        options = self.world.plan.producer_options(self.world.scheduler.random)
        return AsyncProducer(delivery_timeout_ms=int(DELIVERY_S * 1000), max_block_ms=int(API_S * 1000), **options)

    async def put(self, producer: AsyncProducer, at: At) -> asyncio.Task[None] | None:
        """Send one record; return the task that waits for its acknowledgement."""
        self._count += 1
        name = f"{self.name}/{self._count}".encode()
        key = b"key %d" % int(self.between(0, FEW if self.chance(0.9) else MANY))
        value = None if self.chance(REMOVALS) else name + b"x" * int(self.between(0, 150))
        put = self.world.table_books.rows[name] = Row(at=at, key=key, value=value, name=name)
        try:
            work = producer.send(at.topic, value, key=key, headers=[(HEADER, name)], partition=at.partition)
            future = await self.call("send", work, API_S)
        except RaylogError as error:
            self._failed(put, error)
            return None
        number = self.books.begin(self.world.now_s + DELIVERY_S, f"{self.name}: the delivery of {name!r}")
        return self.beside(self._wait(put, future, number))

    async def _wait(self, put: Row, future: AsyncSendFuture, number: int) -> None:
        try:
            stored = await future
        except RaylogError as error:
            self._failed(put, error)
        else:
            self.books.acked += 1
            self.world.table_books.stored(put, stored.offset)
        finally:
            self.books.end(number)

    def _failed(self, put: Row, error: RaylogError) -> None:
        if not (error.retriable or isinstance(error, (DeliveryTimedOut, ClientClosed))):
            raise Violation("W8", f"{self.name}: {put.name!r} failed for good: {error!r}")


class TableReader(Client):
    """Reads tables from their start to their end again and again; each time every key's last record is there."""

    async def run(self) -> None:
        """Read until the world is out of work."""
        while not self.world.is_over:
            options = {
                "fetch_max_wait_ms": self.pick([20, 500]),
                "max_partition_fetch_bytes": self.pick([300, 1 << 20]),
            }
            consumer = AsyncConsumer(auto_offset_reset="earliest", default_api_timeout_ms=int(API_S * 1000), **options)
            if not await self.tried("start", consumer.start(), LAST_API_S):
                continue
            for _ in range(int(self.between(1, 6))):
                await self.read_through(consumer, self.pick(self.world.tables), "end")
                await asyncio.sleep(self.between(0.0, 4.0))
            await self.call("stop", consumer.stop(), 35.0)

    async def read_through(self, consumer: AsyncConsumer, at: At, until: str) -> dict[int, bytes]:
        """Read a partition from its start to its present end; return the names of what is there, by offset."""
        books, found = self.world.table_books, dict[int, bytes]()
        consumer.assign([at])
        consumer.seek(at, 0)
        ends = None
        while ends is None:
            try:
                ends = await self.call(f"{until} offsets", consumer.end_offsets([at]), API_S)
            except RaylogError as error:
                self.world.log(self.name, f"end offsets: {error!r}")
                if self.world.is_over:
                    return found
        end, known = ends[at], list(books.content[at])
        last = -1
        while not self.world.is_over and await self.call("position", consumer.position(at), API_S) < end:
            records = (await self.call("getmany", consumer.getmany(timeout_ms=500), 1.5)).get(at, [])
            for record in records:
                if record.offset <= last:
                    raise Violation("W5", f"{self.name} got {record.offset} of {at} after {last}")
                last = record.offset
                name = dict(record.headers)[HEADER] or b""
                books.seen(self.name, at, last, record.key, record.value, name)
                found[last] = name
                self.books.read += 1
        if not self.world.is_over:
            books.went(self.name, at, [offset for offset in known if offset < end], set(found))
        return found


class TableAdministrator(Client):
    """Moves the replicas of tables, deletes records of them, and changes how they are cleaned."""

    def __init__(self, world: World, name: str) -> None:
        """One administrator."""
        super().__init__(world, name)
        self.partitions = world.tables
        self.deeds: list[Callable[[AsyncAdmin, At], Awaitable[None]]] = [
            self._move,
            self._configure,
            self._configure,
            self._delete_records,
        ]

    async def run(self) -> None:
        """Change things until the world is quiet."""
        admin = AsyncAdmin(request_timeout_ms=int(API_S * 1000))
        while not await self.tried("start", admin.start(), LAST_API_S):
            admin = AsyncAdmin(request_timeout_ms=int(API_S * 1000))
            await asyncio.sleep(0.5)
        while not self.world.is_quiet:
            await asyncio.sleep(self.between(0.5, 5.0))
            await self.pick(self.deeds)(admin, self.pick(self.partitions))
        await admin.stop()

    async def _move(self, admin: AsyncAdmin, at: At) -> None:
        brokers = list(range(1, self.world.plan.brokers + 1))
        self.world.scheduler.random.shuffle(brokers)
        work = admin.alter_partition_reassignments({at: brokers[:3]}, timeout_s=API_S)
        await self.tried(f"move {at}", work, API_S, InvalidReplicaAssignment, NoReassignmentInProgress)

    async def _configure(self, admin: AsyncAdmin, at: At) -> None:
        change = self.pick(
            [
                {"segment.bytes": str(int(self.between(1_024, 5_000)))},
                {"min.cleanable.dirty.ratio": self.pick(["0.01", "0.3", "0.5"])},
                *([{"delete.retention.ms": self.pick(["0", "1000", "86400000"])}] if at.topic == BRIEF else []),
                {"max.compaction.lag.ms": self.pick(["1000", "10000000"])},
                {"cleanup.policy": self.pick(["compact", "compact", "compact,delete"])},
            ]
        )
        await self.tried(f"configure {at.topic}", admin.alter_topic_config(at.topic, change, timeout_s=API_S), API_S)

    async def _delete_records(self, admin: AsyncAdmin, at: At) -> None:
        books = self.world.table_books
        before = int(self.between(0, max(books.content[at], default=0)) * 0.3)
        books.deleted_below[at] = max(books.deleted_below[at], before)
        work = admin.delete_records({at: before}, timeout_s=API_S)
        await self.tried(f"delete records of {at} below {before}", work, API_S, OffsetOutOfRange)
