"""Which topics the members of a classic group subscribe to, read from the metadata that they send with their joins.

While a group has members, offsets of topics without subscribers may be deleted (KIP-496) and expire (KIP-211); the
coordinator opens the metadata for nothing else. The layout is Kafka's ConsumerProtocolSubscription (version, then
topics, big-endian). Called by ``use.py``. Pure.
"""

from __future__ import annotations

from typing import Final

from raylog.core.groups.group import Group

CONSUMERS: Final = "consumer"
"""The protocol type of groups whose members subscribe to topics."""
_TOPICS_MAX: Final = 1 << 20
"""More topics than any subscription has: a larger number is not one."""


def subscribed_topics(group: Group) -> frozenset[str] | None:
    """Return the topics of all members, including members that have only joined the next generation.

    None = not known, because the group is of another protocol type or a member's metadata cannot be read: then every
    topic has to count as subscribed.
    """
    if group.protocol_type != CONSUMERS:
        return None
    found: set[str] = set()
    for member in group.members.values():
        for metadata in (each.metadata for each in member.protocols):
            topics = topics_of(metadata)
            if topics is None:
                return None
            found |= topics
    return frozenset(found)


def topics_of(metadata: bytes) -> frozenset[str] | None:
    """Return the topics of one member's metadata, or None when it cannot be read."""
    try:
        return frozenset(_kafkas(metadata))
    except (IndexError, ValueError):  # cut off, or not text
        return None


def _kafkas(data: bytes) -> list[str]:
    """Read Kafka's layout: int16 version, int32 number of topics, then of each int16 length and name."""
    count = _number(data, 2, 4)
    _check(count <= _TOPICS_MAX)
    topics: list[str] = []
    at = 6
    for _ in range(count):
        size = _number(data, at, 2)
        topics.append(_text(data, at + 2, size))
        at += 2 + size
    return topics


def _number(data: bytes, at: int, width: int) -> int:
    _check(at + width <= len(data))
    return int.from_bytes(data[at : at + width])


def _text(data: bytes, at: int, size: int) -> str:
    _check(at + size <= len(data))
    return data[at : at + size].decode()


def _check(holds: bool) -> None:
    if not holds:
        raise ValueError("This is no subscription.")
