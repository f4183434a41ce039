"""The header by which a delayed record names its target: written by producers, read when it is due. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from raylog.core.errors import InvalidRecord

SCHEDULED_TOPIC: Final = "__scheduled"
"""The internal topic in which delayed records wait."""
HEADER: Final = "raylog-schedule"
SENT_HEADER: Final = "raylog-scheduled-at"
"""Of a delivered record, where its topic has ``delay.headers.enable``: when it was sent, in milliseconds since 1970."""
BY_KEY: Final = -1
"""Target partition of a record whose key decides when it is due; without key any partition gets it."""
_FIELDS: Final = 4

HALF_HEADER: Final = "raylog-half"
"""Of a record of a half message: which one, and when it is checked first."""

ID_HEADER: Final = "raylog-schedule-id"
"""Of a record with a schedule id: this."""
SCHEDULE_ID_MAX: Final = 255
"""Longest schedule id, in bytes of UTF-8."""
_NAME_BYTES: Final = 16

Header = tuple[str, bytes | None]
HalfId = tuple[str, str]
"""Group and txid of a half message."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """Where a record goes, and when it was sent (by its producer's clock, in milliseconds since 1970)."""

    topic: str
    topic_id: str
    partition: int
    sent_ms: int

    def header(self) -> Header:
        """Return the header."""
        return HEADER, f"{self.topic_id}:{self.partition}:{self.sent_ms}:{self.topic}".encode()

    @classmethod
    def of(cls, headers: Iterable[Header] | None) -> Envelope:
        """Return the envelope among a record's headers; raises InvalidRecord where there is none."""
        for name, value in headers or ():
            if name == HEADER and value is not None:
                fields = value.decode(errors="replace").split(":", _FIELDS - 1)
                try:
                    topic_id, partition, sent_ms, topic = fields
                    return cls(topic, topic_id, int(partition), int(sent_ms))
                except ValueError:
                    break
        raise InvalidRecord(f"A delayed record has no header {HEADER!r} that names its target; send it with delay=.")


@dataclass(frozen=True, slots=True)
class HalfName:
    """The half message that a record is part of, and after how long it is checked first."""

    group: str
    txid: str
    check_after_ms: int

    @property
    def id(self) -> HalfId:
        """Return the name alone."""
        return self.group, self.txid

    def header(self) -> Header:
        """Return the header."""
        return HALF_HEADER, f"{self.check_after_ms}:{len(self.group)}:{self.group}{self.txid}".encode()

    @classmethod
    def of(cls, headers: Iterable[Header] | None) -> HalfName | None:
        """Return the name among a record's headers; None = there is none that can be read."""
        for name, value in headers or ():
            if name == HALF_HEADER and value is not None:
                after, length, rest = (*value.decode(errors="replace").split(":", 2), "", "")[:3]
                if after.isdecimal() and length.isdecimal() and len(rest) > int(length) > 0:
                    return cls(rest[: int(length)], rest[int(length) :], int(after))
        return None


def name_of(topic_id: str, schedule_id: bytes) -> int:
    """Return the name under which a schedule id of a topic is known: 128 bits, so that no two have the same."""
    return int.from_bytes(blake2b(schedule_id, digest_size=_NAME_BYTES, salt=_salt(topic_id)).digest(), "little") or 1


def _salt(topic_id: str) -> bytes:
    return blake2b(topic_id.encode(), digest_size=_NAME_BYTES).digest()


def id_among(headers: Iterable[Header] | None) -> str:
    """Return the schedule id of a stored record; empty = it has none."""
    return next((value.decode(errors="replace") for name, value in headers or () if name == ID_HEADER and value), "")


def name_among(headers: Iterable[Header] | None) -> int:
    """Return the name of a stored record; 0 = it has no schedule id."""
    pairs = list(headers or ())
    found = next((value for name, value in pairs if name == ID_HEADER and value), None)
    if found is None:
        return 0
    try:
        return name_of(Envelope.of(pairs).topic_id, found)
    except InvalidRecord:
        return 0


def without(headers: Iterable[Header] | None) -> list[Header]:
    """Return a record's headers without the envelope."""
    return [header for header in headers or () if header[0] not in (HEADER, HALF_HEADER, ID_HEADER)]
