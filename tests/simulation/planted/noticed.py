"""The seed that notices each planted bug soonest, and which bugs run with every change.

A note is a short cut and not a result: where the noted seed no longer notices its bug, because code or world drew
something else, the other seeds of the bug follow. `make simulate-notes` writes the notes again.

Called by the tests of planted bugs and the command of the simulator. May touch: ``noticed.json`` beside this file.
"""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tests.simulation.planted.bugs import AnyBug
from tests.simulation.results import Result

FILE = Path(__file__).with_name("noticed.json")
SEARCH_S = 10.0
"""Processor seconds after which no more seeds of a bug run, if one has noticed it."""
RUN_S = 10.0
"""Processor seconds after which a run is given up: with some bugs, some seeds never end."""


class Endless(BaseException):
    """A run with a planted bug did not end. No error: shipped code must not handle it."""


class Note(NamedTuple):
    """How a bug was noticed soonest: the seed, the rule that was violated, and the processor time of that run."""

    seed: int
    rule: str
    ms: int


def notes() -> Mapping[str, Note]:
    """Return the note of each bug that has one, by :func:`key`."""
    return _read(FILE)


@cache
def _read(file: Path) -> Mapping[str, Note]:
    return {name: Note(*found) for name, found in json.loads(file.read_text()).items()}


def key(bug: AnyBug) -> str:
    """Return what identifies a bug in the notes: bugs of two profiles may have the same name."""
    return f"{bug.profile}: {bug.name}"


def seeds_of(bug: AnyBug, noted: Mapping[str, Note]) -> Iterator[int]:
    """Yield the seeds that have to notice a bug, the noted one first."""
    note = noted.get(key(bug))
    begin = bug.first if note is None else note.seed
    if begin <= bug.seeds:
        yield begin
    yield from (seed for seed in range(bug.first, bug.seeds + 1) if seed != begin)


def chosen(bugs: Iterable[AnyBug], noted: Mapping[str, Note]) -> frozenset[str]:
    """Return which bugs of a world, by :func:`key`, run with every change: for each rule the one noticed soonest.

    A bug shows that a rule is checked where the note says that this rule was violated. Where no bug does so, the rule
    has one that names it: by its note, else by the number of its seeds.
    """
    best: dict[str, tuple[bool, float, int, str]] = {}
    for bug in bugs:
        note = noted.get(key(bug))
        for rule in bug.rules:
            is_other = note is None or note.rule != rule
            rank = (is_other, math.inf if note is None else note.ms, bug.seeds - bug.first, key(bug))
            best[rule] = min(best.get(rule, rank), rank)
    return frozenset(name for *_, name in best.values())


def soonest(bug: AnyBug, run: Callable[[int], Result]) -> Note | None:
    """Return the seed that notices a bug, which is planted, in the least processor time; None where none does."""
    best: Note | None = None
    spent_s = 0.0
    for seed in seeds_of(bug, notes()):
        try:
            with _limited(RUN_S):
                result = run(seed)
        except Endless:
            spent_s += RUN_S
            continue
        spent_s += result.seconds
        if result.violation is not None and result.violation.rule in bug.rules:
            found = Note(seed, result.violation.rule, round(1000 * result.seconds))
            best = min(best or found, found, key=lambda note: (note.ms, note.seed))
        if best is not None and spent_s > SEARCH_S:
            break
    return best


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


def write(noted: Mapping[str, Note]) -> None:
    """Replace the notes, a line each."""
    lines = [f" {json.dumps(name)}: {json.dumps(note)}" for name, note in sorted(noted.items())]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    _read.cache_clear()
