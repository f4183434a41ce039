"""The transactions of a world: their topics, the places of their clients, and the faults that are theirs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from raylog.core.controller.coordinators import INTERNAL_TOPICS
from tests.simulation.whole.books import At
from tests.simulation.whole.loop.processes import SimProcess
from tests.simulation.whole.transactions.account_clients import AccountAdministrator, AccountReader
from tests.simulation.whole.transactions.accounts import Accounts
from tests.simulation.whole.transactions.clients import STRIKE_SHARE, Careless, Copier, Plain, Teller
from tests.simulation.whole.transactions.ledger import Ledger
from tests.simulation.whole.transactions.readers import CommittedReader, Follower
from tests.simulation.whole.transactions.renewal import Renewal

if TYPE_CHECKING:
    from tests.simulation.whole.cluster import Actor
    from tests.simulation.whole.world import World

INPUT: Final = "orders"
OUTPUT: Final = "results"
ACCOUNTS: Final = "accounts"
"""A compacted topic that tellers and copiers write to in the same transactions."""
GROUP: Final = "copiers"
ADMINISTRATOR: Final = "account-administrator"
STRIKE_S: Final = 0.4
"""When something of a transaction is struck: at most so long after its end was called for."""


class Transactions:
    """All of a world that is about transactions."""

    def __init__(self, world: World) -> None:
        """Nothing is started yet."""
        self._world = world
        self._scheduler = world.scheduler
        self.ledger = Ledger()
        self.group = GROUP
        self.timeout_s = world.plan.transaction_timeout_s
        self.inputs: list[At] = []
        self.outputs: list[At] = []
        self.accounts: list[At] = []
        self.account_books = Accounts(lambda *known: world.books.on_committed(*known))
        self.readers: list[CommittedReader] = []
        self.renews = world.plan.renews_topic
        self.commits = self.aborts = 0
        self._places: dict[str, SimProcess] = {}
        self._kinds: dict[str, type[Teller | Copier]] = {}
        self._lives = self._numbers = 0
        self.working: set[str] = set()
        """Lives of tellers and copiers that have not ended, and the administrator of the compacted topic."""

    def number(self) -> int:
        """Return the number of the next transaction."""
        self._numbers += 1
        return self._numbers

    async def make_topics(self, admin: AsyncAdmin) -> None:
        """Create the topic of the tellers and that of the copies."""
        count = 1 + int(self._scheduler.random.random() * self._world.plan.partitions_max)
        for topic in (INPUT, OUTPUT):
            config = {"segment.bytes": "20000"}
            await admin.create_topic(topic, count, self._world.plan.replication_factor, config)
        self.inputs = [TopicPartition(INPUT, number) for number in range(count)]
        self.outputs = [TopicPartition(OUTPUT, number) for number in range(count)]
        if self._world.plan.accounts:
            await self._make_accounts(admin, self._world.plan.accounts)

    async def _make_accounts(self, admin: AsyncAdmin, count: int) -> None:
        """Create the compacted topic; it and the coordinators' topics are cleaned as soon as a segment is closed."""
        cleaned = {"segment.bytes": "1500", "min.cleanable.dirty.ratio": "0.01"}
        await admin.create_topic(ACCOUNTS, count, 3, {"cleanup.policy": "compact", **cleaned})
        self.accounts = [TopicPartition(ACCOUNTS, number) for number in range(count)]
        async with AsyncProducer(transactional_id="founder") as producer:
            await producer.init_transactions()
        async with AsyncConsumer(group_id="founders", enable_auto_commit=False) as consumer:
            await consumer.committed(self.inputs[0])
        for topic in sorted(INTERNAL_TOPICS.values()):
            await admin.alter_topic_config(topic, cleaned)

    def account_of(self, at: At) -> At:
        """Return the partition of the compacted topic in which a partition's copies are summed up."""
        return self.accounts[at.partition % len(self.accounts)]

    def start(self) -> None:
        """Start the clients."""
        world, plan = self._world, self._world.plan
        for number in range(plan.tellers):
            self._kinds[f"teller-{number}"] = Teller
        for number in range(plan.copiers):
            self._kinds[f"copier-{number}"] = Copier
        for place in self._kinds:
            self.fill(place)
        world.spawn("plain", Plain(world, "plain").run())
        world.spawn("careless", Careless(world, "careless", "careless").run())
        world.spawn("follower", Follower(world, "follower").run())
        if self.renews:
            world.spawn("renewal", Renewal(world, "renewal").run())
        for name, host in (("committed-reader", ""), ("near-reader", world.cluster.host(1))):
            reader = CommittedReader(world, name, seeks=0.03 if host else 0.0)
            self.readers.append(reader)
            world.spawn(name, reader.run(), host)
        if self.accounts:
            for name, host in (("account-reader", ""), ("near-account-reader", world.cluster.host(1))):
                world.spawn(name, AccountReader(world, name).run(), host)
            self.working.add(ADMINISTRATOR)
            world.spawn(ADMINISTRATOR, AccountAdministrator(world, ADMINISTRATOR).run())

    def fill(self, place: str) -> None:
        """Start a process with a place's transactional id, beside one that may still run."""
        if self._world.is_quiet and self._kinds[place] is Teller:
            return
        self._lives += 1
        name = f"{place}.{self._lives}"
        self._places[place] = self._world.spawn(name, self._live(name, place))

    async def _live(self, name: str, place: str) -> None:
        self.working.add(name)
        await self._kinds[place](self._world, name, place).run()
        self.working.discard(name)

    def is_latest(self, place: str, name: str) -> bool:
        """Whether no other process of this place was started after this one."""
        process = self._places.get(place)
        return process is None or process.name == name

    @property
    def starts(self) -> int:
        """How many processes of tellers and copiers were started."""
        return self._lives

    def waits(self) -> str:
        """Return a teller or an administrator that works; "" = all have ended."""
        return next((name for name in sorted(self.working) if not name.startswith("copier-")), "")

    # ------------------------------------------------------------ faults

    def strike_place(self) -> None:
        """Kill a client of transactions, which another follows, pause it, or start another beside it."""
        places = list(self._places)
        place = places[int(self._scheduler.random.random() * len(places))]
        process, chance = self._places[place], self._scheduler.random.random()
        if chance < 0.5:
            self._kill_client(place, process)
        elif chance < 0.8:
            for_s = self._scheduler.between(0.5, 9.0)
            process.pause()
            self._world.books.excuse(f"{process.name}:", for_s)
            self._scheduler.after(for_s, process.resume)
            if self._scheduler.chance(0.5):
                self._scheduler.after(self._scheduler.between(0.0, for_s), self.fill, place)
        else:
            self._world.log("nemesis", f"{place} gets a second process")
            self.fill(place)

    def _kill_client(self, place: str, process: SimProcess) -> None:
        process.kill("killed by the nemesis")
        self._world.books.excuse(f"{process.name}:", math.inf)
        self.working.discard(process.name)
        self._scheduler.after(self._scheduler.between(0.1, 2.0), self.fill, place)

    def kill_coordinator(self) -> None:
        """Kill a transaction coordinator."""
        self._kill(self._pick("coordinator-transaction-"))

    def pause_coordinator(self) -> None:
        """Let a transaction coordinator hang for a while."""
        actor = self._pick("coordinator-transaction-")
        if actor is not None and actor.process is not None:
            actor.process.pause()
            self._scheduler.after(self._scheduler.between(0.2, 8.0), actor.process.resume)

    def ends(self, name: str) -> None:
        """A client is about to end its transaction: now and then something dies while the markers are written."""
        world = self._world
        if not world.nemesis.is_active or not self._scheduler.chance(STRIKE_SHARE):
            return
        process = self._scheduler.current
        deeds: list[Callable[[], None]] = [
            lambda: self._kill(self._pick("coordinator-transaction-")),
            lambda: self._kill(self._pick("coordinator-transaction-")),
            lambda: self._kill(self._pick("coordinator-group-")),
            lambda: self._kill(self._pick(f"replica:{INPUT}-")),
            lambda: self._kill(self._pick(f"replica:{OUTPUT}-")),
            lambda: self._kill(self._pick("replica:__transaction_state-")),
            *([lambda: self._kill(self._pick(f"replica:{ACCOUNTS}-"))] if self.accounts else []),
            *([lambda: self._kill_client(name.rpartition(".")[0], process)] if process is not None else []),
        ]
        deed = deeds[int(self._scheduler.random.random() * len(deeds))]
        world.nemesis.faults += 1
        world.log("nemesis", f"strikes an end of a transaction of {name}")
        self._scheduler.after(self._scheduler.between(0.0, STRIKE_S), deed)

    def _pick(self, prefix: str) -> Actor | None:
        actors = [actor for actor in self._world.cluster.named(prefix) if actor.process is not None]
        return actors[int(self._scheduler.random.random() * len(actors))] if actors else None

    def _kill(self, actor: Actor | None) -> None:
        if actor is not None and actor.process is not None:
            actor.process.kill("killed by the nemesis")
