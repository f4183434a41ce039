"""Topics whose records are removed while they are used: by age, by size, on request, with queues and delays on them.

Nothing goes that is young enough, or that the size allows for; what is old goes on every replica, its bytes too, though
records keep coming. Readers, transactions, delayed records and a queue go on behind what is removed under them.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from raylog.base.errors import InvalidRecordState, OffsetOutOfRange, RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.accepted import IsolationLevel
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from raylog.client.queues.consumer import AsyncQueueConsumer
from tests.simulation.whole.clients import API_S, DELIVERY_S, Client
from tests.simulation.whole.parts.part import API_MS, DELIVERY_MS, Part, Until, started
from tests.simulation.whole.parts.sender import Sender
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.plan import Plan
    from tests.simulation.whole.world import World

AGED, FULL = "aged", "full"
"""A topic whose records are removed by their age, and one that may have so many bytes."""
WHERE: Final = {name: TopicPartition(name, 0) for name in (AGED, FULL)}
GROUP: Final = "aged-workers"
RULE: Final = "W77"
"""Retention removes what it has to on every replica, and nothing else; what uses the topic goes on behind that."""
CHECK_MS: Final = 500
SEGMENT_MS: Final = 1_500
RETAINED_BYTES: Final = 4_000
SLACK_S: Final = 3.0
"""Longest delay of a removal where nothing is broken, and of a record between its stamp and its place in the log."""
GOES_ON_S: Final = 20.0
"""Longest time in which a record of the end of a run is read, and worked on."""


class AgedProducer(Sender):
    """Sends records to both topics: plainly, delayed, and in transactions that are committed or aborted."""

    def __init__(self, world: World, name: str, part: Retention) -> None:
        """One producer of each kind."""
        super().__init__(world, name)
        self._part = part
        self._count = 0

    async def run(self) -> None:
        """Send until the world is quiet."""
        _ = self.beside(self._transactions())
        producer = await started(self, lambda: AsyncProducer(delivery_timeout_ms=DELIVERY_MS, max_block_ms=API_MS))
        while not self.world.is_quiet:
            for _ in range(int(self.between(1, 6))):
                await self.send(producer, self.pick([AGED, FULL]))
            await asyncio.sleep(self.between(0.0, self.world.plan.send_pause_s))
        await self.call("stop", producer.stop(), DELIVERY_S + 10.0)

    async def send(self, producer: AsyncProducer, topic: str, *, is_delayed: bool | None = None) -> bytes:
        """Send one record; return its value, empty where it is not known to be stored."""
        self._count += 1
        value = f"{self.name}/{self._count}/{'x' * int(self.between(0, 200))}".encode()
        if is_delayed is None:
            is_delayed = self.chance(0.2)
        sent_s = self.world.now_s
        try:
            if is_delayed:
                work = producer.send(topic, value, partition=0, delay=200)
                future = await self.call("send delayed", work, API_S + 5.0)
                await self.call("store delayed", future, DELIVERY_S + 60.0)
                return value
            future = await self.call("send", producer.send(topic, value, partition=0), API_S)
            stored = await self.call("delivery", future, DELIVERY_S)
        except RaylogError as error:
            self.failed(error)
            return b""
        self._part.sent_s[WHERE[topic]][stored.offset] = sent_s
        return value

    async def _transactions(self) -> None:
        await self.work(lambda: self.producer(is_transactional=True), self._transaction, begins=True)

    async def _transaction(self, producer: AsyncProducer) -> bool:
        try:
            await self.call("begin", producer.begin_transaction(), API_S)
            for topic in (AGED, FULL):
                work = producer.send(topic, b"in a transaction", partition=0)
                _ = self.beside(self.ignored(await self.call("send", work, API_S + 5.0)))
            await asyncio.sleep(self.between(0.0, 3.0))  # retention waits for what is open
            end = producer.commit_transaction() if self.chance(0.6) else producer.abort_transaction()
            await self.call("end", end, DELIVERY_S + 2 * API_S)
        except RaylogError as error:
            self.failed(error)
            return False
        await asyncio.sleep(self.between(0.0, 2 * self.world.plan.send_pause_s))
        return True


class AgedReader(Client):
    """Reads a topic from its start on, over what is removed; records that are young have to be there."""

    def __init__(self, world: World, name: str, part: Retention, topic: str, isolation: IsolationLevel) -> None:
        """One reader."""
        super().__init__(world, name)
        self._part, self._at, self._isolation = part, WHERE[topic], isolation

    async def run(self) -> None:
        """Read until the world is over; now and then again from the start."""
        while not self.world.is_over:
            consumer = await started(self, self._consumer)
            consumer.assign([self._at])
            until_s = self.world.now_s + self.between(4.0, 30.0)
            last = -1
            while not self.world.is_over and (self.world.now_s < until_s or self.world.is_quiet):
                found = await self.call("getmany", consumer.getmany(timeout_ms=300), 1.5)
                for record in found.get(self._at, []):
                    self.books.read += 1
                    self._part.passed(self.name, self._at, last, record.offset)
                    last = record.offset
                    self._part.read[self.name].add(record.value)
            await self.call("stop", consumer.stop(), 35.0)

    def _consumer(self) -> AsyncConsumer:
        return AsyncConsumer(
            isolation_level=self._isolation, auto_offset_reset="earliest", default_api_timeout_ms=API_MS
        )


class AgedWorker(Client):
    """Works on the topic as a queue, slowly."""

    def __init__(self, world: World, name: str, part: Retention) -> None:
        """The only member of its group."""
        super().__init__(world, name)
        self._part = part

    async def run(self) -> None:
        """Work until the world is over."""
        while not self.world.is_over:
            consumer = await started(self, self._consumer)
            until_s = self.world.now_s + self.between(3.0, 15.0)
            while not self.world.is_over and (self.world.now_s < until_s or self.world.is_quiet):
                try:
                    found = await self.call("getmany", consumer.getmany(timeout_ms=300, max_records=20), 2.5)
                    for message in found:
                        if not message.is_locked:
                            continue
                        if self.chance(0.15) and not self.world.is_quiet:
                            message.retry(delay=self.pick([50, 2_000]))
                        else:
                            message.ack()
                            self._part.worked.add(message.value)
                    await self.call("commit", consumer.commit(timeout_s=API_S + 2.0), API_S + 5.0)
                except (RaylogError, TimeoutError) as error:
                    if not getattr(error, "retriable", True) and not isinstance(error, InvalidRecordState):
                        raise Violation("W8", f"{self.name}: it failed for good: {error!r}") from error
            await self.call("stop", consumer.stop(timeout_s=API_S), 35.0)

    def _consumer(self) -> AsyncQueueConsumer:
        return AsyncQueueConsumer(
            AGED,
            group_id=GROUP,
            order=self.pick(["none"]),
            lock=3_000,
            delivery_limit=100,
            fetch_max_wait_ms=500,
            request_timeout_ms=API_MS,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=1_500,
        )


class Retention(Part):
    """The topics of one world whose records are removed."""

    comes_to_rest = False
    patience_s = 120.0
    clocks_agree = True  # a process believes the clock that it finds at its start, and removes by it

    def __init__(self, world: World) -> None:
        """Nothing is sent."""
        super().__init__(world)
        self.sent_s: dict[TopicPartition, dict[int, float]] = {at: {} for at in WHERE.values()}
        """When the record at an offset was sent."""
        self.deleted_below: dict[TopicPartition, int] = dict.fromkeys(WHERE.values(), 0)
        self.read: dict[str, set[bytes]] = {}
        self.worked: set[bytes] = set()
        self.retention_s = 0.0

    @classmethod
    def join(cls, plan: Plan, chance: random.Random) -> Plan:
        """Have retention look often."""
        config = {**plan.config, "log.retention.check.interval.ms": str(CHECK_MS)}
        return replace(plan, config=config, work_s=plan.work_s + 8.0)

    async def make_topics(self, admin: AsyncAdmin) -> None:
        """Create both topics: the segments of one end by time alone."""
        self.retention_s = self.world.scheduler.between(4.0, 9.0)
        factor = self.world.plan.replication_factor
        by_age = {"retention.ms": str(int(self.retention_s * 1000)), "segment.ms": str(SEGMENT_MS)}
        await admin.create_topic(AGED, 1, factor, {**by_age, "file.delete.delay.ms": "500"})
        by_size = {"retention.bytes": str(RETAINED_BYTES), "segment.bytes": "1500", "file.delete.delay.ms": "500"}
        await admin.create_topic(FULL, 1, factor, by_size)

    def start(self) -> None:
        """Start the clients."""
        world = self.world
        world.spawn("aged-producer", AgedProducer(world, "aged-producer", self).run())
        for topic in WHERE:
            isolations: tuple[IsolationLevel, ...] = ("read_committed", "read_uncommitted")
            for isolation in isolations:
                name = f"{topic}-{isolation}-reader"
                self.read[name] = set()
                host = world.cluster.host(1) if isolation == "read_uncommitted" else ""
                world.spawn(name, AgedReader(world, name, self, topic, isolation).run(), host)
        world.spawn("aged-worker", AgedWorker(world, "aged-worker", self).run())
        world.spawn("aged-eraser", self._erase())

    async def _erase(self) -> None:
        client = Client(self.world, "aged-eraser")
        admin = await started(client, lambda: AsyncAdmin(request_timeout_ms=API_MS))
        while not self.world.is_quiet:
            await asyncio.sleep(client.between(1.0, 10.0))
            at = client.pick(list(WHERE.values()))
            end = max(self.sent_s[at], default=0)
            before = end if client.chance(0.3) else int(client.between(0, end))
            self.deleted_below[at] = max(self.deleted_below[at], before)
            work = admin.delete_records({at: before}, timeout_s=API_S)
            await client.tried(f"delete records of {at} below {before}", work, API_S, OffsetOutOfRange)
        await admin.stop()

    def passed(self, reader: str, at: TopicPartition, last: int, offset: int) -> None:
        """A reader from the start was handed this offset after that one (-1 = after none)."""
        if offset <= last:
            raise Violation(RULE, f"{reader} got {offset} of {at} after {last}")
        if at.topic != AGED:
            return
        young_s = self.world.now_s - self.retention_s + SLACK_S
        for missed in range(max(last + 1, self.deleted_below[at]), offset):
            if self.sent_s[at].get(missed, 0.0) > young_s:
                age_s = self.world.now_s - self.sent_s[at][missed]
                raise Violation(
                    RULE, f"{reader} got {offset} of {at}, and not {missed}, which was sent {age_s:.1f} s ago"
                )

    def look(self) -> None:
        """No leader's log that is kept to a size is smaller than that, unless records were deleted."""
        at = WHERE[FULL]
        runner = next(iter(self.world.observer.runners(at).values()), None)
        if runner is not None and runner.log.log_start_offset > self.deleted_below[at]:
            size = sum(segment.size for segment in runner.log.segments)
            if size < RETAINED_BYTES:
                raise Violation(RULE, f"{at} is kept to {RETAINED_BYTES} bytes, and its leader has {size} of it")

    async def finish(self, admin: AsyncAdmin, until: Until) -> None:
        """With records coming, old ones go on every replica; new ones are read, and worked on."""
        client = AgedProducer(self.world, "aged-finish", self)
        ends_s = self.world.now_s + self.retention_s + 3 * SEGMENT_MS / 1000 + 4 * SLACK_S
        values: list[tuple[float, bytes, bool]] = []
        async with AsyncProducer(delivery_timeout_ms=DELIVERY_MS) as producer:
            while self.world.now_s < ends_s:
                is_delayed = client.chance(0.3)
                for topic in WHERE:
                    value = await client.send(producer, topic, is_delayed=is_delayed)
                    if not value:
                        raise Violation("W16", f"{topic} takes no record although all is as it should be")
                    values += [(self.world.now_s, value, topic == AGED)]
                await asyncio.sleep(0.4)
                self._check_read(values)
        self._check_removed()

    def _check_read(self, values: list[tuple[float, bytes, bool]]) -> None:
        """Every record of this while is read, and worked on, soon."""
        for sent_s, value, is_aged in values:
            if self.world.now_s - sent_s <= GOES_ON_S:
                return
            for reader, found in self.read.items():
                if reader.startswith(AGED if is_aged else FULL) and value not in found:
                    raise Violation(RULE, f"{reader} has not got {value[:30]!r} {GOES_ON_S:.0f} s later")
            if is_aged and value not in self.worked:
                raise Violation(RULE, f"no worker has got {value[:30]!r} {GOES_ON_S:.0f} s later")

    def _check_removed(self) -> None:
        old_s = self.world.now_s - self.retention_s - 2 * SEGMENT_MS / 1000 - CHECK_MS / 1000 - SLACK_S
        for at in WHERE.values():
            for broker, runner in self.world.observer.runners(at).items():
                if runner is None:
                    continue
                segments = runner.log.segments
                first = segments[0].base_offset
                sent_s = next((self.sent_s[at][offset] for offset in sorted(self.sent_s[at]) if offset >= first), None)
                if at.topic == AGED and sent_s is not None and sent_s < old_s:
                    age_s = self.world.now_s - sent_s
                    raise Violation(
                        RULE,
                        f"{at} begins at {first} on broker {broker}, which was sent {age_s:.1f} s ago, and is "
                        f"kept for {self.retention_s:.1f} s",
                    )
                size = sum(segment.size for segment in segments[1:])
                if at.topic == FULL and size >= RETAINED_BYTES + 2 * 1_500:
                    raise Violation(RULE, f"{at} has {size} bytes behind its first segment on broker {broker}")
