"""Retries that are too far away to wait in their partition: the topic of their copies, and what these say. Pure.

A record whose pause is above ``queue.retry.max.ms`` is copied into ``__scheduled``, due in the retry topic of its group
and topic. The members of the group work on that topic too; no other group does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final, NamedTuple

Header = tuple[str, bytes | None]

HEADER: Final = "raylog-retry-origin"
"""Of a copy: where the record was, and how often it was handed out."""
TIMESTAMP: Final = "raylog-retry-timestamp"
"""Of a copy, whose timestamp is its due time: the record's own. A header apart, which earlier releases pass over."""
OF: Final = "queue.retry.of"
"""Setting of a retry topic: the topic whose records come there."""
PREFIX: Final = "retry."
_NAME_MAX: Final = 249
_DIGEST_BYTES: Final = 8
_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9._-]")
_FIELDS: Final = 4
_DIGITS_MAX: Final = 18
"""More would be no offset."""


class Origin(NamedTuple):
    """Where a record was first, and how often it was handed out until it was copied."""

    topic: str
    partition: int
    offset: int
    tries: int

    def header(self) -> Header:
        """Return the header of the copy."""
        return HEADER, f"{self.partition}:{self.offset}:{self.tries}:{self.topic}".encode()

    @classmethod
    def of(cls, headers: Iterable[Header] | None) -> Origin | None:
        """Return what a copy's headers say: the last one, which is ours; None = it is no copy."""
        found: Origin | None = None
        for name, value in headers or ():
            if name == HEADER and value is not None:
                fields = value.decode(errors="replace").split(":", _FIELDS - 1)
                if len(fields) == _FIELDS and all(_is_number(field) for field in fields[:3]):
                    found = cls(fields[3], int(fields[0]), int(fields[1]), int(fields[2]))
        return found


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _DIGITS_MAX


def timestamp_header(timestamp_ms: int) -> Header:
    """Return the header of a copy that keeps the record's own timestamp."""
    return TIMESTAMP, str(timestamp_ms).encode()


def own_timestamp(headers: Iterable[Header] | None, default_ms: int) -> int:
    """Return the timestamp that the record of a copy had: the last one, which is ours; the default where none is."""
    texts = [value.decode(errors="replace") for name, value in headers or () if name == TIMESTAMP and value is not None]
    return int(texts[-1]) if texts and _is_number(texts[-1]) else default_ms


def without(headers: Iterable[Header] | None) -> list[Header]:
    """Return a copy's headers as the record had them."""
    return [header for header in headers or () if header[0] not in (HEADER, TIMESTAMP)]


def retry_topic(group: str, topic: str) -> str:
    """Return the name of the topic for a group's late retries of a topic's records.

    Where ``retry.<group>.<topic>`` is no legal name, or could be that of another group, a digest keeps them apart.
    """
    name = f"{PREFIX}{group}.{topic}"
    if "." not in group and not _ILLEGAL.search(group) and len(name) <= _NAME_MAX:
        return name
    digest = blake2b(f"{len(group)}:{group}{topic}".encode(), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{_ILLEGAL.sub('_', name)[: _NAME_MAX - len(digest) - 1]}-{digest}"
