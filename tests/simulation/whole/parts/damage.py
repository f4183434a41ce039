"""Bits that flip on one node's disk, in closed and open segments, in indexes, snapshots and logs of the cluster's own.

Only in what two other nodes have whole. A reader gets every record all the same, once another replica leads; the
damage is logged, the folder is kept, and at the end every replica is whole again, and can lead.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from raylog.base.errors import (
    CorruptMessage,
    ElectionNotNeeded,
    InvalidReplicaAssignment,
    NoReassignmentInProgress,
    RaylogError,
)
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from raylog.storage.batch.header import iter_headers
from raylog.storage.errors import CorruptBatch
from tests.simulation.storage.nodes import File
from tests.simulation.whole.clients import API_S, DELIVERY_S, Client
from tests.simulation.whole.parts.part import API_MS, Part, Until, started, woken
from tests.simulation.whole.parts.sender import Sender
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.plan import Plan
    from tests.simulation.whole.world import World

FRAIL: Final = "frail"
AT: Final = TopicPartition(FRAIL, 0)
RULE: Final = "W79"
"""Damage on one disk loses nothing, is noticed, and is mended from the other replicas."""
LOGS: Final = (FRAIL, "__consumer_offsets", "__transaction_state", "__scheduled", "__share_state", "__forwarding")
"""Topics in whose segments bits flip."""
PAUSE_S: Final = (0.1, 1.5)
"""Between two bits that flip."""
KINDS: Final = (".log", ".log", ".log", ".index", ".timeindex", ".txnindex", ".snapshot")
READ_S: Final = 60.0
"""Longest time in which a reader gets everything from a leader whose log was damaged, where nothing is broken."""


@dataclass(frozen=True, slots=True)
class Flip:
    """One bit that flipped in a segment."""

    file: File
    position: int
    bit: int
    byte: int
    """What is there since."""
    where: str
    at: TopicPartition


class FrailProducer(Sender):
    """Sends records, some in transactions, until the world is quiet."""

    def __init__(self, world: World, name: str, part: Damage) -> None:
        """One producer of each kind."""
        super().__init__(world, name)
        self._part = part
        self._count = 0

    async def run(self) -> None:
        """Send."""
        await self.work(self._producer, self._transaction, begins=True)

    def _producer(self) -> AsyncProducer:
        batch, codec = self.pick([100, 1_000]), self.pick(["none", "lz4"])
        return self.producer(is_transactional=True, batch_size=batch, compression_type=codec)

    async def _transaction(self, producer: AsyncProducer) -> bool:
        is_kept, values = self.chance(0.7), []
        try:
            await self.call("begin", producer.begin_transaction(), API_S)
            for _ in range(int(self.between(1, 6))):
                self._count += 1
                values.append(f"{self.name}/{self._count}/{'x' * int(self.between(0, 150))}".encode())
                if not is_kept:
                    self._part.aborted.add(values[-1])
                work = producer.send(FRAIL, values[-1], partition=0)
                _ = self.beside(self.ignored(await self.call("send", work, API_S + 5.0)))
            end = producer.commit_transaction() if is_kept else producer.abort_transaction()
            await self.call("end", end, DELIVERY_S + 2 * API_S)
        except RaylogError as error:
            self.failed(error)
            return False
        if is_kept:
            self._part.stored += values
        await asyncio.sleep(self.between(0.0, self.world.plan.send_pause_s))
        return True


class FrailReader(Client):
    """Reads the topic over and over; what is damaged at the only replica in sync has to wait for another one."""

    def __init__(self, world: World, name: str, part: Damage) -> None:
        """One reader."""
        super().__init__(world, name)
        self._part = part

    async def run(self) -> None:
        """Read until the world is over."""
        while not self.world.is_over:
            found = await self.read_through(self.between(3.0, 12.0))
            self._part.judge(self.name, found)

    async def read_through(self, for_s: float, wanted: Sequence[bytes] = ()) -> dict[int, bytes]:
        """Read for a while from the start on, until all that is wanted was got; return the values by offset."""
        consumer = await started(self, self._consumer)
        consumer.assign([AT])
        got: dict[int, bytes] = {}
        until_s = self.world.now_s + for_s
        values: set[bytes] = set()
        while self.world.now_s < until_s and not (wanted and values.issuperset(wanted)) and not self.world.is_over:
            try:
                found = await self.call("getmany", consumer.getmany(timeout_ms=300), 1.5)
            except CorruptMessage as error:
                self.world.log(self.name, f"getmany: {error!r}")
                await asyncio.sleep(0.1)
                continue
            for record in found.get(AT, []):
                self.books.read += 1
                got[record.offset] = record.value
                values.add(record.value)
        await self.call("stop", consumer.stop(), 35.0)
        return got

    def _consumer(self) -> AsyncConsumer:
        return AsyncConsumer(
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            default_api_timeout_ms=API_MS,
            max_partition_fetch_bytes=self.pick([200, 1 << 20]),
        )


class Damage(Part):
    """The damage on one disk of a world."""

    patience_s = 240.0

    def __init__(self, world: World) -> None:
        """Nothing is damaged; the disk to be is drawn."""
        super().__init__(world)
        self.stored: list[bytes] = []
        self.aborted: set[bytes] = set()
        self.flips: list[Flip] = []
        self.seen: dict[int, bytes] = {}
        self.disk = 1 + int(world.scheduler.random.random() * world.plan.brokers)

    @classmethod
    def join(cls, plan: Plan, chance: random.Random) -> Plan:
        """Need virtual disks, of which the others only lose power."""
        config = {**plan.config, "replica.sync.time.max.ms": "2000"}
        return replace(plan, disks=True, power_cuts=True, config=config, work_s=plan.work_s + 6.0)

    async def make_topics(self, admin: AsyncAdmin) -> None:
        """Create the topic, with small segments."""
        brokers = list(range(1, self.world.plan.brokers + 1))
        others = [broker for broker in brokers if broker != self.disk]
        config = {"segment.bytes": "2000", "index.interval.bytes": "200", "min.insync.replicas": "2"}
        await admin.create_topic(FRAIL, None, None, config, assignment=[[self.disk, *others[:2]]])

    def start(self) -> None:
        """Start the clients."""
        self.world.spawn("frail-producer", FrailProducer(self.world, "frail-producer", self).run())
        self.world.spawn("frail-reader", FrailReader(self.world, "frail-reader", self).run())
        self._again()

    def _again(self) -> None:
        self.world.scheduler.after(self.world.scheduler.between(*PAUSE_S), self._strike)

    def _strike(self) -> None:
        if self.world.nemesis.is_active:
            self.flip()
            self._again()

    def flip(self) -> None:
        """Flip a bit of one file of a kind that is drawn, if the other replicas have what it says."""
        world = self.world
        assert world.disks is not None
        draw = world.scheduler.random.random
        kind = KINDS[int(draw() * len(KINDS))]
        topics = (FRAIL,) if draw() < 0.7 else LOGS
        files = [
            (path, file)
            for path, file in world.disks.clean_files(world.cluster.host(self.disk))
            if path.suffix == kind and (at := _partition(path)) is not None and at.topic in topics
        ]
        if not files:
            return
        path, file = files[int(draw() * len(files))]
        position = int(draw() * len(file.content))
        at = _partition(path)
        assert at is not None
        if kind == ".log" and not self._is_elsewhere(at, file, position):
            return
        bit = int(draw() * 8)
        file.flip(position, bit)
        world.log("nemesis", f"a bit of {path} flips on broker {self.disk}, in byte {position}")
        if kind == ".log":
            self.flips.append(Flip(file, position, bit, file.content[position], f"{path} at byte {position}", at))

    def _is_elsewhere(self, at: TopicPartition, file: File, position: int) -> bool:
        """Whether the batch there is committed, and in the logs of three running replicas."""
        if any(flip.file is file for flip in self.flips):
            return False
        try:
            headers = list(iter_headers(memoryview(bytes(file.content))))
        except CorruptBatch:
            return False
        behind = next(
            (header.next_offset for start, header in headers if start <= position < start + header.size), None
        )
        runners = list(self.world.observer.runners(at).values())
        if behind is None or len(runners) < 3:
            return False
        return all(
            runner is not None and runner.machine.log_start_offset <= behind <= runner.machine.high_watermark
            for runner in runners
        )

    def judge(self, reader: str, found: dict[int, bytes]) -> None:
        """What a reader got is what others got there, and nothing aborted."""
        for offset, value in found.items():
            if value in self.aborted:
                raise Violation(RULE, f"{reader} got {value[:40]!r} of {AT}, which was never committed")
            if self.seen.setdefault(offset, value) != value:
                raise Violation(
                    RULE, f"{reader} got {value[:40]!r} at {offset}, and {self.seen[offset][:40]!r} was there"
                )

    async def finish(self, admin: AsyncAdmin, until: Until) -> None:
        """Each replica leads in turn; a reader gets everything, and what was damaged is copied again."""
        client = FrailReader(self.world, "frail-finish", self)
        await until(f"{AT} was led by broker {self.disk}", lambda: self._led(client, admin, AT))
        found = await client.read_through(READ_S, self.stored)
        self.judge(client.name, found)
        values = set(found.values())
        if missing := [value for value in self.stored if value not in values]:
            raise Violation(RULE, f"{len(missing)} records of {AT} are not read, such as {missing[0][:40]!r}")
        await until(f"{AT} is whole", self._is_damaged)
        for flip in self.flips:  # no client reads the cluster's own topics from their starts
            if self._is_there(flip):
                flip.file.flip(flip.position, flip.bit)

    async def _led(self, client: Client, admin: AsyncAdmin, at: TopicPartition) -> str:
        """Have the replica on the damaged disk lead a partition, and its log read; return what is missing yet."""
        runners = self.world.observer.runners(at)
        if self.disk not in runners or runners[self.disk] is None:
            return "" if self.disk not in runners else await woken(client, admin, at.topic)  # perhaps it was never used
        if next(iter(runners)) == self.disk or not await self._is_damaged():
            return ""
        others = [broker for broker in runners if broker != self.disk]
        work = admin.alter_partition_reassignments({at: [self.disk, *others]}, timeout_s=API_S)
        allowed = (InvalidReplicaAssignment, NoReassignmentInProgress)
        if not await client.tried(f"prefer {self.disk}", work, API_S, *allowed):
            return "its replicas are not in order"
        await client.tried("elect", admin.elect_leaders(timeout_s=API_S), API_S, ElectionNotNeeded)
        return f"{next(iter(self.world.observer.runners(at)))} leads"

    def _is_there(self, flip: Flip) -> bool:
        """Whether a log still has a flipped bit."""
        assert self.world.disks is not None
        files = self.world.disks.clean_files(self.world.cluster.host(self.disk))
        content = flip.file.content
        is_in_use = any(file is flip.file and _partition(path) == flip.at for path, file in files)
        return is_in_use and flip.position < len(content) and content[flip.position] == flip.byte

    async def _is_damaged(self) -> str:
        there = [flip for flip in self.flips if flip.at == AT and self._is_there(flip)]
        return f"{there[0].where} is as it was damaged" if there else ""


def _partition(path: PurePath) -> TopicPartition | None:
    """Return the partition in whose folder a file is; None = in another one, as what is set aside."""
    if len(path.parts) != 2 or not path.parts[0].rpartition("-")[2].isdecimal():
        return None
    topic, _, number = path.parts[0].rpartition("-")
    return TopicPartition(topic, int(number))
