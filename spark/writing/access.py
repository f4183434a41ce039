"""How tasks reach the cluster: its brokers, and a token that allows writes to the topics of this write alone.

Runs on the driver, once for each batch. May touch: the network, the clock, and Ray when neither option nor environment
names the brokers.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

from raylog.base.errors import InvalidConfig
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.cluster.credentials import token_line
from raylog.client.cluster.discovery import ENV_BOOTSTRAP, ClusterAddress, find_cluster
from raylog.client.cluster.reachable import require_an_answer
from raylog.client.runtime import shared
from raylog.client.task_tokens import require_transactions, require_write
from raylog.spark.writing.options import WriteOptions
from raylog.spark.writing.task_writer import TaskPlan

PLAN_TIMEOUT_S = 60.0
TOPICS_OF_A_TOKEN = 12
"""Most topics of a token: so many fit even with long names."""


def task_plan(options: WriteOptions, *, job: str | None = None) -> TaskPlan:
    """Find the cluster and make the plan for the tasks of a write. `job`: the id of a batch job; None for a stream.

    Raises NoClusterFound, ConnectionFailed, AuthenticationFailed, UnknownTopicOrPartition and InvalidConfig, all before
    anything is written.
    """
    return shared().run(_task_plan(options, job), PLAN_TIMEOUT_S + 5)


async def _task_plan(options: WriteOptions, job: str | None) -> TaskPlan:
    found = await _address(options)
    hosts = ((f"[{host}]" if ":" in host else host, port) for host, port in found.endpoints)
    bootstrap = ",".join(f"{host}:{port}" for host, port in hosts)
    if isinstance(found.secret, bytes):
        token = await _token(options, bootstrap, found.secret)
    else:
        token = token_line(found.secret)
        await _check_token(options, bootstrap, found)
    return TaskPlan(
        topic=options.topic,
        bootstrap=bootstrap,
        token=token,
        producer=options.producer,
        exactly_once=options.exactly_once,
        prefix=options.prefix,
        takes_over=options.takes_over,
        job=job,
    )


async def _address(options: WriteOptions) -> ClusterAddress:
    """Find the cluster; leave the Ray session if this call joined it, as Spark may use this process again."""
    was_inside = "ray" in sys.modules and sys.modules["ray"].is_initialized()
    try:
        found = await find_cluster(options.bootstrap, options.secret, token=options.token, timeout_s=PLAN_TIMEOUT_S)
        await require_an_answer(found.endpoints)
        return found
    finally:
        if not (was_inside or options.bootstrap or os.environ.get(ENV_BOOTSTRAP)) and "ray" in sys.modules:
            await asyncio.to_thread(sys.modules["ray"].shutdown)


async def _check_token(options: WriteOptions, bootstrap: str, found: ClusterAddress) -> None:
    """Fail once, on the driver, where each task would fail: the token lacks a right, or the cluster refuses it."""
    if isinstance(found.secret, bytes):
        return
    topics = (options.topic,) if options.topic is not None else options.topics
    require_write(found.secret, topics)
    if options.prefix is not None:
        require_transactions(found.secret, options.prefix)
    async with AsyncAdmin(bootstrap=bootstrap, token=found.secret) as admin:
        for topic in topics:
            await admin.cluster.topic(topic, timeout_s=PLAN_TIMEOUT_S)


async def _token(options: WriteOptions, bootstrap: str, secret: bytes) -> str:
    async with AsyncAdmin(bootstrap=bootstrap, secret=secret) as admin:
        topics: Sequence[str] = (options.topic,) if options.topic is not None else options.topics
        if not topics:
            topics = await admin.list_topics()
            if len(topics) > TOPICS_OF_A_TOKEN:
                raise InvalidConfig(
                    f"The column 'topic' may name any of {len(topics)} topics, too many for the token of a task: give "
                    "the option raylog.topics with the names of those that occur, separated by commas."
                )
        return await admin.create_token(
            write=topics, transactional_id_prefix=options.prefix, lifetime_s=options.token_lifetime_s
        )
