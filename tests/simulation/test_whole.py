"""The whole world: a seed gives the same run again in another process. ``test_smoke.py`` tests that seeds pass."""

from __future__ import annotations

import pytest

from tests.simulation.whole.plan import WHOLE
from tests.simulation.whole.runs import NO_BUG, Worker, run_whole

pytestmark = pytest.mark.sim


def test_one_seed_is_the_same_run_in_two_processes() -> None:
    other = Worker()
    try:
        found = other.ask(3, WHOLE, NO_BUG)
    finally:
        other.close()
    again = run_whole(3, WHOLE)
    assert again.violation is None, "\n".join(again.story)
    assert found["trace"] == again.trace
    assert (found["events"], found["story"]) == (again.events, again.story)
