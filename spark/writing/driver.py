"""The end of a batch on the driver. At-least-once needs nothing; exactly-once commits or aborts transactions.

May touch: the network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.config import ProducerConfig, load
from raylog.client.runtime import shared
from raylog.core.errors import InvalidTxnState
from raylog.spark.writing.commits import Prepared, abort, commit, is_sweep_due, sweep
from raylog.spark.writing.coordinators import Coordinators, hold
from raylog.spark.writing.task_writer import TaskPlan, Written

COMMIT_TIMEOUT_S = 120.0
"""How long the commit of a batch may take; Spark repeats a batch whose commit fails when the query restarts."""
ABORT_TIMEOUT_S = 30.0


def commit_batch(plan: Callable[[], TaskPlan], written: Sequence[Written], batch: int | None) -> None:
    """Make what the tasks wrote visible, once. `batch` None: of a batch job."""
    transactional = [each for each in written if each.owner is not None and each.prefix is not None]
    if not transactional:
        return
    prefix, owner = _one_query(transactional)
    prepared = [each.prepared for each in transactional if each.prepared is not None]
    attempts = [each.attempt for each in transactional]
    shared().run(_commit(plan(), prefix, owner, batch, prepared, attempts), COMMIT_TIMEOUT_S + 10)


def abort_batch(plan: Callable[[], TaskPlan], written: Sequence[Written]) -> None:
    """End the transactions of a batch that has failed, and those of its lost attempts."""
    planned = plan()
    if planned.prefix is None:
        return
    prepared = [each.prepared for each in written if each.prepared is not None]
    shared().run(_abort(planned, planned.prefix, prepared), ABORT_TIMEOUT_S + 10)


def _one_query(written: Sequence[Written]) -> tuple[str, str]:
    found = {(each.prefix, each.owner) for each in written}
    if len(found) != 1:
        raise InvalidTxnState("The tasks of one batch report different queries; nothing was committed.")
    prefix, owner = found.pop()
    return prefix or "", owner or ""


async def _commit(
    plan: TaskPlan, prefix: str, owner: str, batch: int | None, prepared: list[Prepared], attempts: list[int]
) -> None:
    cluster, config = await _started(plan)
    try:
        coordinators = Coordinators(cluster, config, prefix, timeout_s=COMMIT_TIMEOUT_S)
        decided_now = await hold(commit(owner, batch, prepared, takes_over=plan.takes_over), coordinators.answer)
        if is_sweep_due(batch, attempts, decided_now):
            await hold(sweep(prefix, await coordinators.open_ids()), coordinators.answer)
    finally:
        await cluster.close()


async def _abort(plan: TaskPlan, prefix: str, prepared: list[Prepared]) -> None:
    cluster, config = await _started(plan)
    try:
        coordinators = Coordinators(cluster, config, prefix, timeout_s=ABORT_TIMEOUT_S)
        await hold(abort(prepared), coordinators.answer)
        await hold(sweep(prefix, await coordinators.open_ids()), coordinators.answer)
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
