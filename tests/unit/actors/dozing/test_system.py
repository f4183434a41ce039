"""Dozing on a real system: a child process that rests, the broker's port that stops it, and the keeper."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from raylog.actors.broker.dozers import Dozers
from raylog.actors.dozing import keeper
from raylog.actors.dozing.guard import Guard
from raylog.actors.dozing.processes import CAN_STOP, SystemProcesses
from tests.waiting import eventually, wait_for

pytestmark = [pytest.mark.skipif(not CAN_STOP, reason="the system has no descriptors for processes")]

CHILD = textwrap.dedent("""
    import asyncio, socket, sys
    from contextlib import suppress
    from pathlib import Path
    from raylog.actors.clock import monotonic_ms
    from raylog.actors.dozing.resting import DozeLink
    from raylog.actors.replica.dozing import Doze

    async def main():
        link = DozeLink(Path(sys.argv[1]), "child")
        here = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
        while True:
            doze = Doze(until_ms=monotonic_ms() + 60_000, life=-1, report=lambda: {"status": {"role": "leader"}},
                        holds=lambda: True, check_ms=100)
            if await link.rest(doze):
                with suppress(BlockingIOError):  # the broker has continued it, without a byte
                    if not here.recv(100, socket.MSG_DONTWAIT):
                        return
                    here.sendall(b"awake")
            else:
                await asyncio.sleep(0.01)

    asyncio.run(main())
""")


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


class Child:
    """A process that rests whenever it may, and its peer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.arrived = asyncio.Event()
        self.writer: asyncio.StreamWriter
        self.reader: asyncio.StreamReader

    async def start(self) -> None:
        connected = asyncio.Event()

        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.reader, self.writer = reader, writer
            connected.set()

        self._server = await asyncio.start_server(accepted, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.process = self._made(port)
        async with asyncio.timeout(60):
            await connected.wait()

    def _made(self, port: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", CHILD, str(self._folder), str(port)])

    async def dozes(self) -> None:
        await eventually(lambda: state(self.process.pid) == "T", 30, "the child is stopped")

    async def called(self) -> bytes:
        """Send it a byte; returns what it answers."""
        self.writer.write(b".")
        async with asyncio.timeout(30):
            return await self.reader.read(100)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(30)
        self._server.close()
        self.writer.close()


def played(folder: Path, play: Callable[[Child, Dozers], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        dozers, child = Dozers(SystemProcesses(folder)), Child(folder)
        await dozers.start()
        try:
            await child.start()
            try:
                await play(child, dozers)
            finally:
                child.end()
        finally:
            await dozers.stop()

    asyncio.run(run())


def test_a_process_at_rest_is_stopped_and_continued_by_its_socket(tmp_path: Path) -> None:
    async def play(child: Child, dozers: Dozers) -> None:
        for _ in range(3):
            await child.dozes()
            await eventually(lambda: "child" in dozers.dozing(), 30)
            assert b"awake" in await child.called()

    played(tmp_path, play)


def test_a_process_that_is_killed_while_it_dozes_is_forgotten(tmp_path: Path) -> None:
    async def play(child: Child, dozers: Dozers) -> None:
        await child.dozes()
        child.process.kill()
        await eventually(lambda: not dozers.dozing(), 30)

    played(tmp_path, play)


def test_a_broker_that_stops_leaves_no_process_stopped(tmp_path: Path) -> None:
    async def play(child: Child, dozers: Dozers) -> None:
        await child.dozes()
        await dozers.stop()
        await eventually(lambda: state(child.process.pid) != "T", 30)

    played(tmp_path, play)


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])


def test_the_keeper_continues_what_is_noted_when_its_broker_is_silent(tmp_path: Path) -> None:
    process = sleeper()

    async def run() -> None:
        guard = Guard(tmp_path)
        paused: list[bool] = []
        guard.silent_ms = 200
        await guard.start(lambda: paused.append(True))
        try:
            guard.note(process.pid)
            await asyncio.sleep(0)
            os.kill(process.pid, signal.SIGSTOP)
            wait_for(lambda: state(process.pid) == "T", "it is stopped", 30)
            # The event loop stands still, as that of a broker which hangs.
            wait_for(lambda: state(process.pid) != "T", "the keeper has continued it", 30)
            await eventually(lambda: bool(paused), 30, "the broker notices that it hung")
        finally:
            await guard.stop()

    try:
        asyncio.run(run())
    finally:
        process.kill()
        process.wait(30)


def test_a_broker_that_starts_continues_what_an_earlier_life_has_left(tmp_path: Path) -> None:
    process = sleeper()
    try:
        (tmp_path / keeper.NOTE).write_text(f"{process.pid} {keeper.started_at(process.pid)}\n1 0\ncut")
        os.kill(process.pid, signal.SIGSTOP)
        wait_for(lambda: state(process.pid) == "T", "it is stopped")
        assert keeper.continue_noted(tmp_path) == [process.pid]
        wait_for(lambda: state(process.pid) != "T", "it runs")
    finally:
        process.kill()
        process.wait(30)


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Have files take no more than so many bytes, as a disk that fills up: what no longer fits is cut off."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_line_that_a_full_disk_cuts_off_spoils_no_later_one(tmp_path: Path) -> None:
    processes = [sleeper(), sleeper()]
    pids = [process.pid for process in processes]

    async def run() -> None:
        guard, note = Guard(tmp_path), tmp_path / keeper.NOTE
        await guard.start(lambda: None)
        try:
            guard.note(pids[0])
            size = note.stat().st_size + 3
            for _ in range(2):
                with room_for(size), pytest.raises(OSError, match="too large"):
                    guard.note(pids[1])
            guard.note(pids[1])
            assert keeper.continue_noted(tmp_path) == pids
        finally:
            await guard.stop()

    try:
        asyncio.run(run())
    finally:
        for process in processes:
            process.kill()
            process.wait(30)


def test_a_keeper_that_does_not_start_is_started_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a disk that is full when the broker starts."""
    monkeypatch.setattr("raylog.actors.dozing.guard.RESTART_S", 0.02)
    process = sleeper()

    async def run() -> None:
        guard, note = Guard(tmp_path), tmp_path / keeper.NOTE
        note.mkdir()
        await guard.start(lambda: None)
        try:
            with pytest.raises(OSError, match="no keeper"):
                guard.note(process.pid)
            note.rmdir()
            await eventually(lambda: guard._pipe is not None, 30, "the keeper has started")
            guard.note(process.pid)
            assert keeper.continue_noted(tmp_path) == [process.pid]
        finally:
            await guard.stop()

    try:
        asyncio.run(run())
    finally:
        process.kill()
        process.wait(30)


def test_without_a_keeper_nothing_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no keeper"):
        Guard(tmp_path).note(os.getpid())


def test_the_note_leaves_out_processes_that_have_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raylog.actors.dozing.guard.SHORTEN_AT", 2)

    async def run() -> None:
        guard = Guard(tmp_path)
        await guard.start(lambda: None)
        try:
            for _ in range(4):
                process = sleeper()
                guard.note(process.pid)
                process.kill()
                process.wait(30)
            guard.note(os.getpid())
            lines = (tmp_path / keeper.NOTE).read_text().splitlines()
            assert len(lines) <= 3
            assert lines[-1].startswith(f"{os.getpid()} ")
        finally:
            await guard.stop()

    asyncio.run(run())
