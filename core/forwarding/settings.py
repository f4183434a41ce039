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
    """Return after which time a topic's records expire, in milliseconds; -1 = never."""
    return int(config.get(TTL, NEVER))


def files(config: Mapping[str, str]) -> bool:
    """Return whether records with a time to live of their own go to a dead-letter topic when that is over.

    Not with a group: whether it has acknowledged a record is not known before it expires.
    """
    return bool(config.get(TOPIC)) and not config.get(GROUP)


def expires(config: Mapping[str, str]) -> bool:
    """Return whether something is done about a topic's records when they expire."""
    return bool(config.get(TOPIC)) and ttl_ms(config) >= 0
