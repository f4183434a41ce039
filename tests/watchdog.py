"""Ends a test run that hangs outside Python, and names the test and the place.

pytest-timeout raises its error in the main thread's next Python instruction. A test that waits inside Ray's C++ code
never gets there, and the run would hang until it is killed by hand. Here a process of its own keeps the time. A test
that still runs `GRACE_S` after its timeout is named on stderr. All threads print where they are (pytest's own
faulthandler plugin does so on SIGABRT). All processes of the run are killed, including Ray's daemons: they carry the
run's mark in their environment.

A plugin of the tests (`tests/conftest.py`), and the program of that process. May touch: processes with the run's mark.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

MARK = "RAYLOG_TEST_RUN"
"""Environment variable that identifies the processes of one run."""
GRACE_S = float(os.environ.get("RAYLOG_TEST_GRACE_S", "60"))
"""Seconds that pytest-timeout has to end a test by itself."""
DUMP_S = 10.0
"""Seconds for all threads to print where they are."""


class Watchdog:
    """The watching process, as the run sees it."""

    def __init__(self) -> None:
        os.environ[MARK] = mark = uuid.uuid4().hex
        self._stderr = os.dup(2)  # pytest captures the descriptor 2 while tests run
        command = [sys.executable, __file__, str(os.getpid()), mark]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._stderr, bufsize=0, text=False
        )

    def expect_end_within(self, seconds: float, test: str) -> None:
        """Begin to watch a test; 0 seconds end the watch."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the watching process was killed: the tests continue without it
            self._process.stdin.write(f"{seconds} {test!r}\n".encode())

    def close(self) -> None:
        """End the watching process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)
        os.close(self._stderr)


def pytest_configure(config: pytest.Config) -> None:
    """Start watching, in each process that runs tests."""
    watchdog = Watchdog()
    config.add_cleanup(watchdog.close)
    config.stash[_KEY] = watchdog


_KEY = pytest.StashKey[Watchdog]()


def limit_of(item: pytest.Item) -> float:
    """The timeout of a test, in the order of pytest-timeout: its own, that of the command line, that of the project."""
    marker = item.get_closest_marker("timeout")
    if marker and marker.args:
        return float(marker.args[0])
    return float(item.config.getoption("timeout", None) or item.config.getini("timeout") or 0)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Watch one test with its fixtures."""
    limit_s = limit_of(item)
    watchdog = item.config.stash[_KEY]
    if limit_s:
        watchdog.expect_end_within(limit_s + GRACE_S, item.nodeid)
    try:
        return (yield)
    finally:
        watchdog.expect_end_within(0, item.nodeid)


def marked(mark: str) -> list[int]:
    """The processes with this mark in their environment, this one left out."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):  # it has ended, or belongs to another user
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found


def end_run(pytest_pid: int, mark: str, test: str) -> None:
    """Have the run print where it hangs, then kill everything with its mark."""
    print(
        f"\n\nA test did not end within its timeout and {GRACE_S:.0f} s of grace: {test}", file=sys.stderr, flush=True
    )
    with contextlib.suppress(ProcessLookupError):
        os.kill(pytest_pid, signal.SIGABRT)
    deadline = time.monotonic() + DUMP_S
    while time.monotonic() < deadline and is_running(pytest_pid):
        time.sleep(0.05)
    for pid in [pytest_pid, *marked(mark)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def is_running(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def watch(pytest_pid: int, mark: str) -> None:
    """Read which test runs and for how long, until the run has ended or a test is late."""
    deadline, test, buffer = float("inf"), "", b""
    while True:
        wait_s = None if deadline == float("inf") else max(0.0, deadline - time.monotonic())
        if not select.select([0], [], [], wait_s)[0]:
            end_run(pytest_pid, mark, test)
            return
        piece = os.read(0, 65536)
        if not piece:
            return
        *lines, buffer = (buffer + piece).split(b"\n")
        for line in lines:
            seconds, _, test = line.decode().partition(" ")
            deadline = time.monotonic() + float(seconds) if float(seconds) else float("inf")


if __name__ == "__main__":
    watch(int(sys.argv[1]), sys.argv[2])
