"""Serves reads at the end of a leader's log, where its followers and most consumers are, from memory.

Owned by a replica's runner. The bytes are those that the log has written, so they need neither a file nor a check; one
read from the files is kept as well, because the next follower nearly always requests the same.
"""

from __future__ import annotations

from typing import Final

from raylog.actors.replica.ports import Log, Records

KEPT_BYTES: Final = 1 << 20
"""Size limit of either kind."""


class TailCache:
    """`Log.read`, with a memory of the last append and the last read."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._first = self._end = -1
        self._appended: Records = b""
        self._last_read: tuple[int, int, int] | None = None
        self._found: Records = b""

    def appended(self, first: int, end: int, records: Records) -> None:
        """These bytes lie in the log now, at the offsets from ``first`` up to ``end``; they do not change any more."""
        is_small = len(records) <= KEPT_BYTES
        self._first, self._end, self._appended = (first, end, records) if is_small else (-1, -1, b"")

    def forget(self) -> None:
        """The log was cut or cleaned: the same offsets may have other records.

        After a cleaning, the log lists the aborted transactions of what it has now. Batches from before, answered with
        that list, would show aborted records to readers of committed ones.
        """
        self._first = self._end = -1
        self._appended = self._found = b""
        self._last_read = None

    def is_small(self, offset: int, below_bytes: int) -> bool:
        """Whether the last append of this leader begins at this offset, and has less than so many bytes."""
        return offset == self._first and len(self._appended) < below_bytes

    def read(self, offset: int, max_bytes: int, upper: int) -> Records:
        """Whole batches as :meth:`Log.read` gives them; raises what it raises."""
        if offset >= self._log.log_start_offset:
            # A follower's appends are not noted: behind those of an earlier leadership, the log may have more.
            is_all = self._end == self._log.log_end_offset or self._end == upper
            if offset == self._first and self._end <= upper and is_all and len(self._appended) <= max_bytes:
                return self._appended
            if self._last_read == (offset, max_bytes, upper):
                return self._found
        found = self._log.read(offset, max_bytes, upper)
        is_small = len(found) <= KEPT_BYTES
        self._last_read, self._found = ((offset, max_bytes, upper), found) if is_small else (None, b"")
        return found
