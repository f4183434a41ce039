"""Rows of two checkouts in turn, each about a second, as ratios.

Both clusters stay up; the processes of one are stopped while the other works. A machine whose speed changes by a tenth
within minutes is the same for both runs of a pair. A cluster keeps the speed of its start, where its processes and
files happen to lie, within some 4 per cent: so both are started again, in the other order.

Each checkout needs its own `.venv`; `make native` in both, or in none. Give the same one twice to see what the machine
alone does.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.options import Parser
from benchmarks.pairs.pausing import paused
from benchmarks.report.stats import percentile

WORKER = Path(__file__).parent / "worker.py"
END_S = 120.0


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a row."""

    rate: float
    """Records a second."""
    processor_s: float
    """Seconds of the machine's processors for each record."""
    took_s: float


class Checkout:
    """A worker that runs with one checkout, until the block ends."""

    def __init__(self, root: Path) -> None:
        """Start its cluster."""
        self.root = root
        python = root / ".venv/bin/python"
        if not python.exists():
            raise SystemExit(f"{root} has no .venv: run `make .venv/.installed-test` there.")
        self._process = subprocess.Popen(
            [python, WORKER], cwd=root, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __enter__(self) -> Self:
        """Nothing more."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End its cluster."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise

    def rows(self) -> list[str]:
        """Return the names of its rows, once its cluster is up."""
        return [str(name) for name in self._answer()]

    @property
    def pid(self) -> int:
        """Its process; those of its cluster are below it."""
        return self._process.pid

    def run(self, row: str) -> Run:
        """Run a row once."""
        assert self._process.stdin is not None
        print(row, file=self._process.stdin, flush=True)
        return Run(*self._answer())

    def _answer(self) -> list[Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("["):
                found: list[Any] = json.loads(line)
                return found
        raise SystemExit(f"the worker of {self.root} has ended; its output says why.")


def measured(
    before: Checkout, now: Checkout, chosen: Sequence[str], pairs: int
) -> dict[str, tuple[list[Run], list[Run]]]:
    """Run pairs of the chosen rows, of all if none is chosen; the checkouts take turns at being the first of a pair.

    Raises `SystemExit` for a row that one of them does not have.
    """
    ours = now.rows()
    known = [row for row in before.rows() if row in ours]
    unknown = sorted(set(chosen) - set(known))
    if unknown:
        raise SystemExit(f"There is no row {unknown[0]!r}; there are {', '.join(known)}.")
    runs: dict[str, tuple[list[Run], list[Run]]] = {row: ([], []) for row in chosen or known}
    for number in range(-1, pairs):  # the first warms up
        for row, (earlier, later) in runs.items():
            sides = [(before, now, earlier), (now, before, later)]
            for checkout, other, into in sides if number % 2 else reversed(sides):
                with paused(other.pid):
                    found = checkout.run(row)
                if number >= 0:
                    into.append(found)
    return runs


def started(first: Path, second: Path, chosen: Sequence[str], pairs: int) -> dict[str, tuple[list[Run], list[Run]]]:
    """Start both clusters, the first one before the second, and return what `measured` does."""
    with Checkout(first) as one, Checkout(second) as other:
        return measured(one, other, chosen, pairs)


def as_markdown(runs: Mapping[str, tuple[Sequence[Run], Sequence[Run]]]) -> str:
    """Return a line for each row: the rates, and what the second has of the first; quartiles in brackets."""
    lines = [
        "| row | rate before | now | now / before | processor time, now / before | pairs of, s |",
        "|---|---|---|---|---|---|",
    ]
    for row, (before, now) in runs.items():
        rates = [later.rate / earlier.rate for earlier, later in zip(before, now, strict=True)]
        used = [later.processor_s / earlier.processor_s for earlier, later in zip(before, now, strict=True)]
        lines.append(
            f"| {row} | {_median(before):,.0f} | {_median(now):,.0f} | {_quartiles(rates)} | {_quartiles(used)} "
            f"| {len(rates)} x {sum(run.took_s for run in before) / len(before):.1f} |"
        )
    return "\n".join(lines)


def _median(runs: Sequence[Run]) -> float:
    return percentile(sorted(run.rate for run in runs), 50)


def _quartiles(values: Sequence[float]) -> str:
    low, middle, high = (percentile(sorted(values), percent) for percent in (25, 50, 75))
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def main(given: Sequence[str]) -> int:
    """Run the pairs, and print the table."""
    parser = Parser("pairs", __doc__)
    parser.add_argument("before", type=Path, help="a checkout")
    parser.add_argument("now", type=Path, help="another one")
    parser.add_argument("--pairs", type=int, default=20, help="of each row and start (default: 20)")
    parser.add_argument("--starts", type=int, default=2, help="of both clusters, each first in turn (default: 2)")
    parser.add_argument("--only", default="", help="names of rows, parted by commas (default: all)")
    chosen = parser.parse_args(given)
    rows = chosen.only.split(",") if chosen.only else []
    before, now = chosen.before.resolve(), chosen.now.resolve()
    runs: dict[str, tuple[list[Run], list[Run]]] = {}
    for start in range(chosen.starts):
        found = started(now, before, rows, chosen.pairs) if start % 2 else started(before, now, rows, chosen.pairs)
        for row, sides in found.items():
            earlier, later = runs.setdefault(row, ([], []))
            earlier += sides[start % 2]
            later += sides[1 - start % 2]
    print(as_markdown(runs))
    return 0
