"""The seed that notices each planted bug soonest, so that the tests do not run those again that notice nothing.

A note is a short cut and not a result: where the noted seed no longer notices its bug, because code or world drew
something else, the other seeds of the bug follow. `make simulate-notes` writes the notes again. Bugs of the whole world
have none: they begin with `Bug.first`, and `make simulate-planted` alone runs most of them.

Called by ``planted.py`` and the command of the simulator. May touch: ``noticed.json`` beside this file.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tests.simulation.planted.bugs import Planted
from tests.simulation.results import Result

FILE = Path(__file__).with_name("noticed.json")
SEARCH_S = 10.0
"""Processor seconds after which no more seeds of a bug run, if one has noticed it."""
RUN_S = 10.0
"""Processor seconds after which a run is given up: with some bugs, some seeds never end."""


class Endless(BaseException):
    """A run with a planted bug did not end. No error: shipped code must not handle it."""


def notes() -> Mapping[str, int]:
    """Return the noted seed of each bug, by :func:`key`."""
    return _read(FILE)


@cache
def _read(file: Path) -> Mapping[str, int]:
    found = json.loads(file.read_text())
    assert isinstance(found, dict)
    return found


def key(planted: Planted) -> str:
    """Return what identifies a bug in the notes: bugs of two profiles may have the same name."""
    return f"{planted.profile}: {planted.name}"


def seeds_of(planted: Planted, noted: Mapping[str, int]) -> Iterator[int]:
    """Yield the seeds that have to notice a bug, the noted one first."""
    first = noted.get(key(planted), 1)
    if first <= planted.seeds:
        yield first
    yield from (seed for seed in range(1, planted.seeds + 1) if seed != first)


def soonest(planted: Planted, run: Callable[[int], Result]) -> int | None:
    """Return the seed that notices a bug in the least processor time; None where none of them notices it."""
    best: tuple[float, int] | None = None
    spent_s = 0.0
    with planted.applied():
        for seed in seeds_of(planted, notes()):
            try:
                with _limited(RUN_S):
                    result = run(seed)
            except Endless:
                spent_s += RUN_S
                continue
            spent_s += result.seconds
            if result.violation is not None and result.violation.rule in planted.rules:
                best = min(best or (result.seconds, seed), (result.seconds, seed))
            if best is not None and spent_s > SEARCH_S:
                break
    return best[1] if best else None


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def end(*_: Any) -> None:
        raise Endless

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def write(noted: Mapping[str, int]) -> None:
    """Replace the notes."""
    FILE.write_text(json.dumps(dict(sorted(noted.items())), indent=1) + "\n")
    _read.cache_clear()
