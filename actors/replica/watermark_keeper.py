"""Writes a replica's high watermark to disk: periodically, in a thread, and at the replica's stop.

Owned by the replica's runner, which ticks it. Touches: one small file in the partition's folder, the loop's threads.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from raylog.base.errors import RaylogError
from raylog.base.ids import TopicPartition
from raylog.storage.log.kept_watermark import KeptWatermark

logger = logging.getLogger(__name__)

KEEP_MS: Final = 5_000
"""Interval of writes while the watermark moves. After a change of leader or ISR, it is written at the next tick."""


class WatermarkKeeper:
    """The high watermark on disk, for one incarnation of a replica."""

    def __init__(self, partition: TopicPartition, folder: Path, log_end_offset: int) -> None:
        """Read an earlier incarnation's watermark. Raises RaylogError when it is too high and cannot be corrected."""
        self._partition = partition
        self._file = KeptWatermark(folder, log_end_offset)
        self._due_ms = 0
        self._state: object = None
        self._writing: asyncio.Future[None] | None = None
        self._is_failing = False

    @property
    def offset(self) -> int:
        """The high watermark on disk: records below it are committed and in the log, or were deleted by retention."""
        return self._file.offset

    def tick(self, now_ms: int, watermark: int, state: object) -> None:
        """Write the watermark if that is due, or if ``state``, the controller's state of the partition, has changed."""
        if state is not self._state:
            self._state, self._due_ms = state, now_ms
        if now_ms >= self._due_ms and self._writing is None and self._file.want(watermark):
            self._due_ms = now_ms + KEEP_MS
            self._write()

    def settle(self, watermark: int) -> bool:
        """Write the watermark before that is due; returns whether nothing is left to write."""
        if self._writing is None and self._file.want(watermark) and not self._is_failing:
            self._write()
        return self._writing is None

    def lower(self, to: int) -> None:
        """Lower the watermark to at most ``to``, durably, before the log is truncated to it. Raises RaylogError."""
        self._file.lower(to)

    async def stop(self, watermark: int | None) -> None:
        """Write the last watermark, if it is not None, and close the file."""
        if watermark is not None:
            self._file.want(watermark)
        await asyncio.get_running_loop().run_in_executor(None, self._keep, True)
        self._file.close()

    def _write(self) -> None:
        self._writing = asyncio.get_running_loop().run_in_executor(None, self._keep)
        self._writing.add_done_callback(self._written)

    def _written(self, _: asyncio.Future[None]) -> None:
        self._writing = None

    def _keep(self, durable: bool = False) -> None:
        """Write the wanted watermark; an error is logged. Runs in a thread."""
        try:
            self._file.keep(durable=durable)
            self._is_failing = False
        except RaylogError as error:
            if not self._is_failing:  # retried every few seconds, logged once
                logger.warning("%s: the high watermark is not kept, trying again: %s", self._partition, error)
            self._is_failing = True
