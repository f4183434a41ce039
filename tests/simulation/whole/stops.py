"""Stops of the whole cluster that are called off: everything falls asleep for them, and wakes again when none follows.

Called by checks.py at the end of a world, and by the nemesis while clients work. A stop that does follow is the same
for the partitions: the next controller finds asleep what should be awake.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from raylog.base.errors import NotController
from tests.simulation.whole.moves_asleep import Until

if TYPE_CHECKING:
    from tests.simulation.whole.world import World

WITHIN_S: Final = 1.0


class StopCalledOff:
    """Puts all partitions to sleep as a stop of the cluster does, and does not stop it."""

    def __init__(self, world: World, until: Until) -> None:
        """``until`` waits."""
        self._world = world
        self._until = until

    async def run(self) -> None:
        """Wait until partitions sleep that never do otherwise, and until they are awake again; no request wakes them.

        In half of the worlds the next controller finds them asleep.
        """
        await self._until("everything sleeps before a stop", self._awake)
        process = self._world.cluster.actors["controller"].process
        if process is not None and self._world.seed % 2:
            process.kill("killed before a stop that is called off")
        await self._until("what never sleeps is awake after a stop was called off", self._asleep)

    async def _awake(self) -> str:
        awake = [str(at) for at, sleeps in self._states().items() if not sleeps]
        if awake:
            request_rest(self._world)
        return ", ".join(awake)

    async def _asleep(self) -> str:
        return ", ".join(str(at) for at, sleeps in self._states().items() if sleeps)

    def _states(self) -> dict[tuple[str, int], bool]:
        asleep = {state.partition for state in self._world.observer.sleepers()}
        return {at: at in asleep for at in self._world.open_partitions()}


def request_rest(world: World) -> None:
    """Have the controller put everything to sleep, as `raylog stop` does first; no effect when none serves."""
    server, process = world.cluster.controller(), world.cluster.actors["controller"].process
    if server is None or process is None:
        return

    async def rest() -> None:
        with suppress(NotController):
            await server.put_to_sleep(WITHIN_S)

    process.call_input(lambda: asyncio.ensure_future(rest()))
