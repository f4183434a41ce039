"""What a task does: it sends its Arrow batches, and returns when they are stored.

At-least-once: through a producer that the Python worker keeps for its next task. Exactly-once: in a transaction of this
attempt, which stays open for the driver. May touch: the network, the clock.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from raylog.base.errors import ClientClosed
from raylog.client.cluster.credentials import read_token
from raylog.client.producer.bulk import send_all
from raylog.client.producer.producer import Producer
from raylog.client.producer.transactions.state import Identity as ProducerIdentity
from raylog.client.runtime import shared
from raylog.spark.writing.columns import split
from raylog.spark.writing.commits import Identity, Init, Initialised, Prepared, Request, begin_task, task_id
from raylog.spark.writing.coordinators import Coordinators, hold

QUERY_ID, BATCH_ID, RUN_ID = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"
"""Local properties that Spark sets for the tasks of a stream; the last one changes with each start of the query."""
COORDINATORS_TIMEOUT_S = 60.0
"""How long a task waits for coordinators at its beginning, and again at its end."""
CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class TaskPlan:
    """All that a task needs; pickled into it."""

    topic: str | None
    bootstrap: str
    token: str = field(repr=False)
    """Allows writes to the topics of this write, and the use of its transactional ids."""
    producer: dict[str, Any]
    """Keyword arguments of the task's producer, without address and secret."""
    exactly_once: bool = False
    prefix: str | None = None
    """Prefix of the transactional ids; None: at-least-once."""
    takes_over: bool = False
    """Whether this write may take the prefix over from another query (`WriteOptions`)."""
    job: str | None = None
    """The id of a batch job, which decides once; None for a stream, which decides for each batch."""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task reports to the driver."""

    records: int
    prefix: str | None = None
    owner: str | None = None
    """The id of the query or the job; None: at-least-once."""
    attempt: int = 0
    prepared: Prepared | None = None
    """The open transaction; None: nothing was written in it."""
    run: str = ""
    """The run of the query: each start is another run."""


def write_task(plan: TaskPlan, batches: Iterable[Any]) -> Written:
    """Write all batches; when this returns, they are stored. Raises RaylogError."""
    if plan.exactly_once:
        return _in_transaction(plan, batches)
    with _kept_producer(plan) as producer:
        return Written(send_all(producer, parts_of(plan.topic, batches)))


def parts_of(topic: str | None, batches: Iterable[Any]) -> Iterator[tuple[str, Any, Any]]:
    """Spark's batches in the form of `send_all`: topic, columns and partitions of the rows for each topic."""
    for batch in batches:
        for rows in split(batch, topic, int(time.time() * 1000)):
            yield rows.topic, rows.columns, rows.partitions


# At least once

_kept: dict[str, tuple[int, Producer]] = {}
"""Idle producers of this worker by address, grant and settings; each with its token's end, in seconds since 1970."""


@contextmanager
def _kept_producer(plan: TaskPlan) -> Iterator[Producer]:
    """The worker's producer for this plan. It is replaced when its token has less than half of the plan's time left.

    A producer whose task fails is closed.
    """
    grant = read_token(plan.token).grant
    name = repr((plan.bootstrap, grant.topics, sorted(plan.producer.items())))
    expires_s, producer = _kept.pop(name, (0, None))
    if producer is not None and 2 * (expires_s - time.time()) < grant.expires_s - time.time():
        producer.close(CLOSE_TIMEOUT_S)
        producer = None
    if producer is None:
        expires_s = grant.expires_s
        producer = Producer(**plan.producer, bootstrap=plan.bootstrap, token=plan.token)
    try:
        yield producer
    except BaseException:  # whatever ended the task: records of it may still be under way
        producer.close(0.0)
        raise
    _kept[name] = (expires_s, producer)


def close_kept() -> None:
    """Close the producers that this worker keeps."""
    while _kept:
        _, (_, producer) = _kept.popitem()
        try:
            producer.close(CLOSE_TIMEOUT_S)
        except (ClientClosed, RuntimeError):
            pass  # inherited from the parent of a forked worker, or its thread has ended with the process


atexit.register(close_kept)


# Exactly once


def _in_transaction(plan: TaskPlan, batches: Iterable[Any]) -> Written:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("Spark runs this without a task, so the transaction would have no name.")
    owner, batch, run = plan.job, None, plan.job or ""
    if owner is None:
        query, number = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query is None or number is None:
            raise RuntimeError("Spark does not give its tasks the query and the batch, which exactly-once needs.")
        owner, batch, run = query, int(number), context.getLocalProperty(RUN_ID) or ""
    prefix = plan.prefix or ""
    attempt = context.attemptNumber()
    name = task_id(prefix, context.partitionId(), attempt)
    producer = Producer(**plan.producer, bootstrap=plan.bootstrap, token=plan.token, transactional_id=name)
    try:
        own = OwnTransaction(producer, prefix)
        if not own.begin(owner, batch, takes_over=plan.takes_over):
            _drain(batches)
            return Written(0, prefix, owner, attempt, None, run)
        records = send_all(producer, parts_of(plan.topic, batches))
        return Written(records, prefix, owner, attempt, own.leave_open(), run)
    finally:
        producer.close(CLOSE_TIMEOUT_S)  # aborts what was not left open


def _drain(batches: Iterable[Any]) -> None:
    """Read all batches without using them, because Spark expects its rows to be read."""
    for _ in batches:
        pass


class OwnTransaction:
    """The transaction of this attempt. Its producer initialises the id; other requests go to the coordinators."""

    def __init__(self, producer: Producer, prefix: str) -> None:
        self._producer = producer
        self._manager = producer._engine.transactions
        self._prefix = prefix

    def begin(self, owner: str, batch: int | None, *, takes_over: bool) -> bool:
        """End what an earlier attempt left open, then begin; False if the batch is decided. Raises InvalidTxnState."""
        name = self._manager.state.transactional_id
        runtime = shared()
        if runtime.run(hold(begin_task(owner, batch, name, takes_over=takes_over), self._answer)) is None:
            return False
        self._producer.begin_transaction()
        return True

    def leave_open(self) -> Prepared | None:
        """Have everything stored, and leave the outcome to the driver; None when nothing was written."""
        state = self._manager.state
        state.may_prepare = True  # the driver takes it over, or it times out and the batch is repeated
        prepared = self._producer.prepare_transaction(COORDINATORS_TIMEOUT_S)
        if prepared.producer_id < 0:
            return None
        return Prepared(state.transactional_id, prepared.producer_id, prepared.epoch)

    async def _answer(self, request: Request) -> Any:
        if isinstance(request, Init) and not request.for_good:  # the last request: it makes this producer the id's
            sender = None if request.sender is None else ProducerIdentity(*request.sender)
            await self._manager.initialize(keep_prepared=True, timeout_s=COORDINATORS_TIMEOUT_S, sender=sender)
            return Initialised(Identity(*self._manager.identity), None)
        cluster, config = self._producer._engine.cluster, self._producer.config
        return await Coordinators(cluster, config, self._prefix, timeout_s=COORDINATORS_TIMEOUT_S).answer(request)
