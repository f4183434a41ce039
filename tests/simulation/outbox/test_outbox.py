"""The shipped outbox passes the seeds that notice its planted bugs (`tests/simulation/planted`)."""

from __future__ import annotations

import pytest

from tests.simulation.outbox.runs import run_outbox

pytestmark = [pytest.mark.sim, pytest.mark.timeout(300)]


@pytest.mark.parametrize("seed", range(1, 11))
def test_the_shipped_outbox_passes(seed: int) -> None:
    result = run_outbox(seed)
    assert result.violation is None, "\n".join(result.story)


def test_a_seed_goes_the_same_way_again() -> None:
    assert run_outbox(3).trace == run_outbox(3).trace
