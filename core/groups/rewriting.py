"""Keeps ``__consumer_offsets`` short: live rows are written again at its end, and the beginning is deleted.

Rows are independent: the last one of a key counts. So a round needs no marks and no pause. It notes the end of the log,
then writes, a chunk at a time and between the rows of live traffic, the present row of each key that there was at its
beginning. When the last chunk is stored, every key has its row above the noted end or has none, and everything below
may be deleted (``delete_records``). A coordinator that dies before leaves a longer log of the same meaning. Decided on
ticks of the machine in ``coordinator.py``, its only user. ADR 0029 says why there are no snapshots.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from raylog.core.groups.decision import GroupDecision
from raylog.core.groups.events import LogExtent
from raylog.core.groups.records import GroupChanged, OffsetCommitted, OffsetKey
from raylog.core.groups.settings import GroupSettings
from raylog.core.groups.sizes import row_bytes

LiveKey = OffsetKey | str
"""An offset, or a group by its name."""
Find = Callable[[LiveKey], OffsetCommitted | GroupChanged | None]
"""Returns the present row of a key."""


class Rewriting:
    """The rewriting rounds of one incarnation of a coordinator.

    Invariants: one round, one chunk and one deletion at a time; a row is deleted only after a round of this incarnation
    has stored it again above.
    """

    def __init__(self, settings: GroupSettings) -> None:
        """Start without a round: the first tick checks the size of the loaded log."""
        self._settings = settings
        self._kept_from = 0
        """Bytes (as :class:`LogExtent` counts them) below the start of the log."""
        self._begin: LogExtent | None = None
        """Where the log ended when the round began; None = no round."""
        self._keys: deque[LiveKey] = deque()
        """Keys that the round still has to write."""
        self._chunk_under_way = False
        self._is_written = False
        """All keys are stored again above ``_begin``: everything below may be deleted."""
        self._trim_due_ms = 0

    def is_due(self, log: LogExtent, live_bytes: int) -> bool:
        """Return whether a round should begin: the log is long, and most of it is obsolete."""
        least = max(self._settings.rewrite_floor_bytes, self._settings.rewrite_factor * live_bytes)
        return self._begin is None and log.size_bytes - self._kept_from > least

    @property
    def is_under_way(self) -> bool:
        """Whether a round has begun and is not over."""
        return self._begin is not None

    def begin(self, log: LogExtent, keys: Iterable[LiveKey]) -> None:
        """Begin a round: ``keys`` are all present keys, stored or about to be."""
        self._begin = log
        self._keys = deque(keys)
        self._chunk_under_way = False
        self._is_written = False
        self._trim_due_ms = 0

    def go_on(self, find: Find, decision: GroupDecision) -> None:
        """Write the next chunk if the last one is stored, or request the deletion if all are."""
        if self._begin is None or self._chunk_under_way:
            return
        if self._is_written:
            if decision.now_ms >= self._trim_due_ms:
                self._trim_due_ms = decision.now_ms + self._settings.trim_retry_ms
                decision.trim(self._begin.end_offset)
            return
        left = self._settings.rewrite_chunk_bytes
        while self._keys and left > 0:
            held = find(self._keys.popleft())
            if held is not None:
                decision.rewrite(held)
                left -= row_bytes(*held.to_wire())
        self._chunk_under_way = True
        decision.report_stored()

    def chunk_stored(self) -> None:
        """Note that the last chunk, and everything decided before it, is in the log."""
        self._chunk_under_way = False
        self._is_written = not self._keys

    def trimmed(self, before: int) -> None:
        """Note that the log starts at ``before`` now: the round is over."""
        if self._begin is not None and self._is_written and before >= self._begin.end_offset:
            self._kept_from = self._begin.size_bytes
            self._begin = None
