"""`python -m benchmarks.pairs BEFORE NOW`: rows of two checkouts in turn, each about a second, as ratios.

Both clusters stay up; the processes of one are stopped while the other works. A machine whose speed changes by a tenth
within minutes is the same for both runs of a pair.

Each checkout needs its own `.venv`; `make native` in both, or in none. Give the same one twice to see what the machine
alone does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.pairs.pausing import paused
from benchmarks.pairs.table import Run, as_markdown

WORKER = Path(__file__).parent / "worker.py"
END_S = 120.0


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


def main(given: Sequence[str] | None = None) -> int:
    """Run the pairs, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pairs", description=__doc__)
    parser.add_argument("before", type=Path, help="a checkout")
    parser.add_argument("now", type=Path, help="another one")
    parser.add_argument("--pairs", type=int, default=20, help="of each row (default: 20)")
    parser.add_argument("--only", default="", help="names of rows, parted by commas (default: all)")
    chosen = parser.parse_args(given)
    with Checkout(chosen.before.resolve()) as before, Checkout(chosen.now.resolve()) as now:
        ours = now.rows()
        known = [row for row in before.rows() if row in ours]
        rows = chosen.only.split(",") if chosen.only else known
        unknown = sorted(set(rows) - set(known))
        if unknown:
            raise SystemExit(f"There is no row {unknown[0]!r}; there are {', '.join(known)}.")
        runs: dict[str, tuple[list[Run], list[Run]]] = {row: ([], []) for row in rows}
        for number in range(-1, chosen.pairs):  # the first warms up
            for row in rows:
                sides = [(before, now, runs[row][0]), (now, before, runs[row][1])]
                for checkout, other, into in sides if number % 2 else reversed(sides):
                    with paused(other.pid):
                        found = checkout.run(row)
                    if number >= 0:
                        into.append(found)
    print(as_markdown(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
