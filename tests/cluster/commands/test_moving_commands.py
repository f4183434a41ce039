"""Admin, groups and the command line where partitions move and topics grow: real sockets, no Ray."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import raylog
from raylog.base.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    NoReassignmentInProgress,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from raylog.base.ids import TopicPartition
from tests.cluster.local_cluster import SECRET, LocalCluster
from tests.cluster.talk import Talk, in_cluster, refused
from tests.unit.cli.support import Outcome, refusal
from tests.unit.cli.support import raylog as command

T0 = TopicPartition("t", 0)


async def run(cluster: LocalCluster, *arguments: str, stdin: str = "") -> Outcome:
    """Run a command against the cluster, in a thread, as the cluster lives on this one's loop."""
    return await asyncio.to_thread(
        command, *arguments, "--bootstrap", cluster.bootstrap(), stdin=stdin, RAYLOG_SECRET=SECRET.hex()
    )


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


async def shown(cluster: LocalCluster, *arguments: str) -> Any:
    output = await run(cluster, *arguments)
    assert output.code == 0, output
    return json.loads(output.out)


async def layout(cluster: LocalCluster) -> list[tuple[int, ...]]:
    async with raylog.AsyncAdmin(**cluster.clients()) as admin:
        return [
            partition.replicas for topic in (await admin.describe_topics()).values() for partition in topic.partitions
        ]


@in_cluster(brokers=4)
async def test_admin_moves_a_partition_and_waits_for_it(cluster: LocalCluster, talk: Talk) -> None:
    async with raylog.AsyncAdmin(**cluster.clients()) as admin:
        await admin.create_topic("t", assignment=[[1, 2, 3]])
        await talk.produce("t", b"a")
        await admin.alter_partition_reassignments({T0: [4, 2, 3]}, throttle=50_000_000)
        await admin.wait_for_reassignments([T0], timeout_s=20)
        assert (await admin.describe_topic("t")).partitions[0].replicas == (4, 2, 3)
        assert await admin.list_partition_reassignments() == {}
        await refused(admin.alter_partition_reassignments({T0: None}), NoReassignmentInProgress)
        await refused(admin.alter_partition_reassignments({T0: [1, 1]}), InvalidReplicaAssignment)
        await refused(admin.alter_partition_reassignments({("u", 0): [1]}), UnknownTopicOrPartition)


@in_cluster(brokers=3)
async def test_admin_shows_the_progress_of_a_move(cluster: LocalCluster, talk: Talk) -> None:
    async with raylog.AsyncAdmin(**cluster.clients()) as admin:
        await admin.create_topic("t", assignment=[[1, 2]])
        await talk.produce("t", *[b"x" * 1000] * 10)
        await cluster.stop_broker(3)
        await admin.alter_partition_reassignments({T0: [1, 3]})
        one = (await admin.list_partition_reassignments(sizes=True))[T0]
        assert (one.replicas, one.target, one.adding, one.removing) == ((1, 3, 2), (1, 3), (3,), (2,))
        assert one.sizes[1] > 10_000
        assert one.progress == 0.0
        with pytest.raises(RequestTimedOut, match="1 partitions are still on the move"):
            await admin.wait_for_reassignments(timeout_s=0.1)
        await cluster.start_broker(3)
        await admin.wait_for_reassignments(timeout_s=20)


@in_cluster()
async def test_a_group_reads_the_partitions_that_its_topic_grows_by(cluster: LocalCluster, talk: Talk) -> None:
    options: dict[str, Any] = {"group_id": "g", "auto_offset_reset": "earliest", "metadata_max_age_ms": 200}
    async with (
        raylog.AsyncAdmin(**cluster.clients()) as admin,
        raylog.AsyncConsumer("t", **options, **cluster.clients()) as first,
        raylog.AsyncProducer(**cluster.clients()) as producer,
    ):
        await admin.create_topic("t", partitions=1, replication_factor=3)
        async with raylog.AsyncConsumer("t", **options, **cluster.clients()) as second:
            grown = await admin.create_partitions("t", 4)
            assert len(grown.partitions) == 4
            for number in range(4):
                await (await producer.send("t", b"%d" % number, partition=number))
            read: set[bytes | None] = set()

            async def poll(consumer: Any) -> None:
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    read.update(record.value for record in records)

            async with asyncio.timeout(40):
                while len(read) < 4 or len(first.assignment()) != 2 or len(second.assignment()) != 2:
                    await asyncio.gather(poll(first), poll(second))
        await refused(admin.create_partitions("t", 2), InvalidPartitions)


@in_cluster(brokers=3)
async def test_a_producer_uses_the_partitions_that_its_topic_grows_by(cluster: LocalCluster, talk: Talk) -> None:
    async with (
        raylog.AsyncAdmin(**cluster.clients()) as admin,
        raylog.AsyncProducer(metadata_max_age_ms=200, **cluster.clients()) as producer,
    ):
        await admin.create_topic("t", partitions=1, replication_factor=1)
        await (await producer.send("t", b"a", key=b"k"))
        await admin.create_partitions("t", 8)
        async with asyncio.timeout(20):
            used: set[int] = set()
            while len(used) < 2:
                for number in range(20):
                    used.add((await (await producer.send("t", b"b", key=b"%d" % number))).partition)


# ---------------------------------------------------------------- command line


@in_cluster(brokers=4)
async def test_the_command_line_moves_shows_and_cancels(cluster: LocalCluster, talk: Talk) -> None:
    await run(cluster, "topic", "create", "t", "--partitions", "1", "--replication-factor", "3")
    [[*replicas]] = await layout(cluster)
    [spare] = {1, 2, 3, 4} - set(replicas)
    target = ",".join(map(str, [spare, *replicas[1:]]))
    await cluster.stop_broker(spare)
    output = await run(cluster, "topic", "reassign", "t", "--partition", "0", "--replicas", target)
    assert "1 partition on the move" in output.out, output
    assert "t" in (await run(cluster, "topic", "reassign", "--list")).out
    [row] = await shown(cluster, "topic", "reassign", "--list", "--json")
    assert (row["adding"], row["removing"], row["target"][0]) == ([spare], [replicas[0]], spare)
    assert "Cancelled the moves of 1 partition" in (await run(cluster, "topic", "reassign", "--cancel")).out
    assert "No partition" in (await run(cluster, "topic", "reassign", "--list")).out
    assert "No partition" in (await run(cluster, "topic", "reassign", "--cancel")).out
    await cluster.start_broker(spare)
    moved = await run(
        cluster, "topic", "reassign", "t", "--partition", "0", "--replicas", target, "--throttle", "9999999", "--wait"
    )
    assert "Done" in moved.out, moved
    assert (await layout(cluster))[0][0] == spare
    assert cluster.running().image.config["follower.replication.throttled.rate"] == "9999999"


@in_cluster(brokers=3)
async def test_wrong_moves_are_one_clear_sentence(cluster: LocalCluster, talk: Talk) -> None:
    await run(cluster, "topic", "create", "t", "--replication-factor", "2")
    one = ("topic", "reassign", "t", "--partition", "0")
    assert "never registered" in refusal(await run(cluster, *one, "--replicas", "1,9"), 1)
    assert "twice" in refusal(await run(cluster, *one, "--replicas", "1,1"), 1)
    assert "no partition 7" in refusal(
        await run(cluster, "topic", "reassign", "t", "--partition", "7", "--replicas", "1"), 1
    )
    assert "nothing to cancel" in refusal(await run(cluster, *one, "--cancel"), 1)
    assert "broker ids" in refusal(await run(cluster, *one, "--replicas", "one"), 2)
    assert "needs the topic" in refusal(await run(cluster, "topic", "reassign", "--partition", "0"), 2)
    assert "nothing to do" in refusal(await run(cluster, "topic", "reassign", "t"), 2)
    assert "give one of" in refusal(await run(cluster, *one, "--replicas", "1", "--cancel"), 2)


@in_cluster(brokers=3)
async def test_plans_are_read_from_files(cluster: LocalCluster, talk: Talk) -> None:
    await run(cluster, "topic", "create", "t", "--replication-factor", "1")
    plan = cluster.root / "plan.json"
    for text, words in (
        ("{", "is no plan"),
        ('{"partitions": [{"topic": "t"}]}', "is no plan"),
        ("[" + ", ".join(['{"topic": "t", "partition": 0, "replicas": [1]}'] * 2) + "]", "twice"),
    ):
        write(plan, text)
        assert words in refusal(await run(cluster, "topic", "reassign", "--plan", str(plan)), 2)
    write(plan, '{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [2, 3]}]}')
    assert "Done" in (await run(cluster, "topic", "reassign", "--plan", str(plan), "--wait")).out
    assert await layout(cluster) == [(2, 3)]


@in_cluster()
async def test_a_topic_grows_by_command(cluster: LocalCluster, talk: Talk) -> None:
    await run(cluster, "topic", "create", "t", "--partitions", "2")
    assert (await run(cluster, "topic", "alter", "t", "--partitions", "5")).code == 0
    assert len((await shown(cluster, "topic", "describe", "t", "--json"))["t"]["partitions"]) == 5
    fewer = refusal(await run(cluster, "topic", "alter", "t", "--partitions", "3"), 1)
    assert "has 5 partitions and cannot have 3" in fewer


@in_cluster(brokers=3)
async def test_balance_shows_its_plan_confirms_it_and_fills_a_new_broker(cluster: LocalCluster, talk: Talk) -> None:
    async with raylog.AsyncAdmin(**cluster.clients()) as admin:
        await admin.create_topic("t", assignment=[[1, 2], [1, 2], [1, 2], [1, 2], [1, 2], [1, 2]])
    await talk.produce("t", b"a", partition=3)
    before = await layout(cluster)
    plan = await shown(cluster, "balance", "--json")
    assert await layout(cluster) == before, "a plan changes nothing"
    assert sum(row["copies"] for row in plan["partitions"]) == 4
    refused_by_user = await run(cluster, "balance", stdin="n\n")
    assert "4 replicas to copy" in refused_by_user.out
    assert await layout(cluster) == before
    done = await run(cluster, "balance", "--yes", "--throttle", "100000000")
    assert done.code == 0, done
    after = await layout(cluster)
    assert set(Counter(broker for row in after for broker in row).values()) == {4}
    assert set(Counter(row[0] for row in after).values()) == {2}
    for number in range(6):
        await talk.until("t", lambda row: row.leader == row.replicas[0], number)
    assert "nothing to move" in (await run(cluster, "balance", "--yes")).out
    assert await talk.values("t", 1, 3) == [b"a"]


@in_cluster(brokers=2)
async def test_a_plan_of_the_balancer_can_be_given_to_reassign(cluster: LocalCluster, talk: Talk) -> None:
    async with raylog.AsyncAdmin(**cluster.clients()) as admin:
        await admin.create_topic("t", assignment=[[1], [1], [1], [1]])
    plan = cluster.root / "plan.json"
    write(plan, (await run(cluster, "balance", "--json")).out)
    assert "Done" in (await run(cluster, "topic", "reassign", "--plan", str(plan), "--wait")).out
    assert Counter(await layout(cluster)) == {(1,): 2, (2,): 2}
