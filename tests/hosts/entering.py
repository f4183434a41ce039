"""Runs a story in namespaces of its own, from a test or a command. May touch: processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.chaos.injuries.namespace import end_with_parent
from tests.hosts.lab import enter_command, require_namespaces
from tests.hosts.programs import LeftOut, tree_of_programs
from tests.unit.style.sources import ROOT


def programs_of_hosts() -> str:
    """The folder with this machine's missing programs, empty when none is missing. Raises :class:`LeftOut`."""
    if Path(sys.prefix).is_relative_to("/tmp"):
        raise LeftOut("each host has a /tmp of its own, which hides this environment: clone Raylog to another folder")
    require_namespaces()
    return str(tree_of_programs(ROOT / "build" / "host-programs") or "")


def play(story: str, folder: Path, programs: str, timeout_s: float) -> str:
    """Run the module ``story`` to its end; returns what it printed. Raises AssertionError with that when it fails."""
    process = subprocess.Popen(
        enter_command([sys.executable, "-m", story, str(folder), programs]),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=end_with_parent,  # with it ends the first process of the lab, and then all others
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        output, _ = process.communicate()
        raise AssertionError(f"the story did not end within {timeout_s:.0f} s:\n{output}") from None
    if process.returncode != 0:
        raise AssertionError(output)
    return output
