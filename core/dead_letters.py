"""Dead letters: records that could not be delivered or processed, in a topic of their own, with the reason. Pure.

Headers are those of KIP-1191, with the cause and the number of hops. A record that was a dead letter 16 times goes to
``__undeliverable``, whatever topic is configured: dead letters that fail again must not circle.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Final

Header = tuple[str, bytes | None]

PREFIX: Final = "__dlq.errors."
REASON: Final = "raylog-dead-reason"
HOPS: Final = "raylog-dead-hops"
TTL: Final = "raylog-ttl"
"""Header with a record's time to live in milliseconds. A dead letter has none, else it would expire again."""
HOPS_MAX: Final = 16
UNDELIVERABLE_TOPIC: Final = "__undeliverable"
TOPIC_KEY: Final = "errors.deadletterqueue.topic.name"
"""Kafka's setting (KIP-1191) that names the dead-letter topic of a group or of a topic's groups."""
TOPIC_PREFIX: Final = "dlq."
_TOPIC_NAME_MAX: Final = 249
_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9._-]")
_DIGEST_BYTES: Final = 8
_DIGITS_MAX: Final = 15
"""Most digits of a number in a header; a longer one counts as 10**15. Headers come from outside, and the number has to
fit into 64 bits."""
TTL_MAX_MS: Final = 10 * 365 * 86_400_000
"""Longest time to live; a record's own longer one is cut to it. So nothing waits in ``__scheduled`` for more than ten
years."""


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
    timestamp_ms: int = -1
    """The record's own timestamp; -1 = not known."""


def topic_of_group(group: str) -> str:
    """Return the name of a group's own dead-letter topic: ``dlq.<group>``.

    A group may have a name that is illegal for a topic. Then illegal characters are replaced, a long name is cut, and a
    digest of the group's name keeps two groups apart.
    """
    plain = _ILLEGAL.sub("_", group)
    if plain == group and len(group) <= _TOPIC_NAME_MAX - len(TOPIC_PREFIX):
        return TOPIC_PREFIX + group
    digest = blake2b(group.encode(), digest_size=_DIGEST_BYTES).hexdigest()
    kept = _TOPIC_NAME_MAX - len(TOPIC_PREFIX) - len(digest) - 1
    return f"{TOPIC_PREFIX}{plain[:kept]}-{digest}"


def target_of(headers: Iterable[Header] | None, topic: str) -> str:
    """Return where a dead letter goes: to ``topic``, or to ``__undeliverable`` after 16 hops or without a topic."""
    return topic if topic and may_hop(headers) else UNDELIVERABLE_TOPIC


def hops_of(headers: Iterable[Header] | None) -> int:
    """Return how often a record was a dead letter before."""
    return _number(headers, HOPS) or 0


def _number(headers: Iterable[Header] | None, name: str) -> int | None:
    """Return the number in the last readable header of this name: Raylog appends its own. None = there is none."""
    found: int | None = None
    for each, value in headers or ():
        if each == name and value is not None and value.isdigit():
            found = int(value) if len(value) <= _DIGITS_MAX else 10**_DIGITS_MAX
    return found


def may_hop(headers: Iterable[Header] | None) -> bool:
    """Return whether a record may go to a dead-letter topic once more."""
    return hops_of(headers) < HOPS_MAX


def dead_headers(headers: Iterable[Header] | None, cause: Cause) -> list[Header]:
    """Return the headers of the dead letter: the record's own, then those of the cause.

    Those of an earlier cause are replaced.
    """
    kept = list(headers or ())
    hops = hops_of(kept) + 1
    own = [header for header in kept if not _is_added(header[0])]
    added: list[tuple[str, str]] = [
        (f"{PREFIX}topic", cause.topic),
        (f"{PREFIX}partition", str(cause.partition)),
        (f"{PREFIX}offset", str(cause.offset)),
    ]
    if cause.group:
        added.append((f"{PREFIX}group", cause.group))
        added.append((f"{PREFIX}delivery.count", str(cause.delivery_count)))
    if cause.timestamp_ms >= 0:
        added.append((f"{PREFIX}timestamp", str(cause.timestamp_ms)))
    if cause.message:
        added.append((f"{PREFIX}message", cause.message))
    added += [(REASON, cause.reason.value), (HOPS, str(hops))]
    return own + [(name, text.encode()) for name, text in added]


def without_cause(headers: Iterable[Header] | None) -> list[Header]:
    """Return a dead letter's headers without its cause, its hops and any time to live, for sending it on by hand."""
    return [header for header in headers or () if not _is_added(header[0])]


def cause_of(headers: Sequence[Header] | None) -> Cause | None:
    """Return why a record is a dead letter; None = it is none, or its headers are not readable."""
    found = {name: value for name, value in headers or () if value is not None and _is_added(name)}

    def text(name: str) -> str:
        return found.get(PREFIX + name, b"").decode(errors="replace")

    try:
        return Cause(
            reason=Reason(found[REASON].decode()),
            topic=found[f"{PREFIX}topic"].decode(),
            partition=int(text("partition")),
            offset=int(text("offset")),
            message=text("message"),
            group=text("group"),
            delivery_count=int(text("delivery.count") or 0),
            timestamp_ms=int(text("timestamp") or -1),
        )
    except (KeyError, ValueError):  # undecodable text is a ValueError too
        return None


def ttl_of(headers: Iterable[Header] | None) -> int | None:
    """Return a record's own time to live in milliseconds; None = it has none that can be read."""
    found = _number(headers, TTL)
    return None if found is None else min(found, TTL_MAX_MS)


def _is_added(name: str) -> bool:
    return name.startswith(PREFIX) or name in (REASON, HOPS, TTL)
