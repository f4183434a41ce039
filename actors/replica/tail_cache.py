"""Serves reads at the end of a leader's log from memory; its followers and most consumers are there.

Owned by a replica's runner. It caches the last append, whose bytes need neither a file nor a check, and the last read
from the files, because the next follower nearly always requests the same.
"""

from __future__ import annotations

from typing import Final

from raylog.actors.replica.ports import Log, Records

KEPT_BYTES: Final = 1 << 20
"""Largest append, and largest read, that is cached."""


class TailCache:
    """`Log.read`, with a cache of the last append and the last read."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._first = self._end = -1
        self._appended: Records = b""
        self._last_read: tuple[int, int, int] | None = None
        self._found: Records = b""

    def appended(self, first: int, end: int, records: Records) -> None:
        """Cache bytes that were appended at the offsets [``first``, ``end``); they must not change any more."""
        is_small = len(records) <= KEPT_BYTES
        self._first, self._end, self._appended = (first, end, records) if is_small else (-1, -1, b"")

    def forget(self) -> None:
        """Empty the cache: the log was truncated or cleaned, so the same offsets may have other records.

        After a cleaning, the log lists only the aborted transactions that it still has. With that list, cached batches
        would show aborted records to readers of committed ones.
        """
        self._first = self._end = -1
        self._appended = self._found = b""
        self._last_read = None

    def is_small(self, offset: int, below_bytes: int) -> bool:
        """Return whether the last append of this leader begins at ``offset`` and has less than ``below_bytes``."""
        return offset == self._first and len(self._appended) < below_bytes

    def read(self, offset: int, max_bytes: int, upper: int) -> Records:
        """Return whole batches, as :meth:`Log.read`, and raise what it raises."""
        if offset >= self._log.log_start_offset:
            # A follower's appends are not cached: after the last one of an earlier leadership, the log may have more.
            is_all = self._end == self._log.log_end_offset or self._end == upper
            if offset == self._first and self._end <= upper and is_all and len(self._appended) <= max_bytes:
                return self._appended
            if self._last_read == (offset, max_bytes, upper):
                return self._found
        found = self._log.read(offset, max_bytes, upper)
        is_small = len(found) <= KEPT_BYTES
        self._last_read, self._found = ((offset, max_bytes, upper), found) if is_small else (None, b"")
        return found
