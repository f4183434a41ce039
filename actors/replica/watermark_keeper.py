"""Keeps a replica's high watermark on disk: periodically, off the event loop, and at the replica's stop.

Owned by the replica's runner, which ticks it. Touches: one small file in the partition's folder, the loop's threads.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from raylog.core.errors import RaylogError
from raylog.core.ids import TopicPartition
from raylog.storage.log.kept_watermark import KeptWatermark

logger = logging.getLogger(__name__)

KEEP_MS: Final = 5_000
"""Between two writes of a watermark that moves; a change of leader or ISR has it written at the next tick."""


class WatermarkKeeper:
    """The kept watermark of one incarnation of a replica."""

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
        """Everything below is committed and in the log, or was removed by retention."""
        return self._file.offset

    def tick(self, now_ms: int, watermark: int, state: object) -> None:
        """Have the watermark written when it is due, or when ``state``, the controller's, has changed."""
        if state is not self._state:
            self._state, self._due_ms = state, now_ms
        if now_ms >= self._due_ms and self._writing is None and self._file.want(watermark):
            self._due_ms = now_ms + KEEP_MS
            self._write()

    def settle(self, watermark: int) -> bool:
        """Have the watermark written before it is due; returns whether there is nothing to write any more."""
        if self._writing is None and self._file.want(watermark) and not self._is_failing:
            self._write()
        return self._writing is None

    def lower(self, to: int) -> None:
        """Lower the watermark to at most ``to``, durably, before a truncation of the log there. Raises RaylogError."""
        self._file.lower(to)

    async def stop(self, watermark: int | None) -> None:
        """Write the last watermark, if there was one, and close the file."""
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
        """Runs in a thread."""
        try:
            self._file.keep(durable=durable)
            self._is_failing = False
        except RaylogError as error:
            if not self._is_failing:  # retried every few seconds, logged once
                logger.warning("%s: the high watermark is not kept, trying again: %s", self._partition, error)
            self._is_failing = True
