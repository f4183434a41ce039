"""Makes the actors of a broker's replicas, from spares if there are some, and ends them.

Owned by the ``Broker`` actor; called by its supervisor.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from raylog.actors.actor_specs import ReplicaSpec
from raylog.actors.controller_link import Place
from raylog.actors.processes.made_actors import REPLICA, ActorRaised, MadeActors, Recipe
from raylog.actors.processes.ray_support import CONTROL_TIMEOUT_S
from raylog.actors.processes.spare_roles import name_of
from raylog.actors.processes.spares import SpareReplicas
from raylog.actors.resting import Resting

STARTS: Final = max(2, os.cpu_count() or 1)
"""Most processes that the brokers of a machine start at once. More would share the same cores, and all be late."""
ENDS: Final = 12
"""Most processes that the brokers of a machine end at once: each closes its log. More would starve the brokers."""
START_S: Final = 5.0
"""Longest permit: a replica that does not serve by then (a long log, a slow disk) lets the next one begin."""
PERMITS_MIN: Final = 2
"""Permits that each broker has in any case. A starting process also waits for Ray: with one permit at a time, creating
and writing a topic of 6 partitions on three brokers and two cores took a quarter to a half longer."""


class StartPermits:
    """Lets a bounded number of processes start, or end, at the same time, in the order of the requests.

    The brokers of a machine share the bound.
    """

    def __init__(self, total: int, sharing: Callable[[], int]) -> None:
        """``total``: permits for all brokers that share them; ``sharing`` returns how many brokers these are now."""
        self._total = total
        self._sharing = sharing
        self._taken = 0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def permit(self) -> AsyncIterator[None]:
        """Wait for a permit, and hold it during a block."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._taken < self._limit())
            self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1
            async with self._changed:
                self._changed.notify_all()  # all, because the bound may have grown as well

    def _limit(self) -> int:
        return max(PERMITS_MIN, self._total // max(1, self._sharing()))


class RayReplicaFactory:
    """Makes replicas as Ray actors on this broker's node, for the supervisor."""

    def __init__(
        self,
        actors: MadeActors,
        spares: SpareReplicas,
        resting: Resting,
        *,
        node_id: str,
        sharing: Callable[[], int],
        controller: Callable[[], Place | None],
    ) -> None:
        """``node_id``: Ray's id of the node with the data directory; ``sharing``: how many brokers share its machine.

        ``controller`` returns the controller's address, as far as this broker knows it.
        """
        self._actors = actors
        self._node_id = node_id
        self._resting = resting
        self._spares = spares
        self._controller = controller
        self._starts = StartPermits(STARTS, sharing)
        self._ends = StartPermits(ENDS, sharing)

    async def ensure(self, spec: ReplicaSpec) -> None:
        """Make the replica's actor unless it runs; returns when it serves. Raises ActorTrouble and OSError."""
        with self._spares.held_back(), self._resting.held_awake(name_of(spec)):
            if await self._spares.adopt(spec, self._controller()):
                return
            name = name_of(spec)
            recipe = Recipe(kind=REPLICA, arguments=(spec, None, self._controller()), node_id=self._node_id)
            async with self._starts.permit():  # permits come in the order of the requests
                serves = asyncio.ensure_future(self._actors.start(name, recipe))
                try:
                    await asyncio.wait({serves}, timeout=START_S)
                except asyncio.CancelledError:
                    serves.cancel()
                    raise
            try:
                await serves
            except ActorRaised:
                # It failed to start, or its broker died between stopping and ending it. End it, so that it can start.
                await self.end(name)
                raise

    async def reconfigure(self, spec: ReplicaSpec) -> None:
        """Send the replica's actor its changed settings. Raises ActorTrouble."""
        actor = await self._spares.actor_of(name_of(spec))
        with self._resting.held_awake(name_of(spec)):
            await self._actors.call(actor, "reconfigure", spec, timeout_s=CONTROL_TIMEOUT_S)

    async def end(self, name: str) -> None:
        """Stop the replica's actor and end it for good; no error when there is none. Raises ActorTrouble."""
        actor = await self._spares.actor_of(name)
        if await self._actors.exists(actor):
            async with self._ends.permit():
                with self._resting.held_awake(name):
                    await self._actors.end(actor, is_stopped_first=True)
        await self._spares.forget(name)  # last: if Ray restarts the actor before, it has to know its role

    async def living(self, broker: int) -> set[str]:
        """Return the names of this broker's replicas that have an actor. Raises Ray's errors."""
        return await self._spares.replicas(broker)
