"""Subscriptions and assignments that group members exchange, as wire lists. Used by the consumer client.

The client turns the lists into bytes (msgpack) for JoinGroup's metadata and SyncGroup's assignments, and back; the
coordinator never opens them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from raylog.client.group.assignors import Subscription
from raylog.core.ids import TopicPartition

PROTOCOL_TYPE: Final = "consumer"
VERSION: Final = 1
"""Version of both layouts. A reader accepts later ones and ignores fields behind those it knows."""


def encode_subscription(subscription: Subscription, userdata: bytes = b"") -> list[object]:
    """Return [version, topics, [[topic, [partitions]]...] owned, generation, userdata]."""
    return [
        VERSION,
        list(subscription.topics),
        _grouped(subscription.owned),
        subscription.generation,
        userdata,
    ]


def decode_subscription(wire: Sequence[object], instance_id: str | None = None) -> Subscription:
    """Read a subscription; ``instance_id`` comes with the leader's member list, not with the metadata.

    Raises TypeError or ValueError when the list is not one.
    """
    _, topics, owned, generation, *_rest = wire
    if not isinstance(generation, int):
        raise TypeError(f"expected a generation number in a subscription, got {generation!r}")
    return Subscription(
        topics=tuple(str(topic) for topic in _list(topics)),
        owned=_flat(owned),
        generation=generation,
        instance_id=instance_id,
    )


def encode_assignment(partitions: Iterable[TopicPartition], userdata: bytes = b"") -> list[object]:
    """Return [version, [[topic, [partitions]]...], userdata]."""
    return [VERSION, _grouped(partitions), userdata]


def decode_assignment(wire: Sequence[object]) -> tuple[TopicPartition, ...]:
    """Read an assignment; an empty list (the leader gave this member nothing) is no partitions."""
    if not wire:
        return ()
    _, partitions, *_rest = wire
    return _flat(partitions)


def _grouped(partitions: Iterable[TopicPartition]) -> list[object]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return [[topic, numbers] for topic, numbers in by_topic.items()]


def _flat(rows: object) -> tuple[TopicPartition, ...]:
    found: list[TopicPartition] = []
    for row in _list(rows):
        topic, numbers = _list(row)
        for number in _list(numbers):
            if not isinstance(number, int):
                raise TypeError(f"expected a partition number, got {number!r}")
            found.append(TopicPartition(str(topic), number))
    return tuple(found)


def _list(value: object) -> Sequence[object]:
    if isinstance(value, (list, tuple)):
        return value
    raise TypeError(f"expected a list in a group message, got {value!r}")
