"""Records of every size up to the limit of their topic and past it, lowered limits, and targets that are too small.

A record fits where the batch that holds it alone does. What fits is stored, what does not is refused, and neither holds
up the others: delayed records that their target refuses are undeliverable, dead letters that are too large wait until
the limit is raised.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from raylog.actors.scheduling.role import SchedulerRole
from raylog.base.errors import ClientClosed, DeliveryTimedOut, InvalidRecordState, RaylogError, RecordTooLarge
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from raylog.client.producer.sizes import lone_batch_bytes
from raylog.client.queues.consumer import AsyncQueueConsumer
from tests.simulation.whole.clients import API_S, DELIVERY_S, Client
from tests.simulation.whole.parts.part import API_MS, DELIVERY_MS, Part, Until, once, started
from tests.simulation.whole.schedules.clients import SIZES
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.plan import Plan
    from tests.simulation.whole.world import World

SIZED, JOBS, LETTERS = "sized", "sized-jobs", "sized-letters"
UNDELIVERABLE: Final = "__undeliverable"
GROUP: Final = "sized-workers"
RULE: Final = "W76"
"""What fits its topic is stored there, what does not is refused, and neither holds up anything else."""
LIMIT: Final = "max.message.bytes"
LETTERS_LIMIT: Final = 900
WIDE_LIMIT: Final = 1_000_000
LATE_MS: Final = 1_500
"""A pause for which a copy waits."""
ALLOWED: Final = (DeliveryTimedOut, ClientClosed)


@dataclass(slots=True)
class Sized:
    """One record: its name, the bytes of the batch that has it alone, and what became of it."""

    name: bytes
    size: int
    is_delayed: bool
    is_stored: bool = False
    is_unsure: bool = False
    arrived: str = ""
    """The topic in which a reader got it."""


@dataclass
class Ledger:
    """All records, by value, and the limits of the topic so far."""

    records: dict[bytes, Sized] = field(default_factory=dict)
    limits: list[int] = field(default_factory=list)
    jobs: dict[bytes, bool] = field(default_factory=dict)
    """Values of jobs, and whether each is stored for sure."""
    letters: set[bytes] = field(default_factory=set)

    def refused(self, record: Sized, error: RaylogError) -> None:
        """A record was refused for its size: at some time it was above the limit."""
        if record.size <= min(self.limits):
            raise Violation(RULE, f"{record.name!r} makes a batch of {record.size}, limits {self.limits}: {error!r}")

    def stored(self, record: Sized) -> None:
        """A record was acknowledged: at some time it was within the limit."""
        record.is_stored = True
        if record.size > max(self.limits) and not record.is_delayed:
            raise Violation(RULE, f"{record.name!r} makes a batch of {record.size}, and was stored: {self.limits}")

    def arrives(self, value: bytes, topic: str) -> None:
        """A reader got a record, or what is left of one, in a topic."""
        record = self.records.get(value)
        if record is None:
            return
        if record.arrived not in ("", topic):
            raise Violation(RULE, f"{record.name!r} is in {topic} and in {record.arrived}")
        if topic == UNDELIVERABLE and record.size <= min(self.limits):
            raise Violation(RULE, f"{record.name!r} makes a batch of {record.size} and is undeliverable: {self.limits}")
        if topic == SIZED and record.size > max(self.limits):
            raise Violation(RULE, f"{record.name!r} makes a batch of {record.size} and is in {topic}: {self.limits}")
        record.arrived = topic

    def missing(self) -> str:
        """Return a record that was stored and that no reader got; empty = none."""
        lost = [each for each in self.records.values() if each.is_stored and not each.arrived]
        return f"{len(lost)} have not, such as {lost[0]}" if lost else ""

    def unfinished(self) -> str:
        """Return a job whose dead letter no reader got; empty = none."""
        lost = [value for value, is_stored in self.jobs.items() if is_stored and value not in self.letters]
        return f"{len(lost)} are not, such as {lost[0][:40]!r} of {len(lost[0])} bytes" if lost else ""


class SizedProducer(Client):
    """Sends records of every size to the topic, at once and delayed, and jobs whose dead letters are large."""

    def __init__(self, world: World, name: str, part: Sizes) -> None:
        """One producer."""
        super().__init__(world, name)
        self._ledger = part.ledger
        self._count = 0

    async def run(self) -> None:
        """Send until the world is quiet, then flush and stop."""
        producer = await started(self, self._producer)
        waits: set[asyncio.Task[None]] = set()
        while not self.world.is_quiet:
            for _ in range(int(self.between(1, 8))):
                send = self.pick([self._send, self._send, self._send_delayed, self._send_job])
                waits.add(task := self.beside(send(producer)))
                task.add_done_callback(waits.discard)
            await asyncio.sleep(self.between(0.0, 2 * self.world.plan.send_pause_s))
        while waits:
            await asyncio.wait(set(waits))
        await self.call("stop", producer.stop(), DELIVERY_S + 10.0)

    def _producer(self) -> AsyncProducer:
        return AsyncProducer(
            delivery_timeout_ms=DELIVERY_MS,
            max_block_ms=API_MS,
            linger_ms=self.pick([None, 0, 20]),
            batch_size=self.pick([200, 2_000, 16_384]),
            metadata_max_age_ms=self.pick([1_000, 30_000]),
        )

    def _value(self) -> bytes:
        """Make a value whose record is small, near the limit, or far above it."""
        self._count += 1
        limit = self._ledger.limits[-1]
        low, high = self.pick([(0, 100), (limit - 140, limit - 60), (limit - 80, limit - 50), (limit, 4 * limit)])
        name = f"{self.name}/{self._count}/"
        return name.encode() + b"x" * max(0, int(self.between(low, high)) - len(name))

    def _record(self, *, is_delayed: bool) -> tuple[bytes, Sized]:
        value = self._value()
        record = Sized(value[:40].rstrip(b"x"), lone_batch_bytes(None, value, None), is_delayed)
        self._ledger.records[value] = record
        return value, record

    async def _send(self, producer: AsyncProducer) -> None:
        value, record = self._record(is_delayed=False)
        try:
            future = await self.call("send", producer.send(SIZED, value, partition=0), API_S)
            await self.call("delivery", future, DELIVERY_S)
        except RaylogError as error:
            self._failed(record, error)
        else:
            self._ledger.stored(record)

    async def _send_delayed(self, producer: AsyncProducer) -> None:
        value, record = self._record(is_delayed=True)
        try:
            work = producer.send(SIZED, value, partition=0, delay=self.pick([50, 50, 1_000]))
            future = await self.call("send delayed", work, API_S + 5.0)
            await self.call("store delayed", future, DELIVERY_S + 60.0)
        except RaylogError as error:
            self._failed(record, error)
        else:
            self._ledger.stored(record)

    async def _send_job(self, producer: AsyncProducer) -> None:
        self._count += 1
        size = int(self.between(10, 3 * LETTERS_LIMIT) if self.chance(0.2) else self.between(10, 300))
        value = f"{self.name}/{self._count}/".encode() + b"j" * size
        self._ledger.jobs[value] = False
        try:
            future = await self.call("send job", producer.send(JOBS, value, key=value[:16]), API_S)
            await self.call("delivery", future, DELIVERY_S)
        except RaylogError as error:
            if not (error.retriable or isinstance(error, ALLOWED)):
                raise Violation("W8", f"{self.name}: a job failed for good: {error!r}") from error
        else:
            self._ledger.jobs[value] = True

    def _failed(self, record: Sized, error: RaylogError) -> None:
        if isinstance(error, RecordTooLarge):
            self._ledger.refused(record, error)
        elif not (error.retriable or isinstance(error, ALLOWED)):
            raise Violation("W8", f"{self.name}: {record.name!r} failed for good: {error!r}")
        record.is_unsure = True


class SizedReader(Client):
    """Reads where records arrive, with fetches that are smaller than most of them."""

    def __init__(self, world: World, name: str, part: Sizes) -> None:
        """One reader."""
        super().__init__(world, name)
        self._ledger = part.ledger

    async def run(self) -> None:
        """Read until the world is over."""
        topics = [SIZED, LETTERS, UNDELIVERABLE]
        while not self.world.is_over:
            consumer = await started(self, self._consumer)
            wanted = [TopicPartition(topic, 0) for topic in topics[: 3 if self._is_made() else 2]]
            consumer.assign(wanted)
            for _ in range(int(self.between(5, 40))):
                found = await self.call("getmany", consumer.getmany(timeout_ms=300), 1.5)
                for at, records in found.items():
                    for record in records:
                        self.books.read += 1
                        if at.topic == LETTERS:
                            self._ledger.letters.add(record.value)
                        else:
                            self._ledger.arrives(record.value, at.topic)
            await self.call("stop", consumer.stop(), 35.0)

    def _is_made(self) -> bool:
        return self.world.observer.has_topic(UNDELIVERABLE)

    def _consumer(self) -> AsyncConsumer:
        return AsyncConsumer(
            auto_offset_reset="earliest",
            default_api_timeout_ms=API_MS,
            max_partition_fetch_bytes=self.pick([1, 400, 1 << 20]),
            fetch_max_bytes=self.pick([1, 1_000, 1 << 20]),
        )


class SizedWorker(Client):
    """Rejects every job, some of them after a late retry."""

    async def run(self) -> None:
        """Work until the world is over."""
        while not self.world.is_over:
            consumer = await started(self, self._consumer)
            until_s = self.world.now_s + self.between(3.0, 15.0)
            while not self.world.is_over and self.world.now_s < until_s:
                try:
                    found = await self.call("getmany", consumer.getmany(timeout_ms=300, max_records=20), 2.5)
                    for message in found:
                        if not message.is_locked:
                            continue
                        if message.delivery_count == 1 and self.chance(0.2):
                            message.retry(delay=self.pick([50, LATE_MS]))
                        else:
                            message.reject("too much work")
                    await self.call("commit", consumer.commit(timeout_s=API_S + 2.0), API_S + 5.0)
                except (RaylogError, TimeoutError) as error:
                    if isinstance(error, RaylogError) and not (
                        error.retriable or isinstance(error, InvalidRecordState)
                    ):
                        raise Violation("W8", f"{self.name}: it failed for good: {error!r}") from error
            await self.call("stop", consumer.stop(timeout_s=API_S), 35.0)

    def _consumer(self) -> AsyncQueueConsumer:
        return AsyncQueueConsumer(
            JOBS,
            group_id=GROUP,
            lock=3_000,
            delivery_limit=10,
            dead_letter_topic=LETTERS,
            fetch_max_wait_ms=500,
            request_timeout_ms=API_MS,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=1_500,
        )


class Sizes(Part):
    """Records of every size in one world."""

    goes_by_clocks = True
    comes_to_rest = False
    patience_s = 1_200.0  # a copy that was made under a clock ahead waits until the others are there

    def __init__(self, world: World) -> None:
        """Nothing is sent."""
        super().__init__(world)
        self.ledger = Ledger()
        self.changes = False

    @classmethod
    def join(cls, plan: Plan, chance: random.Random) -> Plan:
        """Clients, and nothing of the cluster's."""
        return replace(plan, schemes=(*plan.schemes, "strike_scheduler"), work_s=plan.work_s + 4.0)

    async def make_topics(self, admin: AsyncAdmin) -> None:
        """Create the topics, the target of dead letters too small for some of them."""
        SchedulerRole.settings = SIZES
        chance, factor = self.world.scheduler, self.world.plan.replication_factor
        self.ledger.limits.append(int(chance.between(400, 4_000)))
        self.changes = chance.chance(0.5)
        small = {"segment.bytes": "8000"}
        await admin.create_topic(SIZED, 1, factor, {**small, LIMIT: str(self.ledger.limits[0])})
        await admin.create_topic(LETTERS, 1, factor, {**small, LIMIT: str(LETTERS_LIMIT)})
        await admin.create_topic(JOBS, 1, factor, {**small, "queue.retry.max.ms": "500"})

    def start(self) -> None:
        """Start the clients, and in half of the worlds one that changes the limit."""
        world = self.world
        world.spawn("sized-producer", SizedProducer(world, "sized-producer", self).run())
        world.spawn("sized-reader", SizedReader(world, "sized-reader", self).run())
        world.spawn("sized-worker", SizedWorker(world, "sized-worker").run())
        if self.changes:
            world.spawn("limiter", self._change())

    async def _change(self) -> None:
        client = Client(self.world, "limiter")
        admin = await started(client, lambda: AsyncAdmin(request_timeout_ms=API_MS))
        while not self.world.is_quiet:
            await asyncio.sleep(client.between(0.5, 5.0))
            limit = int(client.between(300, 5_000))
            self.ledger.limits.append(limit)
            work = admin.alter_topic_config(SIZED, {LIMIT: str(limit)}, timeout_s=API_S)
            await client.tried(f"limit {SIZED} to {limit}", work, API_S)
        await admin.stop()

    async def finish(self, admin: AsyncAdmin, until: Until) -> None:
        """What was taken has arrived; letters that were too large are there once their topic takes them."""
        client = Client(self.world, "sizes")

        async def widen() -> str:
            return await once(client, "widen", admin.alter_topic_config(LETTERS, {LIMIT: str(WIDE_LIMIT)}))

        await until("the limit of dead letters is raised", widen)

        async def missing() -> str:
            return self.ledger.missing()

        async def unfinished() -> str:
            return self.ledger.unfinished()

        await until("records of every size have arrived", missing)
        await until("rejected jobs of every size are dead letters", unfinished)
