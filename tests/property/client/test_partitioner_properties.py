"""Laws of the partitioner."""

import random

from hypothesis import given
from hypothesis import strategies as st
from murmurhash2 import murmurhash2

from raylog.client.producer.partitioner import SEED, hash_of_key, next_sticky_partition, partition_for_key


@given(st.binary(max_size=200))
def test_the_hash_is_the_c_librarys_for_keys_of_any_length(key: bytes) -> None:
    assert hash_of_key(key) == murmurhash2(key, SEED) & 0x7FFFFFFF


@given(st.binary(max_size=50), st.integers(1, 1000))
def test_a_key_has_one_partition_and_it_exists(key: bytes, partitions: int) -> None:
    assert partition_for_key(key, partitions) == partition_for_key(bytes(bytearray(key)), partitions)
    assert 0 <= partition_for_key(key, partitions) < partitions


@given(st.lists(st.tuples(st.integers(0, 100), st.booleans()), min_size=1, max_size=30), st.integers())
def test_the_sticky_partition_exists_and_has_a_leader_if_any_has(rows: list[tuple[int, bool]], seed: int) -> None:
    available = [row[1] for row in rows]
    chosen = next_sticky_partition([row[0] for row in rows], available, random.Random(seed))
    assert available[chosen] or not any(available) or len(rows) == 1
