"""Partitioners: choose the partition of a record, by its key, or one partition after another for records without keys.

Keys are hashed as in Kafka (murmur2), so that all producers put a key into the same partition. Records without a key go
to one *sticky* partition until it has got a batch's worth of bytes, then to another (KIP-480, KIP-794): this makes
fewer, larger batches than taking turns. The configuration key `partitioner` selects other rules, or a user's; they get
serialized keys and values. Used by the accumulator. Pure; randomness is an argument.
"""

from __future__ import annotations

import inspect
import itertools
import operator
import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias
from zlib import crc32

from raylog.base.errors import InvalidConfig, UnknownTopicOrPartition, did_you_mean
from raylog.storage.batch.key_hash import (
    SEED as SEED,
)  # re-exported: the rule of keys is part of this module's interface
from raylog.storage.batch.key_hash import hash_of_key as hash_of_key
from raylog.storage.batch.key_hash import partition_for_key as partition_for_key


def next_sticky_partition(waiting: Sequence[int], available: Sequence[bool], chance: random.Random) -> int:
    """The next sticky partition, for records without a key.

    `waiting` is the queue length of each partition, in batches. A partition is drawn with the weight (longest queue + 1
    - its own queue), so slow leaders get less. Partitions without a leader are excluded while others have one.
    """
    partitions = len(waiting)
    if partitions == 1:
        return 0
    usable = [index for index in range(partitions) if available[index]] or list(range(partitions))
    longest = max(waiting[index] for index in usable)
    weights = [longest + 1 - waiting[index] for index in usable]
    return chance.choices(usable, weights)[0]


class Partitions(Protocol):
    """What a partitioner may know of a topic."""

    topic: str
    count: int
    """How many partitions it has; at least one."""

    def has_leader(self, partition: int) -> bool:
        """Whether the partition has a leader, as far as known."""


Rule: TypeAlias = Callable[[Partitions, "bytes | None", "bytes | None"], "int | None"]
"""Topic, key and value of a record -> its partition; None = the sticky one."""


def rule_of(choice: Any) -> Rule | None:
    """The rule for a value of the key `partitioner`; None = murmur2, which `TopicQueues` applies itself.

    Raises InvalidConfig for an unknown name, or a function with a wrong number of arguments.
    """
    if choice is None or choice in ("murmur2", "murmur2_random", "default"):
        return None
    if choice in ("sticky", "uniform_sticky"):
        return _in_sticky_turn
    if choice in ("round_robin", "roundrobin"):
        return RoundRobin()
    if choice in ("crc32", "consistent_random"):  # the second is librdkafka's name of its default
        return _by_crc32
    if isinstance(choice, str):
        raise InvalidConfig(did_you_mean("partitioner", choice, ["murmur2", "sticky", "round_robin", "crc32"]))
    function = getattr(choice, "partition", choice)
    if not callable(function):
        raise InvalidConfig(f"partitioner must be a name, a function or have `partition`, not {choice!r:.100}.")
    return _of_user(function, _arguments(function))


def _in_sticky_turn(topic: Partitions, key: bytes | None, value: bytes | None) -> int | None:
    return None


def _by_crc32(topic: Partitions, key: bytes | None, value: bytes | None) -> int | None:
    """As librdkafka's `consistent_random`; an empty key counts as none, and goes to the sticky partition."""
    return crc32(key) % topic.count if key else None


class RoundRobin:
    """Takes the partitions of a topic in turn, record by record; skips those without a leader while others have one.

    Several threads may call it.
    """

    def __init__(self) -> None:
        self._turns: dict[str, itertools.count[int]] = {}

    def __call__(self, topic: Partitions, key: bytes | None, value: bytes | None) -> int:
        """The next partition."""
        turns = self._turns.get(topic.topic)
        if turns is None:
            turns = self._turns.setdefault(topic.topic, itertools.count())
        count = topic.count
        first = next(turns) % count
        for step in range(count):
            partition = (first + step) % count
            if topic.has_leader(partition):
                return partition
        return first


def _arguments(function: Callable[..., Any]) -> int:
    """How many arguments a user's function takes, 4 or 3. Raises InvalidConfig for another number."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function written in C may have no signature
        return 3
    for count in (4, 3):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return count
    raise InvalidConfig(
        f"The partitioner {function!r:.100} takes (topic, key, value, count) or (topic, key, count), not {signature}."
    )


def _of_user(function: Callable[..., Any], arguments: int) -> Rule:
    def choose(topic: Partitions, key: bytes | None, value: bytes | None) -> int | None:
        count = topic.count
        chosen = function(topic.topic, key, value, count) if arguments == 4 else function(topic.topic, key, count)
        if chosen is None:
            return None
        if isinstance(chosen, bool) or not hasattr(chosen, "__index__"):
            raise TypeError(f"The partitioner must return a partition as an int, or None, not {chosen!r:.100}.")
        partition = operator.index(chosen)
        if not 0 <= partition < count:
            raise UnknownTopicOrPartition(
                f"The partitioner returned {partition} for topic {topic.topic!r}, which has partitions 0 to "
                f"{count - 1}; it gets their number as its last argument.",
                topic=topic.topic,
                partition=partition,
            )
        return partition

    return choose
