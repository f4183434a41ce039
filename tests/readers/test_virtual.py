"""Seeded trials in one process; and what they are for: each planted fault is found within some hundred seeds."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.readers.promises import Promise, judge
from tests.readers.trials import draw
from tests.readers.virtual import World, small_steps
from tests.unit.client.toy_server import ToyCluster

SEEDS = range(1, 161)
PLANTED = range(1, 6_000)
"""Seeds of which those are run that have what a planted fault needs."""


@pytest.fixture
def world() -> Iterator[World]:
    """A cluster in memory."""
    logging.disable(logging.ERROR)
    with small_steps(), ToyCluster(brokers=3) as cluster:
        found = World(cluster)
        with found.guarded():
            yield found
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(180)
def test_readers_give_exact_rows_or_an_error_that_fits(world: World) -> None:
    words: Counter[str] = Counter()
    for seed in SEEDS:
        outcome = world.run(draw(seed))
        assert not outcome.problem, f"{draw(seed)}: {outcome.problem}"
        words[outcome.word] += 1
    assert words["exact"] > len(SEEDS) / 3, words
    assert len(words) > 4, words


def _passed_on(blocks: Iterator[Any], attempt: int) -> Iterator[Any]:
    return blocks


@pytest.mark.parametrize("planted", ["lost errors", "other blocks"])
@pytest.mark.timeout(180)
def test_planted_faults_are_found(world: World, planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if planted == "lost errors":  # a repeated task raises what Ray does not show
        monkeypatch.setattr("raylog.data.datasource.seen_by_reader", _passed_on)
    else:  # a repeated task passes over what was deleted since
        monkeypatch.setattr("raylog.data.datasource.replace", lambda reading, **_: reading)
    drawn = [draw(seed) for seed in PLANTED]
    able = [each for each in drawn if each.reader == "ray" and {"worker", "delete"} <= each.kinds]
    skips = [each for each in able if not each.fails_on_loss and each.rows >= 400]
    assert any(world.run(trial).problem for trial in (able if planted == "lost errors" else skips))


def test_fewer_rows_need_an_error() -> None:
    trial = draw(2)
    promise = Promise(trial, {(0, 0): b"a", (0, 1): b"b"})
    assert not judge(promise, [(0, 0, b"a"), (0, 1, b"b")], None).problem
    assert "missing" in judge(promise, [(0, 0, b"a")], None).problem
    assert "twice" in judge(promise, [(0, 0, b"a"), (0, 0, b"a"), (0, 1, b"b")], None).problem
    assert "not those" in judge(promise, [(0, 0, b"b"), (0, 1, b"b")], None).problem
    assert "no fault explains" in judge(promise, [(0, 0, b"a")], ValueError("x")).problem
