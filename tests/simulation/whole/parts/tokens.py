"""Clients of every kind that have a token, which expires while they work, and is one for some topics only.

What a client requests after its token has expired it does not get, and it learns of that: it neither hangs nor waits
for records in silence. With a new token it goes on where it was.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from raylog.actors.token_clock import LOOK_MS
from raylog.base.errors import (
    AuthenticationFailed,
    ClusterAuthorizationFailed,
    CommitFailed,
    RaylogError,
)
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.admin.tokens import describe_token
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.consumer.stream import LONG_WAIT_MS
from raylog.client.producer.producer import AsyncProducer
from tests.simulation.whole.clients import API_S, DELIVERY_S, LAST_API_S, Client
from tests.simulation.whole.loop.scheduler import WALL_S
from tests.simulation.whole.parts.part import API_MS, DELIVERY_MS, Part, Until, once, started
from tests.simulation.whole.transactions.clients import refusals
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.plan import Plan
    from tests.simulation.whole.world import World

GRANTED, WITHHELD = "granted", "withheld"
PARTITIONS: Final = 2
GROUP: Final = "granted-members"
PREFIX: Final = "granted-"
RULE: Final = "W78"
"""A token gives what it grants, until it expires, and its holder learns of it."""
REFUSED: Final = (AuthenticationFailed, ClusterAuthorizationFailed)
LIVES_S: Final = (1.0, 15.0)
LEARNS_S: Final = LONG_WAIT_MS / 1000 + 2.0
"""Longest time after the expiry in which a reader learns of it, where nothing is broken.

At a partition without news a fetch waits for as long, and only its answer shows that the token has ended.
"""


class Holder(Client):
    """Works with one token after the other."""

    def __init__(self, world: World, name: str, part: Tokens) -> None:
        """No token yet."""
        super().__init__(world, name)
        self.part = part
        self.expires_s = self.made_s = 0.0
        self.count = 0

    async def run(self) -> None:
        """Work until the world is over."""
        while not self.is_done:
            token = await self.token()
            if token:
                await self.live(token)
            await asyncio.sleep(self.between(0.05, 1.0))

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to do."""
        return self.world.is_over

    async def live(self, token: str) -> None:
        """Work with one token until it has expired, or the work is over."""
        raise NotImplementedError

    async def token(self) -> str:
        """Return a new token, empty where none could be made; before it, this client has none."""
        admin = await started(self, lambda: AsyncAdmin(request_timeout_ms=API_MS))
        made, self.made_s = "", self.world.now_s
        try:
            work = admin.create_token(
                read=[GRANTED],
                write=[GRANTED],
                group=GROUP,
                transactional_id_prefix=PREFIX,
                lifetime_s=self.between(*LIVES_S),
                timeout_s=API_S,
            )
            made = await self.call("create token", work, API_S + 1.0)
            self.expires_s = describe_token(made).expires_s - WALL_S
        except RaylogError as error:
            if not error.retriable:
                raise Violation("W8", f"{self.name}: a token cannot be made: {error!r}") from error
        finally:
            await admin.stop()
        return made

    @property
    def has_expired(self) -> bool:
        """Whether the token of this client has expired."""
        return self.world.now_s >= self.expires_s

    def failed(self, what: str, error: RaylogError, *allowed: type[RaylogError]) -> bool:
        """Return whether a failure means that another token is needed; raises Violation where it may not be."""
        self.world.log(self.name, f"{what}: {error!r}")
        if isinstance(error, REFUSED):
            is_of_old_secret = self.made_s <= self.world.cluster.secrets_changed_s
            if not self.has_expired and not is_of_old_secret:
                raise Violation(RULE, f"{self.name}: {what} was refused before the token expired: {error!r}")
            return True
        if not error.retriable and not isinstance(error, allowed):
            raise Violation("W8", f"{self.name}: {what} failed for good: {error!r}") from error
        return False


class Writer(Holder):
    """Sends records, in transactions or not, also when its token has expired."""

    def __init__(self, world: World, name: str, part: Tokens, transactional_id: str | None) -> None:
        """One producer after the other."""
        super().__init__(world, name, part)
        self._transactional_id = transactional_id
        self._sent: list[bytes] = []
        """Delivered, and not known to be stored: its transaction is open."""

    @property
    def is_done(self) -> bool:
        """Whether the world is quiet."""
        return self.world.is_quiet

    async def live(self, token: str) -> None:
        """Send until the token has expired, and a little longer."""
        producer = AsyncProducer(
            token=token,
            transactional_id=self._transactional_id,
            delivery_timeout_ms=DELIVERY_MS,
            max_block_ms=API_MS,
            transaction_timeout_ms=6_000,
        )
        try:
            await self.call("start", producer.start(), LAST_API_S)
            if self._transactional_id:
                await self.call("init", producer.init_transactions(), API_S)
        except RaylogError as error:
            self.failed("start", error, *refusals(self.world))
            await self.call("stop", producer.stop(), DELIVERY_S + 10.0)
            return
        until_s = self.expires_s + self.between(0.5, 4.0)
        while not self.is_done and self.world.now_s < until_s:
            if await (self._transaction(producer) if self._transactional_id else self._send(producer)):
                break
            self._note_stored()
            await asyncio.sleep(self.between(0.0, 0.5))
        await self.call("stop", producer.stop(), DELIVERY_S + 10.0)

    def _note_stored(self) -> None:
        self.part.stored += self._sent
        self._sent.clear()

    async def _send(self, producer: AsyncProducer) -> bool:
        """Send a record; return whether this producer is of no use any more."""
        self.count += 1
        began_s, at = self.world.now_s, self.pick(self.part.granted)
        value = f"{self.name}/{self.count}".encode()
        self.part.sent_s[value] = began_s
        try:
            if self.chance(0.05):
                await self._steal(producer)
            future = await self.call("send", producer.send(GRANTED, value, partition=at.partition), API_S)
            await self.call("delivery", future, DELIVERY_S)
        except RaylogError as error:
            return self.failed("send", error, *refusals(self.world)) or self._transactional_id is not None
        if began_s >= self.expires_s + LOOK_MS / 1000:  # servers look at their clock so often
            raise Violation(RULE, f"{self.name}: {value!r} was sent {began_s - self.expires_s:.1f} s after the expiry")
        self._sent.append(value)
        return False

    async def _steal(self, producer: AsyncProducer) -> None:
        """Send to a topic that the token does not name."""
        try:
            future = await self.call("steal", producer.send(WITHHELD, b"stolen", partition=0), API_S)
            await self.call("steal's delivery", future, DELIVERY_S)
        except RaylogError as error:
            self.world.log(self.name, f"{WITHHELD}: {error!r}")
        else:
            raise Violation(RULE, f"{self.name} has written to {WITHHELD}")

    async def _transaction(self, producer: AsyncProducer) -> bool:
        try:
            await self.call("begin", producer.begin_transaction(), API_S)
            if await self._send(producer):
                return True
            await self.call("commit", producer.commit_transaction(), DELIVERY_S + 2 * API_S)
        except RaylogError as error:
            self._sent.clear()  # whether it is committed, the coordinator knows
            self.failed("transaction", error, *refusals(self.world))
            return True
        return False


class TokenReader(Holder):
    """Reads as a member of a group or without one; it learns of the expiry from a poll."""

    def __init__(self, world: World, name: str, part: Tokens, group: str | None, host: str = "") -> None:
        """One consumer after the other."""
        super().__init__(world, name, part)
        self._group = group
        self.read: set[bytes] = set()

    async def live(self, token: str) -> None:
        """Read until a poll fails."""
        consumer = AsyncConsumer(
            token=token,
            group_id=self._group,
            auto_offset_reset="earliest",
            enable_auto_commit=self._group is not None,
            auto_commit_interval_ms=300,
            default_api_timeout_ms=API_MS,
            isolation_level=self.pick(["read_committed", "read_uncommitted"]),
            session_timeout_ms=6_000,
            heartbeat_interval_ms=1_500,
        )
        try:
            await self.call("start", consumer.start(), LAST_API_S)
        except RaylogError as error:
            self.failed("start", error)
            return
        if self._group is None:
            consumer.assign(self.part.granted)
        else:
            consumer.subscribe([GRANTED])
        while not self.is_done and not await self._poll(consumer):
            pass
        try:
            await self.call("stop", consumer.stop(), 35.0)
        except RaylogError as error:
            self.failed("stop", error, CommitFailed)

    async def _poll(self, consumer: AsyncConsumer) -> bool:
        """Return whether this consumer is of no use any more."""
        began_s = self.world.now_s
        try:
            found = await self.call("getmany", consumer.getmany(timeout_ms=300), 1.5)
        except RaylogError as error:
            await asyncio.sleep(0.1)
            return self.failed("getmany", error)
        for records in found.values():
            for record in records:
                self.books.read += 1
                self.read.add(record.value)
                if self.part.sent_s.get(record.value, 0.0) > self.expires_s + 1.0:
                    raise Violation(RULE, f"{self.name} got {record.value!r}, which was sent after its token's expiry")
        if self.part.is_checked and began_s > max(self.expires_s, self.part.checked_s) + LEARNS_S:
            raise Violation(RULE, f"{self.name} waits for records {began_s - self.expires_s:.1f} s after the expiry")
        return False


class Tokens(Part):
    """The holders of tokens of one world."""

    clocks_agree = True  # servers compare the expiry with their own clocks
    patience_s = 60.0

    def __init__(self, world: World) -> None:
        """No token yet."""
        super().__init__(world)
        self.granted = [TopicPartition(GRANTED, number) for number in range(PARTITIONS)]
        self.sent_s: dict[bytes, float] = {}
        self.stored: list[bytes] = []
        self.readers: list[TokenReader] = []
        self.is_checked = False
        self.checked_s = 0.0

    @classmethod
    def join(cls, plan: Plan, chance: random.Random) -> Plan:
        """Have tokens expire several times in a run."""
        return replace(plan, work_s=plan.work_s + 10.0)

    async def make_topics(self, admin: AsyncAdmin) -> None:
        """Create a topic for which there are tokens, and one for which there is none."""
        factor = self.world.plan.replication_factor
        await admin.create_topic(GRANTED, PARTITIONS, factor, {"segment.bytes": "5000"})
        await admin.create_topic(WITHHELD, 1, factor)

    def start(self) -> None:
        """Start the clients."""
        world = self.world
        for name, transactional_id in (("token-writer", None), ("token-teller", PREFIX + "teller")):
            world.spawn(name, Writer(world, name, self, transactional_id).run())
        for name, group, host in (
            ("token-reader", None, ""),
            ("near-token-reader", None, world.cluster.host(1)),
            ("token-member-0", GROUP, ""),
            ("token-member-1", GROUP, ""),
        ):
            reader = TokenReader(world, name, self, group)
            self.readers.append(reader)
            world.spawn(name, reader.run(), host)

    async def finish(self, admin: AsyncAdmin, until: Until) -> None:
        """Everything was read over all the tokens, and readers learn of each expiry soon."""
        self.is_checked, self.checked_s = True, self.world.now_s
        client = Client(self.world, "tokens")

        async def missing() -> str:
            for value in self.stored:
                for reader in self.readers[:2]:
                    if value not in reader.read:
                        return f"{reader.name} has not got {value!r}"
                if not any(value in reader.read for reader in self.readers[2:]):
                    return f"no member of {GROUP} has got {value!r}"
            return ""

        await until("holders of tokens have read everything", missing)

        async def refusal() -> str:
            return await once(client, "write", self._write(client), 3 * API_S)

        await until("a new token writes", refusal)
        await asyncio.sleep(LIVES_S[1] + LEARNS_S)
        self.is_checked = False

    async def _write(self, client: Client) -> None:
        holder = Holder(self.world, "tokens", self)
        token = await holder.token()
        async with AsyncProducer(token=token, delivery_timeout_ms=DELIVERY_MS) as producer:
            await (await producer.send(GRANTED, b"last", partition=0))
