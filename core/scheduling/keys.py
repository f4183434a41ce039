"""The order of scheduled records: by due time, then by offset. Pure.

A key is one integer, so that heaps and sorts compare without a call: ``due << 64 | offset << 1 | is_tombstone``. The
tombstone of an entry follows it directly, and both vanish where they meet.
"""

from __future__ import annotations

from typing import Final

OFFSET_BITS: Final = 63
_OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1
TOMBSTONE: Final = 1
HELD_MS: Final = 1 << 61
"""Added to the timestamp of a record of a half message, which has no due time: the sum is greater than any due time."""


NAMED_MS: Final = 1 << 60
"""Added to the timestamp of a record with a schedule id, so that the maximum in a batch's header shows such records."""


def key_of(due_ms: int, offset: int) -> int:
    """Return the key of a record that is due at a time; times before 1970 count as 1970."""
    return max(0, due_ms) << (OFFSET_BITS + 1) | offset << 1


def due_at(timestamp_ms: int) -> int:
    """Return the due time in a stored record's timestamp; that of a half message's record is returned unchanged."""
    return timestamp_ms - NAMED_MS if NAMED_MS <= timestamp_ms < HELD_MS else timestamp_ms


def due_of(key: int) -> int:
    """Return the due time of a key, in milliseconds since 1970."""
    return key >> (OFFSET_BITS + 1)


def offset_of(key: int) -> int:
    """Return the offset in ``__scheduled`` of a key's record."""
    return key >> 1 & _OFFSET_MASK


def first_after(due_ms: int) -> int:
    """Return the least key that is due later than a time."""
    return (due_ms + 1) << (OFFSET_BITS + 1)
