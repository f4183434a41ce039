"""Clients that send records which expire, one that sends dead letters on, and readers that see where they arrive."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from raylog.base.errors import ClientClosed, DeliveryTimedOut, RaylogError, RedriveRunning
from raylog.base.ids import TopicPartition
from raylog.client import arguments
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.futures import AsyncSendFuture
from raylog.client.producer.producer import AsyncProducer
from raylog.core.dead_letters import cause_of
from tests.simulation.whole.clients import API_S, DELIVERY_S, LAST_API_S, Client
from tests.simulation.whole.forwarding.letters import Fleeting, Headers
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.world import World

FLEETING, LETTERS, AGAIN = "fleeting", "letters", "again"
PING, PONG = "ping", "pong"
UNDELIVERABLE: Final = "__undeliverable"
PARTITIONS: Final = 2
TTL_MS: Final = 3_000
"""More than clocks may differ by: else no record could be seen too early."""
CIRCLE_TTL_MS: Final = 60


def is_ours(headers: Headers) -> bool:
    """Whether an undeliverable record is this feature's to judge: those of other features say which topic they left."""
    cause = cause_of(headers)
    return cause is None or cause.topic in (FLEETING, LETTERS, AGAIN, PING, PONG)


async def make_topics(admin: AsyncAdmin) -> None:
    """Create the topics of records that expire, and of dead letters."""
    small = {"segment.bytes": "20000"}
    # Each record fits alone, and not all pieces do.
    await admin.create_topic(LETTERS, PARTITIONS, 3, {**small, "max.message.bytes": "900"})
    await admin.create_topic(AGAIN, PARTITIONS, 3, {**small, "max.message.bytes": "400"})
    await admin.create_topic(FLEETING, PARTITIONS, 3, {**small, "ttl.ms": TTL_MS, "dead.letter.topic": LETTERS})
    for name, other in ((PING, PONG), (PONG, PING)):
        await admin.create_topic(name, 1, 3, {"ttl.ms": CIRCLE_TTL_MS, "dead.letter.topic": other})


class Expirer(Client):
    """Sends records that expire, in bursts, until the world is quiet; a few of them go in a circle."""

    def __init__(self, world: World, name: str) -> None:
        """One producer."""
        super().__init__(world, name)
        self._count = 0
        self._options = world.plan.producer_options(world.scheduler.random)

    async def run(self) -> None:
        """Work until it is over, then flush and stop."""
        producer = self._producer()
        while not await self.tried("start", producer.start(), LAST_API_S):
            producer = self._producer()
            await asyncio.sleep(0.5)
        waits: set[asyncio.Task[None]] = set()
        while not self.world.is_quiet:
            for _ in range(int(self.between(1, 8))):
                waiting = await self._send(producer)
                if waiting is not None:
                    waits.add(waiting)
                    waiting.add_done_callback(waits.discard)
            await asyncio.sleep(self.between(0.0, self.world.plan.send_pause_s))
        await self.call("stop", producer.stop(), DELIVERY_S + 10.0)
        while waits:
            await asyncio.wait(set(waits))

    def _producer(self) -> AsyncProducer:
        return AsyncProducer(
            delivery_timeout_ms=int(DELIVERY_S * 1000), max_block_ms=int(API_S * 1000), **self._options
        )

    async def _send(self, producer: AsyncProducer) -> asyncio.Task[None] | None:
        self._count += 1
        name = f"{self.name}/{self._count}".encode()
        is_ball = self.chance(0.03)
        ttl_ms = CIRCLE_TTL_MS if is_ball else TTL_MS
        record = Fleeting(name, arguments.now_ms() + ttl_ms, is_ball=is_ball)
        self.world.letters.records[name] = record
        topic, partition = (PING, 0) if is_ball else (FLEETING, self.pick([0, 1]))
        try:
            future = await self.call("send", producer.send(topic, name, partition=partition), API_S + 5.0)
        except RaylogError as error:
            self._failed(record, error)
            return None
        number = self.books.begin(self.world.now_s + DELIVERY_S + 60.0, f"{self.name}: the store of {name!r}")
        return self.beside(self._wait(record, future, number))

    async def _wait(self, record: Fleeting, future: AsyncSendFuture, number: int) -> None:
        try:
            await future
        except RaylogError as error:
            self._failed(record, error)
        else:
            record.is_stored = True
        finally:
            self.books.end(number)

    def _failed(self, record: Fleeting, error: RaylogError) -> None:
        if not (error.retriable or isinstance(error, DeliveryTimedOut | ClientClosed)):
            raise Violation("W8", f"{self.name}: {record.name!r} failed for good: {error!r}")


class Redriver(Client):
    """Sends the dead letters on, again and again, until the world is quiet."""

    async def run(self) -> None:
        """Begin a redrive now and then, at different rates."""
        admin = AsyncAdmin(request_timeout_ms=int(API_S * 1000))
        while not await self.tried("start", admin.start(), LAST_API_S):
            admin = AsyncAdmin(request_timeout_ms=int(API_S * 1000))
            await asyncio.sleep(0.5)
        while not self.world.is_quiet:
            work = admin.redrive(LETTERS, AGAIN, rate=self.pick([0, 0, 40]), timeout_s=API_S)
            await self.tried("redrive", work, API_S + 5.0, RedriveRunning)
            await asyncio.sleep(self.between(0.5, 4.0))
        await admin.stop()


async def send_the_rest_on(admin: AsyncAdmin) -> str:
    """Begin a redrive of what is left; return what it waits for, nothing once that is done."""
    running = [found for found in await admin.list_redrives(LETTERS) if not found.has_ended]
    if running:
        return f"redrive {running[0].number} is {running[0].state}, {running[0].left} are left"
    number = await admin.redrive(LETTERS, AGAIN)
    return f"redrive {number} has just begun"


class LettersReader(Client):
    """Reads the topics of dead letters from their starts on, until the world is over."""

    async def run(self) -> None:
        """Read on."""
        at = [TopicPartition(topic, number) for topic in (LETTERS, AGAIN) for number in range(PARTITIONS)]
        while not self.world.is_over:
            consumer = AsyncConsumer(auto_offset_reset="earliest", default_api_timeout_ms=int(API_S * 1000))
            if not await self.tried("start", consumer.start(), LAST_API_S):
                continue
            has_landed = any(record.is_ball for record in self.world.letters.records.values())
            landing = await self._landing(consumer) if has_landed else []
            consumer.assign([*at, *landing])
            for _ in range(int(self.between(3, 30))):
                found = await self.call("getmany", consumer.getmany(timeout_ms=300), 1.5)
                for partition, records in found.items():
                    for record in records:
                        self._arrived((partition, record.offset), record.value, record.headers)
                        self.books.read += 1
            await self.call("stop", consumer.stop(), 35.0)

    async def _landing(self, consumer: AsyncConsumer) -> list[TopicPartition]:
        """Return the partition of records that no target takes, once it is there."""
        try:
            found = await self.call("partitions", consumer.partitions_for_topic(UNDELIVERABLE), API_S + 5.0)
        except RaylogError as error:
            self.world.log(self.name, f"partitions: {error!r}")
            return []
        return [TopicPartition(UNDELIVERABLE, number) for number in sorted(found or ())]

    def _arrived(self, at: tuple[TopicPartition, int], name: bytes, headers: Headers) -> None:
        letters = self.world.letters
        if at[0].topic == LETTERS:
            letters.dead(self.name, at, name, headers, arguments.now_ms())
        elif at[0].topic == AGAIN:
            letters.sent_on(self.name, at, name, headers)
        elif is_ours(headers):
            letters.landed(self.name, at, name, headers)
