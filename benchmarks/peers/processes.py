"""Server processes: start them, wait until they serve, end them, and read from /proc what they have used."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import psutil

POLL_S = 0.02
STOP_TIMEOUT_S = 30.0
PR_SET_PDEATHSIG = 1
LOG_FILES = ("log", "blk", "aof")
"""How the names of files with records end: those of Raylog, Kafka and the prototype, of NATS, and of Redis."""


def die_with_parent() -> None:
    """Have the kernel end this process when the harness is gone, however that happens. Runs in the new process."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Unavailable(Exception):
    """A peer cannot be measured here; the message says why, and how it could be."""


class ServerProcess:
    """One process of a server. Its output goes into a file, of which an error shows the end."""

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
        """Start it, in a process group of its own so that an interrupt reaches the harness alone."""
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
                preexec_fn=die_with_parent,  # nothing but a system call
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
        """End it as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None

    def ask_to_end(self) -> None:
        """Ask it to end, without waiting, so that several can end at the same time."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Ask it to end, and end it when it does not. Does nothing when it does not run."""
        if self._process is None:
            return
        self.ask_to_end()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_TIMEOUT_S)
        self._process = None


def listens(port: int, host: str = "127.0.0.1") -> bool:
    """Whether something accepts connections at this port."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=0.5):
        return True
    return False


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses at this moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [socket.getsockname()[1] for socket in sockets]


def kill_children() -> None:
    """Kill what this process has started and what that has started in turn; nothing is left when all was stopped."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU time that these processes have used since they started; one that is gone counts nothing."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system
    return total


def private_bytes(pid: int) -> int:
    """Memory that belongs to this process alone (unique set size)."""
    return int(psutil.Process(pid).memory_full_info().uss)


def drop_from_page_cache(folder: Path) -> int:
    """Write a folder's log files out and have the kernel forget their pages; returns their bytes."""
    os.sync()
    return forget_pages(folder)


def forget_pages(folder: Path) -> int:
    """Have the kernel forget the pages of a folder's log files that are written out; returns the files' bytes."""
    size = 0
    for path in itertools.chain.from_iterable(folder.rglob(f"*.{kind}") for kind in LOG_FILES):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # a server removes files of its own accord
            continue
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            size += os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
    return size
