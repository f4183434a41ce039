"""Verifies with the transaction coordinator that a transaction is open and has this partition (KIP-890).

Owned by the replica's shell. A leader does this before the first batch of a transaction
(``core/replication/confirmations.py``). The connection to a coordinator is kept open while there are queries, so that
each costs one round trip, and is closed soon after: a cluster has many more partitions than coordinators.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from raylog.actors.clock import monotonic_ms
from raylog.actors.routes import Route, Routes
from raylog.base.errors import ConcurrentTransactions, RaylogError
from raylog.core.replication.events import TxnClaim, VerifyTransaction
from raylog.protocol.transactions import VERIFY_TRANSACTION, VerifyTransactionRequest
from raylog.rpc import Secret

RETRY_FIRST_S: Final = 0.02
RETRY_LAST_S: Final = 0.5
TRY_S: Final = 2.0
"""Timeout of one try; after it, the coordinator's endpoint is looked up again."""
KEPT_S: Final = 10.0
"""Time for which connections stay open after the last query."""

Answer = Callable[[int, RaylogError | None], None]
"""Called with the number of a query, and the error for which its batches are refused; None = they may be appended."""


class TransactionVerifier:
    """The queries of one partition's leader."""

    def __init__(
        self,
        topic_id: str,
        partition: int,
        *,
        fetch_metadata: Callable[[list[str]], Awaitable[object]],
        secret: Secret,
        answer: Answer,
    ) -> None:
        """``fetch_metadata`` returns the controller's reply to ``metadata``; ``answer`` gets the outcome of a query."""
        self._topic_id = topic_id
        self._partition = partition
        self._routes = Routes(fetch_metadata, secret)
        self._answer = answer
        self._querying = 0
        self._closing: asyncio.TimerHandle | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a query is open, or connections are kept for the next one."""
        return self._querying > 0 or self._closing is not None

    def close(self) -> None:
        """Close the connections."""
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
        self._routes.close()

    async def query(self, question: VerifyTransaction) -> None:
        """Query until there is an answer, or until the deadline; calls ``answer`` in any case."""
        self._querying += 1
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
        try:
            error = await self._query(question)
        finally:
            self._querying -= 1
            if not self._querying:
                self._closing = asyncio.get_running_loop().call_later(KEPT_S, self.close)
        self._answer(question.request, error)

    async def _query(self, question: VerifyTransaction) -> RaylogError | None:
        claim, pause_s = question.claim, RETRY_FIRST_S
        while True:
            left_s = (question.deadline_ms - monotonic_ms()) / 1000
            try:
                async with asyncio.timeout(max(0.0, min(left_s, TRY_S))):
                    await self._try(claim)
                return None
            except RaylogError as refusal:
                if refusal.is_remote and not refusal.retriable:
                    return refusal
                trouble = refusal.message
            except (OSError, TimeoutError) as failure:
                trouble = f"{str(failure) or 'it did not answer'}."
            if (question.deadline_ms - monotonic_ms()) / 1000 <= pause_s:
                return ConcurrentTransactions(
                    f"The coordinator of {claim.transactional_id!r} did not confirm in time that its transaction is "
                    f"open: {trouble} Try again."
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_LAST_S)

    async def _try(self, claim: TxnClaim) -> None:
        route: Route | None = None
        try:
            route = await self._routes.transaction_coordinator(claim.transactional_id)
            request = VerifyTransactionRequest(
                claim.transactional_id, claim.producer_id, claim.producer_epoch, self._topic_id, self._partition
            )
            await route.connection.call(VERIFY_TRANSACTION.name, request, timeout_s=TRY_S)
        except BaseException as error:  # also a cancellation: the connection may be dead
            if route is not None and not (isinstance(error, RaylogError) and error.is_remote and not error.retriable):
                route.forget()
            raise
