"""Reads single pages of runs from the leader's log, and verifies each by its own checksum.

A batch has one CRC for all of its bytes, and a run with names may have megabytes. So the row of a run has a checksum of
each page, and the run's facts, which checkpoints have, contain a checksum of these. Owned by the scheduler's role. May
touch: the role's own log.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from raylog.actors.roles.host import OwnLog
from raylog.actors.scheduling.rows import decode_key
from raylog.core.scheduling.rows import RunWritten
from raylog.core.scheduling.runs import PAGE_BYTES, Run, RunFacts, pages_fit
from raylog.storage.batch.grids import key_and_value
from raylog.storage.batch.header import iter_headers, parse_header
from raylog.storage.batch.records import open_batch
from raylog.storage.errors import CorruptBatch

HEAD_BYTES: Final = 4 * 1024
"""Bytes to read from the start of a run's batch: its header, and the row with the checksums of 15 MB of pages."""
KNOWN_MAX: Final = 4_096
"""Most runs whose checksums are in memory, each with four bytes a page."""
HEAD_OF_RUN_BYTES: Final = 8


class Known(NamedTuple):
    """A run whose pages can be read one by one."""

    at: int
    """Position of the run in its batch, in bytes."""
    size: int
    sums: bytes


class RunReader:
    """The runs of one log. The last part is cached, since reads of its blocks or of neighbouring ones follow."""

    def __init__(self, log: OwnLog) -> None:
        """``log``: the leader's log."""
        self._log = log
        self._known: dict[int, Known] = {}
        self._last: tuple[int, int, bytes] = (-1, 0, b"")
        """The cached part: the run's offset, the part's position in the run, and its verified bytes."""

    def directory(self, offset: int, facts: RunFacts) -> bytes:
        """Return the start of the run at an offset, up to the end of its directory. Raises as :meth:`part`."""
        head = self._part(offset, facts.check, 0, HEAD_OF_RUN_BYTES)
        return self._part(offset, facts.check, 0, Run.directory_bytes(head))

    def part(self, run: Run, start: int, end: int) -> bytes:
        """Return bytes ``[start, end)`` of a run. Raises CorruptBatch and errors of the log."""
        return self._part(run.offset, run.facts.check, start, end)

    def _part(self, offset: int, check: int, start: int, end: int) -> bytes:
        last, at, data = self._last
        if last != offset or start < at or end > at + len(data):
            at, data = self._pages(offset, check, start, end)
            self._last = offset, at, data
        return data[start - at : end - at]

    def _pages(self, offset: int, check: int, start: int, end: int) -> tuple[int, bytes]:
        """Return the position of the pages that contain a part, and their bytes; or the whole run.

        The whole run is read if its checksums are not available, or a page does not match: then the log's own check of
        the batch reports the damage.
        """
        known = self._known.get(offset) or self._look(offset, check)
        if known is not None:
            number = start // PAGE_BYTES
            at = number * PAGE_BYTES
            stop = min(known.size, -(-end // PAGE_BYTES) * PAGE_BYTES)
            data = self._log.read_part(offset, known.at + at, stop - at)
            if pages_fit(data, number, known.sums):
                return at, data
        return 0, self._whole(offset)

    def _look(self, offset: int, check: int) -> Known | None:
        """Read the checksums of a run's pages from its row; None if they are damaged."""
        head = self._log.read_part(offset, 0, HEAD_BYTES)
        try:
            places = key_and_value(head, parse_header(head))
            if places is None:
                return None
            key, value = places
            row = decode_key(head[key.start : key.end])
        except (CorruptBatch, ValueError, msgspec.MsgspecError):
            return None
        if not isinstance(row, RunWritten) or crc32(row.sums) != check:
            return None
        if len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        known = self._known[offset] = Known(value.start, value.end - value.start, row.sums)
        return known

    def _whole(self, offset: int) -> bytes:
        records = self._log.read(offset, 1, self._log.log_end_offset)
        for position, header in iter_headers(records):
            if header.base_offset == offset:
                values = open_batch(records, position, header).column("values")
                if values is not None and values[0] is not None:
                    return bytes(values[0])
        raise CorruptBatch(f"there is no run at offset {offset}")
