"""The simulator must be able to fail: each planted bug is caught by its profile within the stated number of seeds."""

from __future__ import annotations

import pytest

from tests.simulation.planted import PLANTED, Planted
from tests.simulation.simulation import Result, run_seed

pytestmark = pytest.mark.sim


def first_failure(profile: str, seeds: int) -> Result | None:
    # The machines' own checks are off: what is tested are the checkers outside.
    for seed in range(1, seeds + 1):
        result = run_seed(seed, profile, validate=False)
        if result.violation is not None:
            return result
    return None


@pytest.mark.parametrize("planted", PLANTED, ids=[planted.name for planted in PLANTED])
def test_a_planted_bug_is_caught(planted: Planted) -> None:
    with planted.applied():
        failure = first_failure(planted.profile, planted.seeds)
    assert failure is not None, f"{planted.seeds} seeds of {planted.profile} did not notice: {planted.name}"
    assert failure.violation is not None
    assert failure.violation.rule in planted.rules, failure.violation
    assert failure.story


def test_the_planted_bugs_are_gone_when_their_block_ends() -> None:
    for planted in PLANTED:
        before = getattr(planted.target, planted.attribute)
        with planted.applied():
            pass
        assert getattr(planted.target, planted.attribute) is before
