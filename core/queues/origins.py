"""Late retries: the topic to which copies of the records are delivered, and the headers of copies. Pure.

A record whose pause is above ``queue.retry.max.ms`` is copied to ``__scheduled``. When it is due, the copy is delivered
to the retry topic of its group and topic. The members of that group work on the retry topic too; no other group does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final, NamedTuple

Header = tuple[str, bytes | None]

HEADER: Final = "raylog-retry-origin"
"""Header of a copy: where the record was first, and how often it was handed out."""
TIMESTAMP: Final = "raylog-retry-timestamp"
"""Header of a copy: the record's own timestamp, as that of the copy is its due time. Earlier releases ignore it."""
OF: Final = "queue.retry.of"
"""Setting of a retry topic: the topic whose records are retried there."""
PREFIX: Final = "retry."
_NAME_MAX: Final = 249
_DIGEST_BYTES: Final = 8
_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9._-]")
_FIELDS: Final = 4
_DIGITS_MAX: Final = 18
"""Most digits of a number in a header: an offset has no more."""


class Origin(NamedTuple):
    """Where a record was first, and how often it was handed out before it was copied."""

    topic: str
    partition: int
    offset: int
    tries: int

    def header(self) -> Header:
        """Return the header of the copy."""
        return HEADER, f"{self.partition}:{self.offset}:{self.tries}:{self.topic}".encode()

    @classmethod
    def of(cls, headers: Iterable[Header] | None) -> Origin | None:
        """Return the origin in a copy's headers; None = it is no copy. The last header counts: it is Raylog's own."""
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
    """Return the timestamp in a copy's headers, of the last such header; ``default_ms`` if there is none."""
    texts = [value.decode(errors="replace") for name, value in headers or () if name == TIMESTAMP and value is not None]
    return int(texts[-1]) if texts and _is_number(texts[-1]) else default_ms


def without(headers: Iterable[Header] | None) -> list[Header]:
    """Return a copy's headers without those that the copying added."""
    return [header for header in headers or () if header[0] not in (HEADER, TIMESTAMP)]


def retry_topic(group: str, topic: str) -> str:
    """Return the name of the topic for a group's late retries of a topic's records.

    If ``retry.<group>.<topic>`` is no legal name, or could be that of another group, a digest is added.
    """
    name = f"{PREFIX}{group}.{topic}"
    if "." not in group and not _ILLEGAL.search(group) and len(name) <= _NAME_MAX:
        return name
    digest = blake2b(f"{len(group)}:{group}{topic}".encode(), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{_ILLEGAL.sub('_', name)[: _NAME_MAX - len(digest) - 1]}-{digest}"
