"""Whether what processes use is flat: the median of a run's last quarter beside that of its second one. Pure.

The first quarter is left out: processes load what they need, caches and retention reach their bounds.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tests.chaos.everything.usage import CLIENT, Sample
from tests.chaos.evidence.checker import Anomaly

FIGURES: Final = ("own_kb", "descriptors", "threads", "tasks")
BOUNDS: Final = {"own_kb": (2_048, 0.05), "descriptors": (8, 0.1), "threads": (2, 0.0), "tasks": (6, 0.1)}
"""What a process may have more at the end: so much, or that part of what it had, whichever is more."""
FILE_BOUNDS: Final = {"log files": (50, 0.2), "log kB": (4_096, 0.2), "data kB": (16_384, 0.3)}
KEPT: Final = {"log files": 6_000, "log kB": 100_000, "data kB": 300_000}
"""What brokers keep of Ray's logs, and what comes until they look again (ADR 0134); and three replicas of a
`__scheduled` of less than 64 MB, in which no space is given back. Up to that nothing grows."""
KEPT_KB: Final = {"store": 110_000, "broker": 60_000}
"""Own memory of a process that has all that it keeps of what has ended, as `make wakes` measured it (ADR 0134), and
half as much again for a control store that has tasks of workers besides: up to that it does not grow."""
COUNT_BOUND: Final = (3, 0.1)
"""Of processes of a kind."""
SHOWN_ONLY: Final = {CLIENT: ("own_kb",), "other": FIGURES}
"""Figures of a kind that are not judged: the client keeps the journal, others are none of Raylog's or Ray's."""
Samples: TypeAlias = Sequence[Sample]
LEAST: Final = 8
"""Fewer samples prove nothing."""


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of all processes of a kind that lived through the last three quarters, or of all files."""

    kind: str
    figure: str
    processes: int
    before: float
    """Sum of the medians in the second quarter."""
    after: float
    """Sum of the medians in the last quarter."""
    worst: str
    """The process that has grown most beyond its bound, or nearest to it."""
    worst_growth: float
    is_flat: bool
    is_judged: bool = True

    def __str__(self) -> str:
        """Return it as a line of the report."""
        verdict = ("flat" if self.is_flat else "GROWS") if self.is_judged else "not judged"
        worst = f"; most: {self.worst_growth:+,.0f} of {self.worst}" if self.processes > 1 else ""
        return (
            f"{self.kind:<24}{self.figure:<12}{self.processes:>4}  {self.before:>12,.0f} to {self.after:>12,.0f}  "
            f"{verdict}{worst}"
        )


def rows(samples: Samples) -> list[Row]:
    """Compare the quarters."""
    if len(samples) < LEAST:
        return []
    quarter = len(samples) // 4
    second, last = samples[quarter : 2 * quarter], samples[-quarter:]
    found = []
    stayed = set.intersection(*(set(sample.processes) for sample in (*second[:1], *second[-1:], *last[:1], *last[-1:])))
    by_kind: dict[str, list[str]] = defaultdict(list)
    for process in sorted(stayed):
        by_kind[process.split("|")[0]].append(process)
    for kind, processes in sorted(by_kind.items()):
        for figure in FIGURES:
            row = _row(kind, figure, processes, second, last)
            if row is not None:
                found.append(row)
    found += _counts(second, last)
    for name, bound in FILE_BOUNDS.items():
        before, after = (_median([sample.files[name] for sample in part]) for part in (second, last))
        is_flat = after - before <= _most(before, bound) or after <= KEPT.get(name, 0)
        found.append(Row("files", name, 1, before, after, name, after - before, is_flat))
    return found


def anomalies(found: Sequence[Row]) -> list[Anomaly]:
    """What is not flat."""
    return [Anomaly("grows", f"{row}") for row in found if row.is_judged and not row.is_flat]


def _row(kind: str, figure: str, processes: Sequence[str], second: Samples, last: Samples) -> Row | None:
    before, after, worst, beyond = 0.0, 0.0, "", float("-inf")
    growth = 0.0
    count = 0
    for process in processes:
        first_values, last_values = _series(process, figure, second), _series(process, figure, last)
        if not first_values or not last_values:
            continue
        count += 1
        was, is_now = _median(first_values), _median(last_values)
        before, after = before + was, after + is_now
        most = was + _most(was, BOUNDS[figure])
        over = is_now - (max(most, KEPT_KB.get(kind, 0)) if figure == "own_kb" else most)
        if over > beyond:
            beyond, worst, growth = over, process.split("|", 1)[1], is_now - was
    if not count:
        return None
    is_judged = figure not in SHOWN_ONLY.get(kind, ())
    return Row(kind, figure, count, before, after, worst, growth, beyond <= 0, is_judged)


def _counts(second: Samples, last: Samples) -> list[Row]:
    """How many processes of each kind there are, those that come and go among them."""
    kinds = sorted({process.split("|")[0] for sample in (*second, *last) for process in sample.processes})
    found = []
    for kind in kinds:
        before, after = (
            _median([sum(process.startswith(f"{kind}|") for process in sample.processes) for sample in part])
            for part in (second, last)
        )
        grown = after - before
        found.append(Row(kind, "processes", 1, before, after, kind, grown, grown <= _most(before, COUNT_BOUND)))
    return found


def _series(process: str, figure: str, samples: Samples) -> list[float]:
    values = (getattr(sample.processes[process], figure) for sample in samples if process in sample.processes)
    return [value for value in values if value is not None]


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


def _most(before: float, bound: tuple[float, float]) -> float:
    return max(bound[0], bound[1] * before)
