"""Topics are created, deleted and recreated under the same name; what they leave on the disks."""

import asyncio
from pathlib import Path

from raylog.base.errors import (
    InvalidConfig,
    InvalidReplicationFactor,
    InvalidTopic,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tests.cluster.local_cluster import LocalCluster
from tests.cluster.talk import Talk, in_cluster, refused
from tests.waiting import eventually


def folders(root: Path, topic: str) -> list[str]:
    """Everything in the brokers' directories that belongs to a topic, including locks and leftovers."""
    return sorted(str(path.relative_to(root)) for path in root.glob(f"broker-*/*{topic}-*"))


@in_cluster()
async def test_a_new_topic_has_leaders_and_all_replicas_in_sync(cluster: LocalCluster, talk: Talk) -> None:
    topic_id = await talk.create("flights", partitions=3)
    rows = [await talk.partition("flights", number) for number in range(3)]
    assert sorted(row.leader for row in rows) == [1, 2, 3], "leaders are spread over the brokers"
    assert all(row.leader_epoch == 1 for row in rows), "each partition had one election"
    assert all(sorted(row.isr) == [1, 2, 3] for row in rows)
    assert len(topic_id) == 32
    assert len(cluster.replicas) == 9


@in_cluster(brokers=1)
async def test_illegal_topics_are_refused_with_the_reason(cluster: LocalCluster, talk: Talk) -> None:
    async def create(name: str, factor: int = 1, **config: object) -> object:
        return await talk.broker("create_topic", [name, 1, factor, None, config, False, 5000])

    assert "'/'" in str(await refused(create("a/b"), InvalidTopic))
    assert "Raylog's own" in str(await refused(create("__mine"), InvalidTopic))
    assert "1 broker is online" in str(await refused(create("t", factor=3), InvalidReplicationFactor))
    assert "did you mean" in str(await refused(create("t", **{"retention.m": 5}), InvalidConfig))
    await create("t")
    await refused(create("t"), TopicAlreadyExists)
    assert "did you mean 't'" in str(await refused(talk.broker("delete_topic", ["tt"]), UnknownTopicOrPartition))
    await talk.whole("t")


@in_cluster()
async def test_a_deleted_topic_leaves_no_actor_and_no_folder(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("gone", partitions=2)
    await talk.create("kept")
    await talk.produce("gone", b"a")
    await talk.broker("delete_topic", ["gone"])
    await eventually(lambda: not folders(cluster.root, "gone"), what="folders of the deleted topic vanish")
    assert len(cluster.replicas) == 3
    assert (await talk.topic("gone"))[0] == UnknownTopicOrPartition.code
    assert folders(cluster.root, "kept")
    await talk.produce("kept", b"b")


@in_cluster()
async def test_a_re_created_topic_is_another_one(cluster: LocalCluster, talk: Talk) -> None:
    first = await talk.create("again")
    await talk.produce("again", b"old", b"older")
    head, _ = await talk.leader("again")
    await talk.broker("delete_topic", ["again"])
    second = await talk.create("again")
    assert second != first
    assert (await talk.fetch("again")).records == []
    _, endpoint = await talk.leader("again")
    await refused(talk.produce_at(endpoint, head, b"to the old one"), UnknownTopicId)
    assert await talk.produce("again", b"new") == 0
    assert await talk.values("again", 1) == [b"new"]
    await eventually(lambda: len(cluster.replicas) == 3, what="the replicas of the old topic end")


@in_cluster()
async def test_topics_created_and_deleted_in_quick_turns_leave_nothing(cluster: LocalCluster, talk: Talk) -> None:
    for _ in range(5):
        await talk.broker("create_topic", ["quick", 2, 3, None, {}, False, 5000])
        await talk.broker("delete_topic", ["quick"])
    await talk.create("quick", partitions=2)
    await talk.produce("quick", b"a", partition=1)
    await talk.broker("delete_topic", ["quick"])
    await eventually(lambda: not folders(cluster.root, "quick") and not cluster.replicas, what="nothing is left")


@in_cluster()
async def test_folders_of_a_topic_deleted_while_its_broker_was_away_vanish(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("gone")
    await talk.create("again")
    await talk.produce("again", b"old")
    await cluster.stop_broker(3)
    await cluster.stop_replica("gone", 0, 3)
    await cluster.stop_replica("again", 0, 3)
    for name in ("gone", "again"):
        await talk.broker("delete_topic", [name])
    await talk.broker("create_topic", ["again", 1, 3, [[1, 2, 3]], {}, False, 5000])
    await eventually(lambda: not [folder for folder in folders(cluster.root, "gone") if "broker-3" not in folder])
    assert [folder for folder in folders(cluster.root, "gone") if "broker-3" in folder]
    await cluster.start_broker(3)
    await talk.whole("again")
    await eventually(lambda: not folders(cluster.root, "gone"), what="the returned broker removes the folder")
    await talk.produce("again", b"new")
    assert await talk.values("again", 1) == [b"new"]
    await eventually(
        lambda: not [*cluster.root.glob("broker-*/.deleted/*"), *cluster.root.glob("broker-*/.replaced/*")],
        what="what was set aside for the deleted topic goes too",
    )


@in_cluster()
async def test_a_replica_that_outlives_its_topic_goes_silent_and_is_ended(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("gone")
    await cluster.stop_broker(2)
    replica = cluster.replica("gone", 0, 2)
    await talk.broker("delete_topic", ["gone"])
    await eventually(lambda: not replica.status()["controller_connected"], what="it lets go of the controller")
    await cluster.start_broker(2)
    await eventually(lambda: not cluster.replicas and not folders(cluster.root, "gone"))


@in_cluster(config={"num.partitions": "2", "default.replication.factor": "3"})
async def test_a_topic_without_numbers_gets_the_cluster_s_defaults(cluster: LocalCluster, talk: Talk) -> None:
    await talk.broker("create_topic", ["t", -1, -1, None, {}, False, 5000])
    await talk.whole("t", 1)
    await asyncio.gather(*(talk.produce("t", b"x", partition=number) for number in range(2)))


@in_cluster()
async def test_a_changed_configuration_reaches_the_running_replicas(cluster: LocalCluster, talk: Talk) -> None:
    await talk.create("t", config={"min.insync.replicas": 1})
    await talk.broker("alter_topic_config", ["t", {"max.message.bytes": 100, "min.insync.replicas": 3}, []])
    leader = (await talk.partition("t")).leader
    replica = cluster.replica("t", 0, leader)
    await eventually(
        lambda: replica.status()["min_insync_replicas"] == 3, what="the leader goes by the new configuration"
    )
    await cluster.stop_replica("t", 0, leader)
    follower = (await talk.until("t", lambda row: row.leader not in (leader, -1))).leader
    await eventually(lambda: cluster.replica("t", 0, follower).status()["min_insync_replicas"] == 3)
    assert (await talk.topic("t"))[5]["max.message.bytes"] == "100"


@in_cluster()
async def test_a_folder_that_the_metadata_never_knew_is_left_alone(cluster: LocalCluster, talk: Talk) -> None:
    await cluster.stop_broker(3)
    stray = cluster.root / "broker-3" / "stray-0"
    stray.mkdir()
    (stray / "partition.metadata").write_text(f"version: 0\ntopic_id: {'e' * 32}\ntopic: stray\npartition: 0\n")
    await cluster.start_broker(3)
    await talk.create("later")
    assert stray.is_dir(), "an old copy of the metadata must not cost data"
