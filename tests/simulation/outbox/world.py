"""One run: a bank's database, two relays on one outbox, leaders, and a nemesis that kills, pauses, loses and restores.

The relays are the shipped ones, with their session, store and SQL, on SQLite in memory. What is replaced: the thread of
the database (its calls run at once, and may fail before or after they commit), the driver's connections (any statement
may find its one closed), the producer's network, and the clocks.
"""

from __future__ import annotations

import asyncio
import math
import random
import sqlite3
import zlib
from collections.abc import Callable
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from raylog import outbox
from raylog.base.ids import TopicPartition
from raylog.client.cluster.metadata import PartitionInfo, TopicInfo
from raylog.client.types import Record
from raylog.outbox.model import Limits
from raylog.outbox.relay import OutboxRelay
from raylog.outbox.tables import FAILED, FINISHED
from raylog.outbox.tables import outbox as events
from raylog.outbox.threads import DatabaseThread
from tests.simulation.outbox.connections import Server
from tests.simulation.outbox.leaders import Leader, SimProducer
from tests.simulation.world import Violation

TOPIC = "transfers"
KEYS = 5
PARTITIONS = 3
FAULTS_S = 8.0
CONVERGE_S = 40.0
LEASE_MS = 500
OVERSIZED = 200_000
STATEMENTS = 6
"""A connection that is lost in a call is lost by this statement of it."""


class _Killed(BaseException):
    """The process does not exist any more."""


class InlineThread(DatabaseThread):
    """Runs the calls of a database at once: each is one event of the world."""

    def __init__(self, process: RelayProcess) -> None:
        super().__init__()
        self._process = process

    async def run(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        """Run a call between two steps of its process; it may fail before or after it has committed."""
        world = self._process.world
        await self._process.step()
        chance = world.random.random()
        if self._process in world.broken:
            world.broken.discard(self._process)
            raise OperationalError("connection lost by the restore", {}, sqlite3.OperationalError("lost"))
        if chance < world.database_errors:
            world.server.lose_after(world.random.randint(1, STATEMENTS))
        try:
            return await self._called(function, *args, **options)
        finally:
            world.server.keep()

    async def _called(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        world = self._process.world
        found = function(*args, **options)
        world.calls += 1
        if world.random.random() > 1 - world.database_errors:
            raise OperationalError("connection lost behind the commit", {}, sqlite3.OperationalError("lost"))
        await self._process.step()
        return found


class SimRelay(OutboxRelay):
    """The shipped relay, with the world's thread."""

    process: RelayProcess

    def new_thread(self) -> DatabaseThread:
        """Return the one without a thread."""
        return InlineThread(self.process)


class RelayProcess:
    """One process that runs a relay: it may be killed between any two of its steps, or stand still for a while."""

    def __init__(self, world: OutboxWorld, number: int) -> None:
        self.world = world
        self.number = number
        self.is_alive = True
        self.paused_until_s = 0.0
        self.relay = SimRelay(
            world.server.engine(),
            "bank",
            lease_ms=LEASE_MS,
            poll_ms=5,
            poll_max_ms=300,
            keep_finished_ms=10**9,
            limits=Limits(rows=40, batch_rows=world.random.choice((1, 3, 8)), scanned_rows=200),
            bootstrap="nowhere:1",
            secret="aa",
        )
        self.relay.process = self
        self.relay.chance = random.Random(number)
        self.relay.owner = f"relay-{number}"
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        self.relay.prepare()
        try:
            await self.relay.relay_through(SimProducer(self.world, self))  # type: ignore[arg-type]
        except _Killed:
            pass  # whatever ran of it since had no effect: every one begins with `awake`
        except Exception as error:
            if self.is_alive:
                self.world.violated(Violation("O0", f"a relay has ended: {error!r}"))

    async def awake(self) -> None:
        """Go on, unless the process is killed or paused. Whatever it does to the outside begins with this."""
        world = self.world
        while self.is_alive and world.now_s < self.paused_until_s:  # noqa: ASYNC110  # the pause may grow
            await asyncio.sleep(self.paused_until_s - world.now_s)
        if not self.is_alive:
            raise _Killed

    async def step(self) -> None:
        """Take a short time."""
        await self.awake()
        await asyncio.sleep(self.world.random.uniform(0.0, 0.004))
        await self.awake()

    def kill(self) -> None:
        """SIGKILL: nothing of it runs any more, not even its last blocks."""
        self.is_alive = False


class OutboxWorld:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed * 7919 + 3)
        draw = self.random
        self.loss = draw.choice((0.0, 0.05, 0.2))
        self.duplication = draw.choice((0.0, 0.1, 0.4))
        self.slow = draw.choice((0.0, 0.1))
        self.database_errors = draw.choice((0.0, 0.005, 0.02))
        self.kills_below = draw.choice((0.75, 0.84))
        """Of the nemesis's draws; what lies above them stands relays still."""
        self.restores = draw.random() < 0.25
        self.calls = self.duplicates = self.producer_ids = self.kills = 0
        self.trace = 0
        """A number that is the same for runs that went the same way."""
        self.story: list[str] = []
        self.violation: Violation | None = None
        self.committed: set[int] = set()
        self.oversized: set[int] = set()
        self.known_lost: set[int] = set()
        """Committed before the database was restored from a backup without them."""
        self.broken: set[RelayProcess] = set()
        """Processes whose connection to the database is broken, as they will notice."""
        self.places: dict[int, list[tuple[TopicPartition, int]]] = {}
        """Where each event is in the topic; only with a restored database more than once."""
        self.is_restored = False
        self._backup: tuple[sqlite3.Connection, set[int]] | None = None
        self.newest_of_key: dict[int, int] = {}
        self.next_number = 0
        self.server = Server(lambda: self.now_s)
        self.server.idle_s = draw.choice((math.inf, 0.05, 0.25))
        self.engine = self.server.engine(is_closed=False)
        """Of the bank and its inboxes; each relay has one of its own."""
        outbox.init(self.engine, shards=draw.choice((1, 1, 2)))
        self.leaders = {
            TopicPartition(TOPIC, number): Leader(self, TopicPartition(TOPIC, number)) for number in range(PARTITIONS)
        }
        rows = tuple(PartitionInfo(number, 1, 1, "h", 1, (1,), (1,)) for number in range(PARTITIONS))
        self.topic = TopicInfo("id-1", TOPIC, False, rows, {"max.message.bytes": 100_000}, 1)
        self.relays: list[RelayProcess] = []

    def close(self) -> None:
        """End the database."""
        self.engine.dispose()
        self.server.close()

    # ------------------------------------------------------------ what the world offers

    @property
    def now_s(self) -> float:
        """Virtual seconds; before the run it is its beginning."""
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:
            return 1_000.0

    def later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> None:
        """Do something at a later time."""
        asyncio.get_running_loop().call_later(delay_s, callback, *args)

    def travel_s(self) -> float:
        """How long a message is on its way."""
        return self.random.uniform(0.5, 4.0) if self.random.random() < self.slow else self.random.uniform(0.0, 0.02)

    def violated(self, violation: Violation) -> None:
        """Note the first violation."""
        if self.violation is None:
            self.violation = violation

    def key_of(self, number: int) -> int:
        """The key of an event."""
        return number % KEYS

    def log(self, text: str) -> None:
        """Add a line to the story."""
        self.story.append(f"{self.now_s:.3f} {text}")

    # ------------------------------------------------------------ the run

    async def play(self) -> None:
        """Faults for a while, then none: every committed event must be in the topic once, and be finished."""
        loop = asyncio.get_running_loop()
        self.relays = [RelayProcess(self, 1), RelayProcess(self, 2)]
        end_s = loop.time() + FAULTS_S
        while loop.time() < end_s and self.violation is None:
            await asyncio.sleep(self.random.expovariate(12.0))
            self._act()
        self.loss = self.duplication = self.slow = self.database_errors = 0.0
        for leader in self.leaders.values():
            leader.refuses_until_s = 0.0
        for number, process in enumerate(self.relays):
            process.paused_until_s = 0.0
            if not process.is_alive:
                self.relays[number] = RelayProcess(self, 100 + number)
        end_s = loop.time() + CONVERGE_S
        while self.violation is None and not self._is_settled():
            if loop.time() > end_s:
                self.violated(Violation("O1", f"not all events are finished: {self._open()}"))
            await asyncio.sleep(0.5)
        if self.violation is None:
            self._check_marks()
        if self.violation is None:
            self._check_inbox()
        self.trace = zlib.crc32(repr((sorted(self.places.items()), self.calls, self.kills)).encode())

    def _act(self) -> None:
        draw = self.random.random()
        if draw < 0.75:
            self._pay()
        elif draw < self.kills_below:
            self._kill(self.random.randrange(2))
        elif draw < 0.92:
            process = self.random.choice(self.relays)
            process.paused_until_s = self.now_s + self.random.choice((0.2, 1.5, 4.0))
            self.log(f"{process.relay.owner} stands still")
        elif draw < 0.98:
            leader = self.leaders[TopicPartition(TOPIC, self.random.randrange(PARTITIONS))]
            if self.random.random() < 0.7:
                leader.refuses_until_s = self.now_s + self.random.uniform(0.1, 1.5)
            else:
                leader.message_bytes = self.random.choice((400, 100_000))  # one event fits into either
        elif self.restores:
            self._back_up() if self._backup is None else self._restore(*self._backup)

    def _back_up(self) -> None:
        copy = sqlite3.connect(":memory:")
        self.server.database.backup(copy)
        self._backup = copy, set(self.committed)
        self.log("the database is backed up")

    def _restore(self, copy: sqlite3.Connection, committed: set[int]) -> None:
        """Have the database as it was; its connections break, and what was committed since is lost."""
        if not self.is_restored:
            self.is_restored = True
            copy.backup(self.server.database)
            self.known_lost = self.committed - committed
            self.broken = set(self.relays)
            self.log("the database is restored")

    def _pay(self) -> None:
        """A few transactions; some roll back, some events are too large for the topic."""
        for _ in range(self.random.randint(1, 12)):
            number, self.next_number = self.next_number, self.next_number + 1
            is_oversized = self.random.random() < 0.004
            value = f"{number} ".encode() + b"x" * (OVERSIZED if is_oversized else 0)
            with self.engine.connect() as db:
                past = 1 if number % 7 == 3 else None  # due before it is written: it keeps its place all the same
                outbox.add(db, TOPIC, value, key=str(self.key_of(number)).encode(), txid=f"t-{number}", deliver_at=past)
                if self.random.random() < 0.1:
                    db.rollback()
                    continue
                db.commit()
            self.committed.add(number)
            if is_oversized:
                self.oversized.add(number)

    def _kill(self, index: int) -> None:
        process = self.relays[index]
        if process.is_alive:
            process.kill()
            self.kills += 1
            self.log(f"{process.relay.owner} is killed")
            down_s = self.random.choice((0.0, 0.3, 3.0))
            self.later(down_s, self._restart, index)

    def _restart(self, index: int) -> None:
        if not self.relays[index].is_alive:
            self.relays[index] = RelayProcess(self, self.relays[index].number + 2)

    # ------------------------------------------------------------ checks

    def _expected(self) -> set[int]:
        """Committed events that are not behind an oversized one of their key."""
        left = self.committed - self.known_lost
        oversized = sorted(self.oversized - self.known_lost, reverse=True)
        first_failed = {self.key_of(number): number for number in oversized}
        return {number for number in left if number < first_failed.get(self.key_of(number), 1 << 60)}

    def _open(self) -> list[int]:
        """Events that should be finished, and are not."""
        with self.engine.connect() as db:
            finished = {int(row[0][2:]) for row in db.execute(select(events.c.txid).where(events.c.state == FINISHED))}
        return sorted(self._expected() - finished)

    def _is_settled(self) -> bool:
        if self._open():
            return False
        firsts = {min(group) for group in self._oversized_of_keys()}
        with self.engine.connect() as db:
            failed = {int(row[0][2:]) for row in db.execute(select(events.c.txid).where(events.c.state == FAILED))}
        return firsts <= failed

    def _oversized_of_keys(self) -> list[list[int]]:
        found: dict[int, list[int]] = {}
        for number in sorted(self.oversized - self.known_lost):
            found.setdefault(self.key_of(number), []).append(number)
        return list(found.values())

    def _check_marks(self) -> None:
        """Every finished row names the place where its event is."""
        with self.engine.connect() as db:
            for row in db.execute(select(events).where(events.c.state == FINISHED)):
                number = int(row.txid[2:])
                places = self.places.get(number, [])
                if not places:
                    self.violated(Violation("O2", f"event {number} is finished, and not in the topic"))
                elif row.offset_no is not None and (
                    (TopicPartition(TOPIC, row.partition_no), row.offset_no) not in places
                ):
                    self.violated(Violation("O2", f"event {number} is at {places}, not where its row says"))
        missing = self._expected() - self.places.keys()
        if missing:
            self.violated(Violation("O1", f"events {sorted(missing)} are not in the topic"))

    def _check_inbox(self) -> None:
        """A consumer that crashes and reads again handles each event once, by table and by position."""
        for mode in ("table", "position"):
            inbox = outbox.Inbox(self.engine, f"fund-{mode}", mode)
            handled: list[int] = []
            for where, leader in self.leaders.items():
                offset = 0
                while offset < len(leader.log):
                    number = leader.log[offset]
                    header = (outbox.TXID_HEADER, f"t-{number}".encode())
                    record = Record(where.topic, where.partition, offset, 0, None, b"", (header,))
                    try:
                        with inbox.transaction(record) as db:
                            if self.random.random() < 0.1:
                                raise ConnectionError("the consumer is killed")
                            if db is not None:
                                handled.append(number)
                    except ConnectionError:
                        continue
                    offset = max(0, offset - self.random.randint(0, 3)) if self.random.random() < 0.1 else offset + 1
            stored = self.places if mode == "table" else [each for at in self.places.values() for each in at]
            if len(handled) != len(stored) or set(handled) != set(self.places):
                self.violated(Violation("O4", f"by {mode}: not every event is handled once"))
