"""Reads a partition's log for its queues, in chunks of whole batches. Owned by the queues role.

Many members take small parts of the same batches, so the last chunks are cached for the queues of all groups. While a
fetch of any group waits, one long poll watches the end of the log. Only committed records are read: no member gets
the records of an aborted transaction.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from raylog.actors.roles.host import RoleHost
from raylog.base.errors import CorruptMessage, OffsetOutOfRange, RaylogError
from raylog.base.ids import EARLIEST, LATEST
from raylog.core.dead_letters import Header
from raylog.core.queues.origins import Origin
from raylog.protocol.replica import READ_COMMITTED, AbortedTxn
from raylog.storage.batch.header import BatchHeader, iter_headers
from raylog.storage.batch.records import Columns, decode_batch
from raylog.storage.errors import CorruptBatch

logger = logging.getLogger(__name__)

CHUNK_BYTES: Final = 1024 * 1024
CHUNKS_KEPT: Final = 4
WATCH_MS: Final = 10_000
"""Wait of one long poll at the end of the log."""
PAUSE_S: Final = 0.05
PAUSE_MAX_S: Final = 2.0
BODY_DELETED: Final = "its body was deleted by retention"
BODY_DAMAGED: Final = "its body cannot be opened"
BODY_TOO_LARGE: Final = "its body is too large for this topic"


class ReadBatch(NamedTuple):
    """One batch of a chunk."""

    place: int
    header: BatchHeader
    is_hidden: bool
    """Whether it has no records for members: it is a control batch, or of an aborted transaction."""


class Chunk:
    """Whole batches that cover the offsets [first, end)."""

    def __init__(self, first: int, payload: bytes, aborted: Sequence[AbortedTxn]) -> None:
        """``aborted``: the aborted transactions with records in these batches."""
        self.first = first
        self.payload = payload
        coming = sorted(aborted, key=lambda each: each.first_offset)
        self.batches: list[ReadBatch] = []
        self._unreadable: set[int] = set()
        self._last: tuple[int, Columns] | None = None
        """The batch whose record was requested last, by its place: the next request is for its neighbour, mostly."""
        hidden: set[int] = set()
        for place, header in iter_headers(payload):
            while coming and coming[0].first_offset <= header.last_offset:
                hidden.add(coming.pop(0).producer_id)
            is_hidden = header.is_control or (header.is_transactional and header.producer_id in hidden)
            if header.is_control:
                hidden.discard(header.producer_id)
            self.batches.append(ReadBatch(place, header, is_hidden))
        self.end = self.batches[-1].header.next_offset if self.batches else first

    def cut(self, first: int, end: int, max_bytes: int) -> tuple[memoryview, int]:
        """Return the batches with offsets in [first, end), and the offset where they end.

        They have at most ``max_bytes``, but there is at least one of them.
        """
        start = stop = -1
        behind = end
        for place, header, _ in self.batches:
            if header.next_offset <= first:
                continue
            if header.base_offset >= end:
                break
            if start < 0:
                start = place
            elif place + header.size - start > max_bytes:
                behind = header.base_offset
                break
            stop = place + header.size
        return memoryview(self.payload)[max(start, 0) : max(stop, 0)], behind

    def end_within(self, first: int, max_bytes: int) -> int:
        """Return the end offset of the batches from ``first`` on that fit into ``max_bytes``; at least one of them."""
        start = -1
        end = self.end
        for place, header, _ in self.batches:
            if header.next_offset <= first:
                continue
            if start < 0:
                start = place
            elif place + header.size - start > max_bytes:
                return header.base_offset
            end = header.next_offset
        return end

    def gaps(self, first: int, end: int) -> list[tuple[int, int]]:
        """Return the ranges of [first, end) without records for members: markers, aborted, or compacted away."""
        found: list[tuple[int, int]] = []
        behind = first
        for _, header, is_hidden in self.batches:
            if is_hidden or header.next_offset <= first:
                continue
            if header.base_offset >= end:
                break
            if header.base_offset > behind:
                found.append((behind, header.base_offset))
            behind = header.next_offset
        if behind < end:
            found.append((behind, end))
        return found

    def keys(self, first: int) -> list[tuple[int, int | None]]:
        """Return (offset, hash of the key) of each record from the offset ``first`` on; None: the record has no key."""
        found: list[tuple[int, int | None]] = []
        for place, header, is_hidden in self.batches:
            if is_hidden or header.next_offset <= first:
                continue
            columns = self._opened(place, header)
            if columns is None:  # counts as records without a key; the member that gets them reports the damage
                found += [(offset, None) for offset in range(max(first, header.base_offset), header.next_offset)]
            elif columns.keys is None:
                found += [(offset, None) for offset in columns.offsets if offset >= first]
            else:
                found += [
                    (offset, None if key is None else hash(key))
                    for offset, key in zip(columns.offsets, columns.keys, strict=True)
                    if offset >= first
                ]
        return found

    def earlier_tries(self, first: int) -> list[tuple[int, int]]:
        """Return (offset, deliveries before the record was copied to this retry topic), from ``first`` on."""
        found: list[tuple[int, int]] = []
        for place, header, is_hidden in self.batches:
            if is_hidden or header.next_offset <= first:
                continue
            columns = self._opened(place, header)
            if columns is None:
                continue
            for offset, headers in zip(columns.offsets, columns.headers or (), strict=False):
                origin = Origin.of(headers)
                if origin is not None and offset >= first:
                    found.append((offset, origin.tries))
        return found

    def record(self, offset: int) -> tuple[Columns, int] | None:
        """Return the columns of a record's batch and the record's index in them; None: there is no such record.

        Raises CorruptBatch if the batch cannot be decoded.
        """
        for place, header, is_hidden in self.batches:
            if header.base_offset <= offset < header.next_offset and not is_hidden:
                if self._last is None or self._last[0] != place:
                    opened = self._opened(place, header)
                    if opened is None:
                        raise CorruptBatch("its body does not open", position=place)
                    self._last = place, opened
                columns = self._last[1]
                index = bisect_left(columns.offsets, offset)
                is_there = index < len(columns.offsets) and columns.offsets[index] == offset
                return (columns, index) if is_there else None
        return None

    def _opened(self, place: int, header: BatchHeader) -> Columns | None:
        """Return the columns of a batch; None if it cannot be decoded, which is logged once."""
        try:
            return decode_batch(self.payload, place, header)
        except Exception as damage:  # a hostile body may raise more than RaylogError; other batches are still served
            if place not in self._unreadable:
                self._unreadable.add(place)
                logger.warning("The batch at offset %d cannot be opened: %s", header.base_offset, damage)
            return None


class LogReader:
    """Reads the log for all queues of one partition, and caches the last chunks."""

    def __init__(self, host: RoleHost, on_more: Callable[[], None]) -> None:
        """``on_more`` is called when the watch has read more records."""
        self._host = host
        self._on_more = on_more
        self._chunks: deque[Chunk] = deque(maxlen=CHUNKS_KEPT)
        self._is_watching = False
        self._is_wanted: Callable[[], bool] = lambda: False
        self.readable_end = 0
        """The last stable offset, as far as known: records below it may be read."""
        self.log_start = 0

    async def begin(self) -> None:
        """Refresh :attr:`log_start` and :attr:`readable_end`. Raises RaylogError."""
        self.log_start = (await self._host.list_offsets(EARLIEST)).offset
        self.readable_end = max(self.readable_end, await self._stable_end(), self.log_start)

    async def _stable_end(self) -> int:
        reply, _ = await self._host.fetch(
            (await self._host.list_offsets(LATEST)).offset, max_bytes=1, max_wait_ms=0, isolation_level=READ_COMMITTED
        )
        return reply.last_stable_offset

    async def chunk(self, offset: int) -> Chunk | None:
        """Return a chunk that contains an offset; None if it was deleted, or is not written yet. Raises RaylogError."""
        for chunk in self._chunks:
            if chunk.first <= offset < chunk.end:
                return chunk
        try:
            return await self._fetch(offset, 0)
        except OffsetOutOfRange:
            await self.begin()
            return None

    async def _fetch(self, offset: int, max_wait_ms: int) -> Chunk | None:
        reply, payload = await self._host.fetch(
            offset, max_bytes=CHUNK_BYTES, max_wait_ms=max_wait_ms, isolation_level=READ_COMMITTED
        )
        self.readable_end = max(self.readable_end, reply.last_stable_offset)
        self.log_start = max(self.log_start, reply.log_start_offset)
        if not payload:
            return None
        chunk = Chunk(offset, payload, reply.aborted)
        self.readable_end = max(self.readable_end, chunk.end)
        self._chunks.append(chunk)
        return chunk

    def look(self) -> None:
        """Refresh :attr:`log_start`, so that deleted records are handed out no more, although they are cached here."""
        self.log_start = max(self.log_start, self._host.log.log_start_offset)

    def watch(self, is_wanted: Callable[[], bool]) -> None:
        """Poll the end of the log while ``is_wanted`` returns True; one poll at a time."""
        self._is_wanted = is_wanted
        if not self._is_watching:
            self._is_watching = True
            self._host.spawn(self._watch(), "queue tail")

    async def _watch(self) -> None:
        try:
            while self._is_wanted():
                try:
                    chunk = await self._fetch(self.readable_end, WATCH_MS)
                except OffsetOutOfRange:
                    await self.begin()
                    chunk = None
                except RaylogError:
                    await asyncio.sleep(PAUSE_S)
                    continue
                if chunk is not None:
                    self._on_more()
        finally:
            self._is_watching = False

    def forget(self) -> None:
        """Drop the cached chunks."""
        self._chunks.clear()


class Body(NamedTuple):
    """The content of a record. ``stamp_ms``: its timestamp; ``compression``: the codec of its batch, 0 = none."""

    key: bytes | None
    value: bytes | None
    stamp_ms: int
    headers: Sequence[Header]
    compression: int


class RecordReader:
    """Reads records of one partition for dead letters and copies, one by one, even from damaged batches."""

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
