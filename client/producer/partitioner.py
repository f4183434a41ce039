"""Chooses the partition of a record: by its key, or without key one partition at a time.

The key's rule is Kafka's (murmur2), so that a key lies in the same partition for all producers. Without key, records
stay on one partition until a batch's worth of bytes went there (KIP-480, KIP-794): fewer, larger batches than by turns.
Used by the accumulator. Pure; randomness is an argument.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

from murmurhash2 import murmurhash2

SEED = 0x9747B28C
PYTHON_KEY_BYTES = 64
_M = 0x5BD1E995
_UNPACK_WORDS = [struct.Struct(f"<{words}I").unpack_from for words in range(PYTHON_KEY_BYTES // 4 + 1)]


def hash_of_key(key: bytes) -> int:
    """Kafka's murmur2 of a key, made positive.

    The C library releases the interpreter's lock around each call, which under load costs a thread switch: a short key
    is hashed faster in Python.
    """
    length = len(key)
    if length > PYTHON_KEY_BYTES:
        hashed: int = murmurhash2(key, SEED)
        return hashed & 0x7FFFFFFF
    mixed = SEED ^ length
    whole = length & ~3
    for word in _UNPACK_WORDS[whole >> 2](key):
        word = word * _M & 0xFFFFFFFF
        mixed = (mixed * _M ^ (word ^ word >> 24) * _M) & 0xFFFFFFFF
    if length != whole:
        mixed = (mixed ^ int.from_bytes(key[whole:], "little")) * _M & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 13) * _M & 0xFFFFFFFF
    return (mixed ^ mixed >> 15) & 0x7FFFFFFF


def partition_for_key(key: bytes, partitions: int) -> int:
    """Kafka's default partition of a key."""
    return hash_of_key(key) % partitions


def next_sticky_partition(waiting: Sequence[int], available: Sequence[bool], chance: random.Random) -> int:
    """The next partition for records without key.

    `waiting` is the queue length of each partition, in batches: a partition is drawn with the weight of (longest queue
    + 1 - its own queue), so slow leaders get less. Partitions without a leader are excluded while others have one.
    """
    partitions = len(waiting)
    if partitions == 1:
        return 0
    usable = [index for index in range(partitions) if available[index]] or list(range(partitions))
    longest = max(waiting[index] for index in usable)
    weights = [longest + 1 - waiting[index] for index in usable]
    return chance.choices(usable, weights)[0]
