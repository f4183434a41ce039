"""The most important faults, once each, on real clusters under load: nothing is lost, doubled or reordered.

Runs the command in a process of its own, with a Ray of its own; longer runs of the same code are ``make chaos``.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 300


def injure(part: str, faults: str, folder: Path, *options: str) -> dict[str, Any]:
    """Inject each of the faults once; returns the report. ``options``: others than the usual rate."""
    ray_folder = tempfile.mkdtemp(prefix="rlc")  # short, because Ray's socket names are limited to 107 bytes
    command = [sys.executable, "-m", "tests.chaos", "--seed", "1", "--only", part, "--faults", faults, "--each-once"]
    report = folder / "report.json"
    process = subprocess.Popen(
        [*command, *(options or ("--rate", "200")), "--out", str(folder / "run"), "--json", str(report)],
        cwd=ROOT,
        env=os.environ | {"RAY_TMPDIR": ray_folder},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)  # it ends its cluster, too
        output, _ = process.communicate(timeout=30)
        pytest.fail(f"the run did not end within {TIMEOUT_S} s:\n{output}")
    finally:
        process.kill()
        shutil.rmtree(ray_folder, ignore_errors=True)
    assert process.returncode == 0, output
    found: dict[str, Any] = json.loads(report.read_text())
    if "left_out" not in found:
        assert found["verdict"] == "PASSED"
        assert sorted(found["faults"]) == sorted(faults.split(",")), output
    return found


@pytest.mark.chaos
@pytest.mark.timeout(TIMEOUT_S + 40)
def test_histories_are_sound_while_leader_controller_and_coordinator_die(tmp_path: Path) -> None:
    injure("processes", "kill-leader,kill-controller,kill-coordinator", tmp_path)


@pytest.mark.chaos
@pytest.mark.timeout(TIMEOUT_S + 40)
def test_every_feature_keeps_its_claims_while_processes_die(tmp_path: Path) -> None:
    faults = "kill-controller,kill-queue-replica,kill-schedule-replica"
    found = injure("everything", faults, tmp_path, "--rate", "40", "--partitions", "1")
    assert not [claim for claim in found["claims"] if "kept" not in claim]
