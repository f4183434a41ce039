"""A repeated read task: its errors reach the reader as a lost worker, because Ray loses them otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import ray.exceptions

from raylog.base.errors import OffsetOutOfRange
from raylog.client.config import ConsumerConfig
from raylog.client.ranges.reading import RangeReading
from raylog.data import datasource, following
from raylog.data.attempts import seen_by_reader
from raylog.data.datasource import NotRepeatable, RangesTask
from tests.unit.data.ranges import piece


class Ended(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the process is an exception here."""

    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr("raylog.data.attempts.os._exit", end)


def failing(error: BaseException) -> Iterator[int]:
    yield 1
    raise error


def read(blocks: Iterator[Any]) -> tuple[list[Any], BaseException | None]:
    found: list[Any] = []
    try:
        found.extend(blocks)
    except BaseException as error:
        return found, error
    return found, None


def test_the_first_attempt_raises_its_error(ends: None) -> None:
    error = OffsetOutOfRange("lost")
    assert read(seen_by_reader(failing(error), 0)) == ([1], error)


def test_a_repeated_attempt_that_fails_ends_its_process(ends: None, caplog: pytest.LogCaptureFixture) -> None:
    found, end = read(seen_by_reader(failing(OffsetOutOfRange("the reason")), 1))
    assert (found, type(end)) == ([1], Ended)
    assert "the reason" in caplog.text


def test_a_repeated_attempt_that_is_cancelled_or_left_ends_alone(ends: None) -> None:
    cancelled = ray.exceptions.TaskCancelledError()
    assert read(seen_by_reader(failing(cancelled), 1)) == ([1], cancelled)
    left = seen_by_reader(iter([1, 2]), 1)
    assert next(iter(left)) == 1
    left.close()  # type: ignore[attr-defined]


def test_a_compacted_topic_is_not_read_again(ends: None, monkeypatch: pytest.MonkeyPatch) -> None:
    task = RangesTask((replace(piece(0), may_be_compacted=True),), RangeReading(), ("offset",), None)
    monkeypatch.setattr(datasource, "read_range", lambda *_: iter(()))
    monkeypatch.setattr(datasource, "attempt_number", lambda: 1)
    assert isinstance(read(task())[1], Ended)
    monkeypatch.setattr(datasource, "attempt_number", lambda: 0)
    assert read(task())[1] is None


def test_a_repeated_attempt_does_not_skip_what_was_removed(ends: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks would be others than those of the attempt before."""
    strict: list[bool] = []

    def read_range(item: Any, reading: RangeReading, schema: Any) -> Iterator[Any]:
        strict.append(reading.repeats)
        return iter(())

    monkeypatch.setattr(datasource, "read_range", read_range)
    task = RangesTask((piece(0),), RangeReading(fail_on_data_loss=False), ("offset",), None)
    for attempt in (0, 1):
        monkeypatch.setattr(datasource, "attempt_number", lambda attempt=attempt: attempt)
        read(task())
    assert strict == [False, True]


def test_a_continuous_read_is_never_repeated(ends: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "attempt_number", lambda: 1)
    task = following.FollowingTask((piece(0),), ConsumerConfig(), ("offset",), None)
    found, end = read(task())
    assert (found, type(end)) == ([], Ended)
    assert end is not None
    assert isinstance(end.__context__, NotRepeatable)
