"""The command behind ``make simulate``: run many seeds of a profile, report, and print the story of a failing one."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count as counted

from raylog.base.errors import did_you_mean
from tests.simulation.planted import noticed
from tests.simulation.planted.bugs import STORY, AnyBug
from tests.simulation.planted.planted import EVERY_BUG, catch
from tests.simulation.profiles import DEFAULT
from tests.simulation.results import Result
from tests.simulation.runs import ALL, ALL_PROFILES, run_seed
from tests.simulation.shrinking.case import Case
from tests.simulation.shrinking.shrink import EVENTS, account, shrink
from tests.simulation.whole.features import FEATURES, pairs, with_needed
from tests.simulation.whole.plan import EVERYTHING
from tests.simulation.whole.planted.planted import BUGS
from tests.simulation.whole.runs import catch_whole, run_whole

_PROGRESS_S = 5.0


class Totals:
    """Totals of the runs of one profile, or of all profiles."""

    def __init__(self, profile: str) -> None:
        """Begin with no run."""
        self.profile = profile
        self.seeds: list[int] = []
        self.seconds = 0.0
        self.violations = 0
        self.counts = dict.fromkeys(
            ("runs", "events", "machine steps", "elections", "acks", "committed", "lost on purpose"), 0
        )

    def add(self, result: Result) -> None:
        """Count a run in."""
        self.seeds = [min([*self.seeds, result.seed]), max([*self.seeds, result.seed])]
        self.seconds += result.seconds
        self.violations += result.violation is not None
        found = (1, result.events, result.steps, result.elections, result.acks, result.committed, int(result.lost))
        for name, number in zip(self.counts, found, strict=True):
            self.counts[name] += number

    def line(self) -> str:
        """Return the totals as one line of JSON after the word ``total``, for scripts that add them up."""
        facts: dict[str, object] = {
            "profile": self.profile,
            "first_seed": self.seeds[0],
            "last_seed": self.seeds[1],
            **{name.replace(" ", "_"): number for name, number in self.counts.items()},
            "violations": self.violations,
            "cpu_seconds": round(self.seconds, 1),
            "events_per_second": round(self.counts["events"] / max(self.seconds, 0.001)),
        }
        return f"total {json.dumps(facts)}"

    def sentence(self) -> str:
        """Return the totals as readable text."""
        counts = ", ".join(f"{number:,} {name}" for name, number in self.counts.items())
        rate = self.counts["events"] / max(self.seconds, 0.001)
        return f"{counts}; {self.seconds:.1f} s of processor time, {rate:,.0f} events/s per core"


def main(arguments: list[str] | None = None) -> int:
    """Return 0 when every seed passed, 1 when one failed."""
    options = _options(arguments)
    logging.getLogger("raylog").addHandler(logging.NullHandler())  # the shipped shells log the faults injected here
    if options.pairs:
        return _print_pairs(options.seed, options.seeds)
    if options.note:
        return _note_planted_bugs(options.profile)
    if options.planted:
        return _try_planted_bugs(options.profile)
    overall = Totals(options.profile)
    parts: dict[str, Totals] = {}
    reported = time.monotonic()
    for seed, profile in _runs(options, overall):
        result = run_seed(seed, profile, features=options.features, limits=options.limits)
        overall.add(result)
        parts.setdefault(result.profile, Totals(result.profile)).add(result)
        if result.violation is not None:
            _report_failure(Case(seed, profile, result.features, options.limits), result, options.shrink)
            break
        if result.features:
            print(f"seed {seed} mixed {', '.join(result.features)}", flush=True)
        if options.story:
            print("\n".join(result.story))
        if time.monotonic() - reported > _PROGRESS_S:
            reported = time.monotonic()
            events = overall.counts["events"]
            end = f"{options.events:,} events" if options.events else f"seed {options.seed + options.seeds - 1}"
            print(f"seed {seed} ({profile}): {events:,} events, until {end}", flush=True)
        if options.seeds == 1 and options.profile != ALL and not options.events:
            print(f"trace {result.trace:016x}")
    if len(parts) > 1:
        for name in sorted(parts):
            print(parts[name].line())
    print(overall.line())
    print(overall.sentence())
    return 1 if overall.violations else 0


def _runs(options: argparse.Namespace, overall: Totals) -> Iterator[tuple[int, str]]:
    """Yield the requested runs, every profile of a seed before the next seed."""
    for seed in counted(options.seed) if options.events else range(options.seed, options.seed + options.seeds):
        for profile in ALL_PROFILES if options.profile == ALL else (options.profile,):
            if options.events and overall.counts["events"] >= options.events:
                return
            yield seed, profile


def _options(arguments: list[str] | None) -> argparse.Namespace:
    known = [ALL, DEFAULT, *ALL_PROFILES]
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=None, help="how many seeds to run (default 100; 1 with --seed)")
    parser.add_argument("--seed", type=int, default=None, help="first seed (default 1)")
    parser.add_argument("--profile", default=DEFAULT, help=f"one of {', '.join(known)}")
    parser.add_argument("--events", type=int, default=0, help="go on from seed to seed until so many events")
    parser.add_argument(
        "--features",
        default="",
        help=f"what {EVERYTHING} mixes in place of what each seed draws: names with commas between, "
        f"of {', '.join(FEATURES)}",
    )
    parser.add_argument("--limits", type=json.loads, default={}, help="options in place of those drawn, as JSON")
    parser.add_argument(
        "--shrink",
        type=int,
        default=EVENTS,
        help="events that the search for the least failing run may take, 0 = no search, and all of the story",
    )
    parser.add_argument("--pairs", action="store_true", help=f"print how many seeds of {EVERYTHING} mix each two")
    parser.add_argument("--story", action="store_true", help="print the last steps of every run")
    parser.add_argument(
        "--planted", action="store_true", help="plant bugs, all or a profile's, and report what catches each"
    )
    parser.add_argument(
        "--note", action="store_true", help="search the seed that notices each planted bug soonest, and note it"
    )
    options = parser.parse_args(arguments)
    if options.profile not in known:
        parser.error(f"{did_you_mean('profile', options.profile, known)} All profiles: {', '.join(known)}.")
    try:
        options.features = with_needed([name for name in options.features.split(",") if name])
    except ValueError as error:
        parser.error(str(error))
    if options.features and options.profile != EVERYTHING:
        parser.error(f"--features is for the profile {EVERYTHING}")
    if options.seeds is None:
        options.seeds = 100 if options.seed is None else 1
    if options.seeds < 1:
        parser.error("--seeds must be at least 1")
    options.seed = 1 if options.seed is None else options.seed
    return options


def _print_pairs(first: int, count: int) -> int:
    """Print for each two features how many seeds mix both, the rarest first."""
    for (first_name, second_name), times in sorted(
        pairs(range(first, first + count)).items(), key=lambda item: item[1]
    ):
        print(f"{times:>5}  {first_name}, {second_name}")
    return 0


def _try_planted_bugs(profile: str) -> int:
    """Print the seed and invariant that caught each planted bug; return 1 when one was not caught in its budget.

    Only those of one profile, if one is named.
    """
    every = [planted for planted in EVERY_BUG if profile in (DEFAULT, ALL, planted.profile)]
    names = [name for name, bug in BUGS.items() if profile in (DEFAULT, ALL, bug.profile)]
    caught = 0
    print(f"{'planted bug':<66} {'profile':<28} {'caught by':<11} seed  of")
    for planted in every:
        seed, violation = catch(planted)
        right = violation is not None and violation.rule in planted.rules
        caught += right
        rule = violation.rule if violation is not None else "NOTHING"
        print(f"{planted.name:<66} {planted.profile:<28} {rule:<11} {seed:>4} {planted.seeds:>3}", flush=True)
    for name in names:
        bug, seed, violation = catch_whole(name)
        right = violation is not None and violation.rule in bug.rules
        caught += right
        rule = violation.rule if violation is not None else "NOTHING"
        print(f"{name:<66} {bug.profile:<28} {rule:<11} {seed:>4} {bug.seeds:>3}", flush=True)
    stories = sum(planted.profile == STORY for planted in every)
    total = len(every) + len(names)
    print(
        f"{caught} of {total} planted bugs were caught by a checker that has to notice them, "
        f"{stories} of them in stories"
    )
    return 0 if caught == total else 1


def _note_planted_bugs(profile: str) -> int:
    """Note the seed that notices each planted bug soonest; return 1 when a bug was noticed by none."""
    missed = 0

    def take(bug: AnyBug, run: Callable[[int], Result]) -> None:
        nonlocal missed
        note = noticed.soonest(bug, run)
        missed += note is None
        if note is not None:
            noticed.write({**noticed.notes(), noticed.key(bug): note})
        print(f"{bug.name:<66} {bug.profile:<28} {note.seed if note else 'NOTHING'}", flush=True)

    for planted in EVERY_BUG:
        if planted.profile != STORY and profile in (DEFAULT, ALL, planted.profile):
            with planted.applied():
                take(planted, partial(run_seed, profile=planted.profile, validate=False))
    for bug in BUGS.values():
        if profile in (DEFAULT, ALL, bug.profile):
            take(bug, partial(run_whole, profile=bug.profile, bug=bug.name, features=bug.features))
    every: list[AnyBug] = [*EVERY_BUG, *BUGS.values()]
    known = {noticed.key(bug) for bug in every}
    noticed.write({name: note for name, note in noticed.notes().items() if name in known})
    return 1 if missed else 0


def _report_failure(case: Case, result: Result, events: int) -> None:
    """Print the failure, and what is left of it when all is left out that it does not need."""
    assert result.violation is not None
    print(f"FAILED: seed {result.seed}, profile {result.profile}")
    if events == 0:
        print("\n".join(result.story))
        print(f"{result.violation}\nagain: {case.command()}")
        return
    print(f"{result.violation}\nagain: {case.command()}", flush=True)
    least = shrink(replace(case, profile=result.profile), result, events=events)
    print(f"\nThe least that fails, after {least.runs} more runs of {least.events:,} events:")
    print("\n".join(account(least.case, least.result)))
    print(f"{least.result.violation}\nagain: {least.case.command()}")


if __name__ == "__main__":
    sys.exit(main())
