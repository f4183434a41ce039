"""Pairs of two checkouts: what the table says, and what is refused."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.pairs.compare import Run, as_markdown, main
from benchmarks.pairs.pausing import descendants, paused
from tests.waiting import wait_for


def test_a_row_has_the_median_of_the_ratios_with_quartiles() -> None:
    before = [Run(100.0, 2.0, 1.0), Run(200.0, 2.0, 1.0), Run(400.0, 2.0, 2.0)]
    now = [Run(50.0, 1.0, 1.0), Run(200.0, 2.0, 1.0), Run(800.0, 3.0, 2.0)]
    line = as_markdown({"consume": (before, now)}).splitlines()[-1]
    assert line == "| consume | 200 | 200 | 1.000 (0.500 to 2.000) | 1.000 (0.500 to 1.500) | 3 x 1.3 |"


def test_a_machine_that_is_slower_for_both_of_a_pair_changes_no_ratio() -> None:
    before = [Run(rate, 1.0, 1.0) for rate in (100.0, 50.0, 25.0)]
    now = [Run(0.9 * run.rate, 1.0, 1.0) for run in before]
    assert "0.900 (0.900 to 0.900)" in as_markdown({"consume": (before, now)})


def test_a_folder_without_an_environment_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="make"):
        main([str(tmp_path), str(tmp_path)])


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_checkout_is_stopped_with_all_below_it_while_the_other_works() -> None:
    parent = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            assert descendants(process.pid) == [process.pid, child]
            with paused(process.pid):
                wait_for(lambda: {state(process.pid), state(child)} == {"T"}, "both are stopped")
            wait_for(lambda: "T" not in {state(process.pid), state(child)}, "both go on")
        finally:
            subprocess.run(["kill", str(child)], check=True)
            process.kill()
