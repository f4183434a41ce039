"""Clients that send delayed records, cancel and move them, and a reader that sees when they arrive."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from raylog.base.errors import ClientClosed, DeliveryTimedOut, RaylogError
from raylog.base.ids import TopicPartition
from raylog.client import arguments
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.admin.schedules import ScheduleOutcome
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.columns import AsyncSentBatch
from raylog.client.producer.futures import AsyncSendFuture
from raylog.client.producer.producer import AsyncProducer
from raylog.core.scheduling.settings import SchedulerSettings
from tests.simulation.whole.clients import API_S, DELIVERY_S, LAST_API_S, Client
from tests.simulation.whole.schedules.delays import Delayed
from tests.simulation.whole.schedules.halves import LATER, MARK
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.world import World

PARTITIONS: Final = 2
DELAYS_MS: Final = (0, 20, 200, 800, 2_500, 9_000)
DEFAULT_MS: Final = 300
"""Delay of a record that is sent without one, by the topic's setting."""
SIZES: Final = SchedulerSettings(
    seal_keys=30,
    seal_margin_ms=100,
    checkpoint_bytes=20_000,
    checkpoint_rows=200,
    stretch_bytes=2_000,
    space_min_bytes=6_000,
    look_ms=100,
    area_records=60,
    move_records=8,
)
"""So small that runs are written, and records are moved, within seconds."""


class Delayer(Client):
    """Sends delayed records in bursts until the world is quiet, and changes its mind about some."""

    def __init__(self, world: World, name: str) -> None:
        """One producer and one administrator."""
        super().__init__(world, name)
        self._count = 0
        self._options = world.plan.producer_options(world.scheduler.random)
        self._last: dict[str, Delayed] = {}
        """What was sent last under a schedule id."""

    async def run(self) -> None:
        """Work until it is over, then flush and stop."""
        producer, admin = self._producer(), self._admin()
        while not await self.tried("start", producer.start(), LAST_API_S):
            producer = self._producer()
            await asyncio.sleep(0.5)
        while not await self.tried("start", admin.start(), LAST_API_S):
            admin = self._admin()
            await asyncio.sleep(0.5)
        waits: set[asyncio.Task[None]] = set()
        while not self.world.is_quiet:
            for _ in range(int(self.between(1, 8))):
                send = self._send_batch if self.chance(0.15) else self._send
                waiting = await send(producer, admin)
                if waiting is not None:
                    waits.add(waiting)
                    waiting.add_done_callback(waits.discard)
            await asyncio.sleep(self.between(0.0, self.world.plan.send_pause_s))
        await self.call("stop", producer.stop(), DELIVERY_S + 10.0)
        while waits:
            await asyncio.wait(set(waits))
        await admin.stop()

    def _producer(self) -> AsyncProducer:
        return AsyncProducer(
            delivery_timeout_ms=int(DELIVERY_S * 1000), max_block_ms=int(API_S * 1000), **self._options
        )

    def _admin(self) -> AsyncAdmin:
        return AsyncAdmin(request_timeout_ms=int(API_S * 1000))

    async def _send(self, producer: AsyncProducer, admin: AsyncAdmin) -> asyncio.Task[None] | None:
        delay_ms = self.pick([*DELAYS_MS, None])
        record = self._record(DEFAULT_MS if delay_ms is None else delay_ms)
        partition = self.pick([None, 0, 1])
        schedule_id = f"{self.name} {int(self.between(0, 4))}" if self.chance(0.3) else None
        if schedule_id is not None:
            record.before = self._last.get(schedule_id)
            self._last[schedule_id] = record
            if record.before is not None:
                record.before.may_be_replaced = True
        try:
            work = producer.send(
                LATER, record.name, key=b"key", partition=partition, delay=delay_ms, schedule_id=schedule_id
            )
            future = await self.call("send", work, API_S + 5.0)
        except RaylogError as error:
            self._failed(record, error)
            return None
        number = self.books.begin(self.world.now_s + DELIVERY_S + 60.0, f"{self.name}: the store of {record.name!r}")
        return self.beside(self._wait(record, future, admin, number))

    def _record(self, delay_ms: int) -> Delayed:
        self._count += 1
        name = f"{self.name}/{self._count}".encode()
        record = self.world.delays.records[name] = Delayed(name, arguments.now_ms() + delay_ms)
        return record

    async def _send_batch(self, producer: AsyncProducer, admin: AsyncAdmin) -> asyncio.Task[None] | None:
        delays_ms = [self.pick(list(DELAYS_MS)) for _ in range(3)]
        records = [self._record(delay_ms) for delay_ms in delays_ms]
        try:
            work = producer.send_batch(LATER, [record.name for record in records], delay=delays_ms)
            sent = await self.call("send batch", work, API_S + 5.0)
        except RaylogError as error:
            for record in records:
                self._failed(record, error)
            return None
        number = self.books.begin(self.world.now_s + DELIVERY_S + 60.0, f"{self.name}: the store of a batch")
        return self.beside(self._wait_for_batch(records, sent, number))

    async def _wait_for_batch(self, records: list[Delayed], sent: AsyncSentBatch, number: int) -> None:
        try:
            await sent
        except RaylogError as error:
            for record in records:
                self._failed(record, error)
            return
        finally:
            self.books.end(number)
        for record in records:
            self.world.delays.stored(record, None)

    async def _wait(self, record: Delayed, future: AsyncSendFuture, admin: AsyncAdmin, number: int) -> None:
        try:
            stored = await future
        except RaylogError as error:
            self._failed(record, error)
            return
        finally:
            self.books.end(number)
        record.handle = stored.schedule
        self.world.delays.stored(record, stored.replaced)
        if not stored.schedule:
            return  # a duplicate whose offset is forgotten
        if self.chance(0.15):
            await asyncio.sleep(self.between(0.0, 1.0))
            await self._cancel(record, admin)
        elif self.chance(0.15):
            await self._move(record, admin)

    async def _cancel(self, record: Delayed, admin: AsyncAdmin) -> None:
        record.is_unsure = True
        try:
            outcome = await self.call("cancel", admin.cancel_scheduled(record.handle, timeout_s=API_S), API_S + 5.0)
        except RaylogError as error:
            self._not_answered("cancel", error)
            return
        if outcome is ScheduleOutcome.CANCELLED:
            self.world.delays.cancelled(record)
        elif outcome is ScheduleOutcome.ALREADY_DELIVERED:
            record.is_unsure = False

    async def _move(self, record: Delayed, admin: AsyncAdmin) -> None:
        delay_ms = self.pick(list(DELAYS_MS))
        before_ms = record.least_due_ms
        record.least_due_ms = min(before_ms, arguments.now_ms() + delay_ms)
        try:
            work = admin.reschedule(record.handle, delay=delay_ms, timeout_s=API_S)
            moved = await self.call("move", work, API_S + 5.0)
        except RaylogError as error:
            self._not_answered("move", error)
            return
        if moved.outcome is ScheduleOutcome.MOVED:
            record.handle = moved.handle
            if record.at is None:
                record.least_due_ms = moved.due_ms

    def _not_answered(self, what: str, error: RaylogError) -> None:
        if not error.retriable:
            raise Violation("W8", f"{self.name}: {what} failed for good: {error!r}")
        self.world.log(self.name, f"{what}: {error!r}")

    def _failed(self, record: Delayed, error: RaylogError) -> None:
        record.is_unsure = True
        if not (error.retriable or isinstance(error, DeliveryTimedOut | ClientClosed)):
            raise Violation("W8", f"{self.name}: {record.name!r} failed for good: {error!r}")


class DelayedReader(Client):
    """Reads the topic of delayed records from its start on, until the world is over."""

    async def run(self) -> None:
        """Read on."""
        at = [TopicPartition(LATER, number) for number in range(PARTITIONS)]
        while not self.world.is_over:
            consumer = AsyncConsumer(auto_offset_reset="earliest", default_api_timeout_ms=int(API_S * 1000))
            if not await self.tried("start", consumer.start(), LAST_API_S):
                continue
            consumer.assign(at)
            for _ in range(int(self.between(3, 30))):
                found = await self.call("getmany", consumer.getmany(timeout_ms=300), 1.5)
                for partition, records in found.items():
                    for record in records:
                        value = record.value
                        if value.startswith(MARK):
                            self.world.bank.arrived(self.name, partition, record.offset, value)
                        else:
                            self.world.delays.arrived(self.name, partition, record.offset, value, arguments.now_ms())
                        self.books.read += 1
            await self.call("stop", consumer.stop(), 35.0)
