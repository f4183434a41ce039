"""Upper bounds of this machine: copying memory, and writing files."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.bench import Bench, Contestant
from benchmarks.job import Outcome

MB = 10**6
BLOCK = 1 << 20


def limits(bench: Bench) -> None:
    """Each in megabytes a second."""
    seconds = 0.5 if bench.pace.quick else 3.0
    with tempfile.TemporaryDirectory(prefix="raylog-limits-", dir=bench.scratch) as name:
        folder = Path(name)
        ways: dict[str, Callable[[], Outcome]] = {
            "memory copy": lambda: _memory(seconds),
            "sequential write, page cache": lambda: _write(folder, seconds, sync=False),
            "sequential write, fdatasync each MiB": lambda: _write(folder, seconds, sync=True),
        }
        contestants = [Contestant(way, "", "") for way in ways]
        rounds = bench.pace.slow_rounds
        bench.rounds(
            "limits", "this machine", contestants, lambda item: ways[item.name](), metric="rate_mb", count=rounds
        )


def _rate(size: int, began_s: float) -> Outcome:
    seconds = time.monotonic() - began_s
    return {"bytes": size, "seconds": seconds, "rate": size / seconds}


def _memory(seconds: float) -> Outcome:
    """Copy between two buffers that fit into no cache; one copied byte counts once."""
    source, target = bytearray(256 * BLOCK), bytearray(256 * BLOCK)
    view, onto = memoryview(source), memoryview(target)
    onto[:] = view
    size = 0
    began_s = time.monotonic()
    while time.monotonic() - began_s < seconds:
        onto[:] = view
        size += len(source)
    return _rate(size, began_s)


def _write(folder: Path, seconds: float, *, sync: bool) -> Outcome:
    block = os.urandom(BLOCK)
    path = folder / "written"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    size = 0
    try:
        began_s = time.monotonic()
        while time.monotonic() - began_s < seconds:
            size += os.write(descriptor, block)
            if sync:
                os.fdatasync(descriptor)
        return _rate(size, began_s)
    finally:
        os.close(descriptor)
        path.unlink()
