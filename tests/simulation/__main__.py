"""The command behind ``make simulate``: run many seeds of a profile, report, and print the story of a failing one."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.planted import PLANTED, TOO_DEEP
from tests.simulation.profiles import DEFAULT, PROFILES
from tests.simulation.simulation import Result, run_seed
from tests.simulation.stories import catch

_PROGRESS_S = 5.0


def main(arguments: list[str] | None = None) -> int:
    """Return 0 when every seed passed, 1 when one failed."""
    options = _options(arguments)
    if options.planted:
        return _try_planted_bugs()
    seeds = range(options.seed, options.seed + options.seeds)
    began = reported = time.monotonic()
    totals = dict.fromkeys(("seeds", "events", "machine steps", "elections", "acks", "committed", "lost on purpose"), 0)
    for seed in seeds:
        result = run_seed(seed, options.profile)
        for name, count in _counts(result).items():
            totals[name] += count
        if options.story and result.violation is None:
            print("\n".join(result.story))
        if result.violation is not None:
            _report_failure(result, options.profile)
            _report_totals(totals, time.monotonic() - began)
            return 1
        if time.monotonic() - reported > _PROGRESS_S:
            reported = time.monotonic()
            print(f"seed {seed}: {totals['seeds']} of {options.seeds} seeds, {totals['events']:,} events", flush=True)
        if options.seeds == 1:
            print(f"trace {result.trace:016x}")
    _report_totals(totals, time.monotonic() - began)
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=None, help="how many seeds to run (default 100; 1 with --seed)")
    parser.add_argument("--seed", type=int, default=None, help="first seed (default 1)")
    parser.add_argument("--profile", default=DEFAULT, choices=[DEFAULT, *sorted(PROFILES)])
    parser.add_argument("--story", action="store_true", help="print the last steps of every run")
    parser.add_argument("--planted", action="store_true", help="plant bugs and report which profile catches each")
    options = parser.parse_args(arguments)
    if options.seeds is None:
        options.seeds = 100 if options.seed is None else 1
    if options.seeds < 1:
        parser.error("--seeds must be at least 1")
    options.seed = 1 if options.seed is None else options.seed
    return options


def _try_planted_bugs() -> int:
    """Print which seed and which invariant caught each planted bug; 1 when one was not caught in its budget."""
    caught = 0
    print(f"{'planted bug':<66} {'profile':<11} {'caught by':<11} seed  of")
    for planted in PLANTED + TOO_DEEP:
        seed, violation = catch(planted)
        right = violation is not None and violation.rule in planted.rules
        caught += right
        rule = violation.rule if violation is not None else "NOTHING"
        print(f"{planted.name:<66} {planted.profile:<11} {rule:<11} {seed:>4} {planted.seeds:>3}", flush=True)
    print(f"{caught} of {len(PLANTED + TOO_DEEP)} planted bugs were caught by a checker that has to notice them")
    return 0 if caught == len(PLANTED + TOO_DEEP) else 1


def _counts(result: Result) -> dict[str, int]:
    return {
        "seeds": 1,
        "events": result.events,
        "machine steps": result.steps,
        "elections": result.elections,
        "acks": result.acks,
        "committed": result.committed,
        "lost on purpose": int(result.lost),
    }


def _report_failure(result: Result, profile: str) -> None:
    print(f"FAILED: seed {result.seed}, profile {result.profile}")
    print("\n".join(result.story))
    print(f"{result.violation}")
    print(f"again: python -m tests.simulation --profile {profile} --seed {result.seed}")


def _report_totals(totals: dict[str, int], seconds: float) -> None:
    counts = ", ".join(f"{count:,} {name}" for name, count in totals.items())
    print(f"{counts}; {seconds:.1f} s, {totals['events'] / max(seconds, 0.001):,.0f} events/s")


if __name__ == "__main__":
    sys.exit(main())
