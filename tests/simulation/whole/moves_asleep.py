"""At the end of a world: all partitions that sleep move to other brokers, and nothing is written to them meanwhile.

A write would wake a partition that its move had left asleep. Called by checks.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from tests.simulation.whole.clients import API_S, Client
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.world import World

Until = Callable[[str, Callable[[], Awaitable[str]]], Awaitable[None]]
"""Wait until a condition holds, which says what is missing; it fails the world after its time limit."""


class SleepersMove:
    """Moves each sleeping partition of a steady topic to the brokers behind its own, by one request."""

    def __init__(self, world: World, client: Client, admin: AsyncAdmin, until: Until) -> None:
        """``client`` makes the calls, and ``admin`` is connected."""
        self._world = world
        self._client = client
        self._admin = admin
        self._until = until
        self._targets: dict[tuple[str, int], list[int]] = {}

    async def run(self) -> None:
        """Begin the moves, and wait until they have ended where they should."""
        brokers = self._world.plan.brokers
        for state in self._world.observer.sleepers():
            if state.partition.topic in self._world.steady_topics and len(state.replicas) < brokers:
                self._targets[state.partition] = [1 + broker % brokers for broker in state.replicas]
        if not self._targets:
            return
        work = self._admin.alter_partition_reassignments(self._targets, timeout_s=API_S)
        await self._client.call("move sleepers", work, API_S)
        await self._until("sleepers have moved", self._moving)
        for place, target in self._targets.items():
            at = TopicPartition(*place)
            self._world.books.assignments[at] = tuple(target)
            found = (
                (await self._client.call("describe", self._admin.describe_topic(at.topic, timeout_s=API_S), API_S))
                .partitions[at.partition]
                .replicas
            )
            if list(found) != target:
                raise Violation("W12", f"{at}, which slept, has the replicas {found} and should have {target}")

    async def _moving(self) -> str:
        work = self._admin.list_partition_reassignments(timeout_s=API_S)
        moving = await self._client.call("list moves", work, API_S)
        return f"moves go on: {next(iter(moving.values()))}" if moving else ""
