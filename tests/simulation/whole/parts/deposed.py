"""Coordinators that are replaced and do not learn of it, with clients that still reach them, and others that do not.

Ray gives the node of a coordinator up, which the other nodes and the clients of one host cannot reach; the clients of
the other host can. What a coordinator states or refuses is compared with what was acknowledged before the request.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from raylog.base.errors import GroupIdNotFound, RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from tests.simulation.whole.clients import API_S, Client
from tests.simulation.whole.expiries import may_have_expired
from tests.simulation.whole.parts.part import API_MS, Part, Until, once, started
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.plan import Plan
    from tests.simulation.whole.world import World

RULE: Final = "W88"
"""What a coordinator states or refuses for good held when it was requested (R12)."""
TOPIC: Final = "stated"
AT: Final = TopicPartition(TOPIC, 0)
LATEST: Final = 12
"""Groups of the last ones that were founded that are described."""
KEPT: Final = 2
"""Groups of a witness that it does not delete."""
PAUSE_S: Final = (1.0, 5.0)
LOOK_S: Final = 0.1
CALL_S: Final = 1.5
"""Time of a call: a coordinator that cannot be reached is given up before faults are over."""


@dataclass(slots=True)
class Founded:
    """A group with one offset, which its founder alone moves and deletes. What is doubtful it leaves alone."""

    name: str
    founder: str
    offset: int
    """The last one that was acknowledged."""
    tried: int
    """The last one that was requested."""
    committed_s: float
    is_deleted: bool = False
    is_doubtful: bool = False
    """Its deletion was requested, or a commit was not acknowledged."""


class Witness(Client):
    """Founds groups, moves their offsets, deletes some, and describes those of all witnesses."""

    def __init__(self, world: World, name: str, part: Deposed, host: str = "") -> None:
        """No group yet."""
        super().__init__(world, name)
        self._part, self._host = part, host
        self._count = 0

    async def run(self) -> None:
        """Work until the world is quiet."""
        admin = await started(self, lambda: AsyncAdmin(request_timeout_ms=API_MS))
        while not self.world.is_quiet:
            await asyncio.sleep(self.between(0.02, 0.3))
            writes = [self._found, self._advance, self._advance, self._delete]
            reads = [self._describe, self._describe]
            await self.pick([*(writes if self._part.may_write(self._host) else []), *reads])(admin)
        await self.call("stop", admin.stop(), 35.0)

    async def _found(self, admin: AsyncAdmin) -> None:
        self._count += 1
        group = Founded(f"{self.name}-{self._count}", self.name, 0, 0, self.world.now_s)
        if await self._commit(admin, group):
            self._part.founded.append(group)

    async def _advance(self, admin: AsyncAdmin) -> None:
        own = [group for group in self._recent() if group.founder == self.name and not group.is_doubtful]
        if own:
            await self._commit(admin, self.pick(own))

    async def _commit(self, admin: AsyncAdmin, group: Founded) -> bool:
        group.tried = group.offset + 1
        began_s = self.world.now_s
        work = admin.alter_group_offsets(group.name, {AT: group.tried}, timeout_s=CALL_S)
        if not await self.tried(f"commit {group.tried} of {group.name}", work, CALL_S):
            group.is_doubtful = True
            return False
        group.offset, group.committed_s = group.tried, began_s
        return True

    async def _delete(self, admin: AsyncAdmin) -> None:
        own = [group for group in self._recent() if group.founder == self.name and not group.is_doubtful]
        if len(own) < KEPT:
            return
        group = self.pick(own)
        group.is_doubtful = True
        work = admin.delete_group(group.name, timeout_s=CALL_S)
        group.is_deleted = await self.tried(f"delete {group.name}", work, CALL_S, GroupIdNotFound)

    async def _describe(self, admin: AsyncAdmin) -> None:
        if founded := self._recent():
            await self.describe(admin, self.pick(founded))

    async def describe(self, admin: AsyncAdmin, group: Founded) -> str:
        """Describe a group; return why that failed, and raise Violation where the answer is not what was stored."""
        known, is_deleted = group.offset, group.is_deleted
        found: int | None = None
        try:
            work = admin.describe_group(group.name, timeout_s=CALL_S)
            found = (await self.call(f"describe {group.name}", work, CALL_S)).offsets.get(AT)
        except GroupIdNotFound as error:
            self.note(repr(error))
        except RaylogError as error:
            if not error.retriable:
                raise Violation("W8", f"{self.name}: {group.name} cannot be described: {error!r}") from error
            return repr(error)
        if is_deleted and found is not None:
            raise Violation(RULE, f"{self.name}: {group.name} was deleted, and {found} is there")
        may_be_away = group.is_doubtful or may_have_expired(self.world, group.committed_s)
        if not (may_be_away if found is None else known <= found <= group.tried):
            raise Violation(RULE, f"{self.name}: {known} was committed by {group.name}, and {found} is there")
        return ""

    def _recent(self) -> list[Founded]:
        return self._part.founded[-LATEST:]


class Deposed(Part):
    """The coordinators of one world that have successors."""

    def __init__(self, world: World) -> None:
        """No group is founded."""
        super().__init__(world)
        self.founded: list[Founded] = []
        self._cut_off, self._cut_until_s = "", 0.0
        """The host of clients that reach no deposed coordinator, and until when."""
        self._has_successors = False

    def may_write(self, host: str) -> bool:
        """Whether clients of a host write: a deposed coordinator that has rows to store answers nothing."""
        return self.world.now_s >= self._cut_until_s or (host == self._cut_off and self._has_successors)

    @classmethod
    def join(cls, plan: Plan, chance: random.Random) -> Plan:
        """Have clients on two hosts, and coordinators on several nodes."""
        config = {**plan.config, "offsets.topic.num.partitions": "3"}
        return replace(plan, client_hosts=2, config=config, work_s=plan.work_s + 6.0)

    def depose(self) -> None:
        """Cut a coordinator off from the other nodes and the clients of one host; Ray gives its node up soon."""
        world, chance = self.world, self.world.scheduler
        actors = [each for each in world.cluster.named("coordinator-") if each.serves and each.process is not None]
        if not actors or not world.nemesis.is_active:
            return
        process = actors[int(chance.random.random() * len(actors))].process
        assert process is not None
        host = process.host
        client = world.client_hosts[int(chance.random.random() * len(world.client_hosts))]
        for_s = chance.between(5.0, 12.0)
        world.log("nemesis", f"the coordinators of {host} are reached by no node, and by no client of {client}")
        for other in [*world.cluster.hosts, client]:
            if other != host:
                world.nemesis.block([(host, other), (other, host)], for_s)
        self._cut_off, self._cut_until_s, self._has_successors = client, world.now_s + for_s, False
        chance.after(chance.between(0.1, 1.0), world.nemesis.schemes.give_up, host, for_s)
        moved = [each.name for each in actors if each.process is not None and each.process.host == host]
        chance.after(LOOK_S, self._look_for_successors, moved, host)

    def _look_for_successors(self, names: list[str], host: str) -> None:
        """Let the clients that are cut off look for the successors once they serve."""
        world = self.world
        actors = [world.cluster.actors.get(name) for name in names]
        serving = [
            each is None or (each.process is not None and each.process.host != host and each.server._runner is not None)
            for each in actors
        ]
        if all(serving):
            world.network.break_between(host, self._cut_off)
            self._has_successors = True
        elif world.now_s < self._cut_until_s:
            world.scheduler.after(LOOK_S, self._look_for_successors, names, host)

    async def make_topics(self, admin: AsyncAdmin) -> None:
        """Create the topic of the offsets."""
        await admin.create_topic(TOPIC, 1, self.world.plan.replication_factor)

    def start(self) -> None:
        """Start witnesses on both hosts."""
        for number, host in enumerate([*self.world.client_hosts] * 2):
            name = f"witness-{number}"
            self.world.spawn(name, Witness(self.world, name, self, host).run(), host)
        self._again()

    def _again(self) -> None:
        self.world.scheduler.after(self.world.scheduler.between(*PAUSE_S), self._strike)

    def _strike(self) -> None:
        if self.world.now_s >= self._cut_until_s:
            self.depose()
        if not self.world.is_quiet:
            self._again()

    async def finish(self, admin: AsyncAdmin, until: Until) -> None:
        """The groups that were founded last are as they were acknowledged."""
        client = Witness(self.world, "witness-finish", self)

        async def difference() -> str:
            for group in self.founded[-LATEST:]:
                if failure := await client.describe(admin, group):
                    return failure
            return ""

        await until("groups are described", difference)
        await once(client, "list groups", admin.list_groups(timeout_s=API_S))
