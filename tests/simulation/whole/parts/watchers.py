"""Readers that begin anywhere, with either isolation: any two of them agree on what they have both passed.

They read the steady topics and one of this feature, with transactions that are committed or aborted and deletions. A
reader that was handed an offset is witness against all others that have passed it: those of the same isolation, and
those that read everything.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from raylog.base.errors import OffsetOutOfRange, RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.accepted import IsolationLevel
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from tests.simulation.whole.clients import API_S, DELIVERY_S, Client
from tests.simulation.whole.parts.part import API_MS, Part, Until, started, woken
from tests.simulation.whole.parts.sender import Sender
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.plan import Plan
    from tests.simulation.whole.world import World

TOPIC: Final = "watched"
PARTITIONS: Final = 2
RULE: Final = "W75"
"""Two readers of one log agree, wherever they began, and no aborted record is committed."""
COMMITTED: Final[IsolationLevel] = "read_committed"
UNCOMMITTED: Final[IsolationLevel] = "read_uncommitted"
Reset: TypeAlias = Literal["latest", "earliest"]
LIFE_S: Final = (4.0, 25.0)
TXN_S: Final = 6.0

Seen = tuple[bytes | None, bytes | None, int]
"""Key, value and timestamp."""


@dataclass(slots=True)
class Sight:
    """What one reader has passed of one partition since it began, or was moved: all below ``end`` from ``start`` on."""

    reader: str
    isolation: str
    start: int
    end: int
    got: set[int] = field(default_factory=set)


@dataclass
class Sights:
    """What all readers have got."""

    records: dict[TopicPartition, dict[int, Seen]] = field(default_factory=dict)
    sights: dict[TopicPartition, list[Sight]] = field(default_factory=dict)
    aborted: set[bytes] = field(default_factory=set)
    deleted_below: dict[TopicPartition, int] = field(default_factory=dict)

    def began(self, reader: str, at: TopicPartition, isolation: str, start: int) -> Sight:
        """Return the sight of a reader that stands at an offset."""
        sight = Sight(reader, isolation, start, start)
        self.sights.setdefault(at, []).append(sight)
        return sight

    def got(self, sight: Sight, at: TopicPartition, offset: int, record: Seen) -> None:
        """A reader was handed a record."""
        if offset < sight.end:
            raise Violation(RULE, f"{sight.reader} got {offset} of {at}, and has passed {sight.end} already")
        known = self.records.setdefault(at, {}).setdefault(offset, record)
        if known != record:
            raise Violation(RULE, f"{sight.reader} got {record} at {offset} of {at}, where another one got {known}")
        if sight.isolation == COMMITTED and record[1] in self.aborted:
            raise Violation(RULE, f"{sight.reader} got {record[1]!r} at {offset} of {at}, which was never committed")
        sight.got.add(offset)
        sight.end = offset + 1

    def check(self) -> None:
        """What one reader got, no other one has passed over that had to get it."""
        for at, sights in self.sights.items():
            floor = self.deleted_below.get(at, 0)
            everything = {offset: sight.reader for sight in sights for offset in sight.got}
            committed = {
                offset: sight.reader for sight in sights if sight.isolation == COMMITTED for offset in sight.got
            }
            for sight in sights:
                for offset, witness in (committed if sight.isolation == COMMITTED else everything).items():
                    if max(floor, sight.start) <= offset < sight.end and offset not in sight.got:
                        raise Violation(
                            RULE,
                            f"{sight.reader} ({sight.isolation}) has read {at} from {sight.start} to {sight.end} and "
                            f"not got {offset}, which {witness} got",
                        )


class Watcher(Client):
    """Reads from a place of its choice for a while, and again from another one."""

    def __init__(self, world: World, name: str, part: Watchers, isolation: IsolationLevel) -> None:
        """One place of a reader."""
        super().__init__(world, name)
        self._part = part
        self._isolation = isolation
        self._lives = 0

    async def run(self) -> None:
        """Read until the world is over."""
        while not self.world.is_over:
            self._lives += 1
            begins = self.pick(["earliest", "latest", "middle", "time"])
            reset: Reset = "latest" if begins == "latest" else "earliest"
            consumer = await started(self, partial(self._consumer, reset))
            try:
                await self._life(consumer, begins)
            finally:
                await self.call("stop", consumer.stop(), 35.0)

    def _consumer(self, reset: Reset) -> AsyncConsumer:
        return AsyncConsumer(
            isolation_level=self._isolation,
            auto_offset_reset=reset,
            default_api_timeout_ms=API_MS,
            fetch_max_wait_ms=self.pick([20, 500]),
            max_partition_fetch_bytes=self.pick([100, 700, 1 << 20]),
            max_poll_records=self.pick([1, 3, 500]),
            metadata_max_age_ms=self.pick([1_000, 30_000]),
        )

    async def _life(self, consumer: AsyncConsumer, begins: str) -> None:
        wanted = self._part.partitions()
        consumer.assign(wanted)
        sights: dict[TopicPartition, Sight] = {}
        if begins in ("middle", "time"):
            await self._move(consumer, wanted, begins)
        until_s = self.world.now_s + self.between(*LIFE_S)
        while not self.world.is_over and (self.world.now_s < until_s or self.world.is_quiet):
            for at in wanted:
                if at not in sights:
                    await self._begin(consumer, at, sights)
            await self._read(consumer, sights)
            self._part.now[self.name] = {at: sight.end for at, sight in sights.items()}
            await self._pass(consumer, sights)

    async def _move(self, consumer: AsyncConsumer, wanted: list[TopicPartition], begins: str) -> None:
        """Go to the middle of what is known, or to where records of a time begin."""
        known = self._part.sights.records
        for at in wanted:
            if not (offsets := known.get(at)):
                continue
            place = self.pick(sorted(offsets))
            if begins == "middle":
                consumer.seek(at, place)
                continue
            try:
                work = consumer.offsets_for_times({at: offsets[place][2]})
                found = (await self.call("offsets for times", work, API_S + 1.0))[at]
            except RaylogError as error:
                self.world.log(self.name, f"offsets for times: {error!r}")
                continue
            if found is not None:
                consumer.seek(at, found.offset)

    async def _begin(self, consumer: AsyncConsumer, at: TopicPartition, sights: dict[TopicPartition, Sight]) -> None:
        """Learn where this reader stands before it is handed anything of a partition."""
        try:
            start = await self.call("position", consumer.position(at), API_S + 1.0)
        except RaylogError as error:
            self.world.log(self.name, f"position: {error!r}")
            consumer.pause(at)  # what comes before its place is known could not be judged
        else:
            consumer.resume(at)
            name = f"{self.name}.{self._lives}"
            sights[at] = self._part.sights.began(name, at, self._isolation, start)

    async def _read(self, consumer: AsyncConsumer, sights: dict[TopicPartition, Sight]) -> None:
        wait_s = self.between(0.0, 0.5)
        found: dict[TopicPartition, list[tuple[int, Seen]]] = {}
        try:
            if self.chance(0.3):
                work = consumer.getcolumns(timeout_ms=wait_s * 1000)
                for at, batch in (await self.call("getcolumns", work, wait_s + 1.0)).by_partition().items():
                    rows = zip(batch.offsets, batch.keys, batch.values, batch.timestamps_ms, strict=True)
                    found[at] = [(offset, (key, value, time_ms)) for offset, key, value, time_ms in rows]
            else:
                work_too = consumer.getmany(timeout_ms=wait_s * 1000)
                for at, records in (await self.call("getmany", work_too, wait_s + 1.0)).items():
                    found[at] = [(each.offset, (each.key, each.value, each.timestamp_ms)) for each in records]
        except OffsetOutOfRange as error:
            raise Violation("W8", f"{self.name}: a reset was set, and the poll failed: {error!r}") from error
        for at, rows_of in found.items():
            for offset, record in rows_of:
                if at not in sights:
                    raise Violation(RULE, f"{self.name} was handed {offset} of {at}, which is paused")
                self._skip_deleted(at, sights, offset)
                self._part.sights.got(sights[at], at, offset, record)
                self.books.read += 1

    def _skip_deleted(self, at: TopicPartition, sights: dict[TopicPartition, Sight], offset: int) -> None:
        """A reader whose place was deleted was moved by its reset, also to the end."""
        sight = sights[at]
        if sight.end < self._part.deleted(at) and offset >= sight.end:
            sights[at] = self._part.sights.began(f"{sight.reader}+", at, sight.isolation, offset)

    async def _pass(self, consumer: AsyncConsumer, sights: dict[TopicPartition, Sight]) -> None:
        """Count what has no record for this reader, markers and aborted ones, as passed, as its position does."""
        if not (self.world.is_quiet or self.chance(0.1)):
            return
        for at, sight in sights.items():
            try:
                position = await self.call("position", consumer.position(at), API_S + 1.0)
            except RaylogError as error:
                self.world.log(self.name, f"position: {error!r}")
            else:
                if position > sight.end and self._part.deleted(at) <= sight.end:
                    sight.end = position


class Scribe(Sender):
    """Writes transactions, some of which it aborts or leaves to their timeout, and records without any."""

    def __init__(self, world: World, name: str, part: Watchers) -> None:
        """One transactional id."""
        super().__init__(world, name)
        self._part = part
        self._count = 0

    async def run(self) -> None:
        """Write until the world is quiet."""
        plain = await started(self, self.producer)

        async def once(producer: AsyncProducer) -> bool:
            if not await self._transaction(producer):
                return False
            await self._plain(plain)
            await asyncio.sleep(self.between(0.0, 2 * self.world.plan.send_pause_s))
            return True

        await self.work(self._producer, once, begins=True)
        await self.call("stop", plain.stop(), DELIVERY_S + 10.0)

    def _producer(self) -> AsyncProducer:
        return self.producer(is_transactional=True, batch_size=self.pick([100, 16_384]))

    def _value(self) -> bytes:
        self._count += 1
        return f"{self.name}/{self._count}/{'x' * int(self.between(0, 150))}".encode()

    async def _plain(self, producer: AsyncProducer) -> None:
        at = self.pick(self._part.own)
        try:
            future = await self.call("send", producer.send(TOPIC, self._value(), partition=at.partition), API_S)
            await self.call("delivery", future, DELIVERY_S)
        except RaylogError as error:
            self.failed(error)

    async def _transaction(self, producer: AsyncProducer) -> bool:
        """Return whether the producer can go on."""
        is_kept = self.chance(0.6)
        values = [self._value() for _ in range(int(self.between(1, 6)))]
        if not is_kept:
            self._part.sights.aborted.update(values)
        try:
            await self.call("begin", producer.begin_transaction(), API_S)
            for value in values:
                at = self.pick(self._part.own)
                work = producer.send(TOPIC, value, key=b"key", partition=at.partition)
                future = await self.call("send", work, API_S + 5.0)
                _ = self.beside(self.ignored(future))
                if self.chance(0.3):
                    await asyncio.sleep(self.between(0.0, 0.5))
            if not is_kept and self.chance(0.1):
                await asyncio.sleep(self.between(1.0, 1.5) * TXN_S)  # the coordinator aborts it
            end = producer.commit_transaction() if is_kept else producer.abort_transaction()
            await self.call("end", end, DELIVERY_S + 2 * API_S)
        except RaylogError as error:
            self.failed(error)
            return False
        return True


class Watchers(Part):
    """The readers of one world."""

    def __init__(self, world: World) -> None:
        """No reader yet."""
        super().__init__(world)
        self.sights = Sights()
        self.own = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        self.now: dict[str, dict[TopicPartition, int]] = {}
        """How far each reader is that runs."""

    @classmethod
    def join(cls, plan: Plan, chance: random.Random) -> Plan:
        """Delete records of its topic as of the steady ones."""
        return replace(plan, work_s=plan.work_s + 4.0)

    def partitions(self) -> list[TopicPartition]:
        """Return what is read: topics that are never deleted, with the partitions that they have now."""
        steady = [at for at in self.world.open_partitions() if at.topic in self.world.steady_topics]
        return [*steady, *self.own]

    def deleted(self, at: TopicPartition) -> int:
        """Return the offset below which a deletion was requested."""
        return max(self.world.books.deleted_below.get(at, 0), self.sights.deleted_below.get(at, 0))

    async def make_topics(self, admin: AsyncAdmin) -> None:
        """Create the topic with transactions."""
        config = {"segment.bytes": "3000", "min.insync.replicas": "2"}
        await admin.create_topic(TOPIC, PARTITIONS, self.world.plan.replication_factor, config)

    def start(self) -> None:
        """Start readers of both kinds on a host of their own and on a broker's, a writer, and one that deletes."""
        world = self.world
        for number, (isolation, host) in enumerate(
            (
                (COMMITTED, ""),
                (UNCOMMITTED, ""),
                (COMMITTED, world.cluster.host(1)),
                (UNCOMMITTED, world.cluster.host(2)),
            )
        ):
            name = f"watcher-{number}"
            world.spawn(name, Watcher(world, name, self, isolation).run(), host)
        world.spawn("scribe", Scribe(world, "scribe", self).run())
        world.spawn("eraser", self._erase())

    async def _erase(self) -> None:
        client = Client(self.world, "eraser")
        admin = await started(client, lambda: AsyncAdmin(request_timeout_ms=API_MS))
        while not self.world.is_quiet:
            await asyncio.sleep(client.between(1.0, 8.0))
            at = client.pick(self.own)
            before = int(client.between(0, max(self.sights.records.get(at, {0: None}))) * 0.6)
            self.sights.deleted_below[at] = max(self.sights.deleted_below.get(at, 0), before)
            work = admin.delete_records({at: before}, timeout_s=API_S)
            await client.tried(f"delete records of {at} below {before}", work, API_S, OffsetOutOfRange)
        await admin.stop()

    async def finish(self, admin: AsyncAdmin, until: Until) -> None:
        """Every reader comes to the end of every partition, and they agree."""
        await until("watchers are at the end", lambda: self._behind(admin))
        for at, deleted in self.world.books.deleted_below.items():
            self.sights.deleted_below[at] = max(deleted, self.sights.deleted_below.get(at, 0))
        self.sights.check()

    async def _behind(self, admin: AsyncAdmin) -> str:
        for at in self.partitions():
            runner = next(iter(self.world.observer.runners(at).values()), None)
            if runner is None:
                return await woken(Client(self.world, "watchers"), admin, at.topic)
            end = runner.machine.high_watermark
            for name, ends in self.now.items():
                if at in ends and ends[at] < end:
                    return f"{name} stands at {ends[at]} of {at}, below {end}"
        return ""
