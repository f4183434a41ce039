"""The broker's side of its keeper: starts it, notes processes for it, and sends it beats while the broker runs.

Owned by the dozers of a broker. May touch: the note in the data directory, the keeper's process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from raylog.actors import notes
from raylog.actors.clock import monotonic_ms
from raylog.actors.dozing import keeper

logger = logging.getLogger(__name__)

BEATS: Final = 4
"""How many beats are sent in the time of silence after which the keeper acts."""
START_TIMEOUT_S: Final = 10.0
SHORTEN_AT: Final = 1_000
RESTART_S: Final = 10.0
"""Pause before a keeper that has ended is started again."""


class Guard:
    """Makes sure, with a keeper, that no process stays stopped if this broker dies or hangs."""

    def __init__(self, folder: Path) -> None:
        """Make it; nothing is done before :meth:`start`."""
        self.silent_ms = keeper.SILENT_MS
        """The keeper continues all processes when this broker is silent for so long."""
        self._folder = folder
        self._pipe: int | None = None
        self._paused: Callable[[], None] = lambda: None
        self._beating: asyncio.Task[None] | None = None
        self._noted: set[str] = set()
        self._shorten_at = SHORTEN_AT
        self._before = ""
        """Written before the next line of the note: a newline if the last line may have been cut off."""

    async def start(self, paused: Callable[[], None]) -> None:
        """Continue processes that an earlier process of this broker has left stopped, and start a keeper.

        If that fails, it is tried again soon. ``paused`` is called when the keeper may have continued processes, or has
        ended.
        """
        self._paused = paused
        await self._try_to_begin()
        self._beating = asyncio.create_task(self._beat(), name="beats to the keeper")

    async def stop(self) -> None:
        """End the keeper; as it ends, it continues all stopped processes."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        self._leave()

    def note(self, pid: int) -> None:
        """Note a process before it is stopped. Raises OSError if that fails, it has ended, or there is no keeper."""
        if self._pipe is None:
            raise BrokenPipeError("there is no keeper that would continue it")
        line = f"{pid} {keeper.started_at(pid)}\n"
        if line in self._noted:
            return
        if len(self._noted) >= self._shorten_at:
            self._shorten()
        try:
            notes.added(self._folder / keeper.NOTE, self._before + line)
        except OSError:
            self._before = "\n"  # a full disk may have a part of the line, which would spoil the next one
            raise
        self._before = ""
        self._noted.add(line)

    def _shorten(self) -> None:
        """Remove ended processes from the note, atomically for readers."""
        self._noted = {line for line in self._noted if _runs(line)}
        self._shorten_at = max(SHORTEN_AT, 2 * len(self._noted))
        fresh = self._folder / f"{keeper.NOTE}.new"
        notes.written(fresh, "".join(sorted(self._noted)))
        fresh.replace(self._folder / keeper.NOTE)

    def _begin(self) -> None:
        left = keeper.continue_noted(self._folder)
        if left:
            logger.info("%d processes of %s were continued, in case they were stopped", len(left), self._folder)
        notes.written(self._folder / keeper.NOTE, "")
        self._noted.clear()
        reading, writing = os.pipe2(os.O_CLOEXEC)
        try:
            subprocess.run(  # it returns at once: the keeper continues in a process that the program forks
                [sys.executable, "-I", "-S", keeper.__file__, str(self._folder)],
                stdin=reading,
                timeout=START_TIMEOUT_S,
                check=True,
            )
        except BaseException:  # any error, or an end of the thread: the pipe has no other owner
            os.close(writing)
            raise
        finally:
            os.close(reading)
        os.set_blocking(writing, False)
        self._pipe = writing

    async def _beat(self) -> None:
        last_ms = monotonic_ms()
        while True:
            now_ms = monotonic_ms()
            if now_ms - last_ms >= self.silent_ms:
                self._paused()
            last_ms = now_ms
            if self._pipe is None:
                await self._try_to_begin()
            elif not self._show():
                self._leave()
                self._paused()
            await asyncio.sleep(RESTART_S if self._pipe is None else self.silent_ms / BEATS / 1000)
            if self._pipe is None:
                last_ms = monotonic_ms()

    async def _try_to_begin(self) -> None:
        """Start a keeper. If that fails, as on a full disk or a very slow machine, `_beat` tries again."""
        try:
            await asyncio.to_thread(self._begin)
        except (OSError, subprocess.SubprocessError) as error:
            logger.warning("the keeper of %s does not start, no replica is stopped: %s", self._folder, error)

    def _show(self) -> bool:
        """Send a beat to the keeper; returns whether there is a keeper."""
        if self._pipe is None:
            return False
        try:
            with suppress(BlockingIOError):
                os.write(self._pipe, b"%d\n" % self.silent_ms)
        except OSError as error:
            logger.warning("the keeper of %s has ended: no replica is stopped meanwhile: %s", self._folder, error)
            return False
        return True

    def _leave(self) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            os.close(pipe)


def _runs(line: str) -> bool:
    pid, _, started = line.strip().partition(" ")
    try:
        return keeper.started_at(int(pid)) == started
    except OSError:
        return False
