"""Dead letters: records that could not be delivered or processed, in a topic of their own, with the reason. Pure.

Headers are those of KIP-1191, with the cause and the number of hops. A record that was a dead letter 16 times goes to
``__undeliverable``, whatever topic is configured: dead letters that fail again must not circle.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

Header = tuple[str, bytes | None]

PREFIX: Final = "__dlq.errors."
REASON: Final = "raylog-dead-reason"
HOPS: Final = "raylog-dead-hops"
TTL: Final = "raylog-ttl"
"""Of a record that expires; a dead letter has none, else it would expire there as well."""
HOPS_MAX: Final = 16
UNDELIVERABLE_TOPIC: Final = "__undeliverable"


class Reason(StrEnum):
    """Why a record is a dead letter."""

    EXPIRED = "expired"
    REJECTED = "rejected"
    DELIVERY_LIMIT = "delivery_limit"
    UNDELIVERABLE = "undeliverable"
    HALF_UNRESOLVED = "half_unresolved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Where a record was when it became a dead letter, and why."""

    reason: Reason
    topic: str
    partition: int
    offset: int
    message: str = ""
    group: str = ""
    delivery_count: int = 0


def hops_of(headers: Iterable[Header] | None) -> int:
    """Return how often a record was a dead letter before."""
    for name, value in headers or ():
        if name == HOPS and value is not None and value.isdigit():
            return int(value)
    return 0


def may_hop(headers: Iterable[Header] | None) -> bool:
    """Return whether a record may go to a dead-letter topic once more."""
    return hops_of(headers) < HOPS_MAX


def dead_headers(headers: Iterable[Header] | None, cause: Cause) -> list[Header]:
    """Return the headers of the dead letter: the record's own, then those of the cause.

    Those of an earlier cause are replaced.
    """
    kept = list(headers or ())
    hops = hops_of(kept) + 1
    own = [header for header in kept if not header[0].startswith(PREFIX) and header[0] not in (REASON, HOPS, TTL)]
    added: list[tuple[str, str]] = [
        (f"{PREFIX}topic", cause.topic),
        (f"{PREFIX}partition", str(cause.partition)),
        (f"{PREFIX}offset", str(cause.offset)),
    ]
    if cause.group:
        added.append((f"{PREFIX}group", cause.group))
        added.append((f"{PREFIX}delivery.count", str(cause.delivery_count)))
    if cause.message:
        added.append((f"{PREFIX}message", cause.message))
    added += [(REASON, cause.reason.value), (HOPS, str(hops))]
    return own + [(name, text.encode()) for name, text in added]
