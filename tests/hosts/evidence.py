"""Evidence for a failed story: the autoscaler's log, and the last output of each host's processes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tests.hosts.lab import Lab

TAIL: Final = 40
WORKER_TAIL: Final = 25
COMPLAINT: Final = re.compile(r"\[.{20,40} [EW] ")
NOISE: Final = re.compile(
    r"syslogin_perform_logout|kex_exchange_identification|Connection reset by 10\.|Server listening|VVINFO|known hosts"
    r"|^:(job_id|actor_name|task_name):|negative used memory|Shared connection to"
)
"""Lines that carry no information, in success or failure."""


def show(lab: Lab) -> None:
    """Print the logs of all hosts and all of their boots."""
    for host in lab.hosts.values():
        for boot, folder in enumerate(host.logs, start=1):
            title = f"{host.name}, boot {boot}"
            for session in sorted(path for path in folder.glob("session_*") if not path.is_symlink()):
                _show_session(title, session / "logs")
            if boot == host.boots and host.runs:
                _show_text(f"{title}: processes", host.processes(), TAIL)
            _show(f"{title}: sshd", folder.parents[1] / "sshd.log", WORKER_TAIL)


def _show_session(title: str, logs: Path) -> None:
    for name in ("monitor.log", "monitor.err", "monitor.out", "gcs_server.err", "raylet.err"):
        _show(f"{title}: {name}", logs / name, TAIL)
    complaints = [row for row in _read(logs / "raylet.out").splitlines() if COMPLAINT.match(row)]
    _show_text(f"{title}: raylet.out, warnings and errors", "\n".join(complaints), TAIL)
    for path in sorted(logs.glob("worker-*.err")) + sorted(logs.glob("worker-*.out")):
        _show(f"{title}: {path.name}", path, WORKER_TAIL)


def _show(title: str, path: Path, lines: int) -> None:
    _show_text(title, _read(path), lines)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _show_text(title: str, text: str, lines: int) -> None:
    rows = [row for row in text.strip().splitlines() if not NOISE.search(row)]
    if rows:
        print(f"\n--- {title} ---\n" + "\n".join(rows[-lines:]), flush=True)
