"""Subscriptions and assignments that group members exchange, in Kafka's format. Used by the consumer client and Admin.

These are Kafka's `ConsumerProtocolSubscription` and `ConsumerProtocolAssignment`, versions 0 to 3, and the user data of
its sticky assignors, so members and tools of other implementations can read them. The coordinator never opens them.
Integers are big endian; a string's length has two bytes, that of bytes and lists four, and -1 stands for null. A later
version is read as the last known one, as in Kafka, since fields are only added at the end. Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from raylog.base.ids import TopicPartition
from raylog.client.assignor import Subscription

PROTOCOL_TYPE: Final = "consumer"
VERSION: Final = 3
"""The version that is written. Version 1 added owned partitions, 2 their generation, 3 the rack."""

_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")


def encode_subscription(subscription: Subscription) -> bytes:
    """Encode a subscription, as the metadata of a join."""
    return b"".join(
        (
            _SHORT.pack(VERSION),
            _INT.pack(len(subscription.topics)),
            *(_string(topic) for topic in subscription.topics),
            _bytes(subscription.user_data),
            _grouped(subscription.owned),
            _INT.pack(subscription.generation),
            _SHORT.pack(-1) if subscription.rack_id is None else _string(subscription.rack_id),
        )
    )


def decode_subscription(data: bytes, instance_id: str | None = None) -> Subscription:
    """Decode a subscription; ``instance_id`` is not part of it, but of the leader's member list. Raises ValueError."""
    reader = _Reader(data)
    version = reader.version()
    topics = tuple(reader.string() for _ in range(reader.count(2)))
    user_data = reader.blob()
    owned = reader.grouped() if version >= 1 else ()
    generation = reader.number() if version >= 2 else -1
    rack_id = reader.nullable_string() if version >= 3 else None
    return Subscription(
        topics=topics, owned=owned, generation=generation, instance_id=instance_id, user_data=user_data, rack_id=rack_id
    )


def encode_assignment(partitions: Iterable[TopicPartition], user_data: bytes = b"") -> bytes:
    """Encode a member's assignment."""
    return _SHORT.pack(VERSION) + _grouped(partitions) + _bytes(user_data)


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Decode an assignment; empty bytes (the leader assigned nothing) mean no partitions. Raises ValueError."""
    if not data:
        return ()
    reader = _Reader(data)
    reader.version()
    return reader.grouped()


# ---------------------------------------------------------------- user data of the sticky assignors


def encode_previous(previous: Iterable[TopicPartition], generation: int) -> bytes:
    """Encode the user data of `sticky`: the last assignment and its generation (Kafka's version 1)."""
    return _grouped(previous) + _INT.pack(generation)


def decode_previous(data: bytes) -> tuple[tuple[TopicPartition, ...], int]:
    """Decode the user data of `sticky`; version 0 has no generation, which is then -1. Raises ValueError."""
    reader = _Reader(data)
    previous = reader.grouped()
    return previous, reader.number() if reader.has_more else -1


def encode_generation(generation: int) -> bytes:
    """Encode the user data of `cooperative-sticky`."""
    return _INT.pack(generation)


# ---------------------------------------------------------------- parts


def _string(text: str) -> bytes:
    data = text.encode()
    return _SHORT.pack(len(data)) + data


def _bytes(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _grouped(partitions: Iterable[TopicPartition]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    parts = [_INT.pack(len(by_topic))]
    for topic, numbers in by_topic.items():
        parts += (_string(topic), _INT.pack(len(numbers)), *map(_INT.pack, numbers))
    return b"".join(parts)


class _Reader:
    """Reads values one after another; raises ValueError for one that does not fit the remaining bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = bytes(data)
        self._at = 0

    @property
    def has_more(self) -> bool:
        return self._at < len(self._data)

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise ValueError(f"{size} bytes are announced at byte {self._at}, and it ends at {len(self._data)}")
        found = self._data[self._at : end]
        self._at = end
        return found

    def _short(self) -> int:
        found: int = _SHORT.unpack(self._take(2))[0]
        return found

    def number(self) -> int:
        found: int = _INT.unpack(self._take(4))[0]
        return found

    def version(self) -> int:
        found = self._short()
        if found < 0:
            raise ValueError(f"its version is {found}")
        return found

    def count(self, least_bytes: int) -> int:
        """The length of a list whose items have at least `least_bytes` each."""
        found = self.number()
        if not 0 <= found <= (len(self._data) - self._at) // least_bytes:
            raise ValueError(f"a list of {found} items is announced at byte {self._at}")
        return found

    def string(self) -> str:
        return self._take(self._short()).decode()

    def nullable_string(self) -> str | None:
        size = self._short()
        return None if size == -1 else self._take(size).decode()

    def blob(self) -> bytes:
        """Bytes; null is read as empty."""
        size = self.number()
        return b"" if size == -1 else self._take(size)

    def grouped(self) -> tuple[TopicPartition, ...]:
        found: list[TopicPartition] = []
        for _ in range(self.count(6)):
            topic = self.string()
            found += [TopicPartition(topic, self.number()) for _ in range(self.count(4))]
        return tuple(found)
