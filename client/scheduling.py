"""Parses delays, times and handles of delayed records. Used by producers, `Admin` and commands. Pure."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from raylog.base.errors import InvalidRequest
from raylog.core.scheduling.envelope import SCHEDULE_ID_MAX, HalfId

LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""RocketMQ's delay levels, beginning with level 1."""
DELAY_MAX_MS: Final = 40 * 86_400_000
"""Default of a topic's `delay.max.ms`."""

Delay: TypeAlias = int | str | timedelta
"""Milliseconds, a text such as "30m", "1h30m" or "level:16", or a timedelta."""
Moment: TypeAlias = int | datetime
"""Milliseconds since 1970, or a datetime with a zone."""

SECONDS_FROM: Final = 1_000_000_000
SECONDS_BELOW: Final = 10_000_000_000
"""A number in this interval is refused as a time: in milliseconds it would be in 1970, so it is probably in seconds."""

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_TEXT: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_LEVEL: Final = re.compile(r"level:(\d+)")
_LEVELS_MS: Final = tuple(int(text[:-1]) * _UNITS_MS[text[-1]] for text in LEVELS.split())


def delay_ms(delay: Delay) -> int:
    """The delay in milliseconds, at least 0. Level 0 means no delay, and levels above 18 mean 18, as in RocketMQ.

    Raises ValueError for a text that is no delay, TypeError for other types.
    """
    if isinstance(delay, timedelta):
        return max(0, round(delay / timedelta(milliseconds=1)))
    if isinstance(delay, str):
        return _of_text(delay.strip())
    if not isinstance(delay, bool) and hasattr(delay, "__index__"):
        return max(0, operator.index(delay))
    raise TypeError(
        f"delay must be milliseconds as int, a text such as '30m', or a timedelta, not {type(delay).__name__} "
        f"{delay!r:.100}."
    )


def _of_text(text: str) -> int:
    if level := _LEVEL.fullmatch(text):
        number = min(int(level[1]), len(_LEVELS_MS))
        return _LEVELS_MS[number - 1] if number else 0
    if text.isdecimal():
        return int(text)
    if not _TEXT.fullmatch(text):
        raise ValueError(
            f"{text!r:.100} is no delay: write a number with ms, s, m, h or d, such as '500ms', '30m' or '1h30m', or "
            "'level:1' to 'level:18'."
        )
    return round(sum(float(number) * _UNITS_MS[unit] for number, unit in _PART.findall(text)))


def moment_ms(moment: Moment, name: str = "deliver_at") -> int:
    """A time in milliseconds since 1970; `name`: of the argument, for errors.

    Raises ValueError for a datetime without zone, and for a number that is probably in seconds; TypeError.
    """
    if isinstance(moment, datetime):
        if moment.tzinfo is None or moment.utcoffset() is None:
            raise ValueError(
                f"{name}={moment.isoformat()} has no zone, so it may be any of 26 hours: give it one, such as "
                "datetime(..., tzinfo=UTC), or moment.astimezone() for the local one."
            )
        return (moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    if not isinstance(moment, bool) and hasattr(moment, "__index__"):
        found = operator.index(moment)
        if SECONDS_FROM <= found < SECONDS_BELOW:
            raise ValueError(
                f"{name}={found} would be in 1970: it is in milliseconds. Of seconds give 1000 times as many."
            )
        return found
    raise TypeError(
        f"{name} must be milliseconds since 1970 as int, or a datetime with a zone, not {type(moment).__name__} "
        f"{moment!r:.100}."
    )


def checked_schedule_id(schedule_id: Any) -> bytes:
    """A schedule id in bytes. Raises TypeError unless it is text; ValueError if empty, too long or unprintable."""
    if not isinstance(schedule_id, str):
        raise TypeError(f"schedule_id is a text such as 'close-42', not {type(schedule_id).__name__}.")
    if not schedule_id.isprintable():
        raise ValueError(f"schedule_id={schedule_id!r:.100} has characters that cannot be printed; leave them out.")
    encoded = schedule_id.encode()
    if not 0 < len(encoded) <= SCHEDULE_ID_MAX:
        raise ValueError(
            f"schedule_id is a text of 1 to {SCHEDULE_ID_MAX} bytes that names a delayed record, such as 'close-42', "
            f"not one of {len(encoded)} bytes: {schedule_id!r:.50}."
        )
    return encoded


def shard_of_half(name: HalfId, shards: int) -> int:
    """The partition of ``__scheduled`` that holds a half message."""
    from raylog.storage.batch.key_hash import hash_of_key  # imported on use: few processes need it

    return hash_of_key("\0".join(name).encode()) % shards


@dataclass(frozen=True, slots=True)
class Handle:
    """Identifies a delayed record; users keep its text form."""

    partition: int
    """The partition of ``__scheduled``."""
    offset: int
    due_ms: int

    def __str__(self) -> str:
        """`partition-offset-due`."""
        return f"{self.partition}-{self.offset}-{self.due_ms}"

    @classmethod
    def parse(cls, text: Any) -> Handle:
        """Parse the text form. Raises InvalidRequest."""
        parts = text.split("-") if isinstance(text, str) else ()
        if len(parts) != 3 or not all(part.isascii() and part.isdecimal() and len(part) < 20 for part in parts):
            raise InvalidRequest(
                f"{text!r:.100} is not the handle of a delayed record: it is the `schedule` of the result of send(), "
                "such as '0-1844-1732252800123'; `raylog schedule list` shows those that wait."
            )
        return cls(*map(int, parts))
