"""The simulator must be able to fail: each planted bug is caught by its profile within the stated number of seeds.

With every change those run that :func:`tests.simulation.planted.noticed.chosen` names, the others in `make test-long`.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

import pytest

from tests.simulation.planted.bugs import STORY, AnyBug, Edit, Planted
from tests.simulation.planted.noticed import Note, chosen, key, notes
from tests.simulation.planted.planted import EVERY_BUG, catch
from tests.simulation.whole.planted.bugs import Bug
from tests.simulation.whole.planted.planted import BUGS
from tests.simulation.whole.runs import catch_whole

pytestmark = [pytest.mark.sim, pytest.mark.timeout(300)]

SEEDS_MAX_S = 3600
"""How long all seeds of a bug of the whole world may take."""


def profile_of(bug: AnyBug) -> str:
    return bug.profile


IN_PROFILES = sorted((planted for planted in EVERY_BUG if planted.profile != STORY), key=profile_of)
QUICK = frozenset[str]().union(*(chosen(bugs, notes()) for _, bugs in groupby(IN_PROFILES, profile_of)))
"""For each rule of each profile one."""
NOTED_IN_WHOLE = [bug for bug in BUGS.values() if key(bug) in notes()]
QUICK_IN_WHOLE = chosen(NOTED_IN_WHOLE, notes())
"""For each rule one. A run of the whole world takes seconds: without a note of the seed there would be too many."""


def parameters(bugs: Iterable[AnyBug], quick: frozenset[str], *marks: Any) -> Iterator[Any]:
    """Yield each bug with its name as id; those that take longer than `make test` may are marked."""
    for bug in bugs:
        yield pytest.param(bug, id=bug.name, marks=() if key(bug) in quick else (pytest.mark.long, *marks))


SMALL = list(parameters(IN_PROFILES, QUICK))
WHOLE = list(parameters(BUGS.values(), QUICK_IN_WHOLE, pytest.mark.timeout(SEEDS_MAX_S)))


@pytest.mark.parametrize("planted", SMALL)
def test_a_planted_bug_is_caught(planted: Planted) -> None:
    _, violation = catch(planted)
    assert violation is not None, f"{planted.seeds} seeds of {planted.profile} did not notice: {planted.name}"
    assert violation.rule in planted.rules, violation


@pytest.mark.parametrize("bug", WHOLE)
def test_a_bug_planted_in_the_whole_world_is_caught(bug: Bug) -> None:
    _, _, violation = catch_whole(bug.name)
    assert violation is not None, f"{bug.seeds} seeds of {bug.profile} did not notice: {bug.name}"
    assert violation.rule in bug.rules, violation


def globals_of_shipped() -> dict[str, dict[str, int]]:
    """The functions and classes that each shipped module has, and the attributes of the latter."""
    found: dict[str, dict[str, int]] = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("raylog."):
            found[name] = {each: id(value) for each, value in vars(module).items() if callable(value)}
            for owner in filter(inspect.isclass, list(vars(module).values())):
                if owner.__module__ == name:
                    found[f"{name}:{owner.__qualname__}"] = {each: id(value) for each, value in vars(owner).items()}
    return found


def is_called_elsewhere(bug: Any) -> bool:
    """Whether the bug replaces a function in its own module, which does not call it: importers keep the original."""
    function = getattr(bug.target, bug.attribute)
    if not inspect.ismodule(bug.target) or getattr(function, "__module__", "") != bug.target.__name__:
        return False
    modules = [
        module for name, module in sys.modules.items() if name.startswith("raylog.") and module is not bug.target
    ]
    return any(vars(module).get(bug.attribute) is function for module in modules) and not re.search(
        rf"(?<!def )\b{bug.attribute}\(", inspect.getsource(bug.target)
    )


def test_each_planted_bug_fits_the_code() -> None:
    """A run that notices a bug may be long: here a change of the code that it was written for is noticed."""
    every: list[Any] = [*EVERY_BUG, *BUGS.values()]
    misfits = [f"{key(bug)}: plant it where it is called" for bug in every if is_called_elsewhere(bug)]
    shipped = globals_of_shipped()
    for planted in EVERY_BUG:
        before = getattr(planted.target, planted.attribute)
        try:
            with planted.applied():
                assert getattr(planted.target, planted.attribute) != before, "it changes nothing"
        except (AssertionError, LookupError) as error:
            misfits.append(f"{key(planted)}: {error}")
        assert getattr(planted.target, planted.attribute) == before, "a bug ends with its block"
    for bug in BUGS.values():
        before = getattr(bug.target, bug.attribute)
        try:
            assert bug.patch(before) is not before, "it changes nothing"
        except (AssertionError, LookupError) as error:
            misfits.append(f"{key(bug)}: {error}")
    assert not misfits, "\n".join(misfits)
    assert globals_of_shipped() == shipped, "a patch changes what its bug does not name, and for all tests behind it"


# ---------------------------------------------------------------- which of them run with every change


def rules_of(bugs: Iterable[AnyBug]) -> set[tuple[str, str]]:
    return {(bug.profile, rule) for bug in bugs for rule in bug.rules}


def violated(bugs: Iterable[AnyBug]) -> set[tuple[str, str]]:
    """The rules that the bugs violate in the runs that are noted."""
    return {(bug.profile, notes()[key(bug)].rule) for bug in bugs if key(bug) in notes()}


def unmarked(each: list[Any]) -> list[AnyBug]:
    return [found.values[0] for found in each if not any(mark.name == "long" for mark in found.marks)]


def test_every_rule_that_a_bug_names_has_one_that_runs_with_every_change() -> None:
    quick = unmarked(SMALL)
    assert rules_of(quick) == rules_of(IN_PROFILES)
    assert violated(quick) == violated(IN_PROFILES)
    assert len(quick) < len(SMALL) / 2
    in_whole = unmarked(WHOLE)
    assert {rule for _, rule in rules_of(in_whole)} == {rule for _, rule in rules_of(NOTED_IN_WHOLE)}
    assert {rule for _, rule in violated(in_whole)} == {rule for _, rule in violated(NOTED_IN_WHOLE)}
    assert 0 < len(in_whole) < len(WHOLE) / 2


def test_every_bug_runs_in_one_of_both() -> None:
    run = Counter(found.values[0].name for found in (*SMALL, *WHOLE))
    stories = Counter(planted.name for planted in EVERY_BUG if planted.profile == STORY)  # few: test_stories.py
    every: list[AnyBug] = [*EVERY_BUG, *BUGS.values()]
    assert run + stories == Counter(bug.name for bug in every)


def test_the_bug_that_is_noticed_soonest_is_chosen_for_each_rule() -> None:
    edit = Edit("a", "b")
    slow, soon, both, other, unknown = (
        Planted(name, "p", seeds, rules, None, "", edit)
        for name, seeds, rules in [
            ("slow", 9, ("A",)),
            ("soon", 9, ("A", "B")),
            ("both", 9, ("A", "B", "C")),
            ("other", 5, ("D",)),
            ("unknown", 4, ("D", "A")),
        ]
    )
    noted = {"p: slow": Note(1, "A", 90), "p: soon": Note(2, "A", 10), "p: both": Note(3, "B", 500)}
    bugs = [slow, soon, both, other, unknown]
    # B is violated by one alone, C is only named, and of two that have no note one has fewer seeds.
    assert chosen(bugs, noted) == {"p: soon", "p: both", "p: unknown"}
    assert chosen([slow, both], {}) == {"p: both"}
