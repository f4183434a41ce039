"""Chooses the partition of a record: by its key, or without key one partition at a time.

The key's rule is Kafka's (murmur2), so that a key lies in the same partition for all producers. Without key, records
stay on one partition until a batch's worth of bytes went there (KIP-480, KIP-794): fewer, larger batches than by turns.
Used by the accumulator. Pure; randomness is an argument.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from raylog.storage.batch.key_hash import (
    SEED as SEED,
)  # re-exported: the rule of keys is part of this module's interface
from raylog.storage.batch.key_hash import hash_of_key as hash_of_key
from raylog.storage.batch.key_hash import partition_for_key as partition_for_key


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
