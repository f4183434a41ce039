"""Delays and handles as users write them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.base.errors import InvalidRequest
from raylog.client.arguments import now_ms
from raylog.client.producer.scheduling import Waiting
from raylog.client.scheduling import Handle, delay_ms, moment_ms


@pytest.mark.parametrize(
    ("delay", "ms"),
    [
        (0, 0),
        (250, 250),
        (-3, 0),
        ("500ms", 500),
        ("30m", 1_800_000),
        ("1h30m", 5_400_000),
        ("1.5s", 1_500),
        ("2d", 172_800_000),
        ("1500", 1_500),
        (" 10s ", 10_000),
        (timedelta(minutes=1, milliseconds=5), 60_005),
        (timedelta(seconds=-1), 0),
        ("level:0", 0),
        ("level:1", 1_000),
        ("level:16", 1_800_000),
        ("level:18", 7_200_000),
        ("level:19", 7_200_000),
    ],
)
def test_a_delay_has_many_forms(delay: int | str | timedelta, ms: int) -> None:
    assert delay_ms(delay) == ms


@pytest.mark.parametrize("text", ["soon", "", "5 minutes", "level:", "1h 30m", "30M"])
def test_a_text_that_is_no_delay_is_refused_with_what_would_be(text: str) -> None:
    with pytest.raises(ValueError, match="1h30m"):
        delay_ms(text)


@pytest.mark.parametrize("wrong", [1.5, None, True, b"30m"])
def test_other_types_are_refused(wrong: object) -> None:
    with pytest.raises(TypeError, match="timedelta"):
        delay_ms(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="zone"):
        moment_ms(wrong)  # type: ignore[arg-type]


def test_a_datetime_needs_a_zone() -> None:
    assert moment_ms(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == 1_000
    assert moment_ms(datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))) == 0
    with pytest.raises(ValueError, match="no zone"):
        moment_ms(datetime(2030, 1, 1))


@given(st.integers(0, 10_000), st.integers(0, 1 << 62), st.integers(0, 1 << 62))
def test_a_handle_is_read_as_it_was_written(partition: int, offset: int, due_ms: int) -> None:
    handle = Handle(partition, offset, due_ms)
    assert Handle.parse(str(handle)) == handle


@pytest.mark.parametrize("text", ["", "1-2", "a-1-2", "1-2-3-4", "0-1--5", None])
def test_a_text_that_is_no_handle_is_refused(text: str | None) -> None:
    with pytest.raises(InvalidRequest, match="raylog schedule list"):
        Handle.parse(text)


def waiting(took_ms: int) -> Waiting:
    """A topic about which the scheduler's answer took so long, and whose clock is this one."""
    return Waiting("orders", "id", 1, 0, 1, took_ms, took_ms, 3_600_000, True, 0.0)


def test_a_time_ahead_is_kept_however_long_the_scheduler_took_to_answer() -> None:
    soon_ms = now_ms() + 1_000
    assert waiting(took_ms=3_000).due_ms(None, soon_ms) == soon_ms


def test_a_past_time_is_now_by_a_clock_that_is_not_ahead() -> None:
    before_ms = now_ms()
    assert before_ms <= waiting(took_ms=3_000).due_ms(None, 1) <= now_ms()


def test_a_delay_may_be_longer_by_the_time_of_an_answer_and_not_shorter() -> None:
    before_ms = now_ms()
    assert before_ms + 4_000 <= waiting(took_ms=3_000).due_ms(1_000, None) <= now_ms() + 4_000
