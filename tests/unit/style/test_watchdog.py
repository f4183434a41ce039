"""A run that hangs outside Python is ended from outside, says where, and leaves no process behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.style.sources import ROOT
from tests.watchdog import MARK, is_running

HANGS = """
import ctypes, os, subprocess, sys
import pytest

@pytest.mark.timeout(1)
def test_that_waits_in_c():
    daemon = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    open(os.environ["DAEMON"], "w").write(str(daemon.pid))
    library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)  # a call keeps the interpreter's lock
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)
"""


def run(
    folder: Path, source: str, *options: str, timeout_s: int = 60, **environ: str
) -> subprocess.CompletedProcess[str]:
    (folder / "test_inner.py").write_text(source)
    (folder / "pytest.ini").write_text(f"[pytest]\ntimeout = {timeout_s}\n")
    outer = {name: value for name, value in os.environ.items() if name != MARK and not name.startswith("PYTEST")}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.watchdog",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
    ]
    return subprocess.run(
        [*command, *options, "--rootdir", str(folder), "-c", str(folder / "pytest.ini"), str(folder / "test_inner.py")],
        cwd=ROOT,
        env={**outer, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_test_that_hangs_in_c_is_named_and_its_processes_are_killed(tmp_path: Path) -> None:
    note = tmp_path / "daemon"
    ended = run(tmp_path, HANGS, DAEMON=str(note), RAYLOG_TEST_GRACE_S="1")
    assert ended.returncode == -signal.SIGABRT, ended.stdout + ended.stderr
    assert "test_inner.py::test_that_waits_in_c" in ended.stderr
    assert 'test_inner.py", line 11 in test_that_waits_in_c' in ended.stderr
    assert not is_running(int(note.read_text()))


@pytest.mark.parametrize("body", ["pass", "import time; time.sleep(60)"])
def test_a_test_that_ends_or_times_out_is_left_to_pytest(tmp_path: Path, body: str) -> None:
    source = f"import pytest\n\n@pytest.mark.timeout(1)\ndef test_one():\n    {body}\n\ndef test_two():\n    pass\n"
    ended = run(tmp_path, source, RAYLOG_TEST_GRACE_S="30")
    assert ended.returncode == (0 if body == "pass" else 1), ended.stdout + ended.stderr
    assert ("2 passed" if body == "pass" else "1 failed, 1 passed") in ended.stdout


def test_a_longer_timeout_of_the_command_line_counts(tmp_path: Path) -> None:
    source = "def test_one():\n    import time\n    time.sleep(2.5)\n"
    ended = run(tmp_path, source, "--timeout", "30", timeout_s=1, RAYLOG_TEST_GRACE_S="0.5")
    assert ended.returncode == 0, ended.stdout + ended.stderr
