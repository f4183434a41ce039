"""The faults that matter most, once each, on a real cluster under load: nothing is lost, doubled or reordered.

Runs the command in a process of its own, with a Ray of its own; longer runs of the same code are ``make chaos``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAULTS = "kill-leader,kill-controller,pause-leader,kill-coordinator,strand-leader"
TIMEOUT_S = 300


@pytest.mark.chaos
@pytest.mark.timeout(TIMEOUT_S + 40)
def test_clients_see_nothing_wrong_while_leaders_controller_and_coordinator_die(tmp_path: Path) -> None:
    ray_folder = tempfile.mkdtemp(prefix="rlc")  # short, because Ray's socket names are limited to 107 bytes
    command = [sys.executable, "-m", "tests.chaos", "--seed", "1", "--faults", FAULTS, "--each-once"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "run")],
        cwd=ROOT,
        env=os.environ | {"RAY_TMPDIR": ray_folder},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said, _ = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)  # it takes its cluster down with it
        said, _ = process.communicate(timeout=30)
        pytest.fail(f"the run did not end within {TIMEOUT_S} s:\n{said}")
    finally:
        process.kill()
        shutil.rmtree(ray_folder, ignore_errors=True)
    assert process.returncode == 0, said
    for kind in FAULTS.split(","):
        assert f"{kind}: " in said, f"{kind} was not injected:\n{said}"
