"""The cluster's settings are altered all the time: what was acknowledged stays, and every process goes by it at last.

In the small world of metadata (``tests/simulation/metadata``) the controller decides and fails over; here brokers,
replicas that doze or start again, and coordinators that end and begin have to learn of it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from raylog.actors.settings import REPLICA_KEYS
from raylog.client.admin.admin import AsyncAdmin
from tests.simulation.whole.clients import API_S, Client
from tests.simulation.whole.parts.part import Part, Until, once, started
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.plan import Plan
    from tests.simulation.whole.world import World

RULE: Final = "W87"
"""An acknowledged alteration of the cluster's settings stays, and every process goes by it."""
GIVEN: Final = {"group.max.groups": "90000", "log.cleaner.io.max.bytes.per.second": "900000000"}
"""What the start gives: alterations rank above it, and it counts again where they end."""
KEYS: Final[Mapping[str, tuple[int, int]]] = {
    "group.max.groups": (50_000, 100_000),
    "group.max.size": (5_000, 10_000),
    "log.cleaner.io.max.bytes.per.second": (100_000_000, 1_000_000_000),
    "transactional.id.max": (50_000, 100_000),
    "replica.lag.time.max.ms": (25_000, 35_000),
}
"""Settings that change nothing that other features rely on, and their values."""


class Settler(Client):
    """Alters a few settings at a time, and ends alterations."""

    def __init__(self, world: World, name: str) -> None:
        """Nothing is altered yet."""
        super().__init__(world, name)
        self.known: dict[str, str | None] = dict.fromkeys(KEYS, "")
        """What is altered by what was acknowledged; empty: nothing. None: unknown."""
        self._unsure: set[str] = set()
        """Keys with a request without an answer: it may still be carried out, and replace later ones."""

    async def run(self) -> None:
        """Alter until the world is quiet."""
        admin = await started(self, AsyncAdmin)
        while not self.world.is_quiet:
            await asyncio.sleep(self.between(0.2, 3.0))
            await self.alter(admin, 1 + int(self.between(0, 3)))
        await self.call("stop", admin.stop(), 35.0)

    async def alter(self, admin: AsyncAdmin, count: int) -> str:
        """Alter so many settings; return why that failed."""
        keys = [self.pick(sorted(KEYS)) for _ in range(count)]
        wanted = {key: self.pick(["", str(int(self.between(*KEYS[key])))]) for key in keys}
        self.known.update(dict.fromkeys(wanted))
        chosen = {key: value for key, value in wanted.items() if value}
        work = admin.alter_cluster_config(chosen, [key for key in wanted if not wanted[key]], timeout_s=API_S)
        failure = await once(self, f"alter {wanted}", work)
        if failure:
            self._unsure |= wanted.keys()
        else:
            self.known.update({key: value for key, value in wanted.items() if key not in self._unsure})
        return failure


class Settings(Part):
    """The alterations of one world."""

    def __init__(self, world: World) -> None:
        """One client alters."""
        super().__init__(world)
        self._settler = Settler(world, "settler")

    @classmethod
    def join(cls, plan: Plan, chance: random.Random) -> Plan:
        """Start the cluster with some of the settings that are altered."""
        return replace(plan, config={**plan.config, **GIVEN})

    def start(self) -> None:
        """Begin to alter."""
        self.world.spawn("settler", self._settler.run())

    async def finish(self, admin: AsyncAdmin, until: Until) -> None:
        """Once it is altered no more, every process goes by the same values."""

        async def last() -> str:
            return await self._settler.alter(admin, 3)

        async def others() -> str:
            return self._others()

        await until("the settings are altered once more", last)
        await until("every process goes by what was altered", others)
        altered = self.world.cluster.actors["controller"].server.image.altered_config
        for key, value in self._settler.known.items():
            if value is not None and altered.get(key, "") != value:
                raise Violation(RULE, f"{key} was altered to {value!r}, and the controller has {dict(altered)}")

    def _others(self) -> str:
        """Return a process that goes by other values than the controller; empty where there is none."""
        cluster = self.world.cluster
        controller = cluster.actors["controller"]
        if not controller.serves or controller.server._runner is None:
            return "the controller does not serve"
        config = controller.server.image.config
        held: dict[str, Mapping[str, str]] = {}
        for name, actor in cluster.actors.items():
            if not actor.serves or name == "controller":
                continue
            if name.startswith("broker-"):
                held[name] = actor.server.image.config
            elif name.startswith("coordinator-"):
                held[name] = actor.server._config
            else:
                held[name] = actor.server.spec.cluster_config
        for name, values in held.items():
            of_replica = not name.startswith(("broker-", "coordinator-"))
            for key in KEYS:
                if (not of_replica or key in REPLICA_KEYS) and values.get(key) != config.get(key):
                    return f"{name} has {key}={values.get(key)}, and {config.get(key)} counts"
        return ""
