"""Readers of the compacted topic of transactions, and an administrator of it and of the coordinators' topics."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from raylog.base.errors import RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.core.controller.coordinators import INTERNAL_TOPICS
from tests.simulation.whole.books import At
from tests.simulation.whole.clients import API_S, LAST_API_S, Client
from tests.simulation.whole.compaction.clients import HEADER, TableAdministrator
from tests.simulation.whole.transactions.readers import COMMITTED
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.world import World


class AccountReader(Client):
    """Reads the committed records of a partition from its start to its end, again and again."""

    async def run(self) -> None:
        """Read until the world is out of work."""
        part = self.world.transactions
        assert part is not None
        while not self.world.is_over:
            options = {
                "fetch_max_wait_ms": self.pick([20, 500]),
                "max_partition_fetch_bytes": self.pick([300, 1 << 20]),
            }
            consumer = reader_of_accounts(**options)
            if not await self.tried("start", consumer.start(), LAST_API_S):
                continue
            for _ in range(int(self.between(1, 6))):
                await self.read_through(consumer, self.pick(part.accounts))
                await asyncio.sleep(self.between(0.0, 4.0))
            await self.call("stop", consumer.stop(), 35.0)

    async def read_through(self, consumer: AsyncConsumer, at: At) -> dict[int, bytes]:
        """Read a partition from its start to its last stable offset; return the names of what is there, by offset."""
        part, found = self.world.transactions, dict[int, bytes]()
        assert part is not None
        books = part.account_books
        consumer.assign([at])
        consumer.seek(at, 0)
        ends = None
        while ends is None:
            try:
                ends = await self.call("end offsets", consumer.end_offsets([at]), API_S)
            except RaylogError as error:
                self.world.log(self.name, f"end offsets: {error!r}")
                if self.world.is_over:
                    return found
        known, last = books.known(at, ends[at]), -1
        while not self.world.is_over and await self.call("position", consumer.position(at), API_S) < ends[at]:
            for record in (await self.call("getmany", consumer.getmany(timeout_ms=500), 1.5)).get(at, []):
                if record.offset <= last:
                    raise Violation("W5", f"{self.name} got {record.offset} of {at} after {last}")
                last = record.offset
                name = dict(record.headers)[HEADER] or b""
                books.seen(self.name, at, last, record.key, record.value, name)
                part.ledger.seen(self.name, at, last, name)
                found[last] = name
                self.books.read += 1
        if not self.world.is_over:
            books.went(self.name, known, found)
        return found


def reader_of_accounts(**options: Any) -> AsyncConsumer:
    """Return a reader of committed records."""
    timeout_ms = int(API_S * 1000)
    return AsyncConsumer(
        isolation_level=COMMITTED, auto_offset_reset="earliest", default_api_timeout_ms=timeout_ms, **options
    )


class AccountAdministrator(TableAdministrator):
    """Moves and configures the compacted topic of transactions and those of coordinators."""

    def __init__(self, world: World, name: str) -> None:
        """One administrator."""
        super().__init__(world, name)
        assert world.transactions is not None
        coordinated = [TopicPartition(topic, 0) for topic in sorted(INTERNAL_TOPICS.values())]
        self.partitions = [*world.transactions.accounts, *coordinated]
        self.deeds = [self._move, self._configure, self._configure]

    async def run(self) -> None:
        """Change things until the world is quiet; what may still move then is waited for."""
        await super().run()
        assert self.world.transactions is not None
        self.world.transactions.working.discard(self.name)

    async def _configure(self, admin: AsyncAdmin, at: At) -> None:
        change = self.pick(
            [
                {"segment.bytes": str(int(self.between(1_024, 5_000)))},
                {"min.cleanable.dirty.ratio": self.pick(["0.01", "0.3", "0.5"])},
                {"max.compaction.lag.ms": self.pick(["1000", "10000000"])},
            ]
        )
        await self.tried(f"configure {at.topic}", admin.alter_topic_config(at.topic, change, timeout_s=API_S), API_S)
