"""A client of groups without members, which come back after a pause: their coordinators have ended meanwhile.

Used by ``world.py`` where partitions sleep.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from raylog.base.errors import RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.types import OffsetAndMetadata
from tests.simulation.whole.clients import API_S, LAST_API_S, Client
from tests.simulation.whole.expiries import may_have_expired
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.world import World

GROUPS: Final = 3
PAUSE_S: Final = 7.0
"""Longest pause between two visits."""


class Visitor(Client):
    """Commits ever higher offsets for some groups, and reads each back at the next visit."""

    def __init__(self, world: World, name: str) -> None:
        """No group has an offset yet."""
        super().__init__(world, name)
        self._committed = [0] * GROUPS
        self._committed_s = [0.0] * GROUPS
        self._renamed = [0] * GROUPS

    async def run(self) -> None:
        """Visit the groups in turn until the world is out of work."""
        number = 0
        while not self.world.is_over:
            await self._visit(number % GROUPS)
            number += 1
            await asyncio.sleep(self.between(0.0, PAUSE_S))

    async def _visit(self, number: int) -> None:
        at = TopicPartition(self.world.steady_topics[0], 0)
        group = f"visitors-{number}-{self._renamed[number]}"
        consumer = AsyncConsumer(
            group_id=group, enable_auto_commit=False, default_api_timeout_ms=int(API_S * 1000), retry_backoff_ms=20
        )
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
                raise Violation("W7", f"{self._committed[number]} was committed by {group}, and {found} is there")
            began_s = self.world.now_s
            offsets = {at: OffsetAndMetadata(self._committed[number] + 1)}
            if await self.tried("commit", consumer.commit(offsets, timeout_s=API_S), API_S):
                self._committed[number] += 1
                self._committed_s[number] = began_s
            else:  # it may be stored at any time from now on
                self._committed[number] = 0
                self._renamed[number] += 1
        await self.call("stop", consumer.stop(), 35.0)
