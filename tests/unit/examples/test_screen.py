"""The demo's own lines reach the terminal, everything else its file; a long step says that it still goes on."""

import io
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rich.console import Console

from examples.flights import screen
from tests.unit.style.sources import ROOT

PROGRAM = """
import logging, subprocess, sys
from pathlib import Path
from examples.flights.screen import own_lines_only
with own_lines_only(Path(sys.argv[1])) as console:
    subprocess.run("echo of a child; echo errors of a child >&2", shell=True, check=True)
    print("printed by a library")
    logging.warning("logged by a library")
    console.print("our line")
    if sys.argv[2] == "fail":
        raise RuntimeError("broken")
print("afterwards")
"""


def run(log: Path, how: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, str(log), how]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_only_the_consoles_lines_are_shown(tmp_path: Path) -> None:
    done = run(tmp_path / "log", "go on")
    assert (done.stdout, done.stderr, done.returncode) == ("our line\nafterwards\n", "", 0)
    assert sorted((tmp_path / "log").read_text().splitlines()) == [
        "WARNING:root:logged by a library",
        "errors of a child",
        "of a child",
        "printed by a library",
    ]


def test_an_error_is_shown(tmp_path: Path) -> None:
    done = run(tmp_path / "log", "fail")
    assert done.stdout == "our line\n"
    assert "RuntimeError: broken" in done.stderr


def test_a_long_step_says_that_it_goes_on_where_no_spinner_can_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "SIGN_OF_LIFE_S", 0.01)
    written = threading.Event()

    class Seen(io.StringIO):
        def write(self, text: str) -> int:
            if "so far" in text:
                written.set()
            return super().write(text)

    shown = Seen()
    with screen.step(Console(file=shown), "Waiting"):
        assert written.wait(30)
    assert "Waiting: 0 s so far ..." in shown.getvalue()
    assert shown.getvalue().splitlines()[-1].startswith("Waiting: ")


def test_a_terminal_shows_a_spinner_with_the_time() -> None:
    shown = io.StringIO()
    with screen.step(Console(file=shown, force_terminal=True), "Waiting"):
        pass
    assert "0:00:0" in shown.getvalue()
    assert "Waiting ..." in shown.getvalue()
