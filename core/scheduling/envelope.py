"""The headers that producers add to delayed records: the envelope, which names the target, and two others. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Final

from raylog.base.errors import InvalidRecord

SCHEDULED_TOPIC: Final = "__scheduled"
"""The internal topic in which delayed records wait."""
HEADER: Final = "raylog-schedule"
SENT_HEADER: Final = "raylog-scheduled-at"
"""Header of a delivered record if its topic has ``delay.headers.enable``: when it was sent, in ms since 1970."""
BY_KEY: Final = -1
"""Target partition of a record whose partition is chosen once it is due: by its key, or any if it has none."""
_FIELDS: Final = 4
_DIGITS: Final = {"partition": 10, "sent": 19, "check": 9, "length": 4}
"""Most digits of each number in a header: `int` takes long for thousands of them, and raises above 4,300."""
TOPIC_MAX: Final = 249
"""Longest name of a topic, in characters."""
INTERNAL_PREFIX: Final = "__"

HALF_HEADER: Final = "raylog-half"
"""Header of a record that is part of a half message: which one, and when that is first checked (:class:`HalfName`)."""

ID_HEADER: Final = "raylog-schedule-id"
"""Header with the schedule id of a record that has one."""
OWN_HEADERS: Final = frozenset({HEADER, HALF_HEADER, ID_HEADER})
"""Headers that producers add after the record's own; the last one of a name counts. Delivered records have none."""
SCHEDULE_ID_MAX: Final = 255
"""Longest schedule id, in bytes of UTF-8."""
_NAME_BYTES: Final = 16

Header = tuple[str, bytes | None]
HalfId = tuple[str, str]
"""Group and txid of a half message."""


class HalfOutcome(StrEnum):
    """What is true of a half message after a request about it."""

    COMMITTED = "COMMITTED"
    ROLLED_BACK = "ROLLED_BACK"
    HELD = "HELD"
    """It has no decision."""
    NOT_FOUND = "NOT_FOUND"
    """No half message of this name is known, or its decision was forgotten."""


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
        """Return the envelope in a record's headers; raises InvalidRecord if there is none that can be read."""
        value = _last(headers, HEADER)
        if value is not None:
            try:
                topic_id, partition, sent_ms, topic = value.decode().split(":", _FIELDS - 1)
                number = BY_KEY if partition == str(BY_KEY) else _number(partition, "partition")
                if 0 < len(topic) <= TOPIC_MAX:
                    return cls(topic, topic_id, number, _number(sent_ms, "sent"))
            except ValueError:  # not UTF-8, or a number is malformed
                pass
        raise InvalidRecord(f"A delayed record has no header {HEADER!r} that names its target; send it with delay=.")

    @property
    def is_internal(self) -> bool:
        """Whether it names a topic of Raylog's own: nothing is delivered there."""
        return is_internal(self.topic)


def shape_of(headers: Iterable[Header] | None) -> bytes | None:
    """Return ``topic_id:topic`` of a record's envelope without decoding it; None = only `Envelope.of` can judge it.

    A leader does this for each record: it costs a fraction of `Envelope.of`. Envelopes of one shape differ in their
    numbers alone, which are checked here, so it is enough to open one of each shape.
    """
    found: bytes | None = None
    for name, value in headers or ():
        if name == HEADER:
            found = value
    fields = (found or b"").split(b":", _FIELDS - 1)
    if len(fields) != _FIELDS:
        return None
    topic_id, partition, sent, topic = fields
    is_number = partition == b"-1" or (partition.isdigit() and len(partition) <= _DIGITS["partition"])
    return b"%b:%b" % (topic_id, topic) if is_number and sent.isdigit() and len(sent) <= _DIGITS["sent"] else None


def is_internal(topic: str) -> bool:
    """Return whether a topic is Raylog's own, so that clients' records may not be delivered to it."""
    return topic.startswith(INTERNAL_PREFIX)


def _last(headers: Iterable[Header] | None, wanted: str) -> bytes | None:
    found = None
    for name, value in headers or ():
        if name == wanted:
            found = value
    return found


def _number(text: str, of: str) -> int:
    """Return a number without sign; raises ValueError for anything else, and for more digits than it may have."""
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS[of]):
        raise ValueError(f"{text!r:.30} is no number of at most {_DIGITS[of]} digits")
    return int(text)


@dataclass(frozen=True, slots=True)
class HalfName:
    """The half message that a record is part of, and after how long it is checked first."""

    group: str
    txid: str
    check_after_ms: int

    @property
    def id(self) -> HalfId:
        """Group and txid alone."""
        return self.group, self.txid

    def header(self) -> Header:
        """Return the header."""
        return HALF_HEADER, f"{self.check_after_ms}:{len(self.group)}:{self.group}{self.txid}".encode()

    @classmethod
    def of(cls, headers: Iterable[Header] | None) -> HalfName | None:
        """Return the half message named in a record's headers; None = there is no such header that can be read."""
        value = _last(headers, HALF_HEADER)
        if value is None:
            return None
        try:
            after, length, rest = value.decode().split(":", 2)
            end = _number(length, "length")
            if len(rest) > end > 0:
                return cls(rest[:end], rest[end:], _number(after, "check"))
        except ValueError:  # not UTF-8, or a number is malformed
            pass
        return None


def name_of(topic_id: str, schedule_id: bytes) -> int:
    """Return the name of a schedule id in a topic: a hash, never 0, of 128 bits, so that no two ids share one."""
    return int.from_bytes(blake2b(schedule_id, digest_size=_NAME_BYTES, salt=_salt(topic_id)).digest(), "little") or 1


def _salt(topic_id: str) -> bytes:
    return blake2b(topic_id.encode(), digest_size=_NAME_BYTES).digest()


def id_among(headers: Iterable[Header] | None) -> str:
    """Return the schedule id of a stored record; empty = it has none."""
    return (_last(headers, ID_HEADER) or b"").decode(errors="replace")


def name_among(headers: Iterable[Header] | None) -> int:
    """Return the name of a stored record's schedule id (:func:`name_of`); 0 = it has none."""
    pairs = list(headers or ())
    found = _last(pairs, ID_HEADER)
    if not found:
        return 0
    try:
        return name_of(Envelope.of(pairs).topic_id, found)
    except InvalidRecord:
        return 0


def without(headers: Iterable[Header] | None) -> list[Header]:
    """Return a record's headers without those that the producer added for the scheduler (``OWN_HEADERS``)."""
    return [header for header in headers or () if header[0] not in OWN_HEADERS]
