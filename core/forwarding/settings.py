"""The settings of topics whose records expire. Pure; with few imports, because every replica's process reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from raylog.base.errors import InvalidConfig

TTL: Final = "ttl.ms"
TOPIC: Final = "dead.letter.topic"
KEY: Final = "dead.letter.key"
GROUP: Final = "dead.letter.group"
NEVER: Final = -1


def ttl_ms(config: Mapping[str, str]) -> int:
    """Return the time to live of a topic's records, in milliseconds; -1 = they never expire."""
    return int(config.get(TTL, NEVER))


def files(config: Mapping[str, str]) -> bool:
    """Return whether records with a time to live of their own go to a dead-letter topic when they expire.

    They do not if a group is set: whether the group has acknowledged a record is only known when it expires.
    """
    return bool(config.get(TOPIC)) and not config.get(GROUP)


def expires(config: Mapping[str, str]) -> bool:
    """Return whether a topic's records go to a dead-letter topic when they expire by the topic's time to live."""
    return bool(config.get(TOPIC)) and ttl_ms(config) >= 0


def check_queue(topic: str, config: Mapping[str, str]) -> None:
    """Raise InvalidConfig if a topic's records become dead letters when they expire, even acknowledged ones."""
    target = config.get(TOPIC)
    if target:
        raise InvalidConfig(
            f"{topic} sends expired records to {target} ({TOPIC}), including those that its queues have acknowledged. "
            "So no queue works on it: let records expire in a topic of their own, and work on the one where they go. "
            "For what a queue rejects, set errors.deadletterqueue.topic.name."
        )
