"""Where records go."""

import random

import pytest

from raylog.client.producer.partitioner import hash_of_key, next_sticky_partition, partition_for_key


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
