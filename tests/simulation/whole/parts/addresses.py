"""Addresses that are used twice, and brokers that all move: each process listens where another one did before it.

Clients outside of Ray have been given addresses once, and go on while every broker is restarted at another one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from raylog.base.errors import ClientClosed, CommitFailed, DeliveryTimedOut, RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from tests.simulation.whole.clients import API_S, DELIVERY_S, LAST_API_S, Client
from tests.simulation.whole.expiries import may_have_expired
from tests.simulation.whole.parts.part import API_MS, DELIVERY_MS, Part, Until
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.plan import Plan
    from tests.simulation.whole.world import World

TOPIC: Final = "outside"
GROUPS: Final = 6
"""Groups whose coordinators may be at an address of another one before."""
RULE: Final = "W82"
"""An address is no identity, and a client that knows one broker finds the others wherever they are."""
ROLLED_S: Final = 4.0
"""Between two brokers of a rolling restart."""
FOUND_S: Final = 20.0


class Outsider(Client):
    """Writes, reads and commits from outside of Ray, with the addresses of a moment, over short lives."""

    def __init__(self, world: World, name: str, part: Addresses) -> None:
        """No life yet."""
        super().__init__(world, name)
        self._part = part
        self._count = 0
        self._committed = [0] * GROUPS
        self._committed_s = [0.0] * GROUPS
        self._renamed = [0] * GROUPS

    def where(self) -> dict[str, Any]:
        """Return the addresses of the brokers that serve now, and what to prove."""
        actors = self.world.cluster.named("broker-")
        endpoints = ["{}:{}".format(*actor.server.endpoint) for actor in actors if actor.serves]
        return {"bootstrap": endpoints, **self.world.cluster.outside} if endpoints else {}

    async def run(self) -> None:
        """Work until the world is quiet; each commit is read back by another consumer of its group."""
        number = 0
        while not self.world.is_quiet:
            await asyncio.sleep(self.between(0.0, 1.0))
            where = self.where()
            if not where:
                continue
            await self._write(where)
            number += 1
            await self._visit(where, number % GROUPS)

    async def _write(self, where: dict[str, Any]) -> None:
        producer = AsyncProducer(delivery_timeout_ms=DELIVERY_MS, max_block_ms=API_MS, **where)
        if await self.tried("start", producer.start(), LAST_API_S):
            for _ in range(int(self.between(1, 5))):
                self._count += 1
                value = f"{self.name}/{self._count}".encode()
                try:
                    future = await self.call("send", producer.send(TOPIC, value, partition=0), API_S)
                    await self.call("delivery", future, DELIVERY_S)
                except RaylogError as error:
                    if not (error.retriable or isinstance(error, DeliveryTimedOut | ClientClosed)):
                        raise Violation("W8", f"{self.name}: {value!r} failed for good: {error!r}") from error
                else:
                    self._part.stored.append(value)
        await self.call("stop", producer.stop(), DELIVERY_S + 10.0)

    async def _visit(self, where: dict[str, Any], number: int) -> None:
        """Read back what was committed for a group, and commit more."""
        at = TopicPartition(TOPIC, 0)
        group = f"{self.name}-{number}-{self._renamed[number]}"
        consumer = AsyncConsumer(group_id=group, enable_auto_commit=False, default_api_timeout_ms=API_MS, **where)
        if not await self.tried("start", consumer.start(), LAST_API_S):
            return
        try:
            found = await self.call("committed", consumer.committed(at), API_S)
        except RaylogError as error:
            self.world.log(self.name, f"committed: {error!r}")
        else:
            if found is None and may_have_expired(self.world, self._committed_s[number]):
                self._committed[number] = 0
            if (found or 0) != self._committed[number]:
                raise Violation(RULE, f"{self._committed[number]} was committed by {group}, and {found} is there")
        began_s = self.world.now_s
        work = consumer.commit({at: self._committed[number] + 1}, timeout_s=API_S)
        if await self.tried("commit", work, API_S, CommitFailed):
            self._committed[number] += 1
            self._committed_s[number] = began_s
        else:  # it may be stored at any time from now on
            self._committed[number] = 0
            self._renamed[number] += 1
        await self.call("stop", consumer.stop(), 35.0)


class Addresses(Part):
    """The addresses of one world."""

    patience_s = 120.0

    def __init__(self, world: World) -> None:
        """Use ports again from the start."""
        super().__init__(world)
        world.network.uses_ports_again = True
        self.stored: list[bytes] = []

    @classmethod
    def join(cls, plan: Plan, chance: random.Random) -> Plan:
        """Have several coordinators, which change places often."""
        config = {**plan.config, "offsets.topic.num.partitions": "4"}
        return replace(plan, config=config, work_s=plan.work_s + 4.0)

    @property
    def faults(self) -> Sequence[Callable[[], None]]:
        """Coordinators change places."""
        return (self.move_coordinators, self.move_coordinators)

    def move_coordinators(self) -> None:
        """End most coordinators at once: some come back where another one was."""
        for actor in self.world.cluster.named("coordinator-"):
            if actor.process is not None and self.world.scheduler.chance(0.7):
                actor.process.kill("killed with the others")

    async def make_topics(self, admin: AsyncAdmin) -> None:
        """Create the topic."""
        await admin.create_topic(TOPIC, 1, self.world.plan.replication_factor)

    def start(self) -> None:
        """Start the clients."""
        for name in ("outsider-0", "outsider-1"):
            self.world.spawn(name, Outsider(self.world, name, self).run())

    async def finish(self, admin: AsyncAdmin, until: Until) -> None:
        """Clients that were started before every broker moved write and read afterwards."""
        client = Outsider(self.world, "outside-finish", self)
        where = client.where()
        at = TopicPartition(TOPIC, 0)
        producer = AsyncProducer(delivery_timeout_ms=DELIVERY_MS, max_block_ms=API_MS, **where)
        reader = AsyncConsumer(auto_offset_reset="earliest", default_api_timeout_ms=API_MS, **where)
        outside = AsyncAdmin(request_timeout_ms=API_MS, **where)
        for each in (producer, reader, outside):
            await client.call("start", each.start(), LAST_API_S)
        reader.assign([at])
        found: set[bytes] = set()
        for broker in range(1, self.world.plan.brokers + 1):
            await self._read(client, reader, found, ROLLED_S)
            await self._restart(client, producer, broker, until)
            await self._list(client, outside)
        began_s = self.world.now_s
        while missing := [value for value in self.stored if value not in found]:
            if self.world.now_s > began_s + FOUND_S:
                raise Violation(RULE, f"the reader has not got {len(missing)} records such as {missing[0]!r}")
            await self._read(client, reader, found, 0.5)
        for each in (producer, reader, outside):
            await client.call("stop", each.stop(), 35.0)

    async def _list(self, client: Client, outside: AsyncAdmin) -> None:
        """An administrator that is used meanwhile goes on; one that is idle all the time knows no address any more."""
        try:
            await client.call("list topics", outside.list_topics(timeout_s=API_S), API_S + 1.0)
        except RaylogError as error:
            raise Violation(RULE, f"an administrator from before finds no broker: {error!r}") from error

    async def _read(self, client: Client, reader: AsyncConsumer, found: set[bytes], for_s: float) -> None:
        until_s = self.world.now_s + for_s
        while self.world.now_s < until_s:
            for records in (await client.call("getmany", reader.getmany(timeout_ms=300), 1.5)).values():
                found.update(record.value for record in records)

    async def _restart(self, client: Client, producer: AsyncProducer, broker: int, until: Until) -> None:
        """End a broker's process; it comes back at another port, and records are stored meanwhile."""
        actor = self.world.cluster.actors[f"broker-{broker}"]
        if actor.process is not None:
            actor.process.kill("restarted at another address")

        async def away() -> str:
            return "" if actor.serves else f"broker {broker} does not serve"

        await until("a restarted broker serves", away)
        value = b"past the restart of %d" % broker
        try:
            future = await client.call("send", producer.send(TOPIC, value, partition=0), API_S)
            await client.call("delivery", future, DELIVERY_S)
        except RaylogError as error:
            raise Violation(RULE, f"a producer from before reaches no leader: {error!r}") from error
        self.stored.append(value)
