"""A broker's note of the metadata voters: the file ``metadata-voters`` in its directory.

A hint for operators, and for the start of a cluster that lost its first node; the metadata log is authoritative.
Written in a thread, because the disk may hang.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from raylog.base.errors import RaylogError
from raylog.storage.files import read_text, write_atomically

logger = logging.getLogger(__name__)

NOTE: Final = "metadata-voters"


def noted_voters(folder: Path) -> tuple[int, ...]:
    """Return the voters by the note in a folder; empty if there is no readable note."""
    numbers = (read_text(folder / NOTE) or "").strip().split(",")
    return tuple(int(number) for number in numbers) if all(number.isdecimal() for number in numbers) else ()


class VotersNote:
    """Keeps the note of one directory up to date."""

    def __init__(self, folder: Path) -> None:
        """Make it; nothing is written before the first voters are known."""
        self._folder = folder
        self._voters: tuple[int, ...] = ()
        self._task: asyncio.Task[None] | None = None

    def update(self, voters: Iterable[str]) -> None:
        """Write the note if the voters have changed; returns at once."""
        found = tuple(sorted(int(number) for number in voters))
        if found and found != self._voters:
            self._voters = found
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._write(), name="note of the metadata voters")

    async def close(self) -> None:
        """Stop; a disk that hangs is not waited for."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _write(self) -> None:
        written: tuple[int, ...] = ()
        while written != self._voters:
            written = self._voters
            text = ",".join(map(str, written)) + "\n"
            try:
                await asyncio.to_thread(write_atomically, self._folder / NOTE, text.encode(), durable=False)
            except RaylogError as error:
                logger.warning("the note of the metadata voters in %s was not written: %s", self._folder, error)
