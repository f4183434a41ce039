"""The folder and the processes of a run, removed when it ends. May touch: temporary files, the run's own children."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

import raylog
from benchmarks.peers.processes import kill_children
from raylog.launch.cluster import Cluster

REAPED_WITHIN_S = 10.0


@contextlib.contextmanager
def scratch_folder(data: Path) -> Iterator[Path]:
    """A folder below `data` for servers and for Ray. At the end, and after SIGTERM, children and folder are removed."""
    folder = Path(tempfile.mkdtemp(prefix="rlb-", dir=data))
    os.environ.setdefault("RAY_TMPDIR", str(folder / "ray"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield folder
    finally:
        end_children()
        shutil.rmtree(folder, ignore_errors=True)


def end_children() -> None:
    """Kill what a peer has left, including orphans, and wait until none is there."""
    deadline_s = time.monotonic() + REAPED_WITHIN_S
    while psutil.Process().children() and time.monotonic() < deadline_s:
        kill_children()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.05)


@contextlib.contextmanager
def three_brokers(data: Path) -> Iterator[Cluster]:
    """A cluster on this machine with its own Ray, in this process, which the clients find by themselves."""
    with tempfile.TemporaryDirectory(dir=data) as folder, raylog.start(Path(folder), brokers=3) as cluster:
        yield cluster
