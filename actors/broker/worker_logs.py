"""Removes the log files that ended workers have left in Ray's session folder.

Each replica that wakes is a new process, and leaves five files that Ray never removes. If Raylog has started Ray, it
sets how many are kept (``RAYLOG_WORKER_LOGS_S``, ``_FILES``, ``_BYTES``); in other Rays they are not touched. All
brokers of a machine do this; whichever comes first removes a file.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from raylog.actors.careful_clock import CarefulClock
from raylog.actors.logs import NAMED

logger = logging.getLogger(__name__)

KEPT_VARIABLE: Final = "RAYLOG_WORKER_LOGS_S"
"""Variable: for how many seconds the files of ended workers are kept; unset or negative: nothing is removed."""
FILES_VARIABLE: Final = "RAYLOG_WORKER_LOGS_FILES"
"""Variable: how many of these files are kept, those written last; unset or negative: no limit."""
BYTES_VARIABLE: Final = "RAYLOG_WORKER_LOGS_BYTES"
"""Variable: how many bytes on disk these files may take together; unset or negative: no limit."""
CHECK_S: Final = 60.0
"""Interval between two checks. A machine wakes up to ten replicas a second, so up to 3,000 files come in between."""
REMOVED_AT_ONCE: Final = 10_000
"""Most files that one check removes; the next checks remove the rest."""

FOLDERS: Final = ("", "old", "events", "export_events")
"""Folders with such files, below Ray's log folder; Ray's log monitor moves some files."""
BLOCK_BYTES: Final = 512
"""Unit of ``st_blocks``."""

_OF_WORKER: Final = re.compile(
    r"(?:worker-[0-9a-f]{56}-[0-9a-f]{8}-|python-core-worker-[0-9a-f]{56}_|event_(?:CORE_WORKER|EXPORT_TASK)_)"
    r"(?P<pid>[1-9][0-9]{0,9})(?:\.[0-9]+)?\.(?:out|err|log)(?:\.[0-9]+)?"
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Which files of ended workers are kept."""

    seconds: int
    """Longest time since a file was last written."""
    files: int | None = None
    """Most files; None = no limit."""
    size: int | None = None
    """Most bytes on disk; None = no limit."""


def limits_here() -> Limits | None:
    """Return the limits set where Ray was started; None = nothing is removed."""
    seconds = _number(KEPT_VARIABLE)
    return None if seconds is None else Limits(seconds, _number(FILES_VARIABLE), _number(BYTES_VARIABLE))


def _number(variable: str) -> int | None:
    given = os.environ.get(variable, "")
    return int(given) if given.isdecimal() and len(given) < 16 else None


@dataclass(frozen=True, slots=True, order=True)
class LogFile:
    """A log file of a worker that has ended."""

    written_s: float
    """In seconds since 1970."""
    path: str
    size: int
    """Bytes that it takes on the disk."""


def excess(files: Iterable[LogFile], before_s: float, limits: Limits) -> list[LogFile]:
    """Return the files to remove, the oldest first: those last written before a time, and those above the limits."""
    size = 0
    found = []
    for kept, file in enumerate(sorted(files, reverse=True)):
        size += file.size
        too_many = limits.files is not None and kept >= limits.files
        too_large = limits.size is not None and size > limits.size
        if file.written_s < before_s or too_many or too_large:
            found.append(file)
    return found[::-1]


def remove_excess(folder: Path, before_s: float, limits: Limits, *, is_running: Callable[[int], bool]) -> int:
    """Remove files of ended workers that were last written before a time, or exceed the limits; returns how many.

    ``folder``: Ray's log folder. ``before_s``: in seconds since 1970. Raises OSError if a folder cannot be listed.
    """
    ended: list[LogFile] = []
    for name in FOLDERS:
        with suppress(FileNotFoundError):  # Ray makes the inner ones when it has something for them
            ended += _of_ended_in(folder / name, is_running)
    removed = 0
    for file in excess(ended, before_s, limits)[:REMOVED_AT_ONCE]:
        try:
            os.unlink(file.path)
            removed += 1
        except OSError as error:  # another broker was faster, or it belongs to another user
            logger.debug("the log file %s stays: %s", file.path, error)
    with suppress(FileNotFoundError):
        _remove_links(folder / NAMED)
    return removed


def _remove_links(folder: Path) -> None:
    """Remove the links to logs that no longer exist."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink() and not os.path.exists(entry.path):
                with suppress(FileNotFoundError):  # another broker was faster
                    os.unlink(entry.path)


def _of_ended_in(folder: Path, is_running: Callable[[int], bool]) -> Iterator[LogFile]:
    runs: dict[int, bool] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            found = _OF_WORKER.fullmatch(entry.name)
            if found is None:
                continue
            pid = int(found["pid"])
            if pid not in runs:
                runs[pid] = is_running(pid)
            if not runs[pid]:
                with suppress(FileNotFoundError):  # another broker was faster, or Ray has moved it
                    about = entry.stat(follow_symlinks=False)
                    yield LogFile(about.st_mtime, entry.path, about.st_blocks * BLOCK_BYTES)


def is_running(pid: int) -> bool:
    """Return whether a process with this id exists, of any user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class WorkerLogs:
    """Removes files of ended workers as long as the broker runs."""

    def __init__(self, folder: Path | None, limits: Limits | None) -> None:
        """``folder``: Ray's log folder. If it or the limits are None, nothing is removed."""
        self._folder = folder
        self._limits = limits
        self._task: asyncio.Task[None] | None = None
        self._clock = CarefulClock("log files of workers")

    def start(self) -> None:
        """Begin to remove what is too old or too much; returns at once."""
        if self._folder is not None and self._limits is not None:
            self._task = asyncio.create_task(self._run(self._folder, self._limits), name="worker logs")

    async def stop(self) -> None:
        """Remove nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, folder: Path, limits: Limits) -> None:
        while True:
            await self.check(folder, limits)
            await asyncio.sleep(min(CHECK_S, max(1.0, limits.seconds / 4)))

    async def check(self, folder: Path, limits: Limits) -> int:
        """Remove files above the limits. Age counts by the careful clock, so a jump of the wall clock has no effect."""
        before_s = self._clock.deleting_ms() / 1000 - limits.seconds
        try:
            removed = await asyncio.to_thread(remove_excess, folder, before_s, limits, is_running=is_running)
        except OSError as error:
            logger.warning("Ray's log folder %s cannot be cleared of the files of ended workers: %s", folder, error)
            return 0
        if removed:
            logger.info("removed %d log files of ended workers from %s", removed, folder)
        return removed
