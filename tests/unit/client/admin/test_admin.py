"""Admin and AsyncAdmin."""

import pytest

from raylog.base.errors import (
    ClientClosed,
    ElectionNotNeeded,
    InvalidConfig,
    InvalidRequest,
    StopRefused,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from raylog.base.ids import TopicPartition
from raylog.client.admin.admin import Admin, AsyncAdmin
from raylog.client.admin.groups import keys_of_each_coordinator
from raylog.client.producer.producer import Producer
from raylog.core.configuration.config_keys import CLUSTER_KEYS, TOPIC_KEYS
from raylog.core.coordinators.hashing import coordinator_partition
from raylog.protocol.groups import DELETE_GROUP, DescribedMember, DescribeGroupReply, ListedGroup, OffsetFetchResult
from raylog.protocol.message import Empty
from raylog.rpc import Request
from tests.unit.client.toy_server import ToyCluster


def test_a_topic_is_created_described_and_deleted(cluster: ToyCluster) -> None:
    with Admin(**cluster.options) as admin:
        made = admin.create_topic("flights", partitions=3, replication_factor=2, config={"retention.ms": 5})
        assert (made.name, len(made.partitions), made.replication_factor) == ("flights", 3, 2)
        assert all(partition.endpoint is not None for partition in made.partitions)
        assert admin.list_topics() == ["flights"]
        admin.alter_topic_config("flights", set={"retention.ms": 7, "segment.bytes": 9}, delete=["segment.bytes"])
        assert admin.describe_topic("flights").config == {"retention.ms": 7}
        admin.delete_topic("flights")
        assert admin.list_topics() == []


def test_a_setting_without_a_value_is_refused_with_what_to_do(cluster: ToyCluster) -> None:
    with Admin(**cluster.options) as admin:
        with pytest.raises(InvalidConfig, match=r"'retention\.ms' is None: leave the key out"):
            admin.create_topic("t", config={"retention.ms": None})
        with pytest.raises(InvalidConfig, match=r"'retention\.ms' is None: name the key in `delete`"):
            admin.alter_topic_config("t", set={"retention.ms": None})
        with pytest.raises(InvalidConfig, match=r"'num\.partitions' is None: name the key in `delete`"):
            admin.alter_cluster_config({"num.partitions": None})


def test_every_setting_is_described_with_its_origin(cluster: ToyCluster) -> None:
    with Admin(**cluster.options) as admin:
        admin.create_topic("flights", config={"retention.ms": 5})
        found = admin.describe_configs("flights")
        assert found.keys() == TOPIC_KEYS.keys()
        assert (found["retention.ms"].value, found["retention.ms"].origin) == ("5", "topic")
        assert (found["replica.sleep.after.ms"].value, found["replica.sleep.after.ms"].origin) == ("9000", "cluster")
        segment = found["segment.bytes"]
        assert (segment.value, segment.default, segment.is_default) == ("1073741824", "1073741824", True)
        assert segment.meaning == TOPIC_KEYS["segment.bytes"].doc
        whole = admin.describe_configs()
        assert whole.keys() == CLUSTER_KEYS.keys()
        assert (whole["num.partitions"].value, whole["num.partitions"].origin) == ("4", "start")
        with pytest.raises(UnknownTopicOrPartition, match="did you mean 'flights'"):
            admin.describe_configs("flight")


async def test_settings_are_described_from_an_event_loop(cluster: ToyCluster) -> None:
    async with AsyncAdmin(**cluster.options) as admin:
        await admin.create_topic("t")
        found = await admin.describe_configs("t")
    assert {entry.origin for entry in found.values()} == {"cluster", "default"}


def test_a_topic_that_exists_is_not_created_again(cluster: ToyCluster) -> None:
    with Admin(**cluster.options) as admin:
        admin.create_topic("t")
        with pytest.raises(TopicAlreadyExists):
            admin.create_topic("t")


def test_a_topic_whose_creation_was_not_answered_counts_as_created(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Admin(**cluster.options) as admin:
        create = type(cluster)._create_topic
        cut: list[bool] = []

        async def create_and_cut(*args: object) -> str:
            found = await create(cluster, *args)  # type: ignore[arg-type]
            if not cut:
                cut.append(True)
                for broker in cluster.brokers.values():
                    for connection in list(broker.server.connections):
                        connection.abort("cut by the test")
            return found

        monkeypatch.setattr(cluster, "_create_topic", create_and_cut)
        assert admin.create_topic("t", partitions=2).name == "t"


def test_unknown_topics_name_the_nearest(cluster: ToyCluster) -> None:
    with Admin(**cluster.options) as admin:
        admin.create_topic("flights")
        with pytest.raises(UnknownTopicOrPartition, match="did you mean 'flights'"):
            admin.delete_topic("flihgts")
        with pytest.raises(UnknownTopicOrPartition, match="did you mean 'flights'"):
            admin.describe_topic("flight", timeout_s=1)


def test_the_cluster_is_described(cluster: ToyCluster) -> None:
    with Admin(**cluster.options) as admin:
        found = admin.describe_cluster()
    assert found.cluster_id == "toy"
    assert [broker.broker for broker in found.brokers] == [0, 1]


def test_without_groups_the_list_is_empty(cluster: ToyCluster) -> None:
    with Admin(**cluster.options) as admin:
        assert admin.list_groups() == []


def test_every_coordinator_gets_a_key_of_its_own() -> None:
    keys = keys_of_each_coordinator(16)
    assert [coordinator_partition(key, 16) for key in keys] == list(range(16))


def test_groups_are_listed_described_and_deleted(cluster: ToyCluster) -> None:
    cluster.create_topic("__consumer_offsets", partitions=4)
    deleted: list[str] = []

    def delete(request: Request) -> None:
        deleted.append(DELETE_GROUP.read_request(request.args).group_id)
        request.reply(Empty())

    topic_id = cluster.create_topic("t", partitions=2)
    with Producer(**cluster.options) as producer:
        producer.send("__consumer_offsets", b"a coordinator begins with a record", partition=2).result(30)
    queried: list[Request] = []

    def list_groups(request: Request) -> None:
        queried.append(request)
        request.reply([ListedGroup("g", "consumer", "Stable")])

    cluster.extra_methods["list_groups"] = list_groups
    cluster.extra_methods["delete_group"] = delete
    member = DescribedMember(
        member_id="m",
        instance_id=None,
        client_id="c",
        session_timeout_ms=1,
        rebalance_timeout_ms=1,
        metadata=b"",
        assignment=b"\x93\x01\x90\xc4\x00",
    )
    described = DescribeGroupReply(
        group="g",
        state="Stable",
        protocol_type="consumer",
        protocol="range",
        generation=2,
        leader="m",
        members=[member],
        offsets=[OffsetFetchResult(topic_id, "t", 0, 5, 1, ""), OffsetFetchResult(topic_id, "t", 1, -1, -1, "")],
    )
    cluster.extra_methods["describe_group"] = lambda request: request.reply(described)
    with Admin(**cluster.options) as admin:
        assert [group.group_id for group in admin.list_groups()] == ["g"]
        assert len(queried) == 1, "the other partitions were never written to"
        found = admin.describe_group("g")
        assert found.members[0].assignment == ()
        assert found.offsets == {("t", 0): 5}
        admin.delete_group("g")
    assert deleted == ["g"]


def test_a_closed_admin_refuses(cluster: ToyCluster) -> None:
    admin = Admin(**cluster.options)
    admin.close()
    admin.close()
    with pytest.raises(ClientClosed):
        admin.list_topics()


async def test_the_asyncio_twin_does_the_same(cluster: ToyCluster) -> None:
    async with AsyncAdmin(**cluster.options) as admin:
        await admin.create_topic("t")
        assert await admin.list_topics() == ["t"]


def test_elections_are_answered_for_each_partition(cluster: ToyCluster) -> None:
    with Admin(**cluster.options) as admin:
        admin.create_topic("t")
        admin.create_topic("strayed")
        assert admin.elect_leaders() == {TopicPartition("strayed", 0): None}
        [(partition, error)] = admin.elect_leaders([("t", 0)]).items()
        assert partition == TopicPartition("t", 0)
        assert isinstance(error, ElectionNotNeeded)
        with pytest.raises(InvalidRequest):
            admin.elect_leaders(unclean=True)


def test_a_broker_is_stopped_and_resumed_and_shown_as_stopped_meanwhile(cluster: ToyCluster) -> None:
    broker = min(cluster.brokers)
    with Admin(**cluster.options) as admin:
        with pytest.raises(StopRefused) as refused:
            admin.stop_broker(broker)
        assert refused.value.details == {"leaderless": ["flights-0"]}
        stopped = admin.stop_broker(broker, force=True)
        assert (stopped.broker, stopped.leaders_moved, stopped.leaderless) == (broker, 1, ("flights-0",))
        assert [broker.broker for broker in admin.describe_cluster().stopped_brokers] == [broker]
        admin.resume_broker(broker)
        assert admin.describe_cluster().stopped_brokers == ()
