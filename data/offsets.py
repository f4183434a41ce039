"""Where a read begins and ends, in the forms of `ray.data.read_kafka`. Used by reads.py. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from raylog.base.errors import InvalidConfig, did_you_mean
from raylog.base.ids import TopicPartition
from raylog.client.ranges.offsets import EDGES, OffsetSpec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHAPES = '{word}, an offset, a datetime, or {{"topic": {{0: 1500, 1: {word}}}}}'


def start_of(given: Any) -> OffsetSpec:
    """Parse `start_offset`; partitions that a mapping leaves out start at the earliest record. Raises InvalidConfig."""
    return _spec("start_offset", given, "earliest")


def end_of(given: Any) -> OffsetSpec:
    """Parse `end_offset`; partitions that a mapping leaves out end behind the latest record. Raises InvalidConfig."""
    return _spec("end_offset", given, "latest")


def check_order(start: OffsetSpec, end: OffsetSpec) -> None:
    """Raise InvalidConfig when the end is certainly before the start, whatever the topic holds."""
    first, last = start.everywhere, end.everywhere
    if first is None or last is None or start.each or end.each or start.is_time != end.is_time:
        return
    if 0 <= last < first:
        what = "ms since 1970" if start.is_time else "offset"
        raise InvalidConfig(
            f"start_offset ({what} {first}) lies behind end_offset ({last}): nothing could be read; exchange the two."
        )


def _spec(option: str, given: Any, default: str) -> OffsetSpec:
    if isinstance(given, datetime):
        return OffsetSpec(option=option, everywhere=_milliseconds(given), is_time=True)
    if isinstance(given, Mapping):
        return OffsetSpec(option=option, everywhere=EDGES[default], each=_of_each(option, given, default))
    return OffsetSpec(option=option, everywhere=_number(option, given, default, ""))


def _of_each(option: str, given: Mapping[Any, Any], default: str) -> dict[TopicPartition, int]:
    each: dict[TopicPartition, int] = {}
    for topic, numbers in given.items():
        if not isinstance(topic, str) or not isinstance(numbers, Mapping):
            raise InvalidConfig(f'{option} as a mapping must be {{"topic": {{0: 1500}}}}, not {dict(given)!r:.200}.')
        for partition, offset in numbers.items():
            if not isinstance(partition, int) or isinstance(partition, bool) or partition < 0:
                raise InvalidConfig(
                    f"{option}[{topic!r}] must have partitions as its keys, whole numbers from 0 on, not {partition!r}."
                )
            place = TopicPartition(topic, partition)
            each[place] = _number(option, offset, default, f" of {place}")
    return each


def _number(option: str, given: Any, default: str, where: str) -> int:
    """An offset, or the number of the edge `default`, the only word allowed here. Raises InvalidConfig."""
    if given is None:
        return EDGES[default]
    if isinstance(given, str):
        word = given.strip().lower()
        if word == default:
            return EDGES[default]
        if word in EDGES:
            raise InvalidConfig(
                f"{option}{where} cannot be {word!r}: nothing would be read. Leave it out, or give {default!r}."
            )
        raise InvalidConfig(did_you_mean(f"value of {option}{where}", given, (default,)))
    if not isinstance(given, int) or isinstance(given, bool):
        raise InvalidConfig(f"{option}{where} must be {_SHAPES.format(word=repr(default))}, not {given!r:.100}.")
    if given < 0:
        raise InvalidConfig(f"{option}{where} must be at least 0, not {given}.")
    return given


def _milliseconds(moment: datetime) -> int:
    """Milliseconds since 1970, rounded up; a datetime without a zone is UTC, as for `read_kafka`."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, -((_EPOCH - moment) // timedelta(milliseconds=1)))
