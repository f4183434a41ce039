"""Results of a run: every measurement of every contestant in every case, and their JSON file. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.job import Outcome
from benchmarks.report import stats

HIGHER_IS_BETTER = {
    "rate": True, "rate_mb": True, "p50_ms": False, "p99_ms": False, "p99.9_ms": False, "gap_ms": False,
    "seconds": False, "join_s": False, "private_mb": False, "client_cpu_us": False, "server_cpu_us": False,
    "cpu_us": False, "idle_cpu_ms": False, "source_ms": False, "batch_ms": False, "part_read": False,
}  # fmt: skip
RAYLOG = "raylog"
LOAD = "load average at the beginning"
REST_OF = "the rest of "
"""Prefix of an aborted scenario, in the list of what was left out."""
LOAD_AT_END = "load average at the end"
OWN_VERSION = ("raylog", "raylog: version")
"""Raylog itself may have changed between two runs: each run of its own names its version."""
OWN_RUN = "run of its own: "
"""Prefix of scenarios measured by another run than the first, in the settings."""


@dataclass(slots=True)
class Measured:
    """One contestant in one case: the outcome of each round, or the reason why it was left out."""

    scenario: str
    case: str
    contestant: str
    metric: str
    rounds: list[Outcome] = field(default_factory=list)
    left_out: str = ""

    def numbers(self, metric: str = "") -> list[float]:
        """One number of each round; by default the scenario's main metric."""
        name = metric or self.metric
        return [float(item[name]) for item in self.rounds if name in item]

    def summary(self, metric: str = "") -> stats.Summary | None:
        """Median and range; None without measurements."""
        numbers = self.numbers(metric)
        return stats.summary(numbers) if numbers else None

    def miscounts(self) -> list[str]:
        """Rounds in which the server's record count differs from the client's."""
        kind = self.case.partition(",")[0] if self.scenario == "growth" else self.scenario
        counted = {"produce": "records", "consume": "once"}.get(kind)
        return [
            f"{self.scenario}, {self.case}, {self.contestant}: {item[counted]} by the client, {item['stored']} stored"
            for item in self.rounds
            if counted is not None and {counted, "stored"} <= item.keys() and item["stored"] != item[counted]
        ]


@dataclass(slots=True)
class Results:
    """A whole run."""

    machine: dict[str, str]
    versions: dict[str, str]
    settings: dict[str, Any]
    measured: list[Measured] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def cases(self) -> Iterator[tuple[str, str, list[Measured]]]:
        """The contestants of each case, in the order in which they were measured."""
        found: dict[tuple[str, str], list[Measured]] = {}
        for row in self.measured:
            found.setdefault((row.scenario, row.case), []).append(row)
        for (scenario, case), rows in found.items():
            yield scenario, case, rows

    def find(self, scenario: str, case: str, contestant: str) -> Measured | None:
        """One contestant's measurements; None without any."""
        for row in self.measured:
            if (row.scenario, row.case, row.contestant) == (scenario, case, contestant) and row.rounds:
                return row
        return None

    @staticmethod
    def merged(runs: Sequence[Results]) -> Results:
        """Merge runs: each scenario is that of the last run that has it. ValueError for unlike machines."""
        first = runs[0]
        whole = Results(dict(first.machine), dict(first.versions), dict(first.settings))
        for run in runs:
            same_versions = all(
                run.versions.get(name, version) == version
                for name, version in whole.versions.items()
                if name not in OWN_VERSION
            )
            if _unchanging(run.machine) != _unchanging(first.machine) or not same_versions:
                raise ValueError("The runs are of different machines or versions; show each by itself.")
            whole.versions = {**run.versions, **whole.versions}
            names = {row.scenario for row in run.measured}
            whole.measured = [row for row in whole.measured if row.scenario not in names] + run.measured
            before = {what: why for what, why in whole.left_out.items() if scenario_of(what) not in names}
            whole.left_out = {**before, **run.left_out}
            if run is not first:
                pace = ", ".join(f"{name} {run.settings.get(name)}" for name in ("quick", "rounds", "seconds"))
                whole.settings[f"{OWN_RUN}{', '.join(sorted(names))}"] = (
                    f"{pace}, load average {run.machine.get(LOAD, '?')}, raylog {run.versions.get(RAYLOG, '?')}"
                )
        return whole

    def miscounts(self) -> list[str]:
        """All mismatches of record counts."""
        return [line for row in self.measured for line in row.miscounts()]

    def write(self, path: Path) -> None:
        """Write the file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def read(path: Path) -> Results:
        """Read the file."""
        raw = json.loads(path.read_text(encoding="utf-8"))
        raw["measured"] = [Measured(**row) for row in raw["measured"]]
        return Results(**raw)


def scenario_of(what: str) -> str:
    """The scenario of an entry that was left out, or the entry's own name."""
    return what.removeprefix("scenario ").removeprefix(REST_OF)


def _unchanging(machine: dict[str, str]) -> dict[str, str]:
    """Settings that are the same in every run on a machine."""
    return {name: value for name, value in machine.items() if name not in (LOAD, LOAD_AT_END)}


def ratio_to(ours: Measured | None, theirs: Measured | None, metric: str = "") -> float | None:
    """Ratio of our median to theirs, above 1 = better; None when one of the two is missing."""
    if ours is None or theirs is None:
        return None
    name = metric or ours.metric
    mine, other = ours.summary(name), theirs.summary(name)
    if mine is None or other is None:
        return None
    return stats.ratio(mine.median, other.median, higher_is_better=HIGHER_IS_BETTER[name])
