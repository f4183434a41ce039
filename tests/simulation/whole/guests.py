"""A guest of a world: comes with a topic, a transactional id and groups of its own, uses everything, and goes again.

Nothing of it is left in any process once what is forgotten by age has been forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from raylog.base.errors import RaylogError
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from raylog.client.queues.consumer import AsyncQueueConsumer
from tests.simulation.whole.clients import API_S, DELIVERY_S, LAST_API_S, Client
from tests.simulation.whole.parts.part import API_MS, DELIVERY_MS
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.world import World

LATER_MS: Final = 60_000
"""After the topic was deleted, and before the next guest comes."""
FOUND_S: Final = 20.0


class Guest(Client):
    """One visit. Everything is whole: nothing that it does may fail."""

    def __init__(self, world: World, name: str) -> None:
        """``name``: of its topic, its groups and its transactional id."""
        super().__init__(world, name)

    async def run(self) -> None:
        """Come, use everything once, and go."""
        try:
            async with AsyncAdmin(request_timeout_ms=API_MS) as admin:
                work = admin.create_topic(self.name, 1, self.world.plan.replication_factor, timeout_s=API_S)
                await self.call("create", work, API_S)
                await self._transaction(is_kept=False)
                await self._transaction(is_kept=True)
                await self._schedule(admin)
                await self._consume()
                await self._work()
                await self.call("delete queue", admin.delete_queue(f"{self.name}-queue", timeout_s=API_S), API_S)
                await self.call("delete", admin.delete_topic(self.name, timeout_s=API_S), API_S)
        except RaylogError as error:
            raise Violation("W16", f"{self.name} meets {error!r} although all is as it should be") from error

    async def _transaction(self, *, is_kept: bool) -> None:
        producer = AsyncProducer(
            transactional_id=self.name, delivery_timeout_ms=DELIVERY_MS, max_block_ms=API_MS, linger_ms=0
        )
        await self.call("start", producer.start(), LAST_API_S)
        await self.call("init", producer.init_transactions(), 2 * API_S)
        await self.call("begin", producer.begin_transaction(), API_S)
        future = await self.call("send", producer.send(self.name, b"in a transaction"), API_S)
        await self.call("delivery", future, DELIVERY_S)
        end = producer.commit_transaction() if is_kept else producer.abort_transaction()
        await self.call("end", end, DELIVERY_S + 2 * API_S)
        await self.call("stop", producer.stop(), DELIVERY_S + 10.0)

    async def _schedule(self, admin: AsyncAdmin) -> None:
        """Leave a record that is due when its topic was deleted, and take another one back."""
        async with AsyncProducer(delivery_timeout_ms=DELIVERY_MS, max_block_ms=API_MS) as producer:
            left, back = [producer.send(self.name, value, delay=LATER_MS) for value in (b"left", b"taken back")]
            await self.call("delivery", await self.call("send", left, API_S + 5.0), DELIVERY_S + 60.0)
            stored = await self.call("delivery", await self.call("send", back, API_S + 5.0), DELIVERY_S + 60.0)
        await self.call("cancel", admin.cancel_scheduled(stored.schedule, timeout_s=API_S), API_S + 5.0)

    async def _consume(self) -> None:
        """Read what was committed as a group, and commit it."""
        consumer = AsyncConsumer(
            group_id=self.name,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            default_api_timeout_ms=API_MS,
        )
        await self.call("start", consumer.start(), LAST_API_S)
        consumer.subscribe([self.name])
        until_s, count = self.world.now_s + FOUND_S, 0
        while not count:
            if self.world.now_s > until_s:
                raise Violation("W16", f"{self.name} has read nothing")
            count = sum(map(len, (await self.call("getmany", consumer.getmany(timeout_ms=300), 2.5)).values()))
        await self.call("commit", consumer.commit(timeout_s=API_S), API_S)
        await self.call("stop", consumer.stop(), 35.0)

    async def _work(self) -> None:
        """Work off the topic as a queue."""
        consumer = AsyncQueueConsumer(
            self.name, group_id=f"{self.name}-queue", request_timeout_ms=API_MS, auto_offset_reset="earliest"
        )
        await self.call("start", consumer.start(), LAST_API_S)
        until_s, count = self.world.now_s + FOUND_S, 0
        while not count:
            if self.world.now_s > until_s:
                raise Violation("W16", f"{self.name} has worked on nothing")
            for message in await self.call("getmany", consumer.getmany(timeout_ms=300), 2.5):
                message.ack()
                count += 1
        await self.call("commit", consumer.commit(timeout_s=API_S + 2.0), API_S + 5.0)
        await self.call("stop", consumer.stop(timeout_s=API_S), 35.0)
