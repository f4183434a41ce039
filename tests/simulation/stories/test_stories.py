"""The stories pass on the unmodified machines, and only there."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest

from tests.simulation.partition.simulation import Simulation
from tests.simulation.planted.planted import TOO_DEEP, bug
from tests.simulation.profiles import Faults
from tests.simulation.stories.scripts import an_eligible_replica_takes_over
from tests.simulation.stories.stage import faults
from tests.simulation.stories.stories import STORIES, STORY_OF, Script, a_registration_is_not_answered, play

pytestmark = pytest.mark.sim


@pytest.mark.parametrize(("script", "options", "name"), STORIES, ids=[script.__name__ for script, _, _ in STORIES])
def test_a_story_ends_well_and_only_without_its_bug(script: Script, options: Faults, name: str) -> None:
    assert play(script, options) is None
    with bug(name).applied():
        found = play(script, options)
    assert found is not None
    assert found.rule in bug(name).rules, found


def test_every_bug_that_is_too_deep_for_a_profile_has_a_story() -> None:
    assert {planted.name for planted in TOO_DEEP} <= set(STORY_OF)


def test_a_new_log_is_not_taken_for_lost_when_registered_again() -> None:
    options = faults(brokers=1, min_insync_replicas=1)
    for effects in range(1, 12):
        assert play(partial(a_registration_is_not_answered, effects=effects), options) is None


def test_an_eligible_replica_leads_when_the_last_isr_member_is_lost() -> None:
    simulation = Simulation(1, faults(min_insync_replicas=2, down_ms=1500))
    an_eligible_replica_takes_over(simulation)
    simulation.run()
    heirs = [(before, after) for (_, before), (_, after) in pairwise(simulation.controller.history) if before.elr]
    assert any(after.leader in before.elr for before, after in heirs), "no replica led from outside the ISR"
