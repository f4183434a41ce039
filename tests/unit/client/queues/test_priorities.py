"""Priorities that cannot work are refused with a sentence that says what to do."""

from __future__ import annotations

from typing import Any

import pytest

from raylog.base.errors import InvalidConfig
from raylog.client.queues.consumer import AsyncQueueConsumer
from raylog.client.queues.priorities import Standing, StrictTurns, turns_of


@pytest.mark.parametrize(
    ("topics", "priority", "sentence"),
    [
        (["a"], "strict", "priority is between topics, and this consumer has 1: name two or more, or leave it out."),
        (["a", "a"], "strict", "priority is between topics, and this consumer has 1"),
        (["a", "b", "a"], "strict", "name each topic once, not a, b, a"),
        (["a", "b"], "high", "priority is 'strict', or the weights of the topics, not 'high'"),
        (["a", "b"], 3, "priority is 'strict', a mapping of topics to weights or a list, not 3"),
        (["a", "b"], {"a": 1, "c": 2}, "priority has a weight for 'c', and the topics are a, b"),
        (["a", "b"], {"a": 1}, "priority has no weight for b: give each topic one"),
        (["a", "b"], [1, 2, 3], "priority has 3 weights for 2 topics"),
        (["a", "b"], {"a": 1, "b": 0}, "The weight of b has to be a number greater than 0, not 0"),
        (["a", "b"], {"a": -1, "b": 1}, "The weight of a has to be a number greater than 0, not -1"),
        (["a", "b"], [1, float("inf")], "The weight of b has to be a number greater than 0, not inf"),
        (["a", "b"], [1, float("nan")], "The weight of b has to be a number greater than 0, not nan"),
        (["a", "b"], [True, 1], "The weight of a has to be a number greater than 0, not True"),
        (["a", "b"], ["2", 1], "The weight of a has to be a number greater than 0, not '2'"),
        (["a", "b"], [1, 2_000], "The weights 1 and 2000 are too far apart: one may be 1000 times another."),
    ],
)
def test_wrong_priorities_are_refused(topics: list[str], priority: Any, sentence: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        AsyncQueueConsumer(*topics, group_id="workers", priority=priority)
    assert sentence in str(refused.value)


def test_weights_are_given_by_topic_or_in_the_order_of_the_topics() -> None:
    ready = [Standing.AT_HAND] * 2
    for weights in ({"b": 1, "a": 3}, [3, 1], (3, 1)):
        turns = turns_of(weights, ["a", "b"])
        assert turns is not None
        assert [turns.next(ready) for _ in range(8)] == [0, 0, 0, 1] * 2


def test_without_a_priority_there_are_no_turns() -> None:
    assert turns_of(None, ["a"]) is None
    assert isinstance(turns_of("strict", ["a", "b"]), StrictTurns)
