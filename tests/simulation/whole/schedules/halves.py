"""Half messages in the whole world: senders that pay before they commit, checkers that look, and what has to be true.

The bank is the database of the local transactions: it survives everything, and whether a payment is in it decides what
may be visible. A sender gives up at any step; a checker forbids a payment before it reports that there is none.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from raylog.base.errors import ClientClosed, DeliveryTimedOut, HalfMessageDecided, RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.half_messages.checking import HalfVerdict, UndecidedHalf
from raylog.client.half_messages.producer import AsyncHalfMessage, AsyncHalfMessageProducer
from tests.simulation.whole.clients import API_S, DELIVERY_S, LAST_API_S, Client
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.whole.world import World

INVISIBLE: Final = "W60"
ONE_OUTCOME: Final = "W61"
ONCE: Final = "W62"
CHECKED: Final = "W63"
GROUP: Final = "payments"
MARK: Final = b"half"
LATER: Final = "later"


@dataclass(slots=True)
class Payment:
    """One half message and its local transaction."""

    txid: str
    stored: set[bytes] = field(default_factory=set)
    """Records whose store was answered."""
    is_paid: bool = False
    is_forbidden: bool = False
    at: dict[bytes, tuple[TopicPartition, int]] = field(default_factory=dict)


@dataclass
class Bank:
    """All payments of a world."""

    payments: dict[str, Payment] = field(default_factory=dict)

    def arrived(self, reader: str, at: TopicPartition, offset: int, name: bytes) -> None:
        """A reader received a record of a half message."""
        payment = self.payments[name.decode().split(":")[1]]
        if not payment.is_paid:
            raise Violation(INVISIBLE, f"{reader} read {name!r}, and its payment is not in the bank")
        if payment.at.setdefault(name, (at, offset)) != (at, offset):
            raise Violation(ONCE, f"{name!r} is at {payment.at[name]}, and {reader} read it at {offset} of {at}")

    def missing(self) -> list[bytes]:
        """Return the records that have to arrive, and have not."""
        return [
            name
            for payment in self.payments.values()
            if payment.is_paid
            for name in sorted(payment.stored - set(payment.at))
        ]


class Payer(Client):
    """Prepares, pays and commits, until the world is quiet; or gives up anywhere. It checks for its group as well."""

    def __init__(self, world: World, name: str) -> None:
        """One producer."""
        super().__init__(world, name)
        self._count = 0
        self._options = world.plan.producer_options(world.scheduler.random)

    async def run(self) -> None:
        """Work until it is over; check until all is decided."""
        producer = self._producer()
        while not await self.tried("start", producer.start(), LAST_API_S):
            producer = self._producer()
            await asyncio.sleep(0.5)
        while not self.world.is_quiet:
            await self._pay(producer)
            await asyncio.sleep(self.between(0.0, 2 * self.world.plan.send_pause_s))
        while not self.world.is_over:  # noqa: ASYNC110  # a flag of the world, which no loop of a client can wait for
            await asyncio.sleep(1.0)
        await self.call("stop", producer.stop(), DELIVERY_S + 10.0)

    def _producer(self) -> AsyncHalfMessageProducer:
        return AsyncHalfMessageProducer(
            GROUP,
            self._check,
            check_after=int(self.between(0, 2_000)),
            delivery_timeout_ms=int(DELIVERY_S * 1000),
            max_block_ms=int(API_S * 1000),
            **self._options,
        )

    async def _check(self, half: UndecidedHalf) -> HalfVerdict | None:
        payment = self.world.bank.payments[half.txid]
        await asyncio.sleep(self.between(0.0, 0.2))
        if payment.is_paid:
            return HalfVerdict.COMMIT
        if self.chance(0.3):
            return None
        payment.is_forbidden = True
        return HalfVerdict.ROLLBACK

    async def _pay(self, producer: AsyncHalfMessageProducer) -> None:
        self._count += 1
        payment = Payment(f"{self.name}-{self._count}")
        self.world.bank.payments[payment.txid] = payment
        try:
            half = await self._prepared(producer, payment)
            if self.chance(0.15):
                return  # it gives up, and has not paid
            await asyncio.sleep(self.between(0.0, 1.0))
            if self.chance(0.2) or payment.is_forbidden:
                await self._decided(payment, half, HalfVerdict.ROLLBACK)
                return
            payment.is_paid = True
            if self.chance(0.15):
                return  # it gives up after its payment
            await self._decided(payment, half, HalfVerdict.COMMIT)
        except RaylogError as error:
            # A check may have decided before it was whole.
            is_decided = isinstance(error, HalfMessageDecided) and payment.is_forbidden
            if not (is_decided or error.retriable or isinstance(error, DeliveryTimedOut | ClientClosed)):
                raise Violation("W8", f"{self.name}: {payment.txid} failed for good: {error!r}") from error
            self.world.log(self.name, f"{payment.txid}: {error!r}")

    async def _prepared(self, producer: AsyncHalfMessageProducer, payment: Payment) -> AsyncHalfMessage:
        first = MARK + f":{payment.txid}:0".encode()
        work = producer.prepare(LATER, first, key=b"key", partition=self.pick([None, 0, 1]), txid=payment.txid)
        half = await self.call("prepare", work, DELIVERY_S + 60.0)
        payment.stored.add(first)
        if self.chance(0.5):
            second = MARK + f":{payment.txid}:1".encode()
            await self.call("add", half.add(LATER, second, partition=self.pick([0, 1])), DELIVERY_S + 60.0)
            payment.stored.add(second)
        return half

    async def _decided(self, payment: Payment, half: AsyncHalfMessage, verdict: HalfVerdict) -> None:
        if verdict is HalfVerdict.ROLLBACK:
            payment.is_forbidden = True
        work = half.commit if verdict is HalfVerdict.COMMIT else half.rollback
        try:
            await self.call(verdict.value, work(API_S), API_S + 5.0)
        except RaylogError as error:
            if not error.retriable:
                raise Violation(ONE_OUTCOME, f"{payment}: {verdict.value} was answered by {error!r}") from error
            self.world.log(self.name, f"{verdict.value} of {payment.txid}: {error!r}")
