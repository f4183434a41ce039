"""Rows that no version can read, in the logs of the coordinators of groups and transactions and of the queues' states.

A later release may have written them, or a foreign hand. The process that loads such a log serves everything else: each
row is passed over, counted, and named in its log.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from raylog.actors.coordinators.runtime import UNREADABLE_NAMED
from raylog.actors.coordinators.state_log import StateLog
from raylog.actors.coordinators.state_role import OwnPartition
from raylog.actors.naming import SHARE_STATE_TOPIC
from raylog.client.admin.admin import AsyncAdmin
from tests.simulation.whole.parts.part import Part, Until
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.plan import Plan
    from tests.simulation.whole.world import World

RULE: Final = "W86"
"""A row that cannot be read costs nothing but itself, and is counted and named."""
SHARE: Final = 0.2
"""Of the batches of a log, those that have such a row."""
NAMED: Final = re.compile(r"^(\S.*?): the row at offset (\d+) .*cannot be read, and is passed over")
Row = tuple[bytes, bytes | None]


class Rows(Part):
    """The rows of one world that cannot be read."""

    patience_s = 60.0

    def __init__(self, world: World) -> None:
        """None is written."""
        super().__init__(world)
        self._count = 0
        self.tried: dict[str, int] = defaultdict(int)
        """How many were written to each log."""
        self.stored: dict[str, int] = defaultdict(int)
        """How many of them are stored for sure."""
        self.named: dict[str, set[int]] = defaultdict(set)
        """Their offsets, by the name of the process or partition that has named them."""

    @classmethod
    def join(cls, plan: Plan, chance: random.Random) -> Plan:
        """Have coordinators load their logs often."""
        return replace(plan, work_s=plan.work_s + 4.0)

    @property
    def faults(self) -> Sequence[Callable[[], None]]:
        """Coordinators start again."""
        return (self.restart,)

    def restart(self) -> None:
        """End some coordinators."""
        for actor in self.world.cluster.named("coordinator-"):
            if actor.process is not None and self.world.scheduler.chance(0.5):
                actor.process.kill("killed to load its log again")

    def start(self) -> None:
        """Let what writes such logs write a row more now and then."""
        by_actor, by_role = StateLog._append, OwnPartition.append

        async def of_actor(log: StateLog, rows: Sequence[Row], timeout_s: float) -> int:
            strange = self._drawn(rows)
            name = f"{log._topic}-{log._partition}"
            self.tried[name] += len(strange)
            first = await by_actor(log, [*rows, *strange], timeout_s)
            self.stored[name] += len(strange)
            return first

        async def of_role(log: OwnPartition, rows: Sequence[Row]) -> int:
            strange = self._drawn(rows)
            self.tried[str(log._host.partition)] += len(strange)
            return await by_role(log, [*strange, *rows])

        setattr(StateLog, "_append", of_actor)  # noqa: B010  # its signature has another name for itself
        setattr(OwnPartition, "append", of_role)  # noqa: B010

    def _drawn(self, rows: Sequence[Row]) -> list[Row]:
        """Return a row that goes with these, or none."""
        scheduler = self.world.scheduler
        if len(rows) > 20 or not scheduler.chance(SHARE):
            return []
        self._count += 1
        mark = f"strange-{self._count}"
        kind = int(scheduler.random.random() * (3 if rows[0][1] is None else 4))  # a fence has nothing to read
        if kind == 0:
            return [(b"\xc1" + mark.encode(), b"\xc1")]
        if kind == 1:
            return [(msgspec.msgpack.encode(["of a later release", mark]), msgspec.msgpack.encode([1]))]
        if kind == 2:
            return [(msgspec.msgpack.encode({mark: 1}), msgspec.msgpack.encode({}))]
        known: Any = msgspec.msgpack.decode(rows[0][0])
        return [(msgspec.msgpack.encode([known[0], [mark], 1, 2, 3, 4, 5]), msgspec.msgpack.encode([[mark]]))]

    def logged(self, text: str) -> None:
        """Note which rows a line names."""
        if found := NAMED.match(text):
            self.named[found[1]].add(int(found[2]))

    async def finish(self, admin: AsyncAdmin, until: Until) -> None:
        """Each process that loads a log now counts every such row of it, and names them."""
        self.named.clear()
        stored = dict(self.stored)
        lives = {}
        for actor in self.world.cluster.named("coordinator-"):
            lives[actor.name] = actor.lives
            if actor.process is not None:
                actor.process.kill("killed to load its log again")

        async def loads() -> str:
            for actor in self.world.cluster.named("coordinator-"):
                if actor.lives <= lives.get(actor.name, 0) or not actor.serves or actor.server._runner is None:
                    return f"{actor.name} has not loaded its log"
            return ""

        await until("every coordinator has loaded its log", loads)
        for actor in self.world.cluster.named("coordinator-"):
            server = actor.server
            where = f"{server._topic}-{server.spec.index}"
            count, names = server.runtime.rows_unreadable, len(self.named[server.name])
            if not stored.get(where, 0) <= count <= self.tried[where]:
                written = f"of {stored.get(where, 0)} to {self.tried[where]}"
                raise Violation(RULE, f"{actor.name} counts {count} rows that cannot be read, {written}")
            if names < min(count, UNREADABLE_NAMED):
                raise Violation(RULE, f"{actor.name} names {names} of the {count} rows that cannot be read")
        await self._check_states(until)

    async def _check_states(self, until: Until) -> None:
        """The next leaders of the queues' states pass over what cannot be read."""
        if not self.world.observer.has_topic(SHARE_STATE_TOPIC):
            return
        partitions = [at for at in self.world.observer.partitions_of(SHARE_STATE_TOPIC) if self.tried[str(at)]]
        for at in partitions:
            for actor in self.world.cluster.named(f"replica:{at}:"):
                if actor.process is not None:
                    actor.process.kill("killed to load the states again")

        async def unnamed() -> str:
            for at in partitions:
                is_asleep = not any(self.world.observer.runners(at).values())
                if not is_asleep and not self.named[str(at)]:
                    return f"no leader of {at} has named a row"
            return ""

        await until("the states are loaded again", unnamed)
