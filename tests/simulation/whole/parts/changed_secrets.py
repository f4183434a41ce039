"""An operator changes the cluster's and the clients' secret over and over, node by node, while everything works.

Each node has its files, as in production: a value is added on one node, copied to the others one after the other, and
the one before is removed in the same way. Clients inside Ray notice nothing; services outside have a file, which is
replaced in time or late, or the value, with which they are made again.
"""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from raylog.base.errors import AuthenticationFailed, ClientClosed, DeliveryTimedOut, RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from raylog.rpc.auth.secret_files import CLIENT_FILE, CLUSTER_FILE, SecretFiles, copy_secrets, read_values, write_values
from tests.simulation.whole.clients import API_S, DELIVERY_S, LAST_API_S, Client
from tests.simulation.whole.parts.part import API_MS, DELIVERY_MS, Part, Until, once
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.plan import Plan
    from tests.simulation.whole.world import World

TOPIC: Final = "guarded"
AT: Final = TopicPartition(TOPIC, 0)
RULE: Final = "W90"
"""A secret opens connections from when it is on a node until it is removed there, and its holders notice no change."""
FOLDER: Final = Path("secrets")
SECRET_BYTES: Final = 32
FIRST: Final = 1
"""The broker on whose node the operator gives the commands."""
ADDED_S: Final = (0.0, 3.0)
"""From a command until the operator brings the other nodes up to date."""
COPIED_S: Final = (0.0, 0.5)
"""From one node to the next."""
KEPT_S: Final = (0.5, 6.0)
"""How long both values hold everywhere."""
LATE_S: Final = (0.0, 4.0)
"""How long after the end of the old value a service's file still has it, where it is late."""
REFUSED_S: Final = 5.0
"""How long after that a client may still report that it was refused."""
PAUSE_S: Final = (0.5, 4.0)
LIVES_S: Final = (2.0, 14.0)


class Service(Client):
    """Writes and reads from outside of Ray, over lives of some seconds."""

    def __init__(self, world: World, name: str, part: ChangedSecrets) -> None:
        """No life yet."""
        super().__init__(world, name)
        self.part = part
        self._count = 0

    def proof(self) -> dict[str, Any]:
        """Return what it proves in its next life."""
        return {"secret_file": str(self.part.late_file)}

    def may_be_refused(self, proof: dict[str, Any]) -> bool:
        """Whether what it proves is refused by right."""
        return self.part.is_late

    async def run(self) -> None:
        """Live until the world is quiet."""
        while not self.world.is_quiet:
            await asyncio.sleep(self.between(0.0, 1.0))
            endpoints = ["{}:{}".format(*each.server.endpoint) for each in self._brokers()]
            if endpoints:
                await self._live({"bootstrap": endpoints, **self.proof()})

    def _brokers(self) -> list[Any]:
        return [actor for actor in self.world.cluster.named("broker-") if actor.serves]

    async def _live(self, where: dict[str, Any]) -> None:
        producer = AsyncProducer(delivery_timeout_ms=DELIVERY_MS, max_block_ms=API_MS, **where)
        consumer = AsyncConsumer(auto_offset_reset="latest", default_api_timeout_ms=API_MS, **where)
        try:
            await self.call("start", producer.start(), LAST_API_S)
            await self.call("start", consumer.start(), LAST_API_S)
            consumer.assign([AT])
            until_s = self.world.now_s + self.between(*LIVES_S)
            while self.world.now_s < until_s and not self.world.is_quiet:
                await self._send(producer)
                await self.call("getmany", consumer.getmany(timeout_ms=200), 1.2)
                await asyncio.sleep(self.between(0.0, 1.0))
        except RaylogError as error:
            self._failed(error, where)
        for each, limit_s in ((consumer, 35.0), (producer, DELIVERY_S + 10.0)):
            await self.call("stop", each.stop(), limit_s)

    async def _send(self, producer: AsyncProducer) -> None:
        self._count += 1
        value = f"{self.name}/{self._count}".encode()
        future = await self.call("send", producer.send(TOPIC, value, partition=0), API_S)
        await self.call("delivery", future, DELIVERY_S)
        self.part.stored.append(value)

    def _failed(self, error: RaylogError, where: dict[str, Any]) -> None:
        self.world.log(self.name, f"failed: {error!r}")
        if isinstance(error, AuthenticationFailed):
            if not self.may_be_refused(where):
                raise Violation(RULE, f"{self.name} proves what holds, and is refused: {error!r}") from error
        elif not (error.retriable or isinstance(error, DeliveryTimedOut | ClientClosed)):
            raise Violation("W8", f"{self.name} failed for good: {error!r}") from error


class ValueService(Service):
    """Was given the value itself, and is made again with the new one."""

    def proof(self) -> dict[str, Any]:
        """Return the newest value that all nodes have."""
        return {"secret": self.part.common}

    def may_be_refused(self, proof: dict[str, Any]) -> bool:
        """Whether the value was removed, from any node."""
        return proof["secret"] in self.part.removed_s


class Insider(Client):
    """Starts a client inside Ray over and over, which every broker has to accept at once, whatever its node has."""

    def __init__(self, world: World, name: str, part: ChangedSecrets) -> None:
        """One client after the other."""
        super().__init__(world, name)
        self._part = part

    async def run(self) -> None:
        """Work until the world is quiet."""
        while not self.world.is_quiet:
            await asyncio.sleep(self.between(0.0, 0.6))
            removed = len(self._part.removed_s)
            admin = AsyncAdmin(request_timeout_ms=2_000)
            try:
                await self.call("start", admin.start(), 10.0)
                for actor in self.world.cluster.named("broker-"):
                    if actor.serves:
                        work = admin.cluster.connection(actor.server.endpoint, 1.0)
                        await self.call(f"connect to {actor.name}", work, 3.0)
            except RaylogError as error:
                is_refused = isinstance(error, AuthenticationFailed) or isinstance(
                    error.__cause__, AuthenticationFailed
                )
                if is_refused and removed == len(self._part.removed_s):
                    raise Violation(RULE, f"{self.name} has its secret from Ray, and is refused: {error!r}") from error
            await self.call("stop", admin.stop(), 35.0)


class Thief(Client):
    """Tries values that were removed from all nodes."""

    def __init__(self, world: World, name: str, part: ChangedSecrets) -> None:
        """It has every value that ever held."""
        super().__init__(world, name)
        self._part = part

    async def run(self) -> None:
        """Try until the world is quiet."""
        while not self.world.is_quiet:
            await asyncio.sleep(self.between(0.2, 1.5))
            actors = [actor for actor in self.world.cluster.named("broker-") if actor.serves]
            if self._part.ended and actors:
                await self.steal(self.pick(actors), self.pick(self._part.ended))

    async def steal(self, actor: Any, value: bytes) -> None:
        """Connect with a value that holds nowhere any more."""
        admin = AsyncAdmin(bootstrap="{}:{}".format(*actor.server.endpoint), secret=value, request_timeout_ms=2_000)
        try:
            await self.call("steal", admin.start(), 5.0)
        except RaylogError as error:
            self.note(repr(error))
        else:
            raise Violation(RULE, f"{actor.name} takes a value that was removed from every node")
        finally:
            await admin.stop()


class ChangedSecrets(Part):
    """The secrets of one world, on each of its nodes."""

    def __init__(self, world: World) -> None:
        """Each node has the same values: one of each secret."""
        super().__init__(world)
        self._chance = world.scheduler
        cluster = world.cluster
        self._folders = {broker: FOLDER / cluster.host(broker) for broker in range(1, world.plan.brokers + 1)}
        self._by_host = {cluster.host(broker): folder for broker, folder in self._folders.items()}
        self.file, self.late_file = FOLDER / "service", FOLDER / "late-service"
        self.common = self._new()
        """The clients' newest value that all nodes have."""
        self.removed_s: dict[bytes, float] = {}
        """When the removal of a value of the clients' began."""
        self.ended: list[bytes] = []
        """Values of the clients' that no node has any more."""
        self.stored: list[bytes] = []
        self._late_until_s = 0.0
        self.is_changing = False
        for folder in self._folders.values():
            folder.mkdir(parents=True)
            write_values(folder / CLUSTER_FILE, [b"a secret for simulations"])
            write_values(folder / CLIENT_FILE, [self.common])
        for file in (self.file, self.late_file):
            write_values(file, [self.common])
        cluster.secret_on = lambda host: SecretFiles(self._by_host[host])
        cluster.outside = {"secret_file": str(self.file)}

    @property
    def is_late(self) -> bool:
        """Whether the late service's file has what was removed from a node, or had it just now."""
        return self.world.now_s < self._late_until_s + REFUSED_S

    @classmethod
    def join(cls, plan: Plan, chance: random.Random) -> Plan:
        """Have time for several changes."""
        return replace(plan, work_s=plan.work_s + 12.0)

    async def make_topics(self, admin: AsyncAdmin) -> None:
        """Create the topic of the services."""
        await admin.create_topic(TOPIC, 1, self.world.plan.replication_factor)

    def start(self) -> None:
        """Start the services and the operator."""
        world = self.world
        for name, kind in (("service", Service), ("value-service", ValueService)):
            world.spawn(name, kind(world, name, self).run())
        world.spawn("insider", Insider(world, "insider", self).run())
        world.spawn("thief", Thief(world, "thief", self).run())
        self._later(PAUSE_S, self._again)

    # ------------------------------------------------------------ the operator

    def _later(self, times_s: tuple[float, float], step: Any, *args: Any) -> None:
        self._chance.after(self._chance.between(*times_s), step, *args)

    def _new(self) -> bytes:
        return self._chance.random.randbytes(SECRET_BYTES)

    def _again(self) -> None:
        """Change one of the secrets; none once the world is quiet."""
        if self.world.is_quiet:
            return
        if self._has_power(FIRST):
            self._change(CLIENT_FILE if self._chance.chance(0.7) else CLUSTER_FILE)
        else:
            self._later(PAUSE_S, self._again)

    def _change(self, name: str) -> None:
        """`raylog secret change`, of the cluster's or the clients'."""
        self.is_changing = True
        path = self._folders[FIRST] / name
        new = self._new()
        self.world.log("operator", f"raylog secret change: {name}")
        write_values(path, [new, *read_values(path)])
        self._note(name, math.inf)
        self._later(ADDED_S, self._copy, name, self._others(), self._added)

    def _copy(self, name: str, others: list[int], then: Any) -> None:
        """`raylog start`, until each node with a broker has the files."""
        left = [broker for broker in others if not self._has_power(broker)]
        for broker in others:
            if broker not in left:
                copy_secrets(self._folders[broker], SecretFiles(self._folders[FIRST])())
                left += others[others.index(broker) + 1 :]
                break
        if left:
            self._later(COPIED_S, self._copy, name, left, then)
        else:
            then(name)

    def _added(self, name: str) -> None:
        """Every node has both values: services get the new one, now or late."""
        values = read_values(self._folders[FIRST] / name)
        self.world.log("operator", f"every node has both values of {name}")
        self._note(name, self.world.now_s)
        is_late = name == CLIENT_FILE and (self.world.is_quiet or self._chance.chance(0.4))
        if name == CLIENT_FILE:
            self.common = values[0]
            write_values(self.file, values)
            if not is_late:
                write_values(self.late_file, values)
        self._later(KEPT_S, self._finish, name, is_late)

    def _finish(self, name: str, is_late: bool) -> None:
        """`raylog secret finish`."""
        if not self._has_power(FIRST):
            self._later(PAUSE_S, self._finish, name, is_late)
            return
        path = self._folders[FIRST] / name
        new, old = read_values(path)
        self.world.log("operator", f"raylog secret finish: {name}")
        if name == CLIENT_FILE:
            self.removed_s[old] = self.world.now_s
            self._late_until_s = math.inf if is_late else 0.0
        write_values(path, [new])
        self._note(name, math.inf)
        self._later(ADDED_S, self._copy, name, self._others(), lambda name: self._removed(name, new, old, is_late))

    def _removed(self, name: str, new: bytes, old: bytes, is_late: bool) -> None:
        """No node has the old value."""
        self.world.log("operator", f"no node has the old value of {name}")
        self._note(name, self.world.now_s)
        if name == CLIENT_FILE:
            self.ended.append(old)
        self._later(LATE_S if is_late else (0.0, 0.0), self._settled, name, new)

    def _settled(self, name: str, new: bytes) -> None:
        if name == CLIENT_FILE:
            for file in (self.file, self.late_file):
                write_values(file, [new])
            self._late_until_s = min(self._late_until_s, self.world.now_s)
        self.is_changing = False
        self._later(PAUSE_S, self._again)

    def _others(self) -> list[int]:
        return [broker for broker in self._folders if broker != FIRST]

    def _has_power(self, broker: int) -> bool:
        return self.world.cluster.host(broker) not in self.world.network.down

    def _note(self, name: str, until_s: float) -> None:
        """A token that is made until then may be refused: nodes get a value, and lose one, one after the other."""
        if name == CLIENT_FILE:
            self.world.cluster.secrets_changed_s = until_s

    # ------------------------------------------------------------ the end

    async def finish(self, admin: AsyncAdmin, until: Until) -> None:
        """The last change is over, what was removed holds nowhere, and everything that was stored is read."""
        client, thief = Client(self.world, "secrets-finish"), Thief(self.world, "last-thief", self)

        async def changing() -> str:
            return "a change is under way" if self.is_changing else ""

        await until("a secret is changed", changing)
        await self._outlive_a_change(client, until, changing)
        for actor in [actor for actor in self.world.cluster.named("broker-") if actor.serves]:
            for value in self.ended[-3:]:
                await thief.steal(actor, value)
        found: set[bytes] = set()

        async def missing() -> str:
            if failure := await once(client, "read", self._read(found), 3 * API_S):
                return failure
            missed = [value for value in self.stored if value not in found]
            return f"{len(missed)} records such as {missed[0]!r}" if missed else ""

        await until("what services have stored is read", missing)

    async def _outlive_a_change(self, client: Client, until: Until, changing: Any) -> None:
        """A service whose file comes late goes on once it is there."""
        proof = {**self._bootstrap(), "secret_file": str(self.late_file)}
        producer = AsyncProducer(delivery_timeout_ms=DELIVERY_MS, max_block_ms=API_MS, **proof)
        await client.call("start", producer.start(), LAST_API_S)
        await client.call("delivery", await producer.send(TOPIC, b"before", partition=0), DELIVERY_S)
        self._change(CLIENT_FILE)
        old = self.common

        async def holds() -> str:
            return "" if old in self.ended else "the old value holds on a node"

        await until("a last secret is changed", holds)
        process = self.world.scheduler.current
        assert process is not None
        self.world.network.reset(process)
        await until("the service's file has come", changing)
        try:
            await client.call("delivery", await producer.send(TOPIC, b"after", partition=0), DELIVERY_S)
        except RaylogError as error:
            raise Violation(RULE, f"a service whose file has come does not go on: {error!r}") from error
        self.stored += [b"before", b"after"]
        await client.call("stop", producer.stop(), DELIVERY_S + 10.0)

    def _bootstrap(self) -> dict[str, Any]:
        where = [each.server.endpoint for each in self.world.cluster.named("broker-") if each.serves]
        return {"bootstrap": ["{}:{}".format(*each) for each in where]}

    async def _read(self, found: set[bytes]) -> None:
        proof = {**self._bootstrap(), **self.world.cluster.outside}
        async with AsyncConsumer(auto_offset_reset="earliest", default_api_timeout_ms=API_MS, **proof) as consumer:
            consumer.assign([AT])
            end = (await consumer.end_offsets([AT]))[AT]
            until_s = self.world.now_s + API_S
            while await consumer.position(AT) < end and self.world.now_s < until_s:
                for records in (await consumer.getmany(timeout_ms=300)).values():
                    found.update(record.value for record in records)
