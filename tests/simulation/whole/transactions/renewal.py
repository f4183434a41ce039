"""A client that writes in transactions to a topic that is deleted and created again, between and within transactions.

What is committed in a life of the topic is read in it by readers of committed records; nothing stays open there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from raylog.base.errors import InvalidReplicationFactor, RaylogError, TopicAlreadyExists, UnknownTopicOrPartition
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from tests.simulation.whole.clients import API_S, LAST_API_S
from tests.simulation.whole.transactions.clients import END_S, Transactor, refusals

if TYPE_CHECKING:
    from tests.simulation.whole.world import World

TOPIC: Final = "renewed"
PLACE: Final = "renewal"
AT: Final = TopicPartition(TOPIC, 0)
WITHIN: Final = 0.3
"""Share of transactions in whose middle the topic is created again."""
LAST_LIVES: Final = 2
"""Lives of the topic once everything was healed."""


class Renewal(Transactor):
    """Creates the topic, commits to it, deletes it, and so on."""

    def __init__(self, world: World, name: str) -> None:
        """One process: no other process fences it."""
        super().__init__(world, name, PLACE)
        self._admin = AsyncAdmin()
        self._lives = self._values = 0
        self.committed: list[bytes] = []
        """What was committed in the present life of the topic."""

    async def run(self) -> None:
        """Renew the topic until the world is quiet."""
        while not await self.tried("start", self._admin.start(), LAST_API_S):
            self._admin = AsyncAdmin()
            await asyncio.sleep(0.5)
        while not self.world.is_quiet:
            await self._session()
        await self.call("stop", self._admin.stop(), 35.0)

    async def _session(self) -> None:
        """Work through one producer until something fails for good."""
        producer = await self.started()
        if producer is None:
            return
        while not self.world.is_quiet:
            await self.renewed()
            if not await self.transaction(producer, within=self.chance(WITHIN)):
                break
            await asyncio.sleep(self.between(0.0, 1.0))
        await self.ended(producer)

    async def started(self) -> AsyncProducer | None:
        """Return a producer that has initialised its transactions; None = that failed."""
        producer = self._producer()
        if await self.tried("start", producer.start(), LAST_API_S):
            if await self.tried("init", producer.init_transactions(), API_S, *refusals(self.world)):
                return producer
            await self.ended(producer)
        return None

    async def renewed(self) -> bool:
        """Delete the topic and create it again; returns whether both are known to have been done."""
        self.committed = []
        factor = self.world.plan.replication_factor
        is_deleted = await self.tried("delete", self._admin.delete_topic(TOPIC, timeout_s=API_S), API_S, *_ABSENT)
        work = self._admin.create_topic(TOPIC, 1, factor, timeout_s=API_S)
        made = await self.tried("create", work, API_S, TopicAlreadyExists, InvalidReplicationFactor)
        self._lives += made
        return is_deleted and made

    async def transaction(self, producer: AsyncProducer, *, within: bool) -> bool:
        """Commit some records, or abort where something has failed; returns whether the producer can go on."""
        sent: list[bytes] = []
        try:
            await producer.begin_transaction()
            for number in range(3):
                if number == 2 and within:
                    await self.renewed()
                    sent = []  # what was stored before is deleted with the topic
                self._values += 1
                value = f"{self.name}/{self._lives}/{self._values}".encode()
                future = await self.call("send", producer.send(TOPIC, value, partition=0), API_S)
                await future
                sent.append(value)
            await self.call("commit", producer.commit_transaction(), END_S)
        except RaylogError as error:
            self.world.log(self.name, f"transaction: {error!r}")
            return await self.tried("abort", producer.abort_transaction(), END_S, *refusals(self.world))
        self.committed += sent
        return True

    async def finish(self) -> str:
        """Renew the topic some more times without faults; return what is not read of the last life."""
        admin = self._admin = AsyncAdmin()
        await self.call("start", admin.start(), LAST_API_S)
        try:
            producer = await self.started()
            if producer is None:
                return "the renewed topic has no producer"
            for _ in range(LAST_LIVES):
                if not (await self.renewed() and await self.transaction(producer, within=False)):
                    return "the topic is not renewed"
            for within in (True, False):
                if not await self.transaction(producer, within=within):
                    return "the renewed topic has no transaction"
            await self.ended(producer)
            return await self._unread()
        finally:
            await self.call("stop", admin.stop(), 35.0)

    async def _unread(self) -> str:
        if not self.committed:
            return "nothing was committed to the renewed topic"
        consumer = AsyncConsumer(isolation_level="read_committed", auto_offset_reset="earliest")
        await self.call("start", consumer.start(), LAST_API_S)
        found: list[bytes | None] = []
        try:
            consumer.assign([AT])
            until_s = self.world.now_s + API_S
            while not set(self.committed) <= set(found) and self.world.now_s < until_s:
                for records in (await self.call("getmany", consumer.getmany(timeout_ms=300), 2 * API_S)).values():
                    found += [record.value for record in records]
        except RaylogError as error:
            return repr(error)
        finally:
            await self.call("stop", consumer.stop(), 35.0)
        missing = [value for value in self.committed if value not in found]
        return f"{missing} were committed to {TOPIC}, and are not read" if missing else ""


_ABSENT: Final = (UnknownTopicOrPartition,)
