"""Finds the least case that fails as a given one does: greedy, and the same from run to run.

A smaller case draws other times and orders, so that it may well not fail although it has all that the failure needs;
what does not fail is not taken. The search ends when nothing can be left out any more, or after so many events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.simulation.consumers import faults as consumer_faults
from tests.simulation.limits import limited
from tests.simulation.profiles import PROFILES, draw_faults, profile_of
from tests.simulation.results import Result
from tests.simulation.runs import CONSUMER_GROUPS, GROUP_PROFILES, run_seed
from tests.simulation.shrinking.case import Case, lesser, whole_options
from tests.simulation.shrinking.essence import essence
from tests.simulation.whole.plan import WHOLE_PROFILES

EVENTS: Final = 4_000_000
"""Events of the runs of one search: two minutes on one core."""
Run = Callable[[Case], Result]


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The least case that was found, its result, and what the search took."""

    case: Case
    result: Result
    runs: int
    events: int


def run_case(case: Case) -> Result:
    """Run a case in its profile's world."""
    return run_seed(case.seed, case.profile, features=case.features, limits=case.limits)


def options_of(case: Case) -> Any:
    """Return the options of a case; None for a profile of a world that has no options to set."""
    if case.profile in WHOLE_PROFILES:
        return whole_options(case)
    if case.profile in GROUP_PROFILES:
        return limited(GROUP_PROFILES[case.profile](case.seed), case.limits)
    if case.profile == CONSUMER_GROUPS:
        return limited(consumer_faults.draw(case.seed), case.limits)
    if profile_of(case.profile, case.seed) in PROFILES:
        return limited(draw_faults(case.profile, case.seed), case.limits)
    return None


def shrink(case: Case, result: Result, *, run: Run = run_case, events: int = EVENTS) -> Shrunk:
    """Return the least case that breaks the same rule. ``result`` is that of the case, which fails."""
    search = _Search(case, result, run, events)
    while search.goes_on:
        search.goes_on = False
        options = options_of(search.case)
        if options is None:
            break
        for number in range(sum(1 for _ in lesser(search.case, options))):
            search.try_in_turn(number)
    return Shrunk(search.case, search.result, search.runs, search.spent)


def account(case: Case, result: Result, run: Run = run_case) -> list[str]:
    """Return a failing case's story as a person can follow it; the case runs once more for each call of each client."""
    assert result.violation is not None
    if case.profile not in WHOLE_PROFILES:
        return result.story
    again = run(case.limited(is_detailed=True))
    return essence(again.story, again.violation or result.violation)


class _Search:
    def __init__(self, case: Case, result: Result, run: Run, events: int) -> None:
        assert result.violation is not None
        self.case, self.result = case, result
        self.rule = result.violation.rule
        self.goes_on = True
        self.runs = self.spent = 0
        self._run, self._events = run, events
        self._failed: set[str] = set()
        """What did not fail, and is not tried again."""

    def try_in_turn(self, number: int) -> None:
        """Take the first of these cases that breaks the rule."""
        choices = list(lesser(self.case, options_of(self.case)))
        for smaller in choices[number] if number < len(choices) else ():
            if self.spent >= self._events:
                self.goes_on = False
                return
            key = smaller.command()
            if key in self._failed:
                continue
            result = self._run(smaller)
            self.runs, self.spent = self.runs + 1, self.spent + max(1, result.events)
            if result.violation is not None and result.violation.rule == self.rule:
                self.case, self.result = smaller, result
                self.goes_on = True
                return
            self._failed.add(key)
