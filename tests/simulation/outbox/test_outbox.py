"""Each planted bug of the outbox is caught, and the shipped code passes the same seeds."""

from __future__ import annotations

import pytest

from tests.simulation.outbox.planted import OUTBOX_BUGS
from tests.simulation.outbox.runs import run_outbox
from tests.simulation.planted.bugs import Planted

pytestmark = [pytest.mark.sim, pytest.mark.timeout(300)]


@pytest.mark.parametrize("bug", OUTBOX_BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(bug: Planted) -> None:
    with bug.applied():
        found = next((each for seed in range(1, bug.seeds + 1) if (each := run_outbox(seed).violation)), None)
    assert found is not None, f"{bug.name}: {bug.seeds} seeds did not notice it"
    assert found.rule in bug.rules, found


@pytest.mark.parametrize("seed", range(1, 11))
def test_the_shipped_outbox_passes(seed: int) -> None:
    result = run_outbox(seed)
    assert result.violation is None, "\n".join(result.story)


def test_a_seed_goes_the_same_way_again() -> None:
    assert run_outbox(3).trace == run_outbox(3).trace
