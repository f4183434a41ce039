"""The embedded protocol of releases before 0.3, in msgpack, for groups in which some members still run one. Pure.

Such a member reads and writes only msgpack. So a leader encodes each member's assignment in the form that the member
can read. A member that gets an assignment in msgpack knows that its leader could not read Kafka's format: it joins
again with msgpack, until another member is the leader. The version in its messages says that it reads both formats.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from raylog.client.group.assignor import Subscription
from raylog.core.ids import TopicPartition

READS_BOTH: Final = 2
"""The version that is written: its sender also reads Kafka's format. Releases before 0.3 write 1."""
_FIRST_BYTES: Final = range(0x90, 0xA0)
"""First byte of a msgpack list of up to 15 items. Kafka's format begins with a small version in two bytes: a 0."""


def is_early(data: bytes) -> bool:
    """Whether a message is in this format."""
    return bool(data) and data[0] in _FIRST_BYTES


def encode_subscription(subscription: Subscription) -> bytes:
    """Encode as [version, topics, owned as [[topic, [partitions]]...], generation, user data]."""
    return msgspec.msgpack.encode(
        [
            READS_BOTH,
            list(subscription.topics),
            _grouped(subscription.owned),
            subscription.generation,
            subscription.user_data,
        ]
    )


def decode_subscription(data: bytes, instance_id: str | None = None) -> tuple[Subscription, bool]:
    """Decode a subscription, and whether its sender also reads Kafka's format. Raises ValueError."""
    try:
        version, topics, owned, generation, *rest = _list(msgspec.msgpack.decode(data))
        user_data = rest[0] if rest else b""
        if not isinstance(generation, int) or not isinstance(version, int) or not isinstance(user_data, bytes):
            raise ValueError(f"expected numbers and bytes in a subscription, got {generation!r}, {version!r}")
        subscription = Subscription(
            topics=tuple(str(topic) for topic in _list(topics)),
            owned=_flat(owned),
            generation=generation,
            instance_id=instance_id,
            user_data=user_data,
        )
    except TypeError as error:
        raise ValueError(str(error)) from error
    return subscription, version >= READS_BOTH


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Encode as [version, [[topic, [partitions]]...], user data]."""
    return msgspec.msgpack.encode([READS_BOTH, _grouped(partitions), b""])


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Decode an assignment; an empty list means no partitions. Raises ValueError."""
    try:
        wire = _list(msgspec.msgpack.decode(data))
        return _flat(wire[1]) if len(wire) > 1 else ()
    except TypeError as error:
        raise ValueError(str(error)) from error


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
