"""The settings of queues, changed at their topic while members work: the queues go by the new value."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from raylog.actors.queues.role import QueuesRole
from raylog.client.admin.admin import AsyncAdmin
from raylog.client.producer.producer import AsyncProducer
from raylog.client.queues.consumer import AsyncQueueConsumer
from raylog.core.configuration.queue_keys import QUEUE_KEYS
from raylog.core.queues import origins, policy
from raylog.core.queues.durations import Backoff
from raylog.core.queues.machine import QueueMachine
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.queues.test_queue_stories import read_all
from tests.cluster.talk import Talk, reported
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(120)

CHANGES: dict[str, tuple[object, str, object]] = {
    policy.ACQUIRED: (3, "acquired_max", 3),
    policy.BACKOFF: ("7s 8s", "backoff", Backoff.parse("7s 8s")),
    policy.DEAD_LETTERS: ("letters", "dead_letter_topic", "letters"),
    policy.LIMIT: ("9", "delivery_limit", 9),
    policy.LOCK: (4_000, "lock_ms", 4_000),
    policy.LOCK_MAX: (60_000, "lock_max_ms", 60_000),
    policy.ON_FAILURE: ("drop", "drops_undeliverable", True),
    policy.ORDER: ("key", "by_key", True),
    policy.RETRY_MAX: (1_000, "retry_max_ms", 1_000),
    policy.START: ("latest", "starts_latest", True),
    policy.WAITING: (5, "waiting_max", 5),
    policy.WINDOW: (20, "window_max", 20),
}
"""Of each key: another value, and what it makes of the policy."""


def worker(cluster: LocalCluster, group: str = "workers", **keywords: Any) -> AsyncQueueConsumer:
    return AsyncQueueConsumer("jobs", **{"group_id": group, **cluster.clients(), **keywords})


async def fill(cluster: LocalCluster, count: int = 10) -> None:
    async with AsyncAdmin(**cluster.clients()) as admin:
        await admin.create_topic("jobs", partitions=1, replication_factor=1)
    async with AsyncProducer(**cluster.clients()) as producer:
        await asyncio.gather(*[await producer.send("jobs", b"%d" % number, key=b"k") for number in range(count)])


async def alter(cluster: LocalCluster, key: str, value: object) -> None:
    async with AsyncAdmin(**cluster.clients()) as admin:
        await admin.alter_topic_config("jobs", {key: value})


def machine(cluster: LocalCluster, group: str = "workers") -> QueueMachine:
    (role,) = [each for each in cluster.replica("jobs", 0, 1)._roles._roles if isinstance(each, QueuesRole)]
    found = role.queues[group].machine
    assert found is not None
    return found


def run(root: Path, story: Any) -> None:
    asyncio.run(reported(story, LocalCluster(root, 1)))


def test_every_setting_of_queues_is_changed_here() -> None:
    kept_for_good = {origins.OF}  # what a retry topic is for does not change
    assert set(CHANGES) == {key.name for key in QUEUE_KEYS} - kept_for_good


@pytest.mark.parametrize("key", sorted(set(CHANGES) - {policy.ORDER}))
def test_a_queue_in_use_goes_by_the_new_value_of(key: str, tmp_path: Path) -> None:
    value, attribute, expected = CHANGES[key]

    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster)
        async with worker(cluster) as member:
            assert await member.getone(timeout_ms=10_000) is not None
            before = machine(cluster)
            assert getattr(before.policy, attribute) != expected
            await alter(cluster, key, value)
            await eventually(lambda: getattr(before.policy, attribute) == expected, what=f"{key} counts")
            for part in (before._acknowledging, before.letters):
                assert part.policy is before.policy
            assert machine(cluster) is before, "the queue was not loaded again"

    run(tmp_path, story)


def test_an_order_waits_until_no_member_is_there(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster)
        async with worker(cluster, max_poll_records=1) as member:
            first = await member.getone(timeout_ms=10_000)
            assert first is not None
            await alter(cluster, policy.ORDER, "key")
            await eventually(lambda: machine(cluster)._topic.get(policy.ORDER) == "key", what="the queue knows it")
            assert not machine(cluster).policy.by_key, "members are there that were given another order"
            first.ack()
            await member.commit()
        queue = machine(cluster)
        await eventually(lambda: not queue.members, what="the member has left")
        async with worker(cluster, max_poll_records=5) as one, worker(cluster, max_poll_records=5) as other:
            held = await one.getone(timeout_ms=10_000)
            assert held is not None
            assert held.value == b"1"
            assert queue.policy.by_key
            assert await other.getone(timeout_ms=500) is None, "all records have one key, and it is in work"
            held.ack()

    run(tmp_path, story)


def test_a_lower_limit_and_a_new_topic_take_the_next_failure(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster, 1)
        async with worker(cluster) as member:
            first = await member.getone(timeout_ms=10_000)
            assert first is not None
            await alter(cluster, policy.LIMIT, "1")
            await alter(cluster, policy.DEAD_LETTERS, "letters")
            await eventually(lambda: machine(cluster).policy.dead_letter_topic == "letters", what="the queue knows it")
            first.retry()
            await member.commit()
            assert [letter.value for letter in await read_all(cluster, "letters", 1)] == [b"0"]

    run(tmp_path, story)


def test_a_new_group_begins_where_the_topic_says_now(tmp_path: Path) -> None:
    async def story(cluster: LocalCluster, talk: Talk) -> None:
        await fill(cluster)
        async with worker(cluster) as member:
            assert await member.getone(timeout_ms=10_000) is not None
        await alter(cluster, policy.START, "latest")
        async with worker(cluster, "late") as member:
            assert await member.getone(timeout_ms=500) is None

    run(tmp_path, story)
