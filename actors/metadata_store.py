"""Where the controller's decisions are kept: one interface, and its simple form, a log on the controller's own disk.

The other form is ``quorum_log.py``. Owned by the controller's shell.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from raylog.actors.flusher import Flusher
from raylog.actors.metadata_log import MetadataLog
from raylog.core.controller.image import MetadataImage
from raylog.core.controller.records import MetadataRecord
from raylog.core.errors import NotController
from raylog.core.ids import ControllerEpoch


class StoreListener(Protocol):
    """What a store tells its owner, on the event loop."""

    def on_committed(self, end: int) -> None:
        """Everything below ``end`` can no longer be lost."""

    def on_failed(self, reason: str) -> None:
        """Nothing more can be promised: the controller has to end."""

    def on_voters(self, voters: Mapping[str, str]) -> None:
        """The log has to have this configuration: answer with a record."""


class MetadataStore(Protocol):
    """The metadata log as the controller sees it. Offsets count records."""

    @property
    def log_end_offset(self) -> int:
        """Where the next record goes."""

    @property
    def committed_offset(self) -> int:
        """The end of what can no longer be lost."""

    async def open(self, listener: StoreListener) -> tuple[MetadataImage, ControllerEpoch | None]:
        """Become the log's only writer; return what it adds up to, and the epoch to begin (None: the next one)."""

    @property
    def founding(self) -> Mapping[str, str]:
        """The voters that the first batch has to enter; empty = none."""

    def want_voters(self, voters: Sequence[int]) -> None:
        """Have these brokers keep the log from now on."""

    def append(self, records: Sequence[MetadataRecord], controller_epoch: int) -> None:
        """Append records as one batch, all or none; the listener hears when they are committed."""

    def offer(self, image: MetadataImage) -> None:
        """Take a snapshot of the image if one is due; it is what everything that was appended adds up to."""

    async def close(self) -> None:
        """Let the log go. Twice is harmless."""


class DiskStore:
    """The log on the controller's own disk: committed is what has been synced."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is the controller's."""
        self._folder = folder
        self._log: MetadataLog | None = None
        self._flusher: Flusher | None = None

    @property
    def log_end_offset(self) -> int:
        """Where the next record goes."""
        return self._opened().log.log_end_offset

    @property
    def committed_offset(self) -> int:
        """The end of what is on disk."""
        return self._opened().log.synced_end_offset

    async def open(self, listener: StoreListener) -> tuple[MetadataImage, ControllerEpoch | None]:
        """Open the log, after an earlier life has let it go; raises what :meth:`MetadataLog.open` raises."""
        self._log = await asyncio.get_running_loop().run_in_executor(None, MetadataLog.open, self._folder)
        image = self._log.replay()
        self._flusher = Flusher(
            self._log.log,
            on_synced=listener.on_committed,
            on_failed=_reporter(listener.on_failed),
            name="controller",
        )
        self._flusher.start()
        return image, None

    @property
    def founding(self) -> Mapping[str, str]:
        """No voters: the log is here alone."""
        return {}

    def want_voters(self, voters: Sequence[int]) -> None:
        """Do nothing: the log stays here."""

    def append(self, records: Sequence[MetadataRecord], controller_epoch: int) -> None:
        """Append one batch and have it synced."""
        self._opened().append(records, controller_epoch)
        if self._flusher is not None:
            self._flusher.kick()

    def offer(self, image: MetadataImage) -> None:
        """Do nothing: this log stays whole, until voters take it over."""

    async def close(self) -> None:
        """Sync what is left and let the log go."""
        if self._flusher is not None:
            await self._flusher.stop()
        if self._log is not None:
            log, self._log = self._log, None
            log.close()

    def _opened(self) -> MetadataLog:
        if self._log is None:
            raise NotController("The controller's log is closed.")
        return self._log


def _reporter(tell: Callable[[str], None]) -> Callable[[BaseException], None]:
    return lambda error: tell(f"the controller's disk refused to sync: {error!r}")
