"""The simulator must be able to fail: each planted bug is caught by its profile within the stated number of seeds."""

from __future__ import annotations

import pytest

from tests.simulation.planted.bugs import STORY, Planted
from tests.simulation.planted.planted import EVERY_BUG, catch

pytestmark = [pytest.mark.sim, pytest.mark.timeout(300)]


IN_PROFILES = [planted for planted in EVERY_BUG if planted.profile != STORY]


@pytest.mark.parametrize("planted", IN_PROFILES, ids=[planted.name for planted in IN_PROFILES])
def test_a_planted_bug_is_caught(planted: Planted) -> None:
    _, violation = catch(planted)
    assert violation is not None, f"{planted.seeds} seeds of {planted.profile} did not notice: {planted.name}"
    assert violation.rule in planted.rules, violation


def test_the_planted_bugs_end_with_their_block() -> None:
    for planted in EVERY_BUG:
        before = getattr(planted.target, planted.attribute)
        with planted.applied():
            pass
        assert getattr(planted.target, planted.attribute) == before
