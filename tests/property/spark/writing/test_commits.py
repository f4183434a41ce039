"""The decision of exactly-once under every kind of interruption; and what it takes for a test to notice a bug."""

from __future__ import annotations

import pytest

from raylog.base.errors import InvalidTxnState
from tests.property.spark.writing.planted import PLANTED, plant
from tests.property.spark.writing.simulation import Query, Simulation

SEEDS = 60
"""Of each scene; 300 take a minute."""
SEEDS_FOR_A_BUG = 400


def one_query() -> list[Query]:
    return [Query("one", 5)]


def two_with_one_prefix() -> list[Query]:
    return [Query("one", 4), Query("other", 4)]


def after_a_deleted_checkpoint() -> list[Query]:
    return [Query("one", 2, takes_over=True), Query("later", 4, takes_over=True)]


def jobs() -> list[Query]:
    return [Query(f"job{number}", 1, is_job=True) for number in range(3)]


SCENES = [one_query, two_with_one_prefix, after_a_deleted_checkpoint, jobs]


@pytest.mark.parametrize("scene", SCENES)
def test_every_batch_is_visible_once_whatever_is_interrupted(scene: object) -> None:
    assert callable(scene)
    for seed in range(SEEDS):
        run(seed, scene())


def run(seed: int, queries: list[Query]) -> Simulation:
    simulation = Simulation(seed, queries)
    try:
        simulation.run()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from None
    return simulation


def test_a_second_query_with_the_same_prefix_is_refused() -> None:
    refused = 0
    for seed in range(50):
        for query in run(seed, two_with_one_prefix()).queries:
            if query.stopped_by is not None:
                assert isinstance(query.stopped_by, InvalidTxnState)
                refused += 1
    assert refused >= 50


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_a_planted_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(name, monkeypatch)
    for seed in range(SEEDS_FOR_A_BUG):
        for scene in SCENES:
            try:
                run(seed, scene())
            except AssertionError:
                return
    pytest.fail(f"no seed below {SEEDS_FOR_A_BUG} catches it")
