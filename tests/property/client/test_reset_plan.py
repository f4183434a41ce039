"""Where a reset moves offsets: inside the log, as requested or with the reason why not."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from raylog.base.ids import TopicPartition
from raylog.client.admin.reset_plan import Clamp, PlannedOffset, Target, named_partitions, planned

AT = TopicPartition("orders", 0)
OFFSETS = st.integers(0, 1_000)


@st.composite
def logs(draw: st.DrawFn) -> dict[str, Any]:
    """The bounds of a log, a committed offset inside or outside, and the first record of a time, if there is one."""
    start, end = sorted((draw(OFFSETS), draw(OFFSETS)))
    at_time = draw(st.none() | st.integers(start, end - 1)) if start < end else None
    return {"before": draw(OFFSETS), "start": start, "end": end, "at_time": at_time}


TARGETS = st.one_of(
    st.sampled_from([Target(end="earliest"), Target(end="latest")]),
    st.builds(lambda offset: Target(offset=offset), OFFSETS),
    st.builds(lambda by: Target(by=by), st.integers(-1_000, 1_000)),
    st.just(Target(time_ms=1)),
)


def requested(target: Target, log: dict[str, Any]) -> int:
    """The offset without regard to the log's bounds."""
    if target.end is not None:
        return int(log["start"] if target.end == "earliest" else log["end"])
    if target.by is not None:
        return int(log["before"]) + target.by
    if target.offset is not None:
        return target.offset
    return int(log["end"] if log["at_time"] is None else log["at_time"])


@given(target=TARGETS, log=logs())
def test_a_new_offset_is_inside_the_log(target: Target, log: dict[str, Any]) -> None:
    found = planned(AT, target, **log)
    wanted = requested(target, log)
    assert log["start"] <= found.after <= log["end"]
    assert abs(found.after - wanted) == min(abs(each - wanted) for each in range(log["start"], log["end"] + 1))
    assert (found.clamp in (None, Clamp.NO_SUCH_TIME)) == (found.after == wanted)
    assert (found.clamp is Clamp.BELOW_START) == (wanted < log["start"])
    assert (found.clamp is Clamp.BEYOND_END) == (wanted > log["end"])
    assert (found.clamp is Clamp.NO_SUCH_TIME) == (target.time_ms is not None and log["at_time"] is None)
    assert found.read_again == log["before"] - found.after


@given(log=logs(), by=st.integers(-1_000, 1_000))
def test_a_shift_and_back_is_no_shift_inside_the_log(log: dict[str, Any], by: int) -> None:
    there = planned(AT, Target(by=by), **log)
    if there.clamp is None and log["start"] <= log["before"] <= log["end"]:
        assert planned(AT, Target(by=-by), **log | {"before": there.after}).after == log["before"]


def test_a_shift_needs_an_offset() -> None:
    with pytest.raises(ValueError, match="no committed offset of orders-0"):
        planned(AT, Target(by=1), before=None, start=0, end=5)
    assert planned(AT, Target(end="latest"), before=None, start=0, end=5) == PlannedOffset(AT, None, 5, 0, 5)


@example(milliseconds=1_001, hours=0)  # 1.001 * 1000 is less than 1001
@given(milliseconds=st.integers(0, 2**40), hours=st.integers(-12, 12))
def test_a_time_is_the_same_moment_in_every_zone(milliseconds: int, hours: int) -> None:
    zone = timezone(timedelta(hours=hours))
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    assert Target.of(None, moment.astimezone(zone), None) == Target.of(None, milliseconds, None)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((None, None, None), TypeError),
        (("latest", None, 1), TypeError),
        (("newest", None, None), ValueError),
        ((-1, None, None), ValueError),
        ((True, None, None), ValueError),
        ((None, datetime(2026, 1, 1), None), ValueError),
        ((None, -5, None), ValueError),
        ((None, None, 1.5), ValueError),
    ],
)
def test_what_is_no_target_is_refused(arguments: tuple[Any, Any, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Target.of(*arguments)


def test_partitions_are_named_by_topic_and_number() -> None:
    named = named_partitions(["orders", "planes:0,2", ("crews", 1)])
    assert named == [("orders", None), ("planes", 0), ("planes", 2), ("crews", 1)]
    for wrong in ("", ":1", "orders:", "orders:x", "orders:-1"):
        with pytest.raises(ValueError, match="Name a topic"):
            named_partitions([wrong])
