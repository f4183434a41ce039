"""Where records go."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from raylog.base.errors import InvalidConfig, UnknownTopicOrPartition
from raylog.client.producer.partitioner import hash_of_key, next_sticky_partition, partition_for_key, rule_of
from raylog.client.producer.producer import Producer
from tests.unit.client.toy_server import ToyCluster


@dataclass
class Topic:
    """A topic as a rule sees it."""

    topic: str = "t"
    count: int = 3
    leaderless: set[int] = field(default_factory=set)

    def has_leader(self, partition: int) -> bool:
        return partition not in self.leaderless


@pytest.mark.parametrize(
    ("key", "hashed"),
    # Kafka's own examples (UtilsTest.testMurmur2), made positive.
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536),
     (b"a-little-bit-longer-string", -1486304829), (b"abc", 479470107)],
)  # fmt: skip
def test_keys_hash_as_in_kafka(key: bytes, hashed: int) -> None:
    assert hash_of_key(key) == hashed & 0x7FFFFFFF
    assert partition_for_key(key, 7) == (hashed & 0x7FFFFFFF) % 7


def test_partitions_without_leader_are_left_out_while_there_are_others() -> None:
    chance = random.Random(0)
    chosen = {next_sticky_partition([0, 0, 0], [True, False, True], chance) for _ in range(100)}
    assert chosen == {0, 2}
    assert next_sticky_partition([0, 0], [False, False], chance) in (0, 1)


def test_a_slow_leader_gets_less() -> None:
    chance = random.Random(0)
    drawn = [next_sticky_partition([0, 9], [True, True], chance) for _ in range(2_200)]
    assert 100 < drawn.count(1) < 320  # one in eleven


@pytest.mark.parametrize("name", [None, "murmur2", "murmur2_random"])
def test_the_default_is_left_to_the_queues(name: str | None) -> None:
    assert rule_of(name) is None


@pytest.mark.parametrize(
    ("key", "hashed"),
    # As `confluent_kafka.consistent` has them, modulo 2**31 - 1.
    [(b"21", 2104968885), (b"foobar", 519446422), (b"a-little-bit-long-string", 1852951907), (b"abc", 891568578),
     (b"\x00\xff", 1826356594)],
)  # fmt: skip
@pytest.mark.parametrize("name", ["crc32", "consistent_random"])
def test_crc32_is_that_of_librdkafka(name: str, key: bytes, hashed: int) -> None:
    rule = rule_of(name)
    assert rule is not None
    assert rule(Topic(count=2**31 - 1), key, b"") == hashed
    assert rule(Topic(), None, b"") is None
    assert rule(Topic(), b"", b"") is None  # librdkafka draws a partition for an empty key, too


def test_round_robin_takes_turns_and_leaves_out_what_has_no_leader() -> None:
    rule = rule_of("round_robin")
    assert rule is not None
    assert [rule(Topic("a"), b"k", None) for _ in range(5)] == [0, 1, 2, 0, 1]
    assert [rule(Topic("b", 2), None, None) for _ in range(3)] == [0, 1, 0]
    assert {rule(Topic("c", leaderless={1}), None, None) for _ in range(9)} == {0, 2}
    assert [rule(Topic("d", leaderless={0, 1, 2}), None, None) for _ in range(4)] == [0, 1, 2, 0]


def test_an_unknown_partitioner_names_the_nearest_or_what_is_legal() -> None:
    with pytest.raises(InvalidConfig, match="did you mean 'sticky'"):
        rule_of("stickey")
    with pytest.raises(InvalidConfig, match="must be a name, a function or have `partition`, not 7"):
        rule_of(7)
    with pytest.raises(InvalidConfig, match=r"takes \(topic, key, value, count\) or \(topic, key, count\), not"):
        rule_of(lambda topic: 0)


class ByValue:
    """A partitioner as Kafka has them: an object."""

    def partition(self, topic: str, key: bytes | None, value: bytes | None, count: int) -> int | None:
        return len(value or b"") % count


@pytest.mark.parametrize(
    "partitioner", [ByValue(), lambda topic, key, value, count: len(value) % count, lambda topic, key, count: None]
)
def test_a_partitioner_sees_serialized_keys_and_values(
    cluster: ToyCluster, partitioner: Callable[..., int | None]
) -> None:
    cluster.create_topic("t", partitions=3)
    with Producer(**cluster.options, partitioner=partitioner, value_serializer="string", linger_ms=50) as producer:
        found = [producer.send("t", "x" * size, b"key") for size in range(6)]
        (chosen,) = {future.result(10).partition for future in found[:1]}
        partitions = [future.result(10).partition for future in found]
    sticky = rule_of(partitioner)
    assert sticky is not None
    assert partitions == ([size % 3 for size in range(6)] if sticky(Topic(), b"k", b"") == 0 else [chosen] * 6)


def test_a_key_may_be_ignored(cluster: ToyCluster) -> None:
    cluster.create_topic("t", partitions=16)
    with Producer(**cluster.options, partitioner="sticky", linger_ms=200) as producer:
        found = [producer.send("t", b"v", b"%d" % number) for number in range(40)]
        found_by_batch = producer.send_batch("t", [b"v"] * 40, [b"%d" % number for number in range(40)])
        assert len({future.result(10).partition for future in found}) == 1
        assert len(found_by_batch.result(10)) == 1


def test_send_batch_calls_the_partitioner_for_every_record(cluster: ToyCluster) -> None:
    cluster.create_topic("t", partitions=3)
    values = [b"%d" % number for number in range(9)]
    with Producer(**cluster.options, partitioner="round_robin") as producer:
        producer.send_batch("t", values, [b"same key"] * 9).result(10)
    for partition in range(3):
        assert [value for _, _, value in cluster.records("t", partition)] == values[partition::3]


@pytest.mark.parametrize(
    ("chosen", "kind", "sentence"),
    [(3, UnknownTopicOrPartition, "returned 3 for topic 't', which has partitions 0 to 2"),
     (-1, UnknownTopicOrPartition, "returned -1"), ("0", TypeError, "must return a partition as an int"),
     (True, TypeError, "must return a partition as an int")],
)  # fmt: skip
def test_what_a_partitioner_may_not_return_is_refused(
    cluster: ToyCluster, chosen: Any, kind: type[Exception], sentence: str
) -> None:
    cluster.create_topic("t", partitions=3)
    with Producer(**cluster.options, partitioner=lambda topic, key, count: chosen) as producer:
        with pytest.raises(kind, match=sentence):
            producer.send("t", b"v")
        assert producer.send("t", b"v", partition=1).result(10).partition == 1
