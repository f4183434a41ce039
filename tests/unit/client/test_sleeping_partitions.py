"""Clients of a partition that sleeps: its leader's broker has it woken, and refuses what it cannot answer."""

from collections.abc import Iterator

import pytest

from raylog.base.errors import NotLeaderOrFollower
from raylog.base.ids import TopicPartition
from raylog.client.consumer.consumer import Consumer
from raylog.client.consumer.stream import LONG_WAIT_MS
from raylog.client.producer.producer import Producer
from raylog.protocol.replica import FETCH, PRODUCE
from raylog.rpc import Request
from tests.unit.client.consumer_support import fill
from tests.unit.client.toy_server import ToyCluster
from tests.waiting import wait_for

AT = TopicPartition("flights", 0)


class Sleeper:
    """The broker of a partition that sleeps: a write wakes it, and a fetch waits for that."""

    def __init__(self, cluster: ToyCluster) -> None:
        self.cluster = cluster
        self.acks: list[int] = []
        """What the produce requests wanted."""
        self.waits_ms: list[int] = []
        """How long the fetches were to wait."""
        self.parked: list[Request] = []
        cluster.extra_methods |= {"produce": self.produce, "fetch": self.fetch}
        cluster.asleep.add(AT)

    def produce(self, request: Request) -> None:
        self.acks.append(PRODUCE.read_request(request.args).acks)
        self.wake()
        request.fail(NotLeaderOrFollower("It wakes."))

    def fetch(self, request: Request) -> None:
        self.waits_ms.append(FETCH.read_request(request.args).max_wait_ms)
        self.parked.append(request)

    def wake(self) -> None:
        """A replica leads, in the next epoch; what waits is refused."""
        self.cluster.asleep.discard(AT)
        self.cluster.partitions[AT].leader_epoch += 1
        self.cluster.version += 1
        for request in self.parked:
            request.fail(NotLeaderOrFollower("It is awake."))
        self.parked.clear()


class LightSleeper(Sleeper):
    """One that is asleep again when the record comes for the second and third time, after it had a leader each time."""

    WAKES = 3

    def produce(self, request: Request) -> None:
        self.acks.append(PRODUCE.read_request(request.args).acks)
        one = self.cluster.partitions[AT]
        self.wake()
        if len(self.acks) < self.WAKES:
            self.cluster.asleep.add(AT)
            place = self.cluster.brokers[one.leader]
        else:
            place = self.cluster.replicas[AT.topic, AT.partition, one.leader]
        leader = [one.leader, one.leader_epoch, place.host, place.port]
        request.fail(NotLeaderOrFollower("It wakes.", leader=leader, leader_topic_id=one.topic_id))


@pytest.fixture
def cluster() -> Iterator[ToyCluster]:
    with ToyCluster(brokers=2) as cluster:
        cluster.create_topic("flights", replication_factor=2)
        yield cluster


@pytest.fixture
def sleeper(cluster: ToyCluster) -> Sleeper:
    return cluster.do(lambda: Sleeper(cluster))


def values(cluster: ToyCluster) -> list[bytes | None]:
    return [value for _, _, value in cluster.records(*AT)]


def test_a_record_wakes_the_partition_and_is_sent_again_to_its_leader(cluster: ToyCluster, sleeper: Sleeper) -> None:
    with Producer(**cluster.options) as producer:
        assert producer.send("flights", b"a").result(20).offset == 0
    assert sleeper.acks == [-1]
    assert values(cluster) == [b"a"]


def test_a_record_is_sent_again_at_once_to_each_leader_that_is_named(cluster: ToyCluster) -> None:
    """A pause could be longer than the partition stays awake, time after time."""
    sleeper = cluster.do(lambda: LightSleeper(cluster))
    with Producer(**cluster.options, retry_backoff_ms=60_000, retry_backoff_max_ms=60_000) as producer:
        assert producer.send("flights", b"a").result(20).offset == 0
    assert len(sleeper.acks) == LightSleeper.WAKES


def test_without_acknowledgements_the_refusal_is_noticed_all_the_same(cluster: ToyCluster, sleeper: Sleeper) -> None:
    """Otherwise the first records to a partition that sleeps would be lost each time."""
    with Producer(**cluster.options, acks=0) as producer:
        producer.send("flights", b"a").result(20)
        wait_for(lambda: values(cluster) == [b"a"], "the record is stored")
        producer.send("flights", b"b").result(20)
        wait_for(lambda: values(cluster) == [b"a", b"b"], "so is the next one")
    assert sleeper.acks == [1], "an answer was waited for while it slept, and only then"


def test_a_fetch_waits_long_at_a_partition_that_sleeps(cluster: ToyCluster, sleeper: Sleeper) -> None:
    with Consumer(**cluster.options) as consumer:
        consumer.assign([AT])
        consumer.seek(AT, 0)
        wait_for(lambda: consumer.poll(10) == {} and bool(sleeper.parked), "the fetch waits")
        cluster.do(sleeper.wake)
        fill(cluster, *AT, [b"a"])
        assert [record.value for record in consumer.consume(1, timeout=20)] == [b"a"]
    assert sleeper.waits_ms == [LONG_WAIT_MS]


@pytest.mark.parametrize(("configured", "wanted"), [(0, 0), (LONG_WAIT_MS + 1, LONG_WAIT_MS + 1)])
def test_a_consumer_that_waits_not_at_all_or_longer_keeps_its_wait(
    cluster: ToyCluster, sleeper: Sleeper, configured: int, wanted: int
) -> None:
    with Consumer(**cluster.options, fetch_max_wait_ms=configured, request_timeout_ms=60_000) as consumer:
        consumer.assign([AT])
        consumer.seek(AT, 0)
        wait_for(lambda: consumer.poll(10) == {} and bool(sleeper.waits_ms), "the fetch came")
    assert sleeper.waits_ms[0] == wanted


def test_the_metadata_says_which_partitions_sleep(cluster: ToyCluster, sleeper: Sleeper) -> None:
    from raylog.client.admin.admin import Admin

    with Admin(**cluster.options) as admin:
        [row] = admin.describe_topic("flights").partitions
        broker = cluster.brokers[row.leader]
        assert row.is_asleep
        assert row.endpoint == (broker.host, broker.port)
        cluster.do(sleeper.wake)
        [row] = admin.describe_topic("flights").partitions
        assert not row.is_asleep
