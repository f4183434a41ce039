"""One seed of the whole world from outside: starts the worker, and turns its answers into results."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tests.simulation.planted import noticed
from tests.simulation.results import Result
from tests.simulation.whole.planted.bugs import Bug
from tests.simulation.whole.planted.planted import BUGS
from tests.simulation.world import Violation

NO_BUG = "-"


class Worker:
    """The process whose forks run the worlds."""

    def __init__(self) -> None:
        """Start it; it ends with this process."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.simulation.whole.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
            env={**os.environ, "PYTHONHASHSEED": "0"},
            process_group=0,
        )
        atexit.register(self.close)

    def run(
        self, seed: int, profile: str, bug: str, features: Sequence[str] = (), limits: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Run one seed; ``features`` and ``limits`` in place of what it draws."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\t".join([str(seed), profile, bug, json.dumps(dict(limits or {})), *features]) + "\n")
        process.stdin.flush()
        try:
            found = json.loads(process.stdout.readline())
        except BaseException:
            self.abandon()  # a late answer would be taken for that of the next request
            raise
        assert isinstance(found, dict)
        return found

    def abandon(self) -> None:
        """Kill it, with the run in progress; the next request starts another."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        worker.cache_clear()

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.abandon()


@lru_cache(maxsize=1)
def worker() -> Worker:
    """Return this process's worker, started at the first call."""
    return Worker()


def run_whole(
    seed: int,
    profile: str,
    bug: str = NO_BUG,
    features: Sequence[str] = (),
    limits: Mapping[str, Any] | None = None,
) -> Result:
    """Run one seed of a profile of the whole world, with a planted bug or without.

    ``features`` and ``limits``: see ``plan_of``.
    """
    found = worker().run(seed, profile, bug, features, limits)
    violation = Violation(found["rule"], found["claim"]) if found["rule"] else None
    story = list(found["story"])
    if violation is not None and not (story and "VIOLATION" in story[-1]):
        story.append(f"VIOLATION {violation}")
    return Result(
        seed=seed,
        profile=profile,
        violation=violation,
        story=story,
        events=found.get("events", 0),
        steps=found.get("steps", 0),
        elections=found.get("elections", 0),
        acks=found.get("acks", 0),
        committed=found.get("committed", 0),
        lost=False,
        trace=found.get("trace", 0),
        seconds=found.get("seconds", 0.0),
        features=tuple(found.get("features", ())),
    )


def catch_whole(name: str) -> tuple[Bug, int, Violation | None]:
    """Run seeds with a planted bug until one is noticed; return the bug, the last seed and the violation."""
    bug = BUGS[name]
    for seed in noticed.seeds_of(bug, noticed.notes()):
        result = run_whole(seed, bug.profile, name, bug.features)
        if result.violation is not None:
            return bug, seed, result.violation
    return bug, bug.seeds, None
