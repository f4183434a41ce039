"""Conditions of a query's WHERE on topic, partition, offset and timestamp, so that other records are never fetched.

Spark passes comparisons that must all hold. They only narrow what is read: Spark applies each of them to the rows
again, so it is enough not to leave out a possible match. Used by reader.py. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from raylog.client.ranges.narrowing import OFFSET_MAX, Narrowing

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)  # noqa: UP017 - the same on every Python that Spark supports
MILLISECOND = timedelta(milliseconds=1)


def narrowing_of(filters: Iterable[Filter]) -> Narrowing:
    """Combine comparisons that all must hold; those without a usable bound are skipped."""
    found = Narrowing()
    for item in filters:
        if isinstance(
            item, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual | In
        ):
            found = _narrowed(found, item, item.attribute, item.value)
    return found


def _narrowed(found: Narrowing, one: Filter, attribute: tuple[str, ...], value: Any) -> Narrowing:
    column = attribute[0] if len(attribute) == 1 else ""
    if column == "topic":
        names = _choices(one, value, str)
        if names is not None:
            return replace(found, topics=names if found.topics is None else found.topics & names)
    elif column == "partition":
        numbers = _choices(one, value, int)
        if numbers is not None:
            return replace(found, partitions=numbers if found.partitions is None else found.partitions & numbers)
        low, end = _bounds(one, value)
        return replace(found, partition_low=max(found.partition_low, low), partition_end=min(found.partition_end, end))
    elif column == "offset":
        offsets = _choices(one, value, int)
        low, end = _bounds(one, value)
        if offsets is not None:
            low, end = min(offsets, default=OFFSET_MAX), max(offsets, default=-1) + 1
        return replace(found, offset_low=max(found.offset_low, low), offset_end=min(found.offset_end, end))
    elif column == "timestamp":
        low_ms, end_ms = _time_low_ms(one, value), _time_end_ms(one, value)
        if low_ms is not None and low_ms > 0:
            found = replace(found, time_low_ms=max(found.time_low_ms or 0, low_ms))
        if end_ms is not None:
            known = found.time_end_ms
            found = replace(found, time_end_ms=end_ms if known is None else min(known, end_ms))
    return found


def _choices(one: Filter, value: Any, kind: type) -> frozenset[Any] | None:
    """The values that an equality or IN allows; None for other comparisons, and where one is not of this type."""
    if isinstance(one, In):
        values = [each for each in value if each is not None]
    elif isinstance(one, EqualTo | EqualNullSafe):
        values = [value]
    else:
        return None
    return frozenset(values) if all(type(each) is kind for each in values) else None


def _bounds(one: Filter, value: Any) -> tuple[int, int]:
    """The whole numbers that an order comparison allows, as (low, end); all for other comparisons."""
    if type(value) is not int:
        return 0, OFFSET_MAX
    if isinstance(one, GreaterThan | GreaterThanOrEqual):
        return value + isinstance(one, GreaterThan), OFFSET_MAX
    if isinstance(one, LessThan | LessThanOrEqual):
        return 0, value + isinstance(one, LessThanOrEqual)
    return 0, OFFSET_MAX


def _time_low_ms(one: Filter, value: Any) -> int | None:
    """The least timestamp, in whole milliseconds, that could match; None when the comparison sets no such bound."""
    if isinstance(one, In):
        times = [_time_low_ms(EqualTo(one.attribute, each), each) for each in value if each is not None]
        known = [each for each in times if each is not None]
        return min(known) if known and len(known) == len(times) else None
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    since = value - EPOCH
    if isinstance(one, GreaterThan):
        return since // MILLISECOND + 1
    if isinstance(one, EqualTo | EqualNullSafe | GreaterThanOrEqual):
        return -(-since // MILLISECOND)
    return None


def _time_end_ms(one: Filter, value: Any) -> int | None:
    """The timestamp, in whole milliseconds, from which on no record could match; None when there is no such bound."""
    if isinstance(one, In):
        ends = [_time_end_ms(EqualTo(one.attribute, each), each) for each in value if each is not None]
        known = [each for each in ends if each is not None]
        return max(known) if known and len(known) == len(ends) else None
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    since = value - EPOCH
    if isinstance(one, LessThan):
        return -(-since // MILLISECOND)
    if isinstance(one, EqualTo | EqualNullSafe | LessThanOrEqual):
        return since // MILLISECOND + 1
    return None
