"""Reads the records for dead letters and copies, even from damaged batches. Owned by the queues role."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from raylog.actors.queues.reading import Chunk, LogReader
from raylog.actors.roles.host import RoleHost
from raylog.base.errors import CorruptMessage, RaylogError
from raylog.core.dead_letters import Header

logger = logging.getLogger(__name__)

PAUSE_S: Final = 0.05
PAUSE_MAX_S: Final = 2.0
BODY_DELETED: Final = "its body was deleted by retention"
BODY_DAMAGED: Final = "its body cannot be opened"
BODY_TOO_LARGE: Final = "its body is too large for this topic"


class Body(NamedTuple):
    """The content of a record. ``stamp_ms``: its timestamp; ``compression``: the codec of its batch, 0 = none."""

    key: bytes | None
    value: bytes | None
    stamp_ms: int
    headers: Sequence[Header]
    compression: int


class Bodies:
    """Reads records of one partition, one by one."""

    def __init__(self, host: RoleHost, reader: LogReader) -> None:
        """``reader`` caches the chunk that was read last."""
        self._host = host
        self._reader = reader

    async def body(self, offset: int) -> tuple[Body | None, str]:
        """Return a record that was delivered before; or None, and why it cannot be read.

        Waits while the reason passes: for example, a new leader does not know at once what is committed.
        """
        pause_s = PAUSE_S
        while True:
            try:
                chunk = await self._reader.chunk(offset)
            except CorruptMessage as damage:
                return None, self._damaged(offset, damage)
            except (RaylogError, OSError) as trouble:
                logger.info("%s: the record at offset %d is waited for: %s", self._host.partition, offset, trouble)
            else:
                if chunk is not None:
                    return self._opened(chunk, offset)
                if offset < self._reader.log_start or offset >= self._host.log.log_end_offset:
                    return None, BODY_DELETED
            await asyncio.sleep(pause_s)
            pause_s = min(PAUSE_MAX_S, 2 * pause_s)

    def _opened(self, chunk: Chunk, offset: int) -> tuple[Body | None, str]:
        try:
            found = chunk.record(offset)
        except RaylogError as damage:  # any error: reading the batch again would not help
            return None, self._damaged(offset, damage)
        if found is None:
            return None, BODY_DELETED
        columns, index = found
        headers = [batch.header for batch in chunk.batches]
        compression = next(each.compression for each in headers if each.base_offset <= offset < each.next_offset)
        body = Body(
            None if columns.keys is None else columns.keys[index],
            None if columns.values is None else columns.values[index],
            columns.timestamps[index],
            () if columns.headers is None else columns.headers[index] or (),
            compression,
        )
        return body, ""

    def _damaged(self, offset: int, damage: BaseException) -> str:
        logger.warning("%s: the record at offset %d cannot be opened: %s", self._host.partition, offset, damage)
        return BODY_DAMAGED
