"""What became of a goal, which compares two measurements of one run, or one with a number. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.report.results import Measured, Results, ratio_to

NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal and its result; `reached` is None when one of the two sides is missing."""

    goal: str
    found: str
    reached: bool | None


def row_of(results: Results, scenario: str, contestant: str, *parts: str, without: str = "") -> Measured | None:
    """The first measured case of a scenario that has all parts in its name, and not `without`."""
    for row in results.measured:
        wants = all(part in row.case for part in parts) and not (without and without in row.case)
        if row.scenario == scenario and row.contestant == contestant and row.rounds and wants:
            return row
    return None


def median_of(row: Measured | None, metric: str = "") -> float | None:
    """The median of a row; None without a measurement."""
    summary = row.summary(metric) if row is not None else None
    return None if summary is None else summary.median


def times(goal: str, ours: Measured | None, theirs: Measured | None, least: float, metric: str = "") -> Verdict:
    """At least so many times as good as the other one."""
    found = ratio_to(ours, theirs, metric)
    return Verdict(goal, NOT_MEASURED, None) if found is None else Verdict(goal, f"{found:.2f} x", found >= least)


def below(goal: str, found: float | None, most: float, form: str) -> Verdict:
    """Below a number; `form` shows what was found."""
    return Verdict(goal, NOT_MEASURED, None) if found is None else Verdict(goal, form.format(found), found < most)


def at_least(goal: str, found: float | None, least: float, form: str) -> Verdict:
    """At least a number; `form` shows what was found."""
    return Verdict(goal, NOT_MEASURED, None) if found is None else Verdict(goal, form.format(found), found >= least)
