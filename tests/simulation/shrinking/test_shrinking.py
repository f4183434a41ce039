"""A failing seed becomes the least that fails, always the same, and a story that a person can follow."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from typing import Any

import pytest

from tests.simulation.__main__ import main
from tests.simulation.planted.planted import bug
from tests.simulation.results import Result
from tests.simulation.shrinking.case import Case, lesser
from tests.simulation.shrinking.essence import LINES_MAX, essence
from tests.simulation.shrinking.shrink import Shrunk, account, options_of, run_case, shrink
from tests.simulation.whole.features import FEATURES, plan_of, with_needed
from tests.simulation.whole.plan import EVERYTHING, QUEUES
from tests.simulation.whole.planted.planted import BUGS
from tests.simulation.whole.runs import run_whole
from tests.simulation.world import Violation

pytestmark = [pytest.mark.sim, pytest.mark.timeout(300)]

EARLY = "acks=all is answered on append"
ABORTED = "the leader hands out what was aborted"


def run_with(bug_name: str, case: Case) -> Result:
    """Run a case of the whole world with a planted bug."""
    return run_whole(case.seed, case.profile, bug_name, case.features, case.limits)


def shrunk_early() -> Shrunk:
    """The least of a seed that notices an early acknowledgement."""
    planted = bug(EARLY)
    with planted.applied():
        for seed in range(1, planted.seeds + 1):
            case = Case(seed, planted.profile)
            result = run_case(case)
            if result.violation is not None:
                return shrink(case, result, events=200_000)
    raise AssertionError("no seed notices it")


def rates(options: Any) -> list[str]:
    """What happens in a run, and does not by default."""
    return [each.name for each in fields(options) if each.default in (0, False) and getattr(options, each.name)]


def test_a_failing_seed_is_shrunk_to_the_same_least_case_each_time() -> None:
    first, again = shrunk_early(), shrunk_early()
    assert (first.case, first.runs, first.events) == (again.case, again.runs, again.events)
    assert first.result.violation is not None
    assert first.result.violation.rule in bug(EARLY).rules
    drawn, options = options_of(replace(first.case, limits={})), options_of(first.case)
    assert drawn.chaos_s > options.chaos_s
    assert len(rates(drawn)) > 2 * len(rates(options))


def test_what_the_least_case_still_has_cannot_be_left_out() -> None:
    least = shrunk_early()
    with bug(EARLY).applied():
        for choices in lesser(least.case, options_of(least.case)):
            for smaller in choices:
                violation = run_case(smaller).violation
                assert violation is None or violation.rule != least.result.violation.rule  # type: ignore[union-attr]


def test_a_failing_seed_of_the_whole_world_needs_few_clients_and_no_fault() -> None:
    run = partial(run_with, ABORTED)
    case = Case(1, QUEUES)
    result = run(case)
    least = shrink(case, result, run=run, events=10 * result.events)
    plan = options_of(least.case)
    assert (plan.workers, plan.faults_max, plan.partitions_max) == (1, 0, 1)
    assert least.result.violation is not None
    assert least.result.violation.rule in BUGS[ABORTED].rules
    story = account(least.case, least.result, run)
    assert len(story) <= LINES_MAX + 1
    assert "VIOLATION" in story[-1]
    assert any("job-transactions " in line and "begin: done" in line for line in story)
    assert any("worker-0-any-order" in line and "getmany: 0" in line for line in story)
    assert not any("topic-0" in line for line in story), "what the violation is not about"


def test_features_are_left_out_and_never_one_that_another_needs() -> None:
    case = Case(1, EVERYTHING, ("transactions", "accounts", "delays"))
    tried = [smaller.features for smaller in next(lesser(case, plan_of(EVERYTHING, 1, case.features)))]
    assert tried == [
        ("transactions",),
        ("transactions", "accounts"),
        ("delays",),
        ("transactions", "delays"),
        ("transactions", "accounts"),
    ]
    assert all(with_needed(names) == names for names in tried)
    assert set(case.features) <= set(FEATURES)


def test_a_search_ends_when_its_events_are_spent() -> None:
    case = Case(1, EVERYTHING, ("queues",))
    failed = replace(run_case(Case(1, "quiet")), violation=Violation("W1", "always"), events=1_000)
    least = shrink(case, failed, run=lambda _: failed, events=5_000)
    assert least.runs == 5


def test_what_fails_in_another_way_is_no_smaller_case() -> None:
    case = Case(1, EVERYTHING, ("queues", "delays"))
    failed = replace(run_case(Case(1, "quiet")), violation=Violation("W1", "always"), events=1)
    other = replace(failed, violation=Violation("W2", "another"))
    assert shrink(case, failed, run=lambda _: other, events=1_000).case == case


def test_faults_beyond_the_most_and_those_that_are_spared_do_not_happen() -> None:
    quiet = run_case(Case(3, EVERYTHING, ("delays",), {"faults_max": 0, "is_detailed": True}))
    assert quiet.violation is None, "\n".join(quiet.story)
    struck = [line for line in quiet.story if "killed by the nemesis" in line or "  nemesis  " in line]
    assert [line for line in struck if "everything is healed" not in line] == []


STORY = [
    " 101.000000  controller                         life 1 begins on 127.0.0.11",
    " 101.500000  replica:t-0:broker-1:5b106518      info: t-0: leader 1 in epoch 4",
    " 101.600000  replica:t-0:broker-2:5b106518      info: t-0: leader 1 in epoch 4",
    " 101.700000  replica:u-0:broker-2:5b106518      info: u-0: leader 1 in epoch 1",
    " 101.800000  replica:t-0:broker-2:5b106518      info: t-0 was cleaned up to offset 4: 1 of 2 records stay",
    " 102.000000  nemesis                            127.0.0.11 loses power",
    " 102.100000  teller-2.1                         commit: done",
    " 102.200000  reader                             getmany: u-0 3, 4",
    " 103.000000  VIOLATION                          W4: t-0 has b'teller-2/1' at 3",
]


def test_a_story_has_what_its_violation_is_about_and_each_thing_once() -> None:
    kept = essence(STORY, Violation("W4", "t-0 has b'teller-2/1' at 3"))
    assert [line.split("  ", 1)[1].strip() for line in (each.strip() for each in kept)] == [
        "controller                     life 1 begins on 127.0.0.11",
        "t-0 on broker 1                t-0: leader 1 in epoch 4",
        "nemesis                        127.0.0.11 loses power",
        "teller-2.1                     commit: done",
        "VIOLATION                      W4: t-0 has b'teller-2/1' at 3",
    ]


def test_a_long_story_keeps_its_beginning_and_its_end() -> None:
    lines = [f" 10{number}.000000  nemesis                            strikes {number}" for number in range(400)]
    kept = essence(lines, Violation("W4", "t-0"))
    assert len(kept) == LINES_MAX + 1
    assert "strikes 0" in kept[0]
    assert "strikes 399" in kept[-1]


def test_the_command_prints_the_least_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    planted = bug(EARLY)
    with planted.applied():
        assert main(["--seeds", str(planted.seeds), "--profile", planted.profile, "--shrink", "50000"]) == 1
    printed = capsys.readouterr().out
    assert "The least that fails" in printed
    limits = printed.rpartition("--limits '")[2].partition("'")[0]
    again = ["--seed", printed.rpartition("--seed ")[2].split()[0], "--profile", planted.profile]
    with planted.applied():
        assert main([*again, "--limits", limits, "--shrink", "0"]) == 1
    assert "VIOLATION I" in capsys.readouterr().out
