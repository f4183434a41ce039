"""A topic that is deleted and created again, over and over, while clients of all kinds use it by its name.

What is stored in a life of the topic is read in it, and nothing of an earlier one: neither records that were delayed,
nor offsets that a group committed. A reader that stays finds each new life by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final

from raylog.base.errors import RaylogError, UnknownTopicOrPartition
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from tests.simulation.whole.clients import API_S, DELIVERY_S, LAST_API_S, Client
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.world import World

TOPIC: Final = "created-again"
AT: Final = TopicPartition(TOPIC, 0)
GROUP: Final = "of-every-life"
RULE: Final = "W70"
"""Nothing of an earlier life is read, and everything of the present one."""
LAST_LIVES: Final = 3
RECORDS: Final = 4
FOUND_S: Final = 20.0
"""Longest time in which a client finds the present life of a topic, where nothing is broken."""
DELAY_MS: Final = 1_500
"""Of delayed records: most are due in a later life."""


class Renewed:
    """What is known of the topic: the values of each life."""

    def __init__(self) -> None:
        """No life yet."""
        self.life = 0
        self.stored: list[bytes] = []
        """What was acknowledged in the present life, in this order."""
        self.delivered: dict[str, set[bytes]] = {}
        """What each reader that stays has got."""

    def begin(self) -> None:
        """The topic is about to be deleted and created again."""
        self.life += 1
        self.stored = []

    def missed(self) -> str:
        """Return what a reader that stays has not got of the present life; empty = nothing."""
        for reader, found in self.delivered.items():
            if missing := [value for value in self.stored if value not in found]:
                return f"{reader} has not got {missing[0]!r}, and {len(missing) - 1} more"
        return ""

    def unread(self, found: list[bytes], reader: str) -> str:
        """Return what a reader of the whole topic lacks; it must have got no record of an earlier life."""
        for value in found:
            if int(value.split(b"/")[0]) != self.life:
                raise Violation(RULE, f"{reader} got {value!r} in life {self.life} of {TOPIC}")
        there = [value for value in found if value in self.stored]
        if there != [value for value in self.stored if value in there]:
            raise Violation(RULE, f"{reader} got {there}, which were stored as {self.stored}")
        missing = [value for value in self.stored if value not in there]
        return (
            f"{reader} has not got {len(missing)} of {len(self.stored)} records of life {self.life}" if missing else ""
        )


class Renewer(Client):
    """Creates the topic, writes to it, commits offsets of it, deletes it, and so on."""

    def __init__(self, world: World, name: str) -> None:
        """One process renews the topic at a time."""
        super().__init__(world, name)
        self._part = world.renewed
        self._values = 0

    async def run(self) -> None:
        """Renew the topic until the world is quiet."""
        while not self.world.is_quiet:
            await self.within_faults(self._session())
            await asyncio.sleep(self.between(0.1, 0.5))

    async def within_faults(self, work: Awaitable[Any]) -> str:
        """Await what may fail while its topic is deleted, or while something is broken; return why it failed."""
        try:
            await work
        except RaylogError as error:
            self.world.log(self.name, f"{TOPIC}: {error!r}")
            return repr(error)
        return ""

    async def _session(self) -> None:
        """Work through a few lives with the same producer, which knows the earlier ones."""
        async with AsyncAdmin(request_timeout_ms=int(API_S * 1000)) as admin, self._producer() as producer:
            for _ in range(int(self.between(1, 6))):
                if self.world.is_quiet:
                    break
                await self.within_faults(self._life(admin, producer))
                await asyncio.sleep(self.between(0.0, 2.0))

    def _producer(self) -> AsyncProducer:
        options = self.world.plan.producer_options(self.world.scheduler.random)
        return AsyncProducer(
            delivery_timeout_ms=int(DELIVERY_S * 1000), max_block_ms=int(API_S * 1000), **{**options, "linger_ms": 0}
        )

    async def _life(self, admin: AsyncAdmin, producer: AsyncProducer) -> None:
        await self._renew(admin)
        for _ in range(RECORDS):
            await self._send(producer)
        await self._send_delayed(producer)
        await self._commit()

    async def _renew(self, admin: AsyncAdmin) -> None:
        self._part.begin()
        await self.within_faults(self.call("delete", admin.delete_topic(TOPIC, timeout_s=API_S), API_S))
        factor = self.world.plan.replication_factor
        await self.call("create", admin.create_topic(TOPIC, 1, factor, timeout_s=API_S), API_S)

    async def _send(self, producer: AsyncProducer) -> None:
        self._values += 1
        value = b"%d/%d/" % (self._part.life, self._values)
        future = await self.call("send", producer.send(TOPIC, value, partition=0), API_S)
        await self.call("delivery", future, DELIVERY_S)
        self._part.stored.append(value)

    async def _send_delayed(self, producer: AsyncProducer) -> None:
        """Send a record that is due in a while: what was taken for this life arrives in it, if it lasts."""
        if self.world.plan.delayers:
            self._values += 1
            value = b"%d/%d/delayed" % (self._part.life, self._values)
            work = producer.send(TOPIC, value, partition=0, delay=DELAY_MS)
            future = await self.call("send delayed", work, API_S + 5.0)
            await self.call("store delayed", future, DELIVERY_S + 60.0)
            self._part.stored.append(value)

    async def _commit(self) -> None:
        """Commit the end of this life for a group: its offsets end with the topic."""
        timeout_ms = int(API_S * 1000)
        consumer = AsyncConsumer(group_id=GROUP, enable_auto_commit=False, default_api_timeout_ms=timeout_ms)
        await self.call("start", consumer.start(), LAST_API_S)
        try:
            work = consumer.commit({AT: len(self._part.stored)}, timeout_s=API_S)
            await self.call("commit", work, API_S)
        finally:
            await self.call("stop", consumer.stop(), 35.0)

    # ------------------------------------------------------------ at the end

    async def finish(self) -> str:
        """Go through some more lives without faults; return what fails, or what is not read of the last one."""
        async with AsyncAdmin() as admin, self._producer() as producer:
            for _ in range(LAST_LIVES):
                if failed := await self.within_faults(self._life(admin, producer)):
                    return failed
            await self._renew(admin)
            for _ in range(RECORDS):
                await self._send(producer)
            await self._send_delayed(producer)
        await asyncio.sleep(2 * DELAY_MS / 1000)  # what was delayed in earlier lives is due by now
        return await self._unread(None) or await self._unread(GROUP)

    async def _unread(self, group: str | None) -> str:
        """Return what a fresh consumer, of the group that committed in earlier lives or of none, does not get."""
        consumer = AsyncConsumer(group_id=group, auto_offset_reset="earliest", enable_auto_commit=False)
        await self.call("start", consumer.start(), LAST_API_S)
        found: list[bytes] = []
        try:
            if group is None:
                consumer.assign([AT])
            else:
                consumer.subscribe([TOPIC])
            until_s = self.world.now_s + FOUND_S
            while self._part.unread(found, self._named(group)) and self.world.now_s < until_s:
                for records in (await self.call("getmany", consumer.getmany(timeout_ms=300), 2 * API_S)).values():
                    found += [record.value for record in records]
        finally:
            await self.call("stop", consumer.stop(), 35.0)
        if missing := self._part.unread(found, self._named(group)):
            raise Violation(RULE, f"{missing} within {FOUND_S:.0f} s")
        return ""

    def _named(self, group: str | None) -> str:
        return "a fresh reader" if group is None else f"a member of {group}"


class Stayer(Client):
    """Reads the topic by its name over all its lives: as the only member of a group, or without one."""

    def __init__(self, world: World, name: str, group: str | None) -> None:
        """One reader."""
        super().__init__(world, name)
        self._group = group
        self._found = world.renewed.delivered[name] = set()

    async def run(self) -> None:
        """Read until the world is out of work."""
        while not self.world.is_over:
            consumer = AsyncConsumer(
                group_id=self._group,
                auto_offset_reset="earliest",
                default_api_timeout_ms=int(API_S * 1000),
                metadata_max_age_ms=1_000,
            )
            if await self.tried("start", consumer.start(), LAST_API_S):
                if self._group is None:
                    consumer.assign([AT])
                else:
                    consumer.subscribe([TOPIC])
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
            for records in found.values():
                self._found.update(record.value for record in records)
