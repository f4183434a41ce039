"""Weeks with few clients, of days that have a minute: what is to end after days ends then, and nothing else does.

A producer that comes back every other day goes on in order, a transactional id and a group are remembered for a week
and not for much longer, a record that was delayed for days comes when it is due, and old records go. Every other day a
guest comes and goes, too, and nothing of it stays in any process.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from raylog.base.errors import RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.producer.producer import AsyncProducer
from raylog.core.configuration.config import SLEEP_KEY
from tests.simulation.whole.clients import API_S, DELIVERY_S, LAST_API_S, Client
from tests.simulation.whole.guests import Guest
from tests.simulation.whole.holdings import Sizes, holdings, rising
from tests.simulation.whole.parts.part import DELIVERY_MS, Part
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from raylog.client.admin.admin import AsyncAdmin
    from tests.simulation.whole.plan import Plan
    from tests.simulation.whole.world import World

TOPIC: Final = "weeks"
AT: Final = TopicPartition(TOPIC, 0)
GROUP: Final = "of-weeks"
DAY_S: Final = 60.0
"""Of periods that have days in what ships. The cluster's own ticks cost too much for longer ones."""
EVERY_S: Final = 2 * DAY_S
DELAY_S: Final = 5 * DAY_S
RULE: Final = "W84"
"""What ends after days ends then, and nothing else does."""
LATE_S: Final = 20.0
FLAT: Final = "W85"
"""No process holds more from visit to visit, once what is forgotten by age has been forgotten."""
SETTLED_S: Final = 8.5 * DAY_S
"""By then the first guest's traces have aged away: each visit begins what an earlier one ends."""
PERIODS: Final = {
    "producer.id.expiration.ms": str(int(1_000 * DAY_S)),
    "transactional.id.expiration.ms": str(int(7_000 * DAY_S)),
    "transaction.remove.expired.transaction.cleanup.interval.ms": "5000",
    "offsets.retention.minutes": "7",
    "offsets.retention.check.interval.ms": "5000",
    "log.retention.check.interval.ms": "5000",
}


class Weeks(Part):
    """The weeks at the end of one world."""

    comes_to_rest = False
    clocks_agree = True  # a process believes the clock that it finds at its start

    def __init__(self, world: World) -> None:
        """Nothing is sent."""
        super().__init__(world)
        self.patience_s = (2 * world.plan.visits + 4) * DAY_S
        self.sent: dict[bytes, float] = {}
        self.due_s = 0.0
        self.marks: list[Sizes] = []

    @classmethod
    def join(cls, plan: Plan, chance: random.Random) -> Plan:
        """Set the periods, unless another feature has set shorter ones. In half of the runs no coordinator ends."""
        if plan.forgets_producers_s:
            return replace(plan, parts=tuple(part for part in plan.parts if part is not cls))
        stays = {} if plan.sleeps or chance.random() < 0.5 else {SLEEP_KEY: "-1"}
        return replace(plan, config={**plan.config, **PERIODS, **stays})

    async def make_topics(self, admin: AsyncAdmin) -> None:
        """Create the topic: a segment a day, of which a week is kept."""
        kept = {"retention.ms": str(int(7_000 * DAY_S)), "segment.ms": str(int(1_000 * DAY_S))}
        await admin.create_topic(TOPIC, 1, self.world.plan.replication_factor, kept)

    async def afterwards(self) -> None:
        """Come back every other day; each time all is as it should be."""
        self.world.end_clients()
        client = Client(self.world, "weeks")
        producer = AsyncProducer(delivery_timeout_ms=DELIVERY_MS)
        await client.call("start", producer.start(), LAST_API_S)
        began_s = self.world.now_s
        await self._send(client, producer, b"first", delay_ms=int(DELAY_S * 1000))
        self.due_s = began_s + DELAY_S
        await self._commit(client)
        for visit in range(self.world.plan.visits):
            self.world.waits_for = f"visit {visit} of {self.world.plan.visits}"
            await Guest(self.world, f"guest-{visit}").run()
            await self._send(client, producer, b"visit %d" % visit)
            await self._transaction(client)
            await self._check_read(client, self.world.now_s - began_s)
            await self._check_offset(client, self.world.now_s - began_s)
            self._check_log(self.world.now_s - began_s)
            await asyncio.sleep(EVERY_S)
            if self.world.now_s - began_s > SETTLED_S:
                self.marks.append(holdings(self.world, {"the producer": producer}))
        self._check_flat()
        await client.call("stop", producer.stop(), DELIVERY_S + 10.0)

    def _check_flat(self) -> None:
        """Nothing has grown all along."""
        for (process, where), sizes in rising(self.marks).items():
            raise Violation(FLAT, f"{process} holds more and more in {where}: {sizes}")

    def _check_log(self, age_s: float) -> None:
        """What is older than a week, and the day of its segment, is on no replica any more."""
        for broker, runner in self.world.observer.runners(AT).items():
            if runner is not None and age_s > 10 * DAY_S and not runner.log.segments[0].base_offset:
                raise Violation(RULE, f"{AT} begins at 0 on broker {broker} after {age_s / DAY_S:.1f} days")

    async def _send(self, client: Client, producer: AsyncProducer, value: bytes, delay_ms: int | None = None) -> None:
        try:
            work = producer.send(TOPIC, value, partition=0, delay=delay_ms)
            future = await client.call("send", work, API_S + 5.0)
            await client.call("delivery", future, DELIVERY_S + 60.0)
        except RaylogError as error:
            raise Violation("W16", f"{TOPIC} does not take {value!r}: {error!r}") from error
        if delay_ms is None:
            self.sent[value] = self.world.now_s

    async def _transaction(self, client: Client) -> None:
        """Use a transactional id, remembered or not."""
        producer = AsyncProducer(transactional_id="of-weeks", delivery_timeout_ms=DELIVERY_MS)
        try:
            await client.call("start", producer.start(), LAST_API_S)
            await client.call("init", producer.init_transactions(), 2 * API_S)
            await client.call("begin", producer.begin_transaction(), API_S)
            future = await client.call("send", producer.send(TOPIC, b"in a transaction", partition=0), API_S)
            await client.call("commit", producer.commit_transaction(), DELIVERY_S + 2 * API_S)
            await future
            await client.call("stop", producer.stop(), DELIVERY_S + 10.0)
        except RaylogError as error:
            raise Violation("W16", f"no transaction commits: {error!r}") from error

    async def _commit(self, client: Client) -> None:
        consumer = AsyncConsumer(group_id=GROUP, enable_auto_commit=False)
        await client.call("start", consumer.start(), LAST_API_S)
        await client.call("commit", consumer.commit({AT: 1}, timeout_s=API_S), API_S)
        await client.call("stop", consumer.stop(), 35.0)

    async def _check_offset(self, client: Client, age_s: float) -> None:
        """A group without members keeps its offsets for a week, and not for much longer."""
        consumer = AsyncConsumer(group_id=GROUP, enable_auto_commit=False)
        await client.call("start", consumer.start(), LAST_API_S)
        found = await client.call("committed", consumer.committed(AT), LAST_API_S)
        if found is not None and age_s > 8 * DAY_S:  # the coordinator may have slept, and looks first when it is awake
            await asyncio.sleep(LATE_S)
            found = await client.call("committed", consumer.committed(AT), LAST_API_S)
        await client.call("stop", consumer.stop(), 35.0)
        if found is None and age_s < 7 * DAY_S:
            raise Violation(RULE, f"the offset of {GROUP} is missing after {age_s / DAY_S:.1f} days")
        if found is not None and age_s > 8 * DAY_S:
            raise Violation(RULE, f"{found} of {GROUP} is there after {age_s / DAY_S:.1f} days")

    async def _check_read(self, client: Client, age_s: float) -> None:
        """What was sent within a week is there, once and in order; the delayed record is there from its time on."""
        consumer = AsyncConsumer(auto_offset_reset="earliest", isolation_level="read_committed")
        await client.call("start", consumer.start(), LAST_API_S)
        consumer.assign([AT])
        found: list[bytes] = []
        until_s = self.world.now_s + LATE_S
        is_awaited = self.world.now_s < self.due_s + LATE_S < until_s
        last = list(self.sent)[-1]
        while last not in found or (is_awaited and b"first" not in found):
            if self.world.now_s > until_s:
                break
            records = (await client.call("getmany", consumer.getmany(timeout_ms=300), 2.5)).get(AT, [])
            found += [record.value for record in records]
        await client.call("stop", consumer.stop(), 35.0)
        young = [value for value, sent_s in self.sent.items() if self.world.now_s - sent_s < 6 * DAY_S]
        if [value for value in found if value in young] != young:
            raise Violation(RULE, f"after {age_s / DAY_S:.1f} days {found} are there, of {[*self.sent]}")
        if len(found) != len(set(found) - {b"in a transaction"}) + found.count(b"in a transaction"):
            raise Violation(RULE, f"after {age_s / DAY_S:.1f} days a record is there twice: {found}")
        if (b"first" in found) != (self.world.now_s > self.due_s + LATE_S) and age_s < 7 * DAY_S:
            raise Violation(RULE, f"a record delayed for {DELAY_S / DAY_S:.0f} days: {found} after {age_s / DAY_S:.1f}")
