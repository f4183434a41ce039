"""How Raylog starts a Ray: with settings for many short-lived workers, and with workers that are forked.

A fork is about ten times cheaper than importing Ray in each worker.

Used by ``raylog.start`` and by the command ``python -m raylog.fork_workers``. Linux only. Workers are not forked where
``RAYLOG_FORK_WORKERS=0``, or where anything that forking needs is missing.

Ray starts each worker as ``sys.executable default_worker.py ...``. While Ray is being started here, ``sys.executable``
is a launcher script (``actors/processes/fork_launcher.py``). It gets the worker from the fork server
(``actors/processes/fork_server.py``). For any other command, and when the server does not reply, it runs plain Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

SWITCH: Final = "RAYLOG_FORK_WORKERS"
LONGEST_FIRST_LINE: Final = 120
"""Longest first line (#!) of a script, in bytes; older kernels cut it off at 127."""
END_TIMEOUT_S: Final = 5.0
OWN_RAY: Final = {
    # Statistics of Ray's own events: not used here, and a sixth of the cost of an idle replica's process.
    "RAY_event_stats": "0",
    # Ray's processes ping each other at this interval, and each ping wakes a replica that dozes.
    "RAY_grpc_keepalive_time_ms": "120000",
    # Each replica that wakes is a new process. Without these settings each would leave 103 kB in Ray's metrics agent,
    # and some 21 kB in Ray's control store, which by default remembers 100,000 ended actors, workers and tasks.
    "RAY_enable_metrics_collection": "0",
    "RAY_maximum_gcs_destroyed_actor_cached_count": "1000",
    "RAY_maximum_gcs_dead_worker_cached_count": "1000",
    "RAY_task_events_max_num_task_in_gcs": "10000",
    "RAY_task_events_max_dropped_task_attempts_tracked_per_job_in_gcs": "10000",
    # It also leaves five log files. Brokers remove those of processes that ended a day ago, and those above these
    # limits (actors/broker/worker_logs.py).
    "RAYLOG_WORKER_LOGS_S": "86400",
    "RAYLOG_WORKER_LOGS_FILES": "5000",
    "RAYLOG_WORKER_LOGS_BYTES": "100000000",
}
"""Environment variables of a Ray that Raylog starts; those that are set already stay."""
LEVEL: Final = "RAY_BACKEND_LOG_LEVEL"
"""Level from which on Ray's own processes log, into files without a limit. By default each wake logs some 30 lines,
6 kB."""

_SERVE: Final = (
    "import sys; sys.path[:] = filter(None, sys.path); from raylog.actors.processes.fork_server import main; main()"
)
_servers: list[tuple[subprocess.Popen[bytes], Path]] = []
"""Servers that this process has started and not yet waited for, each with its folder."""


def can_fork() -> bool:
    """Whether workers can be forked here, and forking is not switched off."""
    if os.environ.get(SWITCH, "1") == "0" or not sys.platform.startswith("linux"):
        return False
    # With these flags set, a worker would need them as well, and the launcher does not pass flags on.
    return hasattr(os, "pidfd_open") and not (sys.flags.no_site or sys.flags.no_user_site or sys.flags.isolated)


def write_launcher(folder: Path) -> Path | None:
    """Write the launcher for this Python into a folder; None when it could not be executed there."""
    from raylog.actors.processes import fork_launcher

    first_line = f"#!{sys.executable} -IS\n"
    if len(os.fsencode(first_line)) > LONGEST_FIRST_LINE or len(first_line.split()) != 2:
        return None
    (folder / "python").write_text(sys.executable, encoding="utf-8")
    launcher = folder / "launcher"
    source = Path(fork_launcher.__file__).read_text(encoding="utf-8")
    launcher.write_text(first_line + source, encoding="utf-8")
    launcher.chmod(0o700)
    return launcher if os.access(launcher, os.X_OK) else None  # a disk may be mounted with noexec


@contextmanager
def forked_workers() -> Iterator[None]:
    """A Ray that the block starts has the settings of :data:`OWN_RAY`, and forks its workers if that is possible."""
    for name, value in OWN_RAY.items():
        os.environ.setdefault(name, value)
    launcher = _start_server() if can_fork() else None
    if launcher is None:
        with _warnings_only():
            yield
        return
    python = sys.executable
    sys.executable = str(launcher)
    try:
        with _warnings_only():
            yield
    except Exception:  # any error: Ray has not started
        _servers[-1][0].kill()
        wait_for_ended()
        raise
    finally:
        sys.executable = python


@contextmanager
def _warnings_only() -> Iterator[None]:
    """Ray's processes that the block starts log nothing below warnings, unless a level is set already.

    They get a copy of ``os.environ``, which has the variable. The C library's environment does not have it: Ray's code
    in this process reads that one, and would print to the user's terminal that the variable is set.
    """
    if LEVEL in os.environ:
        yield
        return
    os.environ[LEVEL] = "warning"
    os.unsetenv(LEVEL)
    try:
        yield
    finally:
        os.environ.pop(LEVEL, None)


def _start_server() -> Path | None:
    """Start a fork server and return the launcher that calls it; None when that failed."""
    try:
        # The folder of Ray's session does not exist yet. Other users cannot enter a folder that mkdtemp makes.
        parent = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir())
        parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="raylog-", dir=parent))
    except OSError:  # no space or no permission: then Ray reports the error
        return None
    try:
        launcher = write_launcher(folder)
        if launcher is not None:
            with (folder / "log").open("wb") as log:
                command = [sys.executable, "-c", _SERVE, str(folder)]
                server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
            _servers.append((server, folder))
            return launcher
    except OSError:  # as above
        pass
    shutil.rmtree(folder, ignore_errors=True)
    return None


def wait_for_ended(timeout_s: float = END_TIMEOUT_S) -> None:
    """Wait for the fork server of every Ray that this process has shut down; they end by themselves."""
    for server, folder in list(_servers):
        try:
            server.wait(timeout_s)
        except subprocess.TimeoutExpired:
            continue  # its Ray still runs, because another process has joined it
        _servers.remove((server, folder))
        shutil.rmtree(folder, ignore_errors=True)  # a server that was killed has left its folder
