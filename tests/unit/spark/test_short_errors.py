"""Errors reach Spark as one sentence: without frames when Raylog raised them, with them when something else did."""

from __future__ import annotations

import inspect
import pickle
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from raylog.base.errors import InvalidConfig, RaylogError
from raylog.spark.reading.short_errors import without_frames


def deep(error: Exception, levels: int = 20) -> None:
    if levels:
        deep(error, levels - 1)
    raise error


@without_frames("plan", "read", "rows", "__getstate__")
class Source:
    """What Spark calls: a function, a function that returns a generator, and a generator."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def plan(self, start: int) -> int:
        deep(self.error)
        return start

    def read(self) -> Iterator[int]:
        return iter(self.rows())

    def rows(self) -> Iterator[int]:
        yield 1
        deep(self.error)

    def __getstate__(self) -> dict[str, object]:
        deep(self.error)
        return {}


CALLS: list[Callable[[Source], object]] = [
    lambda source: source.plan(1),
    lambda source: list(source.read()),
    lambda source: list(source.rows()),
]


@pytest.mark.parametrize("call", CALLS, ids=["function", "returned generator", "generator"])
def test_our_errors_come_without_the_frames_below(call: Callable[[Source], object]) -> None:
    with pytest.raises(RaylogError, match="the sentence") as caught:
        call(Source(InvalidConfig("the sentence")))
    lines = traceback.format_exception(caught.value)
    assert lines[-1] == "raylog.base.errors.cluster.InvalidConfig: the sentence\n"
    assert "in deep" not in "".join(lines)


@pytest.mark.parametrize("call", CALLS, ids=["function", "returned generator", "generator"])
def test_errors_of_another_kind_keep_their_frames(call: Callable[[Source], object]) -> None:
    with pytest.raises(KeyError) as caught:
        call(Source(KeyError("a bug")))
    assert "in deep" in "".join(traceback.format_exception(caught.value))


def test_spark_still_sees_the_parameters_of_a_method() -> None:
    assert list(inspect.signature(Source.plan).parameters) == ["self", "start"]


def test_pyspark_shows_an_error_of_pickling_as_it_is() -> None:
    from pyspark.serializers import CloudPickleSerializer

    serializer: Any = CloudPickleSerializer
    with pytest.raises(InvalidConfig, match="the sentence") as caught:
        serializer().dumps(Source(InvalidConfig("the sentence", offset=7)))
    assert caught.value.details == {"offset": 7}
    assert isinstance(caught.value, pickle.PickleError)
    assert traceback.format_exception_only(caught.value) == ["raylog.base.errors.cluster.InvalidConfig: the sentence\n"]
