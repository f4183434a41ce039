"""Topics of every kind that are deleted and created again: a compacted one, one whose records expire, and a queue.

Each life of a topic is one of its own: its table has its keys, its records expire into dead letters, its queue is
worked off, and readers and workers that stay find it by themselves.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from raylog.base.errors import InvalidRecordState, RaylogError, UnknownTopicOrPartition
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from raylog.client.queues.consumer import AsyncQueueConsumer
from tests.simulation.whole.clients import API_S, DELIVERY_S, Client
from tests.simulation.whole.parts.part import API_MS, DELIVERY_MS, Part, Until, started
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.plan import Plan
    from tests.simulation.whole.world import World

TABLE, FLEETING, JOBS, LETTERS = "again-table", "again-fleeting", "again-jobs", "again-letters"
KINDS: Final[dict[str, dict[str, str]]] = {
    TABLE: {"cleanup.policy": "compact", "segment.bytes": "1100", "min.cleanable.dirty.ratio": "0.01"},
    FLEETING: {"ttl.ms": "1500", "dead.letter.topic": LETTERS},
    JOBS: {"queue.retry.max.ms": "500"},
}
GROUP: Final = "again-workers"
RULE: Final = "W83"
"""Each life of a topic stands alone, whatever kind of topic it is, and those that use it find the present one."""
LAST_LIVES: Final = 3
FOUND_S: Final = 25.0
KEYS: Final = 3


class KindsRenewer(Client):
    """Deletes the topics and creates them again, and writes to each life."""

    def __init__(self, world: World, name: str, part: RenewedKinds) -> None:
        """One process renews at a time."""
        super().__init__(world, name)
        self._part = part
        self._count = 0

    async def run(self) -> None:
        """Renew until the world is quiet."""
        while not self.world.is_quiet:
            await self.failure(self._session())
            await asyncio.sleep(self.between(0.1, 0.5))

    async def failure(self, work: Awaitable[Any]) -> str:
        """Await what may fail while its topic is deleted, or while something is broken; return why it failed."""
        try:
            await work
        except RaylogError as error:
            self.world.log(self.name, f"a life: {error!r}")
            return repr(error)
        return ""

    async def _session(self) -> None:
        """Go through some lives with a producer that knows the earlier ones."""
        async with AsyncAdmin(request_timeout_ms=API_MS) as admin, self.producer() as producer:
            for _ in range(int(self.between(1, 6))):
                if self.world.is_quiet:
                    return
                await self.failure(self.life(admin, producer, self.pick(list(KINDS))))
                await asyncio.sleep(self.between(0.0, 2.0))

    def producer(self) -> AsyncProducer:
        """Make one."""
        return AsyncProducer(delivery_timeout_ms=DELIVERY_MS, max_block_ms=API_MS)

    async def life(self, admin: AsyncAdmin, producer: AsyncProducer, topic: str) -> None:
        """Begin another life of a topic, and write to it."""
        part = self._part
        part.lives[topic] += 1
        part.stored[topic] = []
        await self.failure(self.call("delete", admin.delete_topic(topic, timeout_s=API_S), API_S))
        work = admin.create_topic(topic, 1, self.world.plan.replication_factor, KINDS[topic], timeout_s=API_S)
        await self.call("create", work, API_S)
        part.born_s[topic] = self.world.now_s
        for _ in range(int(self.between(1, 12))):
            await self.send(producer, topic)

    async def send(self, producer: AsyncProducer, topic: str) -> None:
        """Store one record in the present life."""
        self._count += 1
        value = b"%s/%d/%d/" % (topic.encode(), self._part.lives[topic], self._count)
        key = b"key %d" % (self._count % KEYS)
        future = await self.call("send", producer.send(topic, value + b"x" * 60, key=key, partition=0), API_S)
        await self.call("delivery", future, DELIVERY_S)
        self._part.stored[topic].append((key, value))


class KindsWorker(Client):
    """Works on the queue over all its lives."""

    def __init__(self, world: World, name: str, part: RenewedKinds) -> None:
        """A member of the group."""
        super().__init__(world, name)
        self._part = part

    async def run(self) -> None:
        """Acknowledge everything until the world is over; seldom as another consumer."""
        while not self.world.is_over:
            consumer = await started(self, self._consumer)
            until_s = self.world.now_s + self.between(10.0, 40.0)
            while not self.world.is_over and (self.world.now_s < until_s or self.world.is_quiet):
                try:
                    found = await self.call("getmany", consumer.getmany(timeout_ms=300, max_records=20), 2.5)
                    for message in found:
                        if message.is_locked:
                            self._part.worked.add(message.value.rstrip(b"x"))
                            message.ack()
                    await self.call("commit", consumer.commit(timeout_s=API_S + 2.0), API_S + 5.0)
                except (RaylogError, TimeoutError) as error:
                    self.world.log(self.name, f"it has to begin again: {error!r}")
                    if not getattr(error, "retriable", True) and not isinstance(error, InvalidRecordState):
                        break
            await self.call("stop", consumer.stop(timeout_s=API_S), 35.0)

    def _consumer(self) -> AsyncQueueConsumer:
        return AsyncQueueConsumer(
            JOBS,
            group_id=GROUP,
            lock=3_000,
            fetch_max_wait_ms=500,
            request_timeout_ms=API_MS,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=1_500,
            metadata_max_age_ms=1_000,
        )


class KindsReader(Client):
    """Reads the dead letters, which no life of theirs ends, and the table by its name."""

    def __init__(self, world: World, name: str, part: RenewedKinds) -> None:
        """One reader."""
        super().__init__(world, name)
        self._part = part

    async def run(self) -> None:
        """Read until the world is over."""
        while not self.world.is_over:
            consumer = await started(
                self,
                lambda: AsyncConsumer(
                    auto_offset_reset="earliest", default_api_timeout_ms=API_MS, metadata_max_age_ms=1_000
                ),
            )
            consumer.assign([TopicPartition(LETTERS, 0), TopicPartition(TABLE, 0)])
            await self._read(consumer)
            await self.call("stop", consumer.stop(), 35.0)

    async def _read(self, consumer: AsyncConsumer) -> None:
        while not self.world.is_over:
            try:
                found = await self.call("getmany", consumer.getmany(timeout_ms=300), 1.5)
            except RaylogError as error:
                self.world.log(self.name, f"getmany: {error!r}")
                if not error.retriable and not isinstance(error, UnknownTopicOrPartition):
                    return
                await asyncio.sleep(0.1)
                continue
            for at, records in found.items():
                for record in records:
                    self.books.read += 1
                    if at.topic == LETTERS:
                        self._part.letter(record.offset, record.value.rstrip(b"x"))
                    else:
                        self._part.table.add(record.value.rstrip(b"x"))


class RenewedKinds(Part):
    """The topics of one world that are created again."""

    goes_by_clocks = True
    comes_to_rest = False
    patience_s = 60.0

    def __init__(self, world: World) -> None:
        """No life yet."""
        super().__init__(world)
        self.lives = dict.fromkeys(KINDS, 0)
        self.born_s = dict.fromkeys(KINDS, 0.0)
        self.stored: dict[str, list[tuple[bytes, bytes]]] = {topic: [] for topic in KINDS}
        """Keys and values that were acknowledged in the present life, in this order."""
        self.worked: set[bytes] = set()
        self.table: set[bytes] = set()
        self.letters: dict[bytes, int] = {}

    @classmethod
    def join(cls, plan: Plan, chance: random.Random) -> Plan:
        """Clients, and logs that are cleaned often."""
        config = {**plan.config, "log.cleaner.backoff.ms": "200"}
        return replace(plan, config=config, work_s=plan.work_s + 6.0)

    async def make_topics(self, admin: AsyncAdmin) -> None:
        """Create the topic of dead letters; the renewer creates the others."""
        await admin.create_topic(LETTERS, 1, self.world.plan.replication_factor)

    def start(self) -> None:
        """Start the clients."""
        world = self.world
        world.spawn("kinds-renewer", KindsRenewer(world, "kinds-renewer", self).run())
        world.spawn("kinds-worker", KindsWorker(world, "kinds-worker", self).run())
        world.spawn("kinds-reader", KindsReader(world, "kinds-reader", self).run())

    def letter(self, offset: int, value: bytes) -> None:
        """A reader got a dead letter."""
        known = self.letters.setdefault(value, offset)
        if known != offset:
            raise Violation(RULE, f"{value!r} is a dead letter at {known} and at {offset}")

    async def finish(self, admin: AsyncAdmin, until: Until) -> None:
        """Go through some more lives without faults: those that stayed find the last one, and nothing else in it."""
        client = KindsRenewer(self.world, "kinds-finish", self)

        async def renewed() -> str:
            async with AsyncAdmin() as another, client.producer() as producer:
                for _ in range(LAST_LIVES):
                    for topic in KINDS:
                        if failed := await client.failure(client.life(another, producer, topic)):
                            return failed
            return ""

        await until("topics of every kind are created again", renewed)
        began_s = self.world.now_s

        async def missing() -> str:
            wrong = self._missing()
            if wrong and self.world.now_s > began_s + FOUND_S:
                raise Violation(RULE, f"{wrong} {self.world.now_s - began_s:.0f} s later")
            return wrong

        await until("the last lives are found", missing)
        await self._check_table(client)

    def _missing(self) -> str:
        if lost := [value for _, value in self.stored[JOBS] if value not in self.worked]:
            return f"no worker has got {len(lost)} of life {self.lives[JOBS]}, such as {lost[0]!r}"
        if lost := [value for _, value in self.stored[FLEETING] if value not in self.letters]:
            return f"{len(lost)} have expired and are no dead letters, such as {lost[0]!r}"
        last = dict(self.stored[TABLE])
        if lost := [value for value in last.values() if value not in self.table]:
            return f"the reader that stays has not got {lost[0]!r} of the table"
        return ""

    async def _check_table(self, client: Client) -> None:
        """A fresh reader of the table gets the last value of each key, and nothing of an earlier life."""
        at = TopicPartition(TABLE, 0)
        consumer = await started(client, lambda: AsyncConsumer(auto_offset_reset="earliest"))
        consumer.assign([at])
        found: dict[bytes, bytes] = {}
        until_s = self.world.now_s + FOUND_S
        wanted = dict(self.stored[TABLE])
        while found != wanted and self.world.now_s < until_s:
            for record in (await client.call("getmany", consumer.getmany(timeout_ms=300), 1.5)).get(at, []):
                value = record.value.rstrip(b"x")
                if int(value.split(b"/")[1]) != self.lives[TABLE]:
                    raise Violation(RULE, f"a fresh reader got {value!r} in life {self.lives[TABLE]}")
                found[record.key] = value
        await client.call("stop", consumer.stop(), 35.0)
        if found != wanted:
            raise Violation(RULE, f"a fresh reader has the table {found}, and it is {wanted}")
