"""The keepers of brokers, which continue what their broker has stopped: in place of programs of their own.

The shipped note and the shipped guard (``actors/dozing/guard.py``) run unchanged; pipes, programs and signals are
replaced in their modules.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from raylog.actors.dozing import guard, keeper
from tests.simulation.whole.loop.processes import SimProcess
from tests.simulation.whole.loop.scheduler import Scheduler

REACTION_S: Final = (0.000_1, 0.002)
START_S: Final = (0.01, 0.06)


class _Pipe:
    """What a broker's guard writes to, and its keeper reads from."""

    def __init__(self, broker: SimProcess) -> None:
        self.broker = broker
        self.keeper: Keeper | None = None

    def end(self) -> None:
        """The broker has closed it, or was killed."""
        self.broker.closers.pop(self.end, None)
        if self.keeper is not None:
            self.keeper.ended()


class Keeper:
    """A keeper's process: it continues what is noted when its broker is silent, or has ended."""

    def __init__(self, keepers: Keepers, broker: SimProcess, folder: Path) -> None:
        """As the program: no line has come yet."""
        self._keepers, self._folder = keepers, folder
        self._number = 0
        self.broker = broker
        self.is_alive = True
        self.line_came(keeper.SILENT_MS)

    def line_came(self, silent_ms: int) -> None:
        """A line has come."""
        self._number += 1
        self._keepers.scheduler.after(silent_ms / 1000, self._silent, self._number)

    def ended(self) -> None:
        """The pipe has ended."""
        self._number += 1
        self._keepers.scheduler.after(self._keepers.scheduler.between(*REACTION_S), self._act)

    def kill(self) -> None:
        """End without a last deed."""
        self.is_alive = False
        self._keepers.scheduler.log(self.broker.name, "its keeper is killed")

    def _silent(self, number: int) -> None:
        if number == self._number:
            self._act()

    def _act(self) -> None:
        if self.is_alive:
            for pid in keeper.continue_noted(self._folder):
                self._keepers.scheduler.log(self.broker.name, f"its keeper continues process {pid}")


class Keepers:
    """All keepers of a world, and the processes that they may continue."""

    def __init__(self, scheduler: Scheduler) -> None:
        """None yet."""
        self.scheduler = scheduler
        self.processes: dict[int, SimProcess] = {}
        """Those that a broker may stop, by process id."""
        self.present: dict[str, Keeper] = {}
        """The last keeper of each broker, by the broker's name."""
        self._pipes: dict[int, _Pipe] = {}
        self._last = 0

    def bind(self) -> None:
        """Have the shipped guard and keeper use it, in this process."""
        system = SimpleNamespace(
            O_CLOEXEC=0, pipe2=self._pipe, close=self._close, set_blocking=lambda *_: None, write=self._write
        )
        errors = {"SubprocessError": subprocess.SubprocessError}
        replace: Callable[..., None] = setattr
        replace(guard, "os", system)
        replace(guard, "subprocess", SimpleNamespace(run=self._run, **errors))
        replace(keeper, "os", SimpleNamespace(kill=self._continue))
        replace(keeper, "started_at", self._started_at)

    def _pipe(self, _: int) -> tuple[int, int]:
        broker = self.scheduler.current
        assert broker is not None, "a pipe is made outside every process"
        pipe = _Pipe(broker)
        broker.closers[pipe.end] = None
        self._last += 2
        self._pipes[self._last - 1] = self._pipes[self._last] = pipe
        return self._last - 1, self._last

    def _close(self, descriptor: int) -> None:
        pipe = self._pipes.pop(descriptor)
        if descriptor % 2 == 0:
            pipe.end()

    def _write(self, descriptor: int, line: bytes) -> None:
        found = self._pipes[descriptor].keeper
        if found is None or not found.is_alive:
            raise BrokenPipeError("the keeper has ended")
        found.line_came(max(1, int(line)))

    def _run(self, command: list[str], *, stdin: int, **_: Any) -> None:
        thread, pipe = self.scheduler.thread, self._pipes[stdin]
        assert thread is not None, "an event loop starts a program and waits"
        thread.sleep(self.scheduler.between(*START_S))
        if pipe.broker.is_alive:
            pipe.keeper = self.present[pipe.broker.name] = Keeper(self, pipe.broker, Path(command[-1]))

    def _started_at(self, pid: int) -> str:
        process = self.processes.get(pid)
        if process is None or not process.is_alive:
            raise ProcessLookupError(f"there is no process {pid}")
        return str(pid)

    def _continue(self, pid: int, _: int) -> None:
        self.processes[pid].awake()
