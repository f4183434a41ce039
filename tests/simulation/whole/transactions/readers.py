"""Readers of committed records, and a client that follows the group's offsets and the last stable offsets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from raylog.base.errors import RaylogError
from raylog.client.consumer.consumer import AsyncConsumer
from tests.simulation.whole.books import At
from tests.simulation.whole.clients import API_S, LAST_API_S, Client

if TYPE_CHECKING:
    from tests.simulation.whole.world import World

COMMITTED: Final = "read_committed"


class CommittedReader(Client):
    """Reads the committed records of all partitions, with seeks."""

    def __init__(self, world: World, name: str, *, seeks: float) -> None:
        """``seeks``: the share of polls that a seek follows."""
        super().__init__(world, name)
        self._seeks = seeks
        self.positions: dict[At, int] = {}

    async def run(self) -> None:
        """Read until the world is out of work."""
        part = self.world.transactions
        assert part is not None
        consumer = self._consumer()
        while not await self.tried("start", consumer.start(), LAST_API_S):
            consumer = self._consumer()
        consumer.assign([*part.inputs, *part.outputs])
        while not self.world.is_over:
            wait_s = self.between(0.0, 0.5)
            found = await self.call("getmany", consumer.getmany(timeout_ms=wait_s * 1000), wait_s + 1.0)
            for at, records in found.items():
                for record in records:
                    self.world.books.seen(self.name, at, record.offset, record.value)
                    part.ledger.seen(self.name, at, record.offset, record.value)
                    part.ledger.step(self.name, at, self.positions.get(at, 0), record.offset)
                    self.positions[at] = record.offset + 1
            if self.positions and self.chance(self._seeks):
                await asyncio.sleep(self.between(0.0, 0.3))  # so that the seek meets a buffer
                at = self.pick(list(self.positions))
                target = int(self.between(0, self.positions[at]))
                consumer.seek(at, target)
                self.positions[at] = target
        await self.call("stop", consumer.stop(), 35.0)

    def _consumer(self) -> AsyncConsumer:
        timeout_ms = int(API_S * 1000)
        return AsyncConsumer(isolation_level=COMMITTED, auto_offset_reset="earliest", default_api_timeout_ms=timeout_ms)


class Follower(Client):
    """Fetches the stable offsets of the copiers' group and the ends of the partitions, again and again."""

    async def run(self) -> None:
        """Follow until the world is out of work."""
        part = self.world.transactions
        assert part is not None
        consumer = self._consumer(part.group)
        while not await self.tried("start", consumer.start(), LAST_API_S):
            consumer = self._consumer(part.group)
        while not self.world.is_over:
            await asyncio.sleep(self.between(0.1, 1.0))
            at = self.pick(part.inputs)
            known = part.ledger.known_offset(at)
            try:
                found = await self.call("committed", consumer.committed(at), API_S)
            except RaylogError as error:
                self.world.log(self.name, f"committed: {error!r}")
            else:
                part.ledger.fetched(at, known, found)
            at = self.pick([*part.inputs, *part.outputs, *part.accounts])
            try:
                [end] = (await self.call("end offsets", consumer.end_offsets([at]), API_S)).values()
            except RaylogError as error:
                self.world.log(self.name, f"end offsets: {error!r}")
            else:
                part.ledger.stable(at, end)
                self.books.on_committed(at, end, f"{self.name} has learned that {at} is stable up to {end}", False)
        await self.call("stop", consumer.stop(), 35.0)

    def _consumer(self, group: str) -> AsyncConsumer:
        return AsyncConsumer(
            group_id=group,
            isolation_level=COMMITTED,
            enable_auto_commit=False,
            default_api_timeout_ms=int(API_S * 1000),
        )
