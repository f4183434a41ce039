"""Removal of the log files that ended workers have left in Ray's session folder.

Each replica that wakes is a process, and Ray keeps five files of each: nothing of Ray's removes them. Where Raylog has
started Ray, it says for how long they are kept (``RAYLOG_WORKER_LOGS_S``); in a Ray of others they are not touched.
Every broker of a machine does this, one file each time that one of them comes first.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from raylog.actors.careful_clock import CarefulClock
from raylog.actors.logs import NAMED

logger = logging.getLogger(__name__)

KEPT_VARIABLE: Final = "RAYLOG_WORKER_LOGS_S"
"""For how many seconds the files of ended workers are kept; unset or negative: without a limit."""
CHECK_S: Final = 600.0
REMOVED_AT_ONCE: Final = 10_000
"""Most files that one check removes; the others follow with the next ones."""

FOLDERS: Final = ("", "old", "events", "export_events")
"""Where they are in Ray's folder: its log monitor moves some of them."""

_OF_WORKER: Final = re.compile(
    r"(?:worker-[0-9a-f]{56}-[0-9a-f]{8}-|python-core-worker-[0-9a-f]{56}_|event_(?:CORE_WORKER|EXPORT_TASK)_)"
    r"(?P<pid>[1-9][0-9]{0,9})(?:\.[0-9]+)?\.(?:out|err|log)(?:\.[0-9]+)?"
)


def kept_s() -> int | None:
    """Return for how many seconds the files are kept; None = without a limit."""
    given = os.environ.get(KEPT_VARIABLE, "")
    return int(given) if given.isdecimal() and len(given) < 10 else None


def remove_old(folder: Path, before_s: float, *, is_running: Callable[[int], bool]) -> int:
    """Remove the files of ended workers that were last written before a time; returns how many.

    ``folder``: Ray's, with those in it. ``before_s``: in seconds since 1970. Raises OSError where one cannot be listed.
    """
    removed = 0
    for name in FOLDERS:
        with suppress(FileNotFoundError):  # Ray makes the inner ones when it has something for them
            removed += _remove_in(folder / name, before_s, REMOVED_AT_ONCE - removed, is_running)
    with suppress(FileNotFoundError):
        _remove_links(folder / NAMED)
    return removed


def _remove_links(folder: Path) -> None:
    """Remove the names of logs that are no longer there."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink() and not os.path.exists(entry.path):
                with suppress(FileNotFoundError):  # another broker was faster
                    os.unlink(entry.path)


def _remove_in(folder: Path, before_s: float, most: int, is_running: Callable[[int], bool]) -> int:
    removed = 0
    ended: dict[int, bool] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            found = _OF_WORKER.fullmatch(entry.name)
            if found is None or removed >= most:
                continue
            try:
                if entry.stat(follow_symlinks=False).st_mtime >= before_s:
                    continue
                pid = int(found["pid"])
                if pid not in ended:
                    ended[pid] = not is_running(pid)
                if ended[pid]:
                    os.unlink(entry.path)
                    removed += 1
            except OSError as error:  # another broker was faster, or it belongs to another user
                logger.debug("the log file %s stays: %s", entry.path, error)
    return removed


def is_running(pid: int) -> bool:
    """Return whether there is a process of that number, of whichever user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class WorkerLogs:
    """Looks after Ray's log folder for as long as the broker runs."""

    def __init__(self, folder: Path | None, keep_s: int | None) -> None:
        """``folder``: Ray's; None, or no time to keep them: nothing is removed."""
        self._folder = folder
        self._keep_s = keep_s
        self._task: asyncio.Task[None] | None = None
        self._clock = CarefulClock("log files of workers")

    def start(self) -> None:
        """Begin to remove what is too old; returns at once."""
        if self._folder is not None and self._keep_s is not None:
            self._task = asyncio.create_task(self._run(self._folder, self._keep_s), name="worker logs")

    async def stop(self) -> None:
        """Remove nothing more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, folder: Path, keep_s: int) -> None:
        while True:
            await self.check(folder, keep_s)
            await asyncio.sleep(min(CHECK_S, max(1.0, keep_s / 4)))

    async def check(self, folder: Path, keep_s: int) -> int:
        """Remove what is too old by the careful clock, which a jump of the machine's does not hasten."""
        before_s = self._clock.deleting_ms() / 1000 - keep_s
        try:
            removed = await asyncio.to_thread(remove_old, folder, before_s, is_running=is_running)
        except OSError as error:
            logger.warning("Ray's log folder %s cannot be cleared of the files of ended workers: %s", folder, error)
            return 0
        if removed:
            logger.info("removed %d log files of ended workers from %s", removed, folder)
        return removed
