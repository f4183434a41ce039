"""Server processes: start them, wait until they serve, end them, and read their use of resources from /proc."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import psutil

POLL_S = 0.02
STOP_TIMEOUT_S = 30.0
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LOG_FILES = ("log", "blk", "aof")
"""Suffixes of record files: those of Raylog and Kafka, of NATS, and of Redis."""


def die_with_parent() -> None:
    """Make the kernel end this process when the harness exits for any reason. Runs in the new process."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Make descendants whose parent has ended children of this process, so that `kill_children` finds them, too."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


class Unavailable(Exception):
    """A peer cannot be measured here; the message has the reason and the remedy."""


class ServerProcess:
    """One process of a server. Its output goes into a file; errors show the end of it."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._command = list(command)
        self._log = log
        self._cwd = cwd
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id; Unavailable when it does not run."""
        if self._process is None:
            raise Unavailable(f"{self.name} does not run")
        return self._process.pid

    def runs(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, in its own process group so that an interrupt reaches the harness alone."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._cwd,
                env=self._environment,
                start_new_session=True,
                preexec_fn=die_with_parent,  # only a system call
            )

    def wait_until(self, serves: Callable[[], bool], timeout_s: float) -> None:
        """Wait until it serves. Raises Unavailable with the end of its output when it ends or the time is over."""
        deadline_s = time.monotonic() + timeout_s
        while not serves():
            ended = self._process is None or self._process.poll() is not None
            if ended or time.monotonic() >= deadline_s:
                how = "ended" if ended else f"did not serve within {timeout_s:.0f} s"
                raise Unavailable(f"{self.name} {how}: {self.last_words()}")
            time.sleep(POLL_S)

    def last_words(self) -> str:
        """The last lines of its output, in one line."""
        try:
            return " / ".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:])
        except OSError:
            return "no output"

    def kill(self) -> None:
        """Kill it (SIGKILL), as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None

    def terminate(self) -> None:
        """Request its end, without waiting, so that several can end at the same time."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Request its end, and kill it after a timeout. Does nothing when it does not run."""
        with contextlib.suppress(Unavailable):
            self.stop_within(STOP_TIMEOUT_S)

    def stop_within(self, timeout_s: float) -> None:
        """As `stop`, with its own timeout; raises Unavailable when the process had to be killed."""
        if self._process is None:
            return
        self.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Unavailable(f"{self.name} did not end within {timeout_s:.0f} s and was killed") from None
        self._process = None


def line_within(process: subprocess.Popen[str], timeout_s: float) -> str:
    """The next line of a process's output, "" at its end; the process is killed after the timeout."""
    guard = threading.Timer(timeout_s, process.kill)
    guard.daemon = True
    guard.start()
    try:
        return process.stdout.readline() if process.stdout is not None else ""
    finally:
        guard.cancel()


def listens(port: int, host: str = "127.0.0.1") -> bool:
    """Whether something accepts connections at this port."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=0.5):
        return True
    return False


def free_ports(count: int) -> list[int]:
    """Ports that are free at this moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [socket.getsockname()[1] for socket in sockets]


def kill_children() -> None:
    """Kill the descendants of this process; none is left when all was stopped."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time of these processes since their start; a process that has exited counts as zero."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system
    return total


def private_bytes(pid: int) -> int:
    """Memory of this process alone (unique set size)."""
    return int(psutil.Process(pid).memory_full_info().uss)


def own_memory(name: str) -> int:
    """A figure of this process's memory, in bytes: VmRSS now, VmHWM the peak."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"/proc/self/status has no {name}")


def drop_from_page_cache(folder: Path) -> int:
    """Write a folder's log files out and drop their pages from the cache; returns their bytes."""
    os.sync()
    return forget_pages(folder)


def forget_pages(folder: Path) -> int:
    """Drop the written pages of a folder's log files from the cache; returns the files' bytes."""
    size = 0
    for path in itertools.chain.from_iterable(folder.rglob(f"*.{kind}") for kind in LOG_FILES):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # the server has removed a file
            continue
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            size += os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
    return size
