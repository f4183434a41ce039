"""Memory that simulated processes share, in place of mapped files (``actors/beats/beat_memory.py``)."""

from __future__ import annotations

from array import array
from typing import Final

from raylog.actors.beats.beat_table import HEADER_WORDS, SLOT_WORDS

SLOTS: Final = 64


class SimPages:
    """Pages of one name that several processes have open; only one of them runs at a time."""

    def __init__(self, home: dict[str, SimPages], name: str) -> None:
        """Full of zeros. ``home`` has the pages of each name."""
        self.words = memoryview(array("q", [0] * (HEADER_WORDS + SLOTS * SLOT_WORDS)))
        self._home, self._name = home, name

    def try_lock(self) -> bool:
        """A process is never interrupted while it holds the lock."""
        return True

    def unlock(self) -> None:
        """Nothing was locked."""

    def is_current(self) -> bool:
        """Whether the name leads here."""
        return self._home.get(self._name) is self

    def close(self) -> None:
        """Nothing was mapped."""

    def remove(self) -> None:
        """Give the name up."""
        if self.is_current():
            del self._home[self._name]


def open_in(home: dict[str, SimPages], name: str, *, make: bool) -> SimPages | None:
    """As :func:`raylog.actors.beats.beat_memory.open_pages`, on one host."""
    if name not in home and make:
        home[name] = SimPages(home, name)
    return home.get(name)
