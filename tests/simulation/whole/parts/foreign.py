"""Batches of another implementation: their checksums are right, and their bodies do not open.

Every good record around them is read, worked on, and forwarded when it expires; a reader that comes to such a batch
learns of it and of the offset behind it, and a queue makes dead letters of it. Nothing stands still.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from raylog.base.errors import ClientClosed, CorruptMessage, DeliveryTimedOut, InvalidRecordState, RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from raylog.client.queues.consumer import AsyncQueueConsumer
from raylog.client.reading.column_batch import ColumnBatch
from raylog.core.dead_letters import cause_of
from raylog.protocol.replica import PRODUCE, ProduceRequest
from raylog.storage.batch.compression import compress
from raylog.storage.batch.header import MAGIC_COLUMNS
from raylog.storage.batch.records import assemble_batch, column_body
from raylog.storage.log import bodies, validation
from tests.simulation.whole.clients import API_S, DELIVERY_S, Client
from tests.simulation.whole.loop.scheduler import WALL_S
from tests.simulation.whole.parts.part import API_MS, DELIVERY_MS, Part, Until, started
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.plan import Plan
    from tests.simulation.whole.world import World

FOREIGN, FLEETING, LETTERS, DEAD = "foreign", "foreign-fleeting", "foreign-letters", "foreign-dead"
UNDELIVERABLE: Final = "__undeliverable"
TTL_MS: Final = 2_000
GROUPS: Final[dict[str, Literal["key", "none"]]] = {"foreign-any": "none", "foreign-keys": "key"}
RULE: Final = "W80"
"""A batch that does not open costs its own records, and its readers learn of it."""
SOON_S: Final = 20.0
LZ4: Final = 3


class Foreigner(Client):
    """Sends good records, and batches that do not open, until the world is quiet."""

    def __init__(self, world: World, name: str, part: Foreign) -> None:
        """One producer."""
        super().__init__(world, name)
        self._part = part
        self._count = 0

    async def run(self) -> None:
        """Send."""
        producer = await started(self, lambda: AsyncProducer(delivery_timeout_ms=DELIVERY_MS, max_block_ms=API_MS))
        while not self.world.is_quiet:
            topic = self.pick([FOREIGN, FLEETING])
            await (self.send_foreign(producer, topic) if self.chance(0.15) else self.send(producer, topic))
            await asyncio.sleep(self.between(0.0, self.world.plan.send_pause_s))
        await self.call("stop", producer.stop(), DELIVERY_S + 10.0)

    async def send(self, producer: AsyncProducer, topic: str) -> bytes:
        """Send some good records; return the last value that is stored for sure."""
        stored = b""
        for _ in range(int(self.between(1, 4))):
            self._count += 1
            value = f"{self.name}/{self._count}".encode()
            try:
                work = producer.send(topic, value, key=self.pick([b"a", b"b", None]), partition=0)
                stored_at = await self.call("delivery", await self.call("send", work, API_S), DELIVERY_S)
            except RaylogError as error:
                if not (error.retriable or isinstance(error, (DeliveryTimedOut, ClientClosed))):
                    raise Violation("W8", f"{self.name}: {value!r} failed for good: {error!r}") from error
            else:
                self._part.stored[topic][value] = self.world.now_s
                if topic == FOREIGN:
                    self._part.good_at[stored_at.offset] = value
                stored = value
        return stored

    async def send_foreign(self, producer: AsyncProducer, topic: str) -> None:
        """Send a batch as no client of ours makes it, with the credentials and routes of one."""
        count = int(self.between(1, 4))
        batch = foreign_batch(count, int(1000 * (WALL_S + self.world.now_s)), self.pick(["junk", "cut", "few", "text"]))

        cluster = producer._engine.cluster
        try:
            info, found = await cluster.leader(topic, 0, timeout_s=API_S)
            assert found.endpoint is not None
            connection = await cluster.connection(found.endpoint, API_S)
            request = ProduceRequest(info.topic_id, 0, found.leader_epoch, -1, API_MS)
            reply = await connection.call(PRODUCE.name, request, batch, timeout_s=API_S)
        except (RaylogError, OSError) as error:
            self.world.log(self.name, f"a foreign batch: {error!r}")
            if not getattr(error, "retriable", True):
                raise Violation("W8", f"{self.name}: a foreign batch is refused: {error!r}") from error
            await self.tried("refresh", cluster.refresh((topic,), timeout_s=API_S), API_S + 1.0)
            return
        base = PRODUCE.read_reply(reply.args).base_offset
        self.world.log(self.name, f"{topic} has {count} records that do not open at {base}")
        self._part.foreign[topic][base] = count


def foreign_batch(count: int, stamp_ms: int, kind: str) -> bytes:
    """Return a batch with a right checksum whose body does not open, or whose records are none."""
    good = column_body(None, None, [b"x" * 20] * count, None, 0, None)
    body = {
        "junk": compress(LZ4, b"\xc1 no columns at all", None),
        "cut": compress(LZ4, good, None)[:-9],
        "few": compress(LZ4, column_body(None, None, [b"x" * 20] * (count + 2), None, 0, None), None),
        "text": compress(LZ4, column_body(None, None, [3] * count, None, 0, None), None),  # type: ignore[list-item]
    }[kind]
    return assemble_batch(MAGIC_COLUMNS, body, [stamp_ms] * count, compression=LZ4)


class ForeignReader(Client):
    """Reads the topic from its start; at a batch that does not open it goes on where the error says."""

    def __init__(self, world: World, name: str, part: Foreign, *, columns: bool) -> None:
        """One reader, of records or of columns."""
        super().__init__(world, name)
        self._part, self._columns = part, columns
        self.read: set[bytes] = set()
        self._named: set[int] = set()
        """Offsets of batches whose columns did not open."""

    async def run(self) -> None:
        """Read until the world is over."""
        while not self.world.is_over:
            consumer = await started(self, self._consumer)
            at = TopicPartition(FOREIGN, 0)
            consumer.assign([at])
            until_s = self.world.now_s + self.between(4.0, 25.0)
            last = -1
            while not self.world.is_over and (self.world.now_s < until_s or self.world.is_quiet):
                try:
                    rows = await self._poll(consumer, at)
                except CorruptMessage as error:
                    last = self._damaged(consumer, at, last, error)
                    continue
                for offset, value in rows:
                    self._pass(last, offset)
                    self.read.add(value)
                    last = offset
            await self.call("stop", consumer.stop(), 35.0)

    async def _poll(self, consumer: AsyncConsumer, at: TopicPartition) -> list[tuple[int, bytes]]:
        if self._columns:
            batch = await self.call("getcolumns", consumer.getcolumns(timeout_ms=300), 1.5)
            rows: list[tuple[int, bytes]] = []
            for piece in batch.pieces:  # of those that the position is behind, one may not open
                part = ColumnBatch([piece])
                try:
                    rows += zip(part.offsets, [value or b"" for value in part.values], strict=True)
                except CorruptMessage as error:
                    if error.details.get("next_offset") != piece.batch.header.next_offset:
                        raise Violation(RULE, f"{self.name}: no way behind the damage: {error!r}") from error
                    self._named.update(range(piece.first, piece.end))
            return rows
        found = await self.call("getmany", consumer.getmany(timeout_ms=300), 1.5)
        return [(record.offset, record.value) for record in found.get(at, [])]

    def _damaged(self, consumer: AsyncConsumer, at: TopicPartition, last: int, error: CorruptMessage) -> int:
        """Seek behind the damage; return the offset that is passed with it."""
        self.world.log(self.name, f"poll: {error!r}")
        offset, behind = error.details.get("offset"), error.details.get("next_offset")
        if not isinstance(behind, int) or not isinstance(offset, int):
            raise Violation(RULE, f"{self.name}: no way behind the damage: {error!r}")
        for missed in range(last + 1, behind):
            if self._part.good_at.get(missed, b"") and self._part.good_at[missed] not in self.read:
                raise Violation(
                    RULE, f"{self.name} is to go on at {behind} after {last}, over the good one at {missed}"
                )
        consumer.seek(at, behind)
        return behind - 1

    def _pass(self, last: int, offset: int) -> None:
        for base, count in self._part.foreign[FOREIGN].items():
            if last < base < base + count <= offset and not self._named.issuperset(range(base, base + count)):
                raise Violation(RULE, f"{self.name} got {offset} after {last}, and nothing of the batch at {base}")
        if offset <= last:
            raise Violation(RULE, f"{self.name} got {offset} after {last}")

    def _consumer(self) -> AsyncConsumer:
        return AsyncConsumer(
            auto_offset_reset="earliest",
            default_api_timeout_ms=API_MS,
            isolation_level=self.pick(["read_committed", "read_uncommitted"]),
            max_poll_records=self.pick([1, 500]),
            max_partition_fetch_bytes=self.pick([200, 1 << 20]),
        )


class ForeignWorker(Client):
    """Works on the topic as a queue."""

    def __init__(self, world: World, name: str, part: Foreign, group: str) -> None:
        """A member of a group."""
        super().__init__(world, name)
        self._part, self._group = part, group

    async def run(self) -> None:
        """Acknowledge everything until the world is over."""
        while not self.world.is_over:
            consumer = await started(self, self._consumer)
            until_s = self.world.now_s + self.between(5.0, 30.0)
            while not self.world.is_over and (self.world.now_s < until_s or self.world.is_quiet):
                try:
                    found = await self.call("getmany", consumer.getmany(timeout_ms=300, max_records=20), 2.5)
                    for message in found:
                        if message.is_locked:
                            self._part.worked[self._group].add(message.value)
                            message.ack()
                    await self.call("commit", consumer.commit(timeout_s=API_S + 2.0), API_S + 5.0)
                except (RaylogError, TimeoutError) as error:
                    if not getattr(error, "retriable", True) and not isinstance(error, InvalidRecordState):
                        raise Violation("W8", f"{self.name}: it failed for good: {error!r}") from error
            await self.call("stop", consumer.stop(timeout_s=API_S), 35.0)

    def _consumer(self) -> AsyncQueueConsumer:
        return AsyncQueueConsumer(
            FOREIGN,
            group_id=self._group,
            order=GROUPS[self._group],
            lock=30_000,
            dead_letter_topic=DEAD,
            fetch_max_wait_ms=500,
            request_timeout_ms=API_MS,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=1_500,
        )


class LetterReader(Client):
    """Reads the dead letters of queues and of expiry."""

    def __init__(self, world: World, name: str, part: Foreign) -> None:
        """One reader."""
        super().__init__(world, name)
        self._part = part

    async def run(self) -> None:
        """Read until the world is over."""
        while not self.world.is_over:
            topics = [LETTERS, DEAD, *([UNDELIVERABLE] if self.world.observer.has_topic(UNDELIVERABLE) else [])]
            consumer = await started(
                self, lambda: AsyncConsumer(auto_offset_reset="earliest", default_api_timeout_ms=API_MS)
            )
            consumer.assign([TopicPartition(topic, 0) for topic in topics])
            for _ in range(int(self.between(5, 30))):
                found = await self.call("getmany", consumer.getmany(timeout_ms=300), 1.5)
                for at, records in found.items():
                    for record in records:
                        self.books.read += 1
                        cause = cause_of(record.headers)
                        if cause is not None:
                            self._part.letter(at.topic, cause.topic, cause.offset, record.value, cause.group)
            await self.call("stop", consumer.stop(), 35.0)


class Foreign(Part):
    """The foreign batches of one world."""

    goes_by_clocks = True
    comes_to_rest = False
    patience_s = 60.0

    def __init__(self, world: World) -> None:
        """Nothing is sent."""
        super().__init__(world)
        self.stored: dict[str, dict[bytes, float]] = {FOREIGN: {}, FLEETING: {}}
        self.foreign: dict[str, dict[int, int]] = {FOREIGN: {}, FLEETING: {}}
        """The number of records of each batch that does not open, by its first offset."""
        self.good_at: dict[int, bytes] = {}
        self.worked: dict[str, set[bytes]] = {group: set() for group in GROUPS}
        self.letters: set[bytes] = set()
        self.dead: dict[str, set[int]] = {group: set() for group in GROUPS}
        """Offsets whose dead letters have no value, by group."""
        self.unopened: list[tuple[int, bytes | None]] = []
        """Of letters about the topic whose records expire: the offset, and what the letter says."""
        self.readers: list[ForeignReader] = []

    @classmethod
    def join(cls, plan: Plan, chance: random.Random) -> Plan:
        """Clients, and nothing of the cluster's."""
        return replace(plan, work_s=plan.work_s + 4.0)

    async def make_topics(self, admin: AsyncAdmin) -> None:
        """Create the topics."""
        factor = self.world.plan.replication_factor
        for topic in (FOREIGN, LETTERS, DEAD):
            await admin.create_topic(topic, 1, factor, {"segment.bytes": "4000"})
        await admin.create_topic(FLEETING, 1, factor, {"ttl.ms": str(TTL_MS), "dead.letter.topic": LETTERS})

    def start(self) -> None:
        """Start the clients. Leaders open no compressed body in such a world, as those of an earlier release."""
        world = self.world
        for module in (bodies, validation):
            vars(module)["open_to_check"] = lambda *_: 0
        world.spawn("foreigner", Foreigner(world, "foreigner", self).run())
        for name, columns, host in (
            ("foreign-reader", False, ""),
            ("foreign-columns", True, ""),
            ("near-foreign-reader", False, world.cluster.host(1)),
        ):
            reader = ForeignReader(world, name, self, columns=columns)
            self.readers.append(reader)
            world.spawn(name, reader.run(), host)
        for group in GROUPS:
            world.spawn(f"{group}-worker", ForeignWorker(world, f"{group}-worker", self, group).run())
        world.spawn("foreign-letters", LetterReader(world, "foreign-letters", self).run())

    def letter(self, topic: str, origin: str, offset: int, value: bytes | None, group: str) -> None:
        """A reader got a dead letter."""
        if origin == FLEETING:
            if topic == LETTERS and value is not None:
                self.letters.add(value)
            else:
                self.unopened.append((offset, value))
        elif origin == FOREIGN:
            if not any(base <= offset < base + count for base, count in self.foreign[FOREIGN].items()):
                self._unknown(offset, group)
            self.dead.setdefault(group, set()).add(offset)

    def _unknown(self, offset: int, group: str) -> None:
        """The answer about a foreign batch may have been lost; a good record that was stored is no dead letter."""
        if offset in self.good_at:
            raise Violation(RULE, f"the record at {offset} of {FOREIGN} opens, and is a dead letter of {group}")

    async def finish(self, admin: AsyncAdmin, until: Until) -> None:
        """Good records around a foreign batch are through soon, and everything that was sent is accounted for."""
        client = Foreigner(self.world, "foreign-finish", self)
        async with AsyncProducer(delivery_timeout_ms=DELIVERY_MS) as producer:
            began_s = self.world.now_s
            for topic in (FOREIGN, FLEETING):
                await client.send(producer, topic)
                await client.send_foreign(producer, topic)
                await client.send(producer, topic)

        async def missing() -> str:
            wrong = self._missing()
            if wrong and self.world.now_s > began_s + SOON_S + TTL_MS / 1000:
                raise Violation(RULE, f"{wrong}, {self.world.now_s - began_s:.0f} s after the last was sent")
            return wrong

        await until("nothing waits for foreign batches", missing)

    def _missing(self) -> str:
        for reader in self.readers:
            if lost := [value for value in self.stored[FOREIGN] if value not in reader.read]:
                return f"{reader.name} has not got {len(lost)} good records, such as {lost[0]!r}"
        for group, worked in self.worked.items():
            if lost := [value for value in self.stored[FOREIGN] if value not in worked]:
                return f"{group} was not handed {len(lost)} good records, such as {lost[0]!r}"
            for base, count in self.foreign[FOREIGN].items():
                if dead := sorted(set(range(base, base + count)) - self.dead[group]):
                    return f"{group} has no dead letter of {dead[0]}, in the batch at {base}"
        if lost := [value for value in self.stored[FLEETING] if value not in self.letters]:
            return f"{len(lost)} good records have expired and are no dead letters, such as {lost[0]!r}"
        named = {offset for offset, _ in self.unopened}
        for base, count in self.foreign[FLEETING].items():
            if named.isdisjoint(range(base, base + count)):
                return f"no letter names the batch at {base} of {FLEETING}"
        return ""
