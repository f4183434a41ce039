"""Leaves out records whose time to live is over, for consumers with `skip_expired`. Used by `decode.py`. Pure.

The consumer's clock decides; it is an argument. The shorter of a record's own time to live and its topic's `ttl.ms`
counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raylog.core.dead_letters import ttl_of
from raylog.core.forwarding.settings import NEVER
from raylog.storage.batch.records import Columns


class Expiry:
    """Leaves out the expired records of one partition."""

    __slots__ = ("_now_ms", "_ttl_ms", "skipped")

    def __init__(self, ttl_ms: Callable[[], int], now_ms: Callable[[], int]) -> None:
        """`ttl_ms` returns the topic's time to live in milliseconds, -1 = none; `now_ms` the time since 1970."""
        self._ttl_ms = ttl_ms
        self._now_ms = now_ms
        self.skipped = 0
        """How many records were left out."""

    def unexpired(self, columns: Columns) -> Columns:
        """The records that have not expired."""
        ttl_ms, now_ms = self._ttl_ms(), self._now_ms()
        headers = columns.headers
        if headers is None and ttl_ms == NEVER:
            return columns
        rows = [
            row
            for row, timestamp in enumerate(columns.timestamps)
            if not _is_over(now_ms - timestamp, ttl_ms, None if headers is None else headers[row])
        ]
        if len(rows) == len(columns.timestamps):
            return columns
        self.skipped += len(columns.timestamps) - len(rows)

        def chosen(column: Any) -> Any:
            return None if column is None else [column[row] for row in rows]

        return Columns(
            chosen(columns.offsets),
            chosen(columns.timestamps),
            chosen(columns.keys),
            chosen(columns.values),
            chosen(headers),
        )


def _is_over(age_ms: int, ttl_ms: int, headers: Any) -> bool:
    own_ms = ttl_of(headers) if headers else None
    if own_ms is not None:
        ttl_ms = own_ms if ttl_ms == NEVER else min(own_ms, ttl_ms)
    return ttl_ms != NEVER and age_ms >= ttl_ms
