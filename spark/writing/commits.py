"""Exactly-once: which transactions of a batch are committed, as pure conversations with the coordinators.

Each task writes in a transaction of its own and leaves it open ("prepared"). The driver takes all of them over, stores
the decision that the batch is committed, with their names, and commits them. The functions here are generators. They
yield requests that may be sent at the same time, and receive the answers in the same order, an error as a value. A
shell sends them (`task_writer`, `coordinators`); the tests interleave, repeat and cut off these conversations at every
request.

What makes it exact:

1. The decision is the commit point. The driver writes it in a transaction of its own id, so a driver that was replaced
   since it read the last decision cannot store another one (R-FENCE). It reads the decision inside that transaction, so
   a replaced coordinator, which would answer with what it once knew, cannot take part (R-READ).
2. Before a decision is stored, each of its transactions is taken over under the identity that the task reported, which
   fails if the transaction was touched since. From then on it never times out, and its producer cannot write (R-TAKE).
3. An open transaction is aborted only if it was never taken over, which its epochs show. Otherwise the other drivers
   are fenced and then the decision is read: a transaction that it names is committed (R-SETTLE).
4. A batch that is decided is not decided again: its tasks write nothing, and its commit finishes what was decided.

Pure. The rules are tested in tests/property/spark/writing.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from raylog.base.errors import (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    ProducerFenced,
    RaylogError,
    TransactionAborted,
)

DRIVERS_IN_TURN_MAX = 10
"""How often a fenced commit begins again; more would mean that two queries use one prefix."""
REPLACED_MAX = 8
"""How many earlier owners of a prefix are remembered."""
SWEPT_EVERY = 16
"""After so many batches, open transactions are looked for although none is known: speculative attempts leave some."""


class Identity(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    epoch: int


class Prepared(NamedTuple):
    """An open transaction whose records are all stored: its transactional id, and the identity that wrote it."""

    transactional_id: str
    producer_id: int
    epoch: int

    @property
    def identity(self) -> Identity:
        """The identity of the task's producer."""
        return Identity(self.producer_id, self.epoch)


@dataclass(frozen=True, slots=True)
class Decision:
    """The last committed batch: its owner (the id of a query or a job), its number, and its transactions."""

    owner: str
    batch: int
    transactions: tuple[Prepared, ...]
    replaced: tuple[str, ...] = ()
    """Earlier owners, oldest first: they may not write again."""
    run: str = ""
    """The run of the owner that decided: each start of a query is another run."""


@dataclass(frozen=True, slots=True)
class Init:
    """Become the producer of a transactional id; an open transaction is kept. Answer: `Initialised`."""

    transactional_id: str
    sender: Identity | None = None
    """If given: fail unless this is still the producer's identity."""
    for_good: bool = False
    """The transaction never times out from now on."""


class Initialised(NamedTuple):
    """The new identity, and the transaction that is open under an earlier identity."""

    identity: Identity
    kept: Prepared | None


@dataclass(frozen=True, slots=True)
class Fence:
    """Become the driver: from now on no other driver can store a decision. Answer: the driver's `Identity`."""


@dataclass(frozen=True, slots=True)
class End:
    """Commit or abort the open transaction of an id. Answer: the `Identity` for its next one."""

    transactional_id: str
    identity: Identity
    committed: bool


@dataclass(frozen=True, slots=True)
class Read:
    """Read the last decision. Answer: a `Decision`, or None."""

    driver: Identity | None = None
    """The driver that reads, inside a transaction that stays open until it stores or releases: the answer is the last
    decision of all drivers up to this one. None: read outside a transaction; the answer may be an earlier decision."""


@dataclass(frozen=True, slots=True)
class Release:
    """End the transaction that a `Read` of this driver has begun. Answer: None."""

    driver: Identity


@dataclass(frozen=True, slots=True)
class Store:
    """Store a decision, unless this driver was fenced. Answer: None."""

    driver: Identity
    decision: Decision


Request = Init | Fence | End | Read | Release | Store
Result = TypeVar("Result")
Talk = Generator[tuple[Request, ...], list[Any], Result]
FENCED = (ProducerFenced, InvalidProducerEpoch, InvalidProducerIdMapping, InvalidTxnState)
"""Errors which mean that another producer has the id, or has ended its transaction."""


def task_id(prefix: str, partition: int, attempt: int) -> str:
    """The transactional id of one attempt of one task: the same in each batch, so that there are few ids."""
    return f"{prefix}-{partition}-{attempt}"


def driver_id(prefix: str) -> str:
    """The transactional id under which decisions are stored."""
    return f"{prefix}-driver"


def is_task_id(prefix: str, name: str) -> bool:
    """Whether this is the transactional id of a task of this query."""
    return re.fullmatch(re.escape(prefix) + r"-\d+-\d+", name) is not None


def begin_task(owner: str, batch: int | None, name: str, *, takes_over: bool) -> Talk[Identity | None]:
    """Begin a task. Returns the identity to write with, or None: the batch is decided, and there is nothing to write.

    `batch` None: the only batch of a batch job. `takes_over`: a query that had the prefix before has ended. Raises
    InvalidTxnState for another query's prefix.
    """
    decision = yield from _one(Read())  # if it is not the last one, the task works in vain: the commit reads again
    if _is_decided(decision, owner, batch, takes_over):
        return None
    settled = yield from settle(name)
    found = yield from _one(Init(name, settled))
    identity: Identity = found.identity
    return identity


def settle(name: str) -> Talk[Identity]:
    """End the transaction that is open under a task's id, and become the producer of that id (R-SETTLE).

    `for_good`, because a transaction that is found may be part of a decision, and must not time out meanwhile.
    """
    found = yield from _one(Init(name, for_good=True))
    if found.kept is None:
        identity: Identity = found.identity
        return identity
    committed = False
    if not _was_never_taken(found):
        driver, decision = yield from _become_driver()
        committed = decision is not None and found.kept in decision.transactions
        yield (Release(driver),)  # an error does not matter: the next driver, or the timeout, ends the transaction
    ended: Identity = yield from _one(End(name, found.identity, committed))
    return ended


def _become_driver() -> Talk[tuple[Identity, Decision | None]]:
    """Fence the other drivers, then read the last decision: after that no other driver can store a newer one."""
    for _ in range(DRIVERS_IN_TURN_MAX):
        driver = yield from _one(Fence())
        answer = (yield (Read(driver),))[0]
        if not isinstance(answer, FENCED):
            _raise_if_error(answer)
            return driver, answer
    raise _fenced_again_and_again()


def _was_never_taken(found: Initialised) -> bool:
    """Whether no driver has taken the kept transaction over: this producer is the first one after the task's.

    So no decision names it, and none will.
    """
    kept = found.kept
    return kept is not None and found.identity == (kept.producer_id, kept.epoch + 1)


def commit(
    owner: str, batch: int | None, prepared: Sequence[Prepared], *, takes_over: bool, run: str = ""
) -> Talk[Decision | None]:
    """Decide and commit a batch on the driver, once all tasks have written.

    Returns the decision that was stored before: the batch's own if it was decided already. Raises TransactionAborted
    when a task's transaction is no longer open: nothing of the batch is visible then, and it has to be repeated. Raises
    InvalidTxnState for another query's prefix.
    """
    taken: dict[Prepared, Identity] = {each: each.identity for each in prepared}
    for _ in range(DRIVERS_IN_TURN_MAX):
        driver, found = yield from _become_driver()
        if _is_decided(found, owner, batch, takes_over) and found is not None:
            yield (Release(driver),)
            yield from _settle_surely([each.transactional_id for each in (*found.transactions, *prepared)])
            return found
        if found is not None and found.owner != owner and found.transactions:
            # An earlier job with this prefix may have died before it committed what it had decided. Its transactions
            # are ended first, because the new decision replaces the one that names them.
            mine = {each.transactional_id for each in prepared}
            yield (Release(driver),)
            earlier = [each.transactional_id for each in found.transactions]
            yield from _settle_surely([name for name in earlier if name not in mine])
            driver, again = yield from _become_driver()
            if again != found:
                continue
        yield from _take_over(taken)
        answer = (yield (Store(driver, _next(found, owner, batch, tuple(taken), run)),))[0]
        if isinstance(answer, FENCED):
            continue
        _raise_if_error(answer)
        try:
            yield from _commit_taken(taken)
        except RaylogError as error:
            raise type(error)(
                "The batch is decided, and is visible as a whole when all its transactions are committed, which has "
                f"failed: {error.message} Restart the query, which finishes it. Do not repeat a batch job: it would "
                "write again."
            ) from error
        return found
    raise _fenced_again_and_again()


def _fenced_again_and_again() -> InvalidTxnState:
    return InvalidTxnState(
        "Other drivers have fenced this one again and again: two queries use the same transactionalIdPrefix. Give each "
        "its own."
    )


def _next(
    before: Decision | None, owner: str, batch: int | None, transactions: tuple[Prepared, ...], run: str
) -> Decision:
    number = batch if batch is not None else 0
    replaced = () if before is None else before.replaced
    if before is not None and before.owner != owner:
        replaced = (*replaced, before.owner)[-REPLACED_MAX:]
    return Decision(owner, number, transactions, replaced, run)


def _take_over(taken: dict[Prepared, Identity]) -> Talk[None]:
    """Become the producer of all transactions; fails if one was touched since its task reported it (R-TAKE)."""
    names = list(taken)
    answers = yield tuple(Init(each.transactional_id, taken[each], for_good=True) for each in names)
    for each, answer in zip(names, answers, strict=True):
        if isinstance(answer, FENCED) or (isinstance(answer, Initialised) and answer.kept != each):
            raise TransactionAborted(
                f"The transaction of the task {each.transactional_id!r} was aborted before the batch was committed: it "
                "timed out (kafka.transaction.timeout.ms), or another attempt took its place. Nothing of the batch is "
                "visible; restart the query, which repeats it."
            )
        _raise_if_error(answer)
        taken[each] = answer.identity


def _commit_taken(taken: dict[Prepared, Identity]) -> Talk[None]:
    """Commit the transactions of a stored decision; one that a late task has touched since is settled instead."""
    names = list(taken)
    answers = yield tuple(End(each.transactional_id, taken[each], True) for each in names)
    for each, answer in zip(names, answers, strict=True):
        if isinstance(answer, FENCED):
            yield from _settle_surely([each.transactional_id])
        else:
            _raise_if_error(answer)


def abort(prepared: Sequence[Prepared]) -> Talk[None]:
    """End the transactions of a failed batch, on the driver. If its commit failed, it may have been decided already."""
    yield from _settle_all([each.transactional_id for each in prepared])


def sweep(prefix: str, open_ids: Sequence[str]) -> Talk[None]:
    """End all open transactions of this query's tasks; other ids in `open_ids` are left alone."""
    yield from _settle_all([name for name in open_ids if is_task_id(prefix, name)])


def is_sweep_due(found: Decision | None, run: str, batch: int | None, attempts: Sequence[int]) -> bool:
    """Whether to look for open transactions of lost attempts after a commit that found this decision.

    True after the first batch of a run, because the run before may have been killed; after a repeated attempt; after a
    batch job; and after every SWEPT_EVERY batches.
    """
    return found is None or found.run != run or any(attempts) or batch is None or batch % SWEPT_EVERY == 0


def _settle_all(names: Sequence[str]) -> Talk[None]:
    for name in dict.fromkeys(names):
        try:
            yield from settle(name)
        except FENCED:
            pass  # another task or driver has taken this id meanwhile, and settles it


def _settle_surely(names: Sequence[str]) -> Talk[None]:
    """Settle all, and repeat where an id was taken meanwhile: the next decision replaces the one that names these.

    A driver that reads the next decision would abort what is still open.
    """
    for name in dict.fromkeys(names):
        for _ in range(DRIVERS_IN_TURN_MAX):
            try:
                yield from settle(name)
                break
            except FENCED:
                continue
        else:
            raise ProducerFenced(
                f"The transaction {name!r} of a decided batch could not be ended, because others took its id again and "
                "again; restart the query, which finishes it."
            )


def _is_decided(decision: Decision | None, owner: str, batch: int | None, takes_over: bool) -> bool:
    """Whether this batch is decided. Raises InvalidTxnState for a batch that cannot be of this query."""
    if decision is None:
        return False
    if owner in decision.replaced:
        raise InvalidTxnState(
            "Another run has taken this transactionalIdPrefix over since this one began: its checkpoint was deleted, "
            "a job was started again, or another query has a checkpointLocation of the same name. This one may not go "
            "on; give queries that run side by side different values of transactionalIdPrefix."
        )
    if batch is None:
        return decision.owner == owner
    if decision.owner != owner:
        if takes_over:
            return False
        raise InvalidTxnState(
            f"The transactionalIdPrefix of this query belongs to another one ({decision.owner}), or to an earlier one "
            "whose checkpoint was deleted: choose another prefix. To use this one again, delete the consumer group "
            "with its name."
        )
    if batch < decision.batch:
        raise InvalidTxnState(
            f"Batch {batch} is repeated although batch {decision.batch} is committed: the checkpoint was taken back, "
            "or another run of this query goes on. Its records are in the topic already. Begin with a new checkpoint "
            "and another transactionalIdPrefix."
        )
    return batch == decision.batch


def _one(request: Request) -> Talk[Any]:
    answer = (yield (request,))[0]
    _raise_if_error(answer)
    return answer


def _raise_if_error(answer: object) -> None:
    if isinstance(answer, RaylogError):
        raise answer
