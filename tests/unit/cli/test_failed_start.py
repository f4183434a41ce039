"""A Ray whose start fails is ended, by force if need be, and the error says why the start failed."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from raylog.base.errors import StartFailed
from raylog.cli import ray_node
from tests.waiting import wait_for

STUBBORN = """
    import os, signal, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = os.fork()
    if child:
        print("child", child, "of", os.getpid(), flush=True)
    time.sleep(300)
"""


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_ray_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program in place of Ray's names no address, and takes no SIGTERM."""
    program = tmp_path / "python"
    program.write_text(f"#!{sys.executable}\n{textwrap.dedent(STUBBORN)}")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(ray_node, "START_TIMEOUT_S", 1.5)
    monkeypatch.setattr(ray_node, "STOP_TIMEOUT_S", 0.2)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(StartFailed, match="Ray did not start within"):
        ray_node.start_node(tmp_path)
    words = (tmp_path / ray_node.LOG_FILE).read_text().split()
    assert words[0] == "child"
    wait_for(lambda: not lives(int(words[1])) and not lives(int(words[3])), "both processes have ended")
    assert not (tmp_path / ray_node.STATE_FILE).exists()


def test_a_node_that_has_ended_already_is_no_error() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    ray_node.end_started(process, ray_node.STOP_TIMEOUT_S)
    assert process.returncode is not None
