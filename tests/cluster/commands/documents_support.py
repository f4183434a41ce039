"""Runs commands as a reader of the documents would, in a Ray of their own, isolated from others on the machine.

Used by the tests of the README and of the examples.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from raylog.cli.ray_node import STATE_FILE, recorded, stop_node
from tests.unit.style.sources import ROOT

LEFT_OUT = (
    "RAY_ADDRESS",
    "RAYLOG_BOOTSTRAP",
    "RAYLOG_SECRET",
    "RAYLOG_SECRET_FILE",
    "RAYLOG_DATA_DIR",
    "PYTHONWARNINGS",
)
"""Variables that would direct a command to another cluster, or make it stricter than a reader's."""


@dataclass(frozen=True, slots=True)
class Reader:
    """An empty folder to work in, and an environment whose Ray is invisible to other processes."""

    folder: Path
    environment: Mapping[str, str]

    def run(self, *command: str, stdin: str = "", timeout_s: float = 120.0) -> str:
        """Run a command; returns what it printed. AssertionError with all its output when it fails or hangs."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as complaints:
            # Files instead of pipes: `raylog start` leaves a Ray behind that would keep a pipe open.
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=dict(self.environment),
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=complaints,
                text=True,
                start_new_session=True,
            )
            try:
                process.communicate(stdin, timeout=timeout_s)
                problem = "" if process.returncode == 0 else f"ended with {process.returncode}"
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                problem = f"did not end within {timeout_s:.0f} s"
            out.seek(0)
            complaints.seek(0)
            printed = out.read()
            assert not problem, f"{command} {problem}:\n{stdin}\n--- stdout\n{printed}\n--- stderr\n{complaints.read()}"
        return printed

    def python(self, *arguments: str, stdin: str = "", timeout_s: float = 120.0) -> str:
        """Run this interpreter."""
        return self.run(sys.executable, *arguments, stdin=stdin, timeout_s=timeout_s)


@contextmanager
def reader() -> Iterator[Reader]:
    """A reader; a Ray left at the end is ended by its recorded process id."""
    # Short, because the path of a Unix socket may have 107 bytes and Ray puts long names below it.
    place = Path(tempfile.mkdtemp(prefix="rldoc"))
    folder = place / "work"
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    # As after `pip install` and `source .venv/bin/activate`: `raylog` and `python` are those of this environment.
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', os.defpath)}"
    environment["RAY_TMPDIR"] = str(place)
    one = Reader(folder, environment)
    try:
        yield one
    finally:
        try:
            _end_ray(one)
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _end_ray(user: Reader) -> None:
    """End what `raylog start` has left running below the reader's folder; its record has the process id."""
    for record in user.folder.rglob(STATE_FILE):
        if recorded(record.parent) is None:
            continue
        try:
            user.run("raylog", "stop", "--data-dir", str(record.parent))
        except AssertionError:  # no cluster to stop, or it is broken: end at least its Ray
            own = recorded(record.parent)
            if own is not None:
                stop_node(own, record.parent)


def example(name: str) -> str:
    """The path of an example."""
    return str(ROOT / "examples" / name)
