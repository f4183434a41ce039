"""A compacted topic with unclean elections, which transactions write to as well: records are lost, and nothing else.

A replica that returns cuts its log where the histories part, also in the middle of what a cleaning has left out. What
hangs because its marker was lost can be found and ended; then everything is readable to its end.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from raylog.base.errors import InvalidTxnState, OffsetOutOfRange, RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.accepted import IsolationLevel
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from tests.simulation.whole.clients import API_S, DELIVERY_S, Client
from tests.simulation.whole.parts.part import API_MS, Part, Until, started, woken
from tests.simulation.whole.parts.sender import Sender
from tests.simulation.whole.plan import with_cleaners
from tests.simulation.whole.transactions.clients import refusals
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.plan import Plan
    from tests.simulation.whole.world import World

TOPIC: Final = "unclean-table"
AT: Final = TopicPartition(TOPIC, 0)
RULE: Final = "W81"
"""What an unclean election costs are records: the log goes on, and is read to its end."""
FIRST_S: Final = (2.0, 6.0)
END_S: Final = 30.0
"""Longest time until a reader of committed records is at the end, once what hangs was ended."""


class UncleanWriter(Sender):
    """Writes records of few keys, in transactions or not."""

    def __init__(self, world: World, name: str, *, transactional: bool) -> None:
        """One producer after the other."""
        super().__init__(world, name)
        self._transactional = transactional
        self._count = 0

    async def run(self) -> None:
        """Write until the world is quiet."""
        await self.work(self.made, self.write, begins=self._transactional)

    def made(self) -> AsyncProducer:
        """Make the next producer."""
        return self.producer(is_transactional=self._transactional, batch_size=self.pick([100, 500, 16_384]))

    async def write(self, producer: AsyncProducer) -> bool:
        """Write some records; return whether the producer can go on."""
        try:
            if self._transactional:
                await self.call("begin", producer.begin_transaction(), API_S)
            for _ in range(int(self.between(1, 12))):
                self._count += 1
                value = f"{self.name}/{self._count}/{'x' * int(self.between(0, 100))}".encode()
                key = b"key %d" % int(self.between(0, 3))
                future = await self.call("send", producer.send(TOPIC, value, key=key, partition=0), API_S + 5.0)
                _ = self.beside(self.ignored(future))
            if self._transactional:
                end = producer.commit_transaction() if self.chance(0.6) else producer.abort_transaction()
                await self.call("end", end, DELIVERY_S + 2 * API_S)
        except RaylogError as error:
            self.failed(error)
            return False
        await asyncio.sleep(self.between(0.0, self.world.plan.send_pause_s))
        return True


class UncleanTableReader(Client):
    """Reads the topic from its start, over and over."""

    def __init__(self, world: World, name: str, isolation: IsolationLevel) -> None:
        """One reader."""
        super().__init__(world, name)
        self._isolation = isolation
        self.position = 0

    async def run(self) -> None:
        """Read until the world is over; offsets rise, unless the log was cut behind this reader."""
        while not self.world.is_over:
            consumer = await started(self, self._consumer)
            consumer.assign([AT])
            until_s = self.world.now_s + self.between(3.0, 15.0)
            while not self.world.is_over and (self.world.now_s < until_s or self.world.is_quiet):
                found = await self.call("getmany", consumer.getmany(timeout_ms=300), 1.5)
                self.books.read += sum(map(len, found.values()))
                try:
                    self.position = await self.call("position", consumer.position(AT), API_S + 1.0)
                except RaylogError as error:
                    self.world.log(self.name, f"position: {error!r}")
            await self.call("stop", consumer.stop(), 35.0)

    def _consumer(self) -> AsyncConsumer:
        return AsyncConsumer(
            isolation_level=self._isolation,
            auto_offset_reset="earliest",
            default_api_timeout_ms=API_MS,
            metadata_max_age_ms=1_000,
            max_partition_fetch_bytes=self.pick([100, 1 << 20]),
        )


class UncleanTables(Part):
    """The compacted topic with unclean elections of one world."""

    comes_to_rest = False
    patience_s = 60.0
    may_differ = frozenset([TOPIC])  # a cleaning took a record out for a later one, which was lost afterwards

    def __init__(self, world: World) -> None:
        """Nothing is written."""
        super().__init__(world)
        self.readers: list[UncleanTableReader] = []

    @classmethod
    def join(cls, plan: Plan, chance: random.Random) -> Plan:
        """Clean logs often, and have followers miss what their leader commits alone."""
        cleaned = with_cleaners(plan, chance)
        config = {
            **cleaned.config,
            "log.cleaner.backoff.ms": "100",
            "log.cleaner.io.max.bytes.per.second": str(1 << 40),
        }
        return replace(cleaned, config=config, work_s=plan.work_s + 12.0)

    async def make_topics(self, admin: AsyncAdmin) -> None:
        """Create the topic."""
        config = {
            "cleanup.policy": "compact",
            "segment.bytes": self.world.scheduler.random.choice(["1100", "1500", "4000"]),
            "min.cleanable.dirty.ratio": "0.01",
            "min.insync.replicas": "1",
            "unclean.leader.election.enable": "true",
        }
        await admin.create_topic(TOPIC, 1, 3, config)

    def start(self) -> None:
        """Start the clients, and lose the first leader soon."""
        world = self.world
        world.spawn("unclean-writer", UncleanWriter(world, "unclean-writer", transactional=False).run())
        world.spawn("unclean-teller", UncleanWriter(world, "unclean-teller", transactional=True).run())
        isolations: tuple[IsolationLevel, ...] = ("read_committed", "read_uncommitted")
        for isolation in isolations:
            name = f"unclean-{isolation}-reader"
            self.readers.append(UncleanTableReader(world, name, isolation))
            world.spawn(name, self.readers[-1].run())
        world.scheduler.after(world.scheduler.between(*FIRST_S), self.lose)

    @property
    def faults(self) -> tuple[partial[None], ...]:
        """Unclean elections."""
        return (partial(self.lose), partial(self.lose))

    def lose(self) -> None:
        """Have the leader commit alone, and lose it."""
        if self.world.nemesis.is_active:
            self.world.nemesis.schemes.lose_unclean(TOPIC)

    async def finish(self, admin: AsyncAdmin, until: Until) -> None:
        """The topic takes transactions, what hangs is ended, and every reader comes to the end."""
        client = UncleanWriter(self.world, "unclean-finish", transactional=True)

        async def unwritten() -> str:
            producer = await started(client, client.made)
            try:
                if not await client.tried("init", producer.init_transactions(), API_S, *refusals(self.world)):
                    return "no producer has begun"
                return "" if await client.write(producer) else "a transaction failed"
            finally:
                await client.call("stop", producer.stop(), DELIVERY_S + 10.0)

        await until("the topic takes a transaction", unwritten)
        await until("no transaction hangs", lambda: self._hanging(client, admin))
        began_s = self.world.now_s

        async def behind() -> str:
            runner = next(iter(self.world.observer.runners(AT).values()), None)
            if runner is None:
                return await woken(client, admin, TOPIC)
            end = runner.machine.high_watermark
            for reader in self.readers:
                if reader.position < end:
                    if self.world.now_s > began_s + END_S:
                        raise Violation(RULE, f"{reader.name} stands at {reader.position}, and {AT} ends at {end}")
                    return f"{reader.name} stands at {reader.position} of {end}"
            return ""

        await until("readers are at the end", behind)

    async def _hanging(self, client: Client, admin: AsyncAdmin) -> str:
        """End what hangs; return what there was."""
        try:
            found = await client.call("find", admin.find_hanging_transactions([TOPIC], timeout_s=2 * API_S), 3 * API_S)
            for each in found:
                work = admin.abort_transaction(each.partition, each.producer.producer_id, timeout_s=API_S)
                await client.tried("abort what hangs", work, API_S + 1.0, InvalidTxnState, OffsetOutOfRange)
        except RaylogError as error:
            return repr(error)
        return f"{len(found)} do" if found else ""
