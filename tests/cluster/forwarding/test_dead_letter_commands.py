"""`raylog dlq`, as an operator types it, beside a cluster in one process: list, show, redrive, cancel, purge."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from raylog.client.admin.admin import AsyncAdmin
from raylog.client.producer.producer import AsyncProducer
from tests.cluster.local_cluster import SECRET, LocalCluster
from tests.cluster.talk import Talk, in_cluster
from tests.unit.cli.support import Outcome, raylog, refusal

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

LETTERS = 6


async def dlq(cluster: LocalCluster, *words: str, stdin: str = "") -> Outcome:
    """Run a command, which has an event loop of its own, in a thread."""
    at = ("--bootstrap", cluster.bootstrap())
    return await asyncio.to_thread(raylog, "dlq", *words, *at, stdin=stdin, RAYLOG_SECRET=SECRET.hex())


async def rows(cluster: LocalCluster, *words: str) -> Any:
    outcome = await dlq(cluster, *words, "--json")
    assert outcome.code == 0, outcome
    return json.loads(outcome.out)


async def until(cluster: LocalCluster, words: Sequence[str], count: int) -> Any:
    """The rows of a command, when there are so many."""
    async with asyncio.timeout(30):
        while len(found := await rows(cluster, *words)) < count:
            pass  # each command opens its own connections, and takes its time
    return found


async def letters(cluster: LocalCluster) -> list[dict[str, Any]]:
    """Let records of `orders` expire, half of them with key a; they go to `dead`."""
    async with AsyncAdmin(**cluster.clients()) as admin:
        for name, config in {"dead": {}, "orders": {"ttl.ms": 100, "dead.letter.topic": "dead"}, "kept": {}}.items():
            await admin.create_topic(name, partitions=1, replication_factor=1, config=config)
    async with AsyncProducer(**cluster.clients()) as producer:
        for number in range(LETTERS):
            await (await producer.send("orders", b"order %d" % number, key=b"ab"[number % 2 :][:1]))
    found = await until(cluster, ["show", "dead"], LETTERS)
    return list(found)


@in_cluster(brokers=1)
async def test_dead_letters_are_listed_and_shown_with_their_reasons(cluster: LocalCluster, talk: Talk) -> None:
    assert "No topic of dead letters exists" in (await dlq(cluster, "list")).out
    found = await letters(cluster)
    assert [(row["offset"], row["value"], row["key"]) for row in found] == [
        (number, f"order {number}", "ab"[number % 2]) for number in range(LETTERS)
    ]
    assert {(row["reason"], row["topic"], row["partition"]) for row in found} == {("expired", "orders", 0)}
    (listed,) = [row for row in await rows(cluster, "list") if row["topic"] == "dead"]
    assert listed == {"topic": "dead", "records": LETTERS, "sources": ["orders"]}
    shown = (await dlq(cluster, "show", "dead")).out
    assert "expired" in shown
    assert "orders-0:5" in shown
    newest = await rows(cluster, "show", "dead", "--limit", "2")
    assert [row["offset"] for row in newest] == [LETTERS - 2, LETTERS - 1]
    assert "kept holds no record" in (await dlq(cluster, "show", "kept")).out


@in_cluster(brokers=1)
async def test_a_redrive_takes_what_its_filter_names(cluster: LocalCluster, talk: Talk) -> None:
    await letters(cluster)
    done = await dlq(cluster, "redrive", "dead", "--to", "kept", "--where", "key=a", "--rate", "50", "--wait")
    assert done.code == 0, done
    assert f"It is done: {LETTERS // 2} were sent on, 0 are left." in done.out
    sent = await until(cluster, ["show", "kept"], LETTERS // 2)
    assert [row["value"] for row in sent] == ["order 0", "order 2", "order 4"]
    assert {row["reason"] for row in sent} == {None}, "they are dead letters no more"
    (redrive,) = await rows(cluster, "redrives")
    assert (redrive["topic"], redrive["to"], redrive["where"], redrive["rate"]) == ("dead", "kept", {"key": "a"}, 50)
    assert (redrive["state"], redrive["sent"]) == ("done", LETTERS // 2)
    table = (await dlq(cluster, "redrives", "dead")).out
    assert "kept" in table
    assert "done" in table
    assert "no redrive" in (await dlq(cluster, "redrives", "kept")).out
    assert "had ended before" in (await dlq(cluster, "cancel", str(redrive["number"]))).err


@in_cluster(brokers=1)
async def test_a_slow_redrive_is_cancelled(cluster: LocalCluster, talk: Talk) -> None:
    await letters(cluster)
    begun = await dlq(cluster, "redrive", "dead", "--to", "kept", "--rate", "1")
    assert begun.code == 0, begun
    number = begun.out.split()[1]
    assert f"`raylog dlq cancel {number}` ends it" in begun.out
    assert refusal(await dlq(cluster, "redrive", "dead", "--to", "kept"), 1)
    assert f"Redrive {number} ends." in (await dlq(cluster, "cancel", number)).out
    async with asyncio.timeout(30):
        while (await rows(cluster, "redrives"))[0]["state"] != "cancelled":
            pass
    assert (await rows(cluster, "redrives"))[0]["left"] > 0


@in_cluster(brokers=1)
async def test_dead_letters_are_purged_after_a_question(cluster: LocalCluster, talk: Talk) -> None:
    await letters(cluster)
    assert (await dlq(cluster, "purge", "dead", stdin="n\n")).code != 0
    assert len(await rows(cluster, "show", "dead")) == LETTERS
    assert "dead is empty" in (await dlq(cluster, "purge", "dead", "--yes")).out
    assert await rows(cluster, "show", "dead") == []


@in_cluster(brokers=1)
async def test_arguments_that_make_no_sense_are_refused(cluster: LocalCluster, talk: Talk) -> None:
    await letters(cluster)
    assert "Unknown topic 'lost'" in refusal(await dlq(cluster, "show", "lost"), 1)
    assert "lost" in refusal(await dlq(cluster, "redrive", "lost"), 1)
    assert "reson" in refusal(await dlq(cluster, "redrive", "dead", "--to", "kept", "--where", "reson=expired"), 1)
    assert "--where" in refusal(await dlq(cluster, "redrive", "dead", "--where", "expired"), 2)
    assert "--rate" in refusal(await dlq(cluster, "redrive", "dead", "--rate", "-1"), 2)
    assert "--limit" in refusal(await dlq(cluster, "show", "dead", "--limit", "0"), 2)
    assert refusal(await dlq(cluster, "redrive", "dead", "--to", "dead"), 1)
    assert refusal(await dlq(cluster, "cancel", "10000"), 1)
    assert refusal(await dlq(cluster, "cancel", "0"), 2)
