"""A replica's side of the table of beats: it writes that it runs, and reads whether its broker vouches for it.

Called by the replica's shell at each tick. May touch: the memory that the processes of a broker share.
"""

from __future__ import annotations

from typing import Final

from raylog.actors.beats import beat_memory
from raylog.actors.beats.beat_memory import OpenPages, SharedPages
from raylog.actors.beats.beat_table import BeatSlot, claim, key_of
from raylog.core.vouching import NO_LIFE, Pace, is_vouched_for

SEARCH_MS: Final = 5_000
"""Interval at which a replica without a slot, or for which no broker vouches, searches its broker's table."""


class Beating:
    """The beats of one replica, across all its registrations."""

    def __init__(self, topic_id: str, partition: int, pace: Pace, open_pages: OpenPages | None = None) -> None:
        """No table is opened before :meth:`registered`."""
        self._open_pages = open_pages
        self._key = key_of(topic_id, partition)
        self._pace = pace
        self.name = ""
        """The name of the broker's table on this host."""
        self._incarnation = self._controller_epoch = NO_LIFE
        self._pages: SharedPages | None = None
        self._slot: BeatSlot | None = None
        self._search_due_ms = 0

    def registered(self, incarnation: int, controller_epoch: int) -> None:
        """Beat as this incarnation from now on.

        ``controller_epoch``: of the controller with which the replica is registered.
        """
        self._incarnation, self._controller_epoch = incarnation, controller_epoch
        self._search_due_ms = 0

    def beat(self, now_ms: int, disk_hanging_ms: int) -> bool:
        """Write that the replica runs now; returns whether its broker vouches for it."""
        if self._controller_epoch == NO_LIFE:
            return False
        slot = self._slot
        if slot is not None and slot.beat(now_ms, disk_hanging_ms):
            if is_vouched_for(now_ms, self._incarnation, self._controller_epoch, self._pace, slot.cover()):
                return True
        else:
            self._slot = None
        if now_ms >= self._search_due_ms:
            self._search_due_ms = now_ms + SEARCH_MS
            self._search(now_ms)
        return False

    def close(self) -> None:
        """Release the slot. Idempotent."""
        self._controller_epoch = NO_LIFE
        if self._slot is not None:
            self._slot.release()
        self._leave()

    def _search(self, now_ms: int) -> None:
        """Open the broker's table, again if it has made a new one, and claim a slot in it."""
        if self._pages is not None and not self._pages.is_current():
            self._leave()
        if self._pages is None:
            self._pages = (self._open_pages or beat_memory.open_pages)(self.name, make=False)
        if self._slot is None and self._pages is not None:
            self._slot = claim(self._pages, self._key, self._incarnation, now_ms)

    def _leave(self) -> None:
        pages, self._pages, self._slot = self._pages, None, None
        if pages is not None:
            pages.close()
