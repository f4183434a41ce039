"""A feature in one file: its topics and settings, its clients, its faults, and what must hold of them.

``PARTS`` of the package names each; ``features.py`` mixes them with the others.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

from raylog.base.errors import RaylogError
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from raylog.client.queues.consumer import AsyncQueueConsumer
from tests.simulation.whole.clients import API_S, DELIVERY_S, LAST_API_S, Client

if TYPE_CHECKING:
    from tests.simulation.whole.plan import Plan
    from tests.simulation.whole.world import World

Until = Callable[[str, Callable[[], Awaitable[str]]], Awaitable[None]]
"""Waits until a check returns no more reason why something does not hold yet."""
Started = TypeVar("Started", AsyncProducer, AsyncConsumer, AsyncAdmin, AsyncQueueConsumer)
DELIVERY_MS: Final = int(DELIVERY_S * 1000)
API_MS: Final = int(API_S * 1000)


class Part:
    """What one feature has in one world. Every method does nothing where a feature does not say otherwise."""

    comes_to_rest: ClassVar[bool] = True
    """Whether replicas are at rest when no client wants anything: no role and no cleaner of it has a look."""
    goes_by_clocks: ClassVar[bool] = False
    """Whether clocks decide when something is due: then no two nodes' clocks are wrong at once."""
    clocks_agree: ClassVar[bool] = False
    """Whether no clock may be wrong: what is removed by age could go at once."""
    may_differ: ClassVar[frozenset[str]] = frozenset()
    """Topics whose replicas need not be the same at the end."""
    patience_s: float = 0.0
    """How much longer the end of a run may take with it."""

    def __init__(self, world: World) -> None:
        """Created with the world, before anything runs."""
        self.world = world

    @classmethod
    def join(cls, plan: Plan, chance: random.Random) -> Plan:
        """Return the plan with what the feature needs of it."""
        return plan

    async def make_topics(self, admin: AsyncAdmin) -> None:
        """Create the topics, before any client and any fault."""

    def start(self) -> None:
        """Start the clients."""

    @property
    def faults(self) -> Sequence[Callable[[], None]]:
        """Faults that the nemesis draws beside its own."""
        return ()

    def heal(self) -> None:
        """Undo the faults."""

    def look(self) -> None:
        """Claims that hold at any time; raises Violation."""

    def logged(self, text: str) -> None:
        """Take a line that a process has logged."""

    async def finish(self, admin: AsyncAdmin, until: Until) -> None:
        """Claims that hold when everything is healed and whole; raises Violation."""

    async def afterwards(self) -> None:
        """Claims about the time after all others were made; the work of all clients may be over."""

    def host(self) -> str:
        """Draw the host of a broker's node."""
        return self.world.nemesis.a_host()


async def started(client: Client, make: Callable[[], Started]) -> Started:
    """Return a client's producer, consumer or administrator once one has started."""
    while True:
        made = make()
        if await client.tried("start", made.start(), LAST_API_S):
            return made
        await asyncio.sleep(0.5)


async def woken(client: Client, admin: AsyncAdmin, topic: str) -> str:
    """Wake a topic that fell asleep just before it was to stay awake; return that it does not run."""
    await once(client, "wake", admin.wake_partitions(topic, timeout_s=API_S))
    return f"a leader of {topic} does not run"


async def once(client: Client, what: str, work: Awaitable[object], timeout_s: float = API_S) -> str:
    """Await a call at the end of a run; return why it failed, empty where it did not."""
    try:
        await client.call(what, work, timeout_s)
    except RaylogError as error:
        return f"{what}: {error!r}"
    return ""
