"""The settings of topics whose records expire. Pure; without imports, because every replica's process reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

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
