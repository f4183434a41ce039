"""`ray up` with the shipped `cluster.yaml`: a laptop, a head and two workers are namespaces of this machine."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.chaos.injuries.namespace import end_with_parent
from tests.hosts.environment import build_wheel
from tests.hosts.lab import enter_command, require_namespaces
from tests.hosts.programs import LeftOut, tree_of_programs
from tests.unit.style.sources import ROOT

STORY_TIMEOUT_S: Final = 840.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def programs() -> str:
    """The folder with this machine's missing programs, empty when none is missing."""
    if Path(sys.prefix).is_relative_to("/tmp"):
        pytest.skip("each host has a /tmp of its own, which hides this environment: clone Raylog to another folder")
    try:
        require_namespaces()
        tree = tree_of_programs(ROOT / "build" / "host-programs")
    except LeftOut as reason:
        pytest.skip(str(reason))
    return str(tree or "")


def test_a_cluster_on_hosts_reached_by_ssh(programs: str, tmp_path: Path) -> None:
    """One command starts three brokers; they outlive the loss of a host, `ray down` and `ray up` on the same disks."""
    build_wheel(tmp_path)
    story = [sys.executable, "-m", "tests.hosts.story", str(tmp_path), programs]
    process = subprocess.Popen(
        enter_command(story),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=end_with_parent,  # with it ends the first process of the lab, and then all others
    )
    try:
        output, _ = process.communicate(timeout=STORY_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        output, _ = process.communicate()
        raise AssertionError(f"the story did not end within {STORY_TIMEOUT_S:.0f} s:\n{output}") from None
    if process.returncode != 0:
        pytest.fail(output, pytrace=False)
    print(output)
