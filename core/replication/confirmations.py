"""Batches of transactions: a producer's first ones wait until the coordinator has confirmed its transaction.

A batch alone proves nothing. A transaction that no coordinator knows would get no marker, and would hold back every
reader of committed records permanently. So before a leader appends the first batch of a transaction, it queries the
coordinator of the transactional id: the producer's transaction has to be open, and to have this partition (KIP-890). A
further batch is appended at once if it names the transactional id that was confirmed for its producer: otherwise a
writer that knows producer id and epoch of an open transaction could add to it under an id of its own. Nothing of this
outlives the leadership: the log shows which transactions are open, and the next leader queries for itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from raylog.base.errors import ConcurrentTransactions, InvalidTxnState, RaylogError
from raylog.base.invariants import require
from raylog.core.outbox import Outbox
from raylog.core.replication.events import (
    Effect,
    RefuseRequest,
    RequestId,
    TransactionalProduce,
    TransactionConfirmed,
    TxnClaim,
    VerifyTransaction,
    deadline_ms,
)

CONFIRMED_WITHIN_MS: Final = 5_000
"""Longest time that a coordinator is queried; a request that cannot wait so long is refused at its own deadline."""
WAITING_MAX: Final = 1_000
"""Most requests that wait in a partition; each is of a producer that sends its first batch."""
KNOWN_MAX: Final = 10_000
"""Most producers whose confirmed transactional id a leader remembers."""


@dataclass(slots=True)
class _Query:
    """A query to a coordinator under way, and the requests of its producer in the order in which they came."""

    request: RequestId
    claim: TxnClaim
    waiting: list[TransactionalProduce] = field(default_factory=list)


class Confirmations:
    """The produce requests of one leader that wait for coordinators; one query for each producer at a time."""

    __slots__ = ("_names", "_queries")

    def __init__(self) -> None:
        """Start empty."""
        self._queries: dict[int, _Query] = {}
        self._names: dict[int, str] = {}
        """Producer id -> its transactional id, as a coordinator has confirmed it; this never changes. Only the last
        :data:`KNOWN_MAX` are kept; for another producer, a coordinator is queried once more."""

    @property
    def is_busy(self) -> bool:
        """Whether a coordinator is queried."""
        return bool(self._queries)

    def has_confirmed(self, claim: TxnClaim) -> bool:
        """Whether the producer id is known to be of this transactional id, so that what is open may be added to."""
        return self._names.get(claim.producer_id) == claim.transactional_id

    def wait(self, event: TransactionalProduce, now_ms: int, request: RequestId, out: Outbox[Effect]) -> None:
        """Let a request wait behind those of its producer; ``request`` is the number of a query, if one is needed.

        Refuses the request if it names no transactional id, or if :data:`WAITING_MAX` wait already.
        """
        claim = event.claim
        error: RaylogError | None = None
        if not claim.transactional_id:
            error = InvalidTxnState(
                f"A batch of producer {claim.producer_id} is of a transaction, and its request names no "
                "transactional id, so that no coordinator can be queried. Send it in `transactional_id`."
            )
        elif sum(len(query.waiting) for query in self._queries.values()) >= WAITING_MAX:
            error = ConcurrentTransactions(
                f"{WAITING_MAX} batches wait already until their transactions are confirmed; try again."
            )
        if error is not None:
            out.now.append(RefuseRequest(cause=event.cause, request=event.request, error=error))
            return
        query = self._queries.get(claim.producer_id)
        if query is None:
            query = self._queries[claim.producer_id] = _Query(request, claim)
            wait_ms = event.message.timeout_ms
            until_ms = min(deadline_ms(event.now_ms, wait_ms), now_ms + CONFIRMED_WITHIN_MS)
            out.now.append(VerifyTransaction(cause=event.cause, request=request, claim=claim, deadline_ms=until_ms))
        query.waiting.append(event)

    def answered(self, event: TransactionConfirmed) -> tuple[TxnClaim, list[TransactionalProduce]] | None:
        """Remove and return the claim that was queried, and the requests that wait; None = none waits for this answer.

        Later ones among the requests may make another claim: the caller has to check each of them.
        """
        for producer_id, query in self._queries.items():
            if query.request == event.request:
                del self._queries[producer_id]
                if event.error is None:
                    self._confirm(query.claim)
                return query.claim, query.waiting
        return None

    def _confirm(self, claim: TxnClaim) -> None:
        self._names.pop(claim.producer_id, None)
        self._names[claim.producer_id] = claim.transactional_id
        if len(self._names) > KNOWN_MAX:
            del self._names[next(iter(self._names))]

    def drop(self, request: RequestId) -> None:
        """Drop a request whose connection is closed; its query goes on, even if nothing waits for the answer."""
        for query in self._queries.values():
            query.waiting = [event for event in query.waiting if event.request != request]

    def take_all(self) -> list[RequestId]:
        """Remove all requests and return their numbers; later answers are ignored."""
        queries, self._queries = self._queries, {}
        return [event.request for query in queries.values() for event in query.waiting]

    def validate(self) -> None:
        """Raise InvariantBroken unless each request waits for a query of its own producer."""
        for producer_id, query in self._queries.items():
            if query.claim.producer_id != producer_id or any(
                event.producer_id != producer_id for event in query.waiting
            ):
                require(False, f"a request waits for the transaction of producer {producer_id}, and is of another one")
