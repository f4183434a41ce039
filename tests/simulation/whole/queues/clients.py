"""Workers on a queue, a producer of its records, and a reader of its dead letters."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from raylog.base.errors import ClientClosed, DeliveryTimedOut, InvalidRecordState, RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.futures import AsyncSendFuture
from raylog.client.producer.producer import AsyncProducer
from raylog.client.queues.consumer import AsyncQueueConsumer, QueueMessage
from raylog.core.queues.origins import Origin
from tests.simulation.whole.clients import API_S, DELIVERY_S, LAST_API_S, Client
from tests.simulation.whole.queues.jobs import ABORTED, KEPT, Group, Job, Jobs
from tests.simulation.whole.transactions.clients import refusals
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.world import World

QUEUE: Final = "jobs"
DEAD: Final = "dead-jobs"
PARTITIONS: Final = 2
PLAIN: Final = "any-order"
KEYED: Final = "key-order"
KEYS: Final = (b"a", b"b", b"c", None)
LETTERS_LIMIT: Final = "700"
"""Of the dead-letter topic: each letter fits alone, and hardly two together."""
LATE_MS: Final = 2_500
"""A pause above `queue.retry.max.ms`, for which a copy waits."""

Place = tuple[str, int, int]
"""Topic, partition and offset."""
BACKLOG: Final = 60
"""Records that come at once now and then: fresh ones are there whenever the pause of an earlier one ends."""


class JobProducer(Client):
    """Sends records to the queue until the world is quiet."""

    async def run(self) -> None:
        """Send, then flush and stop."""
        options = self.world.plan.producer_options(self.world.scheduler.random)
        while True:
            producer = AsyncProducer(
                delivery_timeout_ms=int(DELIVERY_S * 1000), max_block_ms=int(API_S * 1000), **options
            )
            if await self.tried("start", producer.start(), LAST_API_S):
                break
            await asyncio.sleep(0.5)
        waits: set[asyncio.Task[None]] = set()
        count = 0
        while not self.world.is_quiet:
            many = self.chance(0.04)
            for _ in range(BACKLOG if many else int(self.between(1, 6))):
                await asyncio.sleep(self.between(0.0, 0.01) if many else 0.0)  # in a batch of its own
                count += 1
                name = f"{self.name}/{count}".encode()
                try:
                    work = producer.send(QUEUE, name, key=self.pick(list(KEYS)))
                    future = await self.call("send", work, API_S + 5.0)
                except RaylogError as error:
                    self._failed(name, error)
                    continue
                number = self.books.begin(self.world.now_s + DELIVERY_S + 60.0, f"{self.name}: the store of {name!r}")
                task = self.beside(self._wait(name, future, number))
                waits.add(task)
                task.add_done_callback(waits.discard)
            await asyncio.sleep(self.between(0.0, self.world.plan.send_pause_s))
        await self.call("stop", producer.stop(), DELIVERY_S + 10.0)
        while waits:
            await asyncio.wait(set(waits))

    async def _wait(self, name: bytes, future: AsyncSendFuture, number: int) -> None:
        try:
            await future
        except RaylogError as error:
            self._failed(name, error)
        else:
            self.world.jobs.sent.add(name)
        finally:
            self.books.end(number)

    def _failed(self, name: bytes, error: RaylogError) -> None:
        if not (error.retriable or isinstance(error, DeliveryTimedOut | ClientClosed)):
            raise Violation("W8", f"{self.name}: {name!r} failed for good: {error!r}")


class TransactionalJobProducer(JobProducer):
    """Sends records to the queue in transactions, some of which it aborts."""

    async def run(self) -> None:
        """Send in one producer after the other: each that fails is followed by another one, which fences it."""
        self._count = 0
        while not self.world.is_quiet:
            producer = AsyncProducer(
                transactional_id=self.name,
                transaction_timeout_ms=int(DELIVERY_S * 1000),
                delivery_timeout_ms=int(DELIVERY_S * 1000),
                max_block_ms=int(API_S * 1000),
            )
            if await self.tried("start", producer.start(), LAST_API_S):
                if await self.tried("init", producer.init_transactions(), API_S, *refusals(self.world)):
                    await self._work(producer)
                await self.call("stop", producer.stop(), DELIVERY_S + 10.0)
            await asyncio.sleep(self.between(0.1, 0.5))

    async def _work(self, producer: AsyncProducer) -> None:
        """Send transactions until one fails, or the world is quiet."""
        jobs = self.world.jobs
        while not self.world.is_quiet:
            names: list[bytes] = []
            is_kept = self.chance(0.6)
            try:
                await self.call("begin", producer.begin_transaction(), API_S)
                for _ in range(int(self.between(1, 6))):
                    self._count += 1
                    names.append(f"{self.name}/{self._count}".encode())
                    if not is_kept:
                        jobs.aborted.add(names[-1])
                    work = producer.send(QUEUE, names[-1], key=self.pick(list(KEYS)))
                    _ = self.beside(self._ignored(await self.call("send", work, API_S + 5.0)))
                if self.chance(0.5):
                    await self.call("flush", producer.flush(), DELIVERY_S + 10.0)
                end = producer.commit_transaction() if is_kept else producer.abort_transaction()
                await self.call("end", end, DELIVERY_S + 2 * API_S)
            except RaylogError as error:
                if not (error.retriable or isinstance(error, refusals(self.world))):
                    raise Violation("W8", f"{self.name}: a transaction failed for good: {error!r}") from error
                return
            if is_kept:
                jobs.sent.update(names)
            await asyncio.sleep(self.between(0.0, 2 * self.world.plan.send_pause_s))

    async def _ignored(self, future: AsyncSendFuture) -> None:
        try:
            await future
        except RaylogError as error:
            if not (error.retriable or isinstance(error, refusals(self.world))):
                raise Violation("W8", f"{self.name}: a record failed for good: {error!r}") from error


class Worker(Client):
    """Works in a group until the world is over; now and then it leaves and comes back."""

    def __init__(self, world: World, name: str, group: str) -> None:
        super().__init__(world, name)
        self._group = group
        self._jobs: Jobs = world.jobs
        self._books_of_group: Group = world.jobs.groups[group]
        self._open: dict[Place, tuple[Job, str, int]] = {}
        """Verdicts that are not answered yet, by place."""
        self._late: set[Place] = set()
        """Places of verdicts whose answers were not waited for: a refusal there may be about such a one."""
        self._retried = self.pick([0.1, 0.1, 0.5])
        """Share of records that it retries: with many, pauses of earlier ones end while later ones are read."""

    async def run(self) -> None:
        """Work through lives."""
        life = 0
        while not self.world.is_over:
            life += 1
            consumer = AsyncQueueConsumer(
                QUEUE,
                group_id=self._group,
                order="key" if self._group == KEYED else "none",
                lock=self.world.plan.queue_lock_ms,
                delivery_limit=100,
                dead_letter_topic=DEAD,
                max_poll_records=self.pick([1, 5, 50]),
                acknowledge_linger_ms=self.pick([0, 5]),
                fetch_max_wait_ms=self.pick([50, 500]),
                request_timeout_ms=int(API_S * 1000),
                session_timeout_ms=6_000,
                heartbeat_interval_ms=1_500,
                on_failed=self._refused,
            )
            if not await self.tried("start", consumer.start(), LAST_API_S):
                continue
            await self._live(consumer, f"{self.name}.{life}")
            await self.call("stop", consumer.stop(timeout_s=API_S), 35.0)

    async def _live(self, consumer: AsyncQueueConsumer, name: str) -> None:
        rounds = int(self.between(20, 200))
        while rounds > 0 and not self.world.is_over:
            rounds -= 1
            for message in list(consumer._engine.buffer):
                if message.is_locked and message.topic_partition not in consumer._engine._sources:
                    raise Violation(KEPT, f"{name} keeps {message!r}, and was to give it back")
            try:
                found = await self.call("getmany", consumer.getmany(timeout_ms=300, max_records=5), 2.5)
            except RaylogError as error:
                if not error.retriable:
                    raise Violation("W8", f"{self.name}: getmany failed for good: {error!r}") from error
                return
            if not found:
                continue
            for message in found:
                if not message.is_locked:
                    continue  # lost, or given back because an earlier one of its key is to be retried
                origin = Origin.of(message.headers)
                at = (message.partition, message.offset) if origin is None else origin[1:3]
                came_ms = round(message._lock.since * 1000)
                tries = message.delivery_count
                if message.value in self._jobs.aborted:
                    raise Violation(ABORTED, f"{name} got {message!r} {message.value!r}, which was aborted")
                job = self._books_of_group.handed(
                    name, at, message.value, message.record.key, tries, came_ms, is_copy=origin is not None
                )
                self._decide(name, message, (*message.topic_partition, message.offset), job)
            await self._commit(consumer)
            await asyncio.sleep(self.between(0.0, 0.3))

    def now_ms(self) -> int:
        """Return the true time, which no host's clock need have."""
        return round(self.world.now_s * 1000)

    def _decide(self, name: str, message: QueueMessage, at: Place, job: Job) -> None:
        if at in self._open:  # handed out twice, because the first lock was lost
            self._late.add(at)
        tries = message.delivery_count
        drawn = self.between(0.0, 1.0)
        if self.world.is_quiet or drawn < 0.8 - self._retried:
            job.is_closed = True
            self._open[at] = (job, "ack", tries)
            message.ack()
        elif drawn < 0.9 - self._retried:
            job.is_closed = job.may_be_dead = True
            self._open[at] = (job, "reject", tries)
            message.reject("drawn")
        elif drawn < 0.9:
            delay_ms = self.pick([3, 50, 400, LATE_MS])
            job.left_order |= delay_ms == LATE_MS
            self._open[at] = (job, f"{self.now_ms() + delay_ms}", tries)
            job.holders.discard(name)
            message.retry(delay=delay_ms)
        elif drawn < 0.95:
            job.holders.discard(name)
            message.release()

    async def _commit(self, consumer: AsyncQueueConsumer) -> None:
        try:
            await self.call("commit", consumer.commit(timeout_s=API_S + 2.0), API_S + 5.0)
        except InvalidRecordState:
            pass  # `_refused` knows which
        except (RaylogError, TimeoutError) as error:
            if isinstance(error, RaylogError) and not error.retriable:
                raise Violation("W8", f"{self.name}: commit failed for good: {error!r}") from error
            self.world.log(self.name, f"commit: {error!r}")
            for job, what, _ in self._open.values():
                job.is_unsure |= what == "ack"
            self._late.update(self._open)
            self._open.clear()
            return
        for job, what, tries in self._open.values():
            if what == "ack":
                job.acknowledged = (tries, self.now_ms())
            elif what == "reject":
                job.is_rejected = True
            elif not job.is_closed:
                job.not_before_ms, job.retried = int(what), tries
        self._open.clear()

    def _refused(self, partition: TopicPartition, first: int, end: int, error: RaylogError) -> None:
        for offset in range(first, end):
            job, what, _ = self._open.pop((*partition, offset), (None, "", 0))
            is_late = (*partition, offset) in self._late
            if job is not None and (is_late or not isinstance(error, InvalidRecordState)):
                job.is_unsure |= what == "ack"


class LetterReader(Client):
    """Reads the dead letters from the start on, until the world is over."""

    async def run(self) -> None:
        """Read on, once there is a topic of dead letters."""
        while not self.world.is_over:
            consumer = AsyncConsumer(auto_offset_reset="earliest", default_api_timeout_ms=int(API_S * 1000))
            if not await self.tried("start", consumer.start(), LAST_API_S):
                continue
            consumer.assign([TopicPartition(DEAD, number) for number in range(PARTITIONS)])
            for _ in range(int(self.between(3, 30))):
                found = await self.call("getmany", consumer.getmany(timeout_ms=300), 1.5)
                for records in found.values():
                    for record in records:
                        group = (dict(record.headers)["__dlq.errors.group"] or b"").decode()
                        self.world.jobs.letter(group, record.value, record.partition << 40 | record.offset)
            await self.call("stop", consumer.stop(), 35.0)
