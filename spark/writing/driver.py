"""The end of a batch on the driver. At-least-once needs nothing; exactly-once commits or aborts transactions.

May touch: the network.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from raylog.base.errors import InvalidTxnState, RaylogError
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.config import ProducerConfig, load
from raylog.client.runtime import shared
from raylog.spark.writing.commits import Prepared, abort, commit, is_sweep_due, sweep
from raylog.spark.writing.coordinators import Coordinators, hold
from raylog.spark.writing.task_writer import TaskPlan, Written

COMMIT_TIMEOUT_S = 120.0
"""How long the commit of a batch may take. If it fails, Spark repeats the batch when the query restarts."""
ABORT_TIMEOUT_S = 30.0
SWEEP_TIMEOUT_S = 20.0
logger = logging.getLogger(__name__)


class _Batch(NamedTuple):
    """What the tasks of a batch have reported."""

    number: int | None
    prefix: str
    owner: str
    run: str
    prepared: list[Prepared]
    attempts: list[int]


def commit_batch(plan: Callable[[], TaskPlan], messages: Sequence[object], batch: int | None) -> None:
    """Make what the tasks wrote visible, once. `batch`: the number of the micro-batch; None for a batch job.

    Raises InvalidTxnState when a task has not reported, TransactionAborted when a task's transaction has ended, and
    other RaylogErrors.
    """
    written = reports(messages)
    if len(written) < len(messages):
        missing = len(messages) - len(written)
        raise InvalidTxnState(
            f"{missing} of {len(messages)} tasks have not reported what they wrote, so the batch is not committed."
        )
    transactional = [each for each in written if each.owner is not None and each.prefix is not None]
    if transactional:
        shared().run(_commit(plan(), _batch_of(transactional, batch)), COMMIT_TIMEOUT_S + 10)


def abort_batch(plan: Callable[[], TaskPlan], messages: Sequence[object]) -> None:
    """End the transactions of a failed batch, and those of its lost attempts."""
    written = reports(messages)
    planned = plan()
    if planned.prefix is None:
        return
    prepared = [each.prepared for each in written if each.prepared is not None]
    shared().run(_abort(planned, planned.prefix, prepared), ABORT_TIMEOUT_S + 10)


def reports(messages: Sequence[object]) -> list[Written]:
    """The reports of the tasks; for a failed task Spark gives None, which is left out."""
    return [each for each in messages if isinstance(each, Written)]


def _batch_of(written: Sequence[Written], number: int | None) -> _Batch:
    found = {(each.prefix, each.owner) for each in written}
    if len(found) != 1:
        raise InvalidTxnState("The tasks of one batch report different queries; nothing was committed.")
    prefix, owner = found.pop()
    prepared = [each.prepared for each in written if each.prepared is not None]
    attempts = [each.attempt for each in written]
    return _Batch(number, prefix or "", owner or "", written[0].run, prepared, attempts)


async def _commit(plan: TaskPlan, batch: _Batch) -> None:
    cluster, config = await _started(plan)
    try:
        coordinators = Coordinators(cluster, config, batch.prefix, timeout_s=COMMIT_TIMEOUT_S)
        talk = commit(batch.owner, batch.number, batch.prepared, takes_over=plan.takes_over, run=batch.run)
        found = await hold(talk, coordinators.answer)
        if is_sweep_due(found, batch.run, batch.number, batch.attempts):
            await _sweep(Coordinators(cluster, config, batch.prefix, timeout_s=SWEEP_TIMEOUT_S), batch.prefix)
    finally:
        await cluster.close()


async def _sweep(coordinators: Coordinators, prefix: str) -> None:
    """End transactions of lost attempts. An error is only logged: they are invisible, and end by their timeout."""
    try:
        await hold(sweep(prefix, await coordinators.open_ids()), coordinators.answer)
    except RaylogError as error:
        logger.warning("Transactions of lost attempts (%s-*) were not ended: %s", prefix, error)


async def _abort(plan: TaskPlan, prefix: str, prepared: list[Prepared]) -> None:
    cluster, config = await _started(plan)
    try:
        coordinators = Coordinators(cluster, config, prefix, timeout_s=ABORT_TIMEOUT_S)
        await hold(abort(prepared), coordinators.answer)
        await _sweep(coordinators, prefix)
    finally:
        await cluster.close()


async def _started(plan: TaskPlan) -> tuple[ClusterClient, ProducerConfig]:
    config = load(ProducerConfig, plan.producer, {"bootstrap": plan.bootstrap, "token": plan.token})
    cluster = ClusterClient(config)
    try:
        await cluster.start(COMMIT_TIMEOUT_S)
    except BaseException:  # any error: half-made connections must be closed
        await cluster.close()
        raise
    return cluster, config
