"""What ends by itself after days, here after a minute or less: producers, transactional ids, offsets of groups.

A producer that comes back after that goes on, once and in order; an offset is there for its whole time, and not for
long after it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from raylog.base.errors import RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from tests.simulation.whole.clients import API_S, DELIVERY_S, LAST_API_S, Client, ProducingClient
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.world import World

GROUP: Final = "without-members"
RULE: Final = "W71"
OFFSETS_S: Final = 60.0
"""The shortest retention of offsets that can be set."""
LATE_S: Final = 15.0
"""So long after its time an offset is deleted."""
SKEW_S: Final = 2.0
"""By how much two coordinators' clocks may differ."""
OFFSET: Final = 3
IN_TURN: Final = 3


def may_have_expired(world: World, committed_s: float) -> bool:
    """Whether an offset that was committed then, in a group without members, may be deleted by now."""
    return bool(world.plan.forgets_producers_s) and world.now_s >= committed_s + OFFSETS_S - SKEW_S


class SeldomProducer(ProducingClient):
    """A producer whose pauses are longer than producers are remembered."""

    def __init__(self, world: World, name: str) -> None:
        """One idempotent producer."""
        super().__init__(world, name, acks="all", idempotent=True)

    def pause_s(self) -> float:
        """Return how long to wait between two bursts."""
        return self.between(0.5, 1.5) * self.world.plan.forgets_producers_s


class ExpiriesFinish(Client):
    """The last claims about what ends by itself, when nothing is broken."""

    async def run(self) -> None:
        """A group commits, and is left alone; meanwhile a transactional id expires, and is used again."""
        at = TopicPartition(self.world.steady_topics[0], 0)
        consumer = AsyncConsumer(group_id=GROUP, enable_auto_commit=False)
        await self.call("start", consumer.start(), LAST_API_S)
        try:
            await self.call("commit", consumer.commit({at: OFFSET}, timeout_s=API_S), API_S)
            committed_s = self.world.now_s
            await self._use_id()
            await asyncio.sleep(1.2 * self.world.plan.forgets_producers_s)
            await self._use_id()
            while (found := await self.call("committed", consumer.committed(at), API_S)) is not None:
                self.world.waits_for = f"the offset of {GROUP} expires"
                if self.world.now_s > committed_s + OFFSETS_S + LATE_S:
                    raise Violation(RULE, f"{found} of {GROUP} is there {self.world.now_s - committed_s:.0f} s later")
                await asyncio.sleep(1.0)
            if not may_have_expired(self.world, committed_s):
                raise Violation(RULE, f"the offset of {GROUP} was deleted {self.world.now_s - committed_s:.0f} s later")
        finally:
            await self.call("stop", consumer.stop(), 35.0)

    async def _use_id(self) -> None:
        """Commit transactions with a transactional id, whether or not the coordinator still knows it."""
        try:
            producer = AsyncProducer(transactional_id="seldom", delivery_timeout_ms=int(DELIVERY_S * 1000))
            await self.call("start", producer.start(), LAST_API_S)
            await self.call("init", producer.init_transactions(), 2 * API_S)
            for _ in range(IN_TURN):
                await self.call("begin", producer.begin_transaction(), API_S)
                future = await self.call("send", producer.send("seldom", b"in a transaction", partition=0), API_S)
                await self.call("commit", producer.commit_transaction(), DELIVERY_S + 2 * API_S)
                await future
            await self.call("stop", producer.stop(), DELIVERY_S + 10.0)
        except RaylogError as error:
            raise Violation("W16", f"no transaction of an id that is seldom used commits: {error!r}") from error
