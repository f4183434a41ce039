"""What sends records for a feature until the world is quiet, in transactions or not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from raylog.base.errors import ClientClosed, DeliveryTimedOut, RaylogError
from raylog.client.producer.producer import AsyncProducer
from tests.simulation.whole.clients import API_S, DELIVERY_S, Client
from tests.simulation.whole.parts.part import API_MS, DELIVERY_MS, started
from tests.simulation.whole.transactions.clients import refusals
from tests.simulation.world import Violation


class Sender(Client):
    """Shared by the senders of all features: what may fail, and that they begin again."""

    def producer(self, *, is_transactional: bool = False, **options: Any) -> AsyncProducer:
        """Make a producer; the transactional id is the name of this client."""
        if is_transactional:
            options |= {"transactional_id": self.name, "transaction_timeout_ms": 6_000}
        return AsyncProducer(**{"delivery_timeout_ms": DELIVERY_MS, "max_block_ms": API_MS, **options})

    async def work(
        self, make: Callable[[], AsyncProducer], once: Callable[[AsyncProducer], Awaitable[bool]], *, begins: bool
    ) -> None:
        """Do something over and over with a producer, and with another one after that has failed.

        ``begins``: with a transactional one.
        """
        while not self.world.is_quiet:
            producer = await started(self, make)
            if not begins or await self.tried("init", producer.init_transactions(), API_S, *refusals(self.world)):
                while not self.world.is_quiet and await once(producer):
                    pass
            await self.call("stop", producer.stop(), DELIVERY_S + 10.0)

    async def ignored(self, future: Awaitable[object]) -> None:
        """Wait for a record that may fail with its transaction."""
        try:
            await future
        except RaylogError as error:
            self.failed(error)

    def failed(self, error: RaylogError) -> None:
        """Something has failed; raises Violation where it may not."""
        if not (error.retriable or isinstance(error, (DeliveryTimedOut, ClientClosed, *refusals(self.world)))):
            raise Violation("W8", f"{self.name}: it failed for good: {error!r}") from error
