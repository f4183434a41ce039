"""One run of the whole world: build it, let it work under faults, heal it, and check the final state."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

from raylog.actors.replica import consumer_reads
from raylog.actors.scheduling.role import SchedulerRole
from raylog.base.errors import RaylogError
from raylog.base.ids import TopicPartition
from raylog.base.invariants import InvariantBroken
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.cluster import discovery
from raylog.client.reading import local_files
from tests.simulation.whole import ports
from tests.simulation.whole.books import At, Books
from tests.simulation.whole.checks import Finish
from tests.simulation.whole.clients import (
    AUTOMATIC,
    BY_HAND,
    Administrator,
    Client,
    GroupMember,
    ProducingClient,
    Reader,
    UncleanReader,
    View,
)
from tests.simulation.whole.cluster import Cluster
from tests.simulation.whole.compaction.clients import TableAdministrator, TableReader, TableWriter
from tests.simulation.whole.compaction.tables import Tables
from tests.simulation.whole.disks import NodeDisks
from tests.simulation.whole.dozing.ports import Dozes
from tests.simulation.whole.dozing.strikes import Strikes
from tests.simulation.whole.expiries import SeldomProducer
from tests.simulation.whole.forwarding.clients import Expirer, LettersReader, Redriver
from tests.simulation.whole.forwarding.clients import make_topics as make_fleeting_topics
from tests.simulation.whole.forwarding.letters import Letters
from tests.simulation.whole.loop.network import Network
from tests.simulation.whole.loop.processes import SimProcess
from tests.simulation.whole.loop.scheduler import DETAILED_LENGTH, STORY_LENGTH, Scheduler
from tests.simulation.whole.nemesis import Nemesis
from tests.simulation.whole.observer import Observer
from tests.simulation.whole.plan import TABLES, TOPICS, UNCLEAN, Plan
from tests.simulation.whole.queues.clients import (
    DEAD,
    KEYED,
    LETTERS_LIMIT,
    PLAIN,
    QUEUE,
    JobProducer,
    LetterReader,
    TransactionalJobProducer,
    Worker,
)
from tests.simulation.whole.queues.clients import PARTITIONS as QUEUE_PARTITIONS
from tests.simulation.whole.queues.jobs import Group, Jobs
from tests.simulation.whole.renewed import Renewed, Renewer, Stayer
from tests.simulation.whole.schedules.clients import DEFAULT_MS, PARTITIONS, SIZES, DelayedReader, Delayer
from tests.simulation.whole.schedules.delays import Delays
from tests.simulation.whole.schedules.halves import LATER, Bank, Payer
from tests.simulation.whole.shared_memory import SharedMemory
from tests.simulation.whole.transactions.part import Transactions
from tests.simulation.whole.visitors import Visitor
from tests.simulation.world import Violation

BUILT_S: Final = 60.0
"""Deadline for the cluster to serve and to have its topics."""
FINISH_S: Final = 200.0
"""Deadline, after the last fault, for convergence and the final reads."""
WORK_OFF_S: Final = 1_200.0
"""More of it where queues are worked off: each retry of a key waits for its pause, and the key's others behind it.
A copy that was made under a clock ahead by up to 1,000 s waits for as long when the clock is right again."""
EXPIRE_S: Final = 120.0
"""More of it where offsets have to expire."""
LOOK_S: Final = 0.5
NEAR_BYTES_MIN: Final = 3_000
"""Fewer bytes come with the answer to a consumer on the leader's host: less than production's, as logs are short."""


class World:
    """Everything of one run. Made in a process of its own, because it binds the shipped modules to itself."""

    def __init__(self, seed: int, plan: Plan, root: Path) -> None:
        """No code runs before :meth:`run`. ``root`` is an empty folder for the brokers' directories."""
        self.seed, self.plan = seed, plan
        self.scheduler = Scheduler(seed, DETAILED_LENGTH if plan.is_detailed else STORY_LENGTH)
        self.network = Network(self.scheduler)
        self.disks = NodeDisks(self.scheduler, root, plan.brokers) if plan.disks else None
        ports.bind(self.scheduler, self.network, *([] if self.disks is None else [self.disks.files]))
        self.memory = SharedMemory(self.scheduler)
        self.memory.bind()
        self.books = Books()
        self.strikes = Strikes(self)
        self.dozes = Dozes(self.scheduler, self.strikes.step) if plan.dozes else None
        if self.dozes is not None:
            self.dozes.keepers.bind()
        self.cluster = Cluster(
            self.scheduler,
            self.network,
            root,
            brokers=plan.brokers,
            voters=plan.voters,
            config=plan.config,
            dozes=self.dozes,
        )
        discovery._query_controller = self.cluster.controller_access
        self.nemesis = Nemesis(self)
        self.observer = Observer(self)
        self.tables = [TopicPartition(name, 0) for name in plan.tables]
        self.table_books = Tables(lambda *known: self.books.on_committed(*known))
        self.delays = Delays()
        self.bank = Bank()
        self.jobs = Jobs({PLAIN: Group(by_key=False), KEYED: Group(by_key=True)} if plan.workers else {})
        self.letters, self.renewed = Letters(), Renewed()
        self.cleanings = 0
        """How often a replica has cleaned its log."""
        self.steady_topics = [f"topic-{number}" for number in range(plan.topics)]
        self.client_hosts = [f"127.0.0.{100 + number}" for number in range(plan.client_hosts)]
        if plan.is_operated or plan.tellers:
            consumer_reads.NEAR_BYTES_MIN = NEAR_BYTES_MIN  # type: ignore[misc]
            # The kernel closes the files of a killed process; its objects must not close other ones of these numbers.
            local_files.SegmentFile.__del__ = lambda _: None  # type: ignore[method-assign]
        self.view = View()
        self.transactions = Transactions(self) if plan.tellers else None
        self.parts = [part(self) for part in plan.parts]
        self.places: dict[int, SimProcess] = {}
        """The processes of group members, by place."""
        self.clients: list[SimProcess] = []
        """The processes of all clients."""
        self._lives = self._spawned = 0
        self.is_built = self.is_quiet = False
        """Clients send and change nothing any more."""
        self.is_unchanged = False
        """The administrator is done."""
        self.is_over = False
        """All checks are done."""
        self.violation: Violation | None = None
        self.elected_s: dict[str, float] = {}
        """When a replica of a partition last took a role."""
        self.elections = 0
        """Number of elected leaders of partitions, as their replicas log it."""
        self._logs = _Logs(self)

    @property
    def now_s(self) -> float:
        """Virtual seconds."""
        return self.scheduler.now_s

    def log(self, source: str, what: str) -> None:
        """Add a line to the story."""
        self.scheduler.log(source, what)

    def open_partitions(self) -> list[At]:
        """Return the partitions that are writable now."""
        books = self.books
        return [
            TopicPartition(topic, item)
            for topic, count in books.partitions.items()
            if topic not in books.doomed
            for item in range(count)
        ]

    # ------------------------------------------------------------ the run

    def run(self) -> Violation | None:
        """Run to the end or to the first violation, which is returned."""
        logger = logging.getLogger("raylog")
        logger.handlers, logger.propagate = [self._logs], False
        logger.setLevel(logging.INFO)
        self.cluster.start()
        self.spawn("builder", self._build())
        self.scheduler.after(LOOK_S, self._look)
        self._phase(lambda: self.is_built, BUILT_S, "the cluster serves and has its topics")
        if self.violation is None:
            self._start_clients()
            self.nemesis.start()
            self.scheduler.run(self.now_s + self.plan.work_s)
        if self.violation is None:
            self.nemesis.heal()
            self.scheduler.run(self.now_s + self.plan.calm_s)
        if self.violation is None:
            self.is_quiet = True
            self.spawn("finish", Finish(self).run())
            patience_s = FINISH_S + (WORK_OFF_S if self.plan.workers else 0.0)
            patience_s += EXPIRE_S if self.plan.forgets_producers_s else 0.0
            patience_s += sum(part.patience_s for part in self.parts)
            self._phase(lambda: self.is_over, patience_s, "everything has converged and was read")
        if self.violation is not None:
            self.log("VIOLATION", str(self.violation))
        return self.violation

    def _phase(self, done: Any, limit_s: float, what: str) -> None:
        until_s = self.now_s + limit_s
        while self.violation is None and not done():
            if self.now_s >= until_s:
                self.fail(Violation("W9", f"after {limit_s:.0f} s it does not hold that {what}: {self.waits_for}"))
                return
            self.scheduler.run(min(until_s, self.now_s + LOOK_S))

    waits_for = ""
    """The condition that the current phase waits for."""

    def fail(self, violation: Violation) -> None:
        """End the run with a violation; the first one counts."""
        if self.violation is None:
            self.violation = violation
        self.scheduler.stop()

    def _look(self) -> None:
        """Claims that hold at any time."""
        try:
            self.books.check_deadlines(self.now_s)
            self.observer.look()
            for part in self.parts:
                part.look()
        except Violation as found:
            self.fail(found)
        if self.scheduler.failures:
            self.fail(Violation("W10", f"an exception reached an event loop: {self.scheduler.failures[0]}"))
        defects = [reason for reason in self.cluster.fatal if "Error(" in reason or "Broken" in reason]
        if defects:
            self.fail(Violation("W10", f"a process ended itself over a defect: {defects[0]}"))
        self.scheduler.after(LOOK_S, self._look)

    # ------------------------------------------------------------ clients

    def spawn(self, name: str, work: Coroutine[Any, Any, None], host: str = "") -> SimProcess:
        """Run a client in a process of its own, on this host or on one of the clients'."""
        self._spawned += 1
        host = host or self.client_hosts[self._spawned % len(self.client_hosts)]
        process = SimProcess(self.scheduler, self.network, name, host)
        self.clients.append(process)
        process.call_soon(lambda: process.create_task(self.guarded(name, work)))
        return process

    def end_clients(self) -> None:
        """End the processes of all clients but the one that calls this: nothing wants anything of the cluster."""
        for process in self.clients:
            if process is not self.scheduler.current:
                process.kill("the clients' work is over")
        self.books.excuse("", math.inf)

    async def guarded(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Run a task of a client; a violation in it, or any other exception, ends the run."""
        try:
            await work
        except Violation as found:
            self.fail(found)
        except Exception as error:
            self.fail(Violation("W8", f"{name} met {error!r}"))
            raise

    async def _build(self) -> None:
        client = Client(self, "builder")
        admin = AsyncAdmin()
        while not await client.tried("start", admin.start(), 60.0, RaylogError):
            admin = AsyncAdmin()
            await asyncio.sleep(0.2)
        online: set[int] = set()
        while len(online) < self.plan.brokers:
            online = {found.broker for found in (await admin.describe_cluster()).brokers}
            await asyncio.sleep(LOOK_S)
        for topic in self.steady_topics:
            count = 1 + int(self.scheduler.random.random() * self.plan.partitions_max)
            await admin.create_topic(topic, count, self.plan.replication_factor, {"segment.bytes": "20000"})
            self.books.partitions[topic] = count
        for topic in self.plan.topics_besides:
            await admin.create_topic(topic, 1, *TOPICS[topic])
            self.books.partitions[topic] = 1
        for name in self.plan.tables:
            await admin.create_topic(name, 1, 3, {"cleanup.policy": "compact", **TABLES[name]})
        if self.transactions is not None:
            await self.transactions.make_topics(admin)
        if self.plan.delayers:
            SchedulerRole.settings = SIZES
            config = {"segment.bytes": "20000", "delay.default.ms": str(DEFAULT_MS)}
            await admin.create_topic(LATER, PARTITIONS, 3, config)
        if self.plan.workers:
            await admin.create_topic(QUEUE, QUEUE_PARTITIONS, 3, {"queue.retry.max.ms": "500"})
            await admin.create_topic(DEAD, QUEUE_PARTITIONS, 3, {"max.message.bytes": LETTERS_LIMIT})
        if self.plan.forgets_producers_s:
            await admin.create_topic("seldom", 1, 3)
        if self.plan.expirers:
            await make_fleeting_topics(admin)
        for part in self.parts:
            await part.make_topics(admin)
        await admin.stop()
        self.is_built = True

    def _start_clients(self) -> None:
        chance = self.scheduler.random
        for number in range(self.plan.producers):
            kind = 0 if number == 0 else int(chance.random() * 4)
            acks: object = ("all", "all", 1, 0)[kind]
            name = f"producer-{number}"
            client = ProducingClient(self, name, acks=acks, idempotent=acks == "all" and chance.random() < 0.8)
            self.spawn(name, client.run())
        self.spawn("reader", Reader(self, "reader").run())
        if UNCLEAN in self.plan.topics_besides:
            self.spawn("unclean-reader", UncleanReader(self, "unclean-reader").run())
        if self.plan.sleeps:
            self.spawn("visitor", Visitor(self, "visitor").run())
        if self.plan.is_operated:
            self.spawn("near-reader", Reader(self, "near-reader", seeks=0.3).run(), self.cluster.host(1))
        if self.tables:
            for number in range(2):
                self.spawn(f"table-writer-{number}", TableWriter(self, f"table-writer-{number}").run())
            self.spawn("table-reader", TableReader(self, "table-reader").run())
            self.spawn("near-table-reader", TableReader(self, "near-table-reader").run(), self.cluster.host(1))
            self.spawn("table-administrator", TableAdministrator(self, "table-administrator").run())
        for number in range(self.plan.delayers):
            self.spawn(f"delayer-{number}", Delayer(self, f"delayer-{number}").run())
        for number in range(self.plan.payers):
            self.spawn(f"payer-{number}", Payer(self, f"payer-{number}").run())
        if self.plan.delayers:
            self.spawn("delayed-reader", DelayedReader(self, "delayed-reader").run())
        if self.plan.workers:
            self.spawn("job-producer", JobProducer(self, "job-producer").run())
            if self.seed % 2:
                name = "job-transactions"
                self.spawn(name, TransactionalJobProducer(self, name).run())
            self.spawn("letter-reader", LetterReader(self, "letter-reader").run())
        for number in range(self.plan.workers):
            for group in (PLAIN, KEYED):
                name = f"worker-{number}-{group}"
                self.spawn(name, Worker(self, name, group).run())
        for number in range(self.plan.expirers):
            self.spawn(f"expirer-{number}", Expirer(self, f"expirer-{number}").run())
        if self.plan.expirers:
            self.spawn("redriver", Redriver(self, "redriver").run())
            self.spawn("letters-reader", LettersReader(self, "letters-reader").run())
        if self.plan.forgets_producers_s:
            self.spawn("producer-seldom", SeldomProducer(self, "producer-seldom").run())
        if self.plan.renews:
            self.spawn("renewer", Renewer(self, "renewer").run())
            for name, group in (("stayer", "stayers"), ("lonely-stayer", "")):
                self.spawn(name, Stayer(self, name, group or None).run())
        self.spawn("administrator", Administrator(self, "administrator").run())
        for number in range(self.plan.members):
            self.fill_place(number)
        if self.transactions is not None:
            self.transactions.start()
        for part in self.parts:
            part.start()

    def fill_place(self, number: int) -> None:
        """Start the process of one place in a group, again after it was killed."""
        self.places[number] = self.spawn(f"place-{number}", self._members(number))

    async def _members(self, number: int) -> None:
        """One place in a group: a member, and after it leaves another one."""
        group = AUTOMATIC if number % 2 else BY_HAND
        is_static = self.plan.has_static_members and (self.seed + number) % 3 == 0
        instance = f"instance-{number}" if is_static else None
        while not self.is_over:
            self._lives += 1
            name = f"member-{number}.{self._lives}"
            await GroupMember(self, name, group, self.steady_topics, instance).run()
            await asyncio.sleep(self.scheduler.between(0.0, 3.0))


class _Logs(logging.Handler):
    """Adds the log of all processes to the story; a logged exception is a defect."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line."""
        world = self._world
        process = world.scheduler.current
        text = record.getMessage()
        world.cleanings += " was cleaned up to offset " in text
        for part in world.parts:
            part.logged(text)
        partition, is_role, _ = text.partition(": leader ")
        if is_role:
            world.elections += 1
            world.elected_s[partition] = world.now_s
        world.log("-" if process is None else process.name, f"{record.levelname.lower()}: {text}")
        known = record.args if isinstance(record.args, tuple) else ()
        broken: list[BaseException] = [item for item in known if isinstance(item, InvariantBroken)]
        if record.exc_info and record.exc_info[1] is not None:
            broken.append(record.exc_info[1])
        if broken:
            world.scheduler.failures.append(f"{'-' if process is None else process.name}: {text}: {broken[0]!r}")
