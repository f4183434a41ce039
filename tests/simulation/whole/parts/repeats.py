"""Batches that are sent again, to logs that lack them: behind a hole in a line, and before the start of a new log.

An operator moves leaders and replicas of a topic whose records are deleted soon, at the moments that matter: while the
followers are cut off, and while the answers to a producer are lost. What was sent once is stored once.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from raylog.base.errors import (
    ElectionNotNeeded,
    InvalidReplicaAssignment,
    NoReassignmentInProgress,
    OffsetOutOfRange,
    RaylogError,
)
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.futures import AsyncSendFuture
from tests.simulation.whole.clients import API_S, DELIVERY_S, Client
from tests.simulation.whole.parts.part import API_MS, DELIVERY_MS, Part, Until, started, woken
from tests.simulation.whole.parts.sender import Sender
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from raylog.client.producer.producer import AsyncProducer
    from tests.simulation.whole.loop.processes import SimProcess
    from tests.simulation.whole.plan import Plan
    from tests.simulation.whole.world import World

TOPIC: Final = "repeated"
AT: Final = TopicPartition(TOPIC, 0)
RULE: Final = "W89"
"""What an idempotent producer sends once is stored once, wherever it is sent again (R13, R14)."""
SOON_MS: Final = 2_500
"""A delivery timeout that ends while a leader waits for its followers, and before one leaves the ISR."""
LAG_MS: Final = "8000"


class Repeater(Sender):
    """Sends records in several batches at a time, and gives them up soon or late."""

    def __init__(self, world: World, name: str, part: Repeats, timeout_ms: int) -> None:
        """One idempotent producer."""
        super().__init__(world, name)
        self._part, self._timeout_ms = part, timeout_ms
        self._count = 0

    async def run(self) -> None:
        """Send until the world is quiet."""
        producer = await started(self, self._producer)
        while not self.world.is_quiet:
            for _ in range(int(self.between(1, 5))):
                await self._send(producer)
                await asyncio.sleep(self.between(0.0, 0.05))
            await asyncio.sleep(self.between(0.05, 0.4))
        await self.call("stop", producer.stop(), DELIVERY_S + 10.0)

    def _producer(self) -> AsyncProducer:
        return self.producer(linger_ms=0, retry_backoff_ms=20, delivery_timeout_ms=self._timeout_ms)

    async def _send(self, producer: AsyncProducer) -> None:
        self._count += 1
        value = f"{self.name}/{self._count}".encode()
        try:
            future = await self.call("send", producer.send(TOPIC, value, partition=0), API_S)
        except RaylogError as error:
            self.failed(error)
        else:
            _ = self.beside(self._stored(value, future))

    async def _stored(self, value: bytes, future: AsyncSendFuture) -> None:
        try:
            offset = (await self.call("delivery", future, DELIVERY_S)).offset
        except RaylogError as error:
            self.failed(error)
            return
        if offset >= 0:
            self._part.note(value, offset, f"{self.name} has its acknowledgement")


class RepeatReader(Client):
    """Reads the topic before its records are deleted."""

    def __init__(self, world: World, name: str, part: Repeats) -> None:
        """One reader."""
        super().__init__(world, name)
        self._part = part

    async def run(self) -> None:
        """Read until the world is over."""
        consumer = await started(
            self, lambda: AsyncConsumer(auto_offset_reset="earliest", default_api_timeout_ms=API_MS)
        )
        consumer.assign([AT])
        while not self.world.is_over:
            for record in (await self.call("getmany", consumer.getmany(timeout_ms=200), 1.2)).get(AT, []):
                self.books.read += 1
                self._part.note(record.value, record.offset, f"{self.name} reads it")
        await self.call("stop", consumer.stop(), 35.0)


class Mover(Client):
    """Moves the leader of the topic, and its replicas, while something of it is cut off."""

    async def run(self) -> None:
        """Make trouble until the world is quiet."""
        admin = await started(self, lambda: AsyncAdmin(request_timeout_ms=API_MS))
        while not self.world.is_quiet:
            await asyncio.sleep(self.between(0.5, 2.0))
            if self.world.nemesis.is_active:
                await self.pick([self._lead_behind_a_hole, self._begin_again])(admin)
        await self.call("stop", admin.stop(), 35.0)

    async def _lead_behind_a_hole(self, admin: AsyncAdmin) -> None:
        """Have a follower lead that lacks what its leader got, and lose it before the former leader follows it."""
        pair = self._pair()
        if pair is None:
            return
        leader, follower = pair
        if not await self._prefer(admin, [follower, leader]):
            return
        self._block(leader, self.world.cluster.host(follower), 5.0)
        self._block(follower, self.world.cluster.host(leader), 5.0)
        await asyncio.sleep(self.between(0.6, 1.3) * SOON_MS / 1000)
        await self.tried("elect", admin.elect_leaders([AT], timeout_s=API_S), API_S, ElectionNotNeeded)
        await asyncio.sleep(self.between(0.2, 1.5))
        process = self._reset(follower)
        if process is not None:
            process.kill("killed before its predecessor has followed it")

    async def _begin_again(self, admin: AsyncAdmin) -> None:
        """Lose a leader's answers, delete all records, and have a replica lead that begins behind them."""
        pair = self._pair()
        if pair is None:
            return
        leader, follower = pair
        others = [each for each in range(1, self.world.plan.brokers + 1) if each not in pair]
        self._block(leader, self.world.client_hosts[0], 8.0)
        await asyncio.sleep(self.between(0.2, 1.0))
        work = admin.delete_records({AT: -1}, timeout_s=API_S)
        if not await self.tried("delete records", work, API_S, OffsetOutOfRange):
            return
        self._reset(leader)
        await self._prefer(admin, [self.pick(others), follower])

    async def _prefer(self, admin: AsyncAdmin, replicas: list[int]) -> bool:
        work = admin.alter_partition_reassignments({AT: replicas}, timeout_s=API_S)
        allowed = (InvalidReplicaAssignment, NoReassignmentInProgress)
        return await self.tried(f"move {AT} to {replicas}", work, API_S, *allowed)

    def _pair(self) -> tuple[int, int] | None:
        """Return the leader and its follower, where both run, and the controller is on another node."""
        runners = self.world.observer.runners(AT)
        controller = self.world.cluster.actors["controller"].process
        if len(runners) != 2 or None in runners.values() or controller is None:
            return None
        leader, follower = runners
        near = controller.host in map(self.world.cluster.host, runners)
        return None if near else (leader, follower)

    def _block(self, broker: int, other: str, for_s: float) -> None:
        host = self.world.cluster.host(broker)
        self.world.log("nemesis", f"{host} does not reach {other}")
        self.world.nemesis.block([(host, other)], for_s)

    def _reset(self, broker: int) -> SimProcess | None:
        """Reset the connections of the replica on a broker, so that what is on its way is lost; return its process."""
        for actor in self.world.cluster.named(f"replica:{TOPIC}-"):
            if actor.process is not None and actor.process.host == self.world.cluster.host(broker):
                self.world.network.reset(actor.process)
                return actor.process
        return None


class Repeats(Part):
    """The topic of one world to which batches are sent again."""

    def __init__(self, world: World) -> None:
        """Nothing is stored."""
        super().__init__(world)
        self._offsets: dict[bytes, tuple[int, str]] = {}
        self._reader = RepeatReader(world, "repeat-reader", self)
        self.read = -1
        """The last offset that the reader got."""

    @classmethod
    def join(cls, plan: Plan, chance: random.Random) -> Plan:
        """Have clients on two hosts, one of which loses answers, and time for several moves."""
        config = {
            **plan.config,
            "replica.lag.time.max.ms": LAG_MS,
            "leader.imbalance.check.interval.seconds": "20",
        }
        pause_s = max(2.0, plan.fault_pause_s)
        return replace(plan, client_hosts=2, config=config, fault_pause_s=pause_s, work_s=plan.work_s + 20.0)

    async def make_topics(self, admin: AsyncAdmin) -> None:
        """Create the topic, with two replicas, one of which is enough."""
        await admin.create_topic(TOPIC, 1, 2, {"min.insync.replicas": "1", "segment.bytes": "2000"})

    def start(self) -> None:
        """Start the clients."""
        world = self.world
        near, far = world.client_hosts[:2]
        for name, timeout_ms in (("hasty-repeater", SOON_MS), ("repeater", DELIVERY_MS)):
            world.spawn(name, Repeater(world, name, self, timeout_ms).run(), near)
        world.spawn("repeat-reader", self._reader.run(), far)
        world.spawn("mover", Mover(world, "mover").run(), far)

    def note(self, value: bytes, offset: int, how: str) -> None:
        """A record is at an offset; raises Violation where it is at another one, too."""
        known, before = self._offsets.setdefault(value, (offset, how))
        if known != offset:
            raise Violation(RULE, f"{value!r} is stored at {known} ({before}), and at {offset}: {how}")
        if how.endswith("reads it"):
            self.read = max(self.read, offset)

    async def finish(self, admin: AsyncAdmin, until: Until) -> None:
        """Everything was read."""

        client = Client(self.world, "repeats-finish")

        async def missing() -> str:
            leader, *_ = [*self.world.observer.runners(AT).values(), None]
            if leader is None:
                return await woken(client, admin, TOPIC)
            machine = leader.machine
            is_read = self.read >= machine.high_watermark - 1 or machine.log_start_offset == machine.high_watermark
            return "" if is_read else f"the reader has read {self.read} of {machine.high_watermark}"

        await until("what was sent again is read", missing)
