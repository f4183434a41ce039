"""The plan of a reset of a group's offsets, partition by partition, made before anything is changed. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final, Literal

from raylog.base.ids import TopicPartition

End = Literal["earliest", "latest"]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Clamp(Enum):
    """Why a partition's new offset is not the one that was requested."""

    BELOW_START = "the log starts there"
    BEYOND_END = "the log ends there"
    NO_SUCH_TIME = "no record is as new as that: the end"


@dataclass(frozen=True, slots=True)
class Target:
    """Where to move a group's offsets. Exactly one field is set; `time_ms` since 1970, `by` = records to shift."""

    end: End | None = None
    offset: int | None = None
    time_ms: int | None = None
    by: int | None = None

    @classmethod
    def of(cls, to: End | int | None, time: datetime | int | None, by: int | None) -> Target:
        """The target of these arguments. Raises TypeError unless exactly one is given, ValueError for a bad value."""
        if sum(given is not None for given in (to, time, by)) != 1:
            raise TypeError("Give one of `to`, `time` and `by`: where the offsets of the group go.")
        if isinstance(to, str):
            if to not in ("earliest", "latest"):
                raise ValueError(f"`to` is 'earliest', 'latest' or an offset, not {to!r}; a time goes to `time`.")
            return cls(end=to)
        if to is not None:
            if type(to) is not int or not 0 <= to < 2**63:
                raise ValueError(f"`to` is 'earliest', 'latest' or an offset of 0 or more, not {to!r}.")
            return cls(offset=to)
        if isinstance(time, datetime):
            if time.tzinfo is None:
                raise ValueError(f"`time` needs a zone, such as datetime.timezone.utc: {time!r} has none.")
            return cls(time_ms=(time - _EPOCH) // timedelta(milliseconds=1))
        if time is not None:
            if type(time) is not int or time < 0:
                raise ValueError(f"`time` is a datetime, or milliseconds since 1970, not {time!r}.")
            return cls(time_ms=time)
        if type(by) is not int:
            raise ValueError(f"`by` is a number of records, negative to read them again, not {by!r}.")
        return cls(by=by)


@dataclass(frozen=True, slots=True)
class PlannedOffset:
    """The new offset (`after`) of one partition. `before`: the committed one, None = none; `start`, `end`: of the log.

    `clamp` says why `after` is not the requested offset; None = it is.
    """

    partition: TopicPartition
    before: int | None
    after: int
    start: int
    end: int
    clamp: Clamp | None = None

    @property
    def read_again(self) -> int:
        """How many records the group reads again; negative = how many it skips. 0 without a committed offset."""
        return 0 if self.before is None else self.before - self.after


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """A reset of a group's offsets. `is_done`: they are committed; False = a dry run, or nothing to reset.

    `members` names the group's members; a reset is impossible while there are any. `left_out` are partitions with
    committed offsets whose topic was deleted.
    """

    group_id: str
    offsets: tuple[PlannedOffset, ...]
    is_done: bool
    members: tuple[str, ...] = ()
    left_out: tuple[TopicPartition, ...] = ()


def planned(
    partition: TopicPartition, target: Target, *, before: int | None, start: int, end: int, at_time: int | None = None
) -> PlannedOffset:
    """Plan the new offset of one partition, clamped to its log.

    `at_time` is the first offset at or after the target's time, None = no record is as new. Raises ValueError for a
    shift without `before`.
    """
    clamp: Clamp | None = None
    if target.end is not None:
        wanted = start if target.end == "earliest" else end
    elif target.time_ms is not None:
        wanted = end if at_time is None else at_time
        clamp = Clamp.NO_SUCH_TIME if at_time is None else None
    elif target.by is not None:
        if before is None:
            raise ValueError(f"There is no committed offset of {partition} to shift.")
        wanted = before + target.by
    else:
        wanted = target.offset or 0
    after = min(max(wanted, start), end)
    if after != wanted:
        clamp = Clamp.BELOW_START if wanted < start else Clamp.BEYOND_END
    return PlannedOffset(partition, before, after, start, end, clamp)


def named_partitions(words: Iterable[str | tuple[str, int]]) -> list[tuple[str, int | None]]:
    """Parse texts such as `topic` or `topic:0,2`, and (topic, partition); partition None = all of the topic's.

    Raises ValueError for any other text.
    """
    found: list[tuple[str, int | None]] = []
    for word in words:
        if not isinstance(word, str):
            topic, number = word
            found.append((topic, number))
            continue
        topic, colon, numbers = word.partition(":")
        if not topic or (colon and not all(each.strip().isdecimal() for each in numbers.split(","))):
            raise ValueError(f"Name a topic, or partitions of it such as `{topic or 'orders'}:0,2`, not {word!r}.")
        found += [(topic, int(each)) for each in numbers.split(",")] if colon else [(topic, None)]
    return found
