"""The table of beats: one slot for each replica of a broker, in memory that its processes share.

A replica writes its beats to its own slot, without a system call. The broker reads all slots before each of its
heartbeats, and marks those replicas for which the controller has confirmed that the broker vouches
(:mod:`raylog.core.vouching`). Each word is written atomically. A slot belongs to one process at a time: the process of
the replica that holds the lock of the partition's folder.
"""

from __future__ import annotations

import hashlib
from typing import Final

from raylog.actors.beats.beat_memory import SharedPages, locked
from raylog.core.vouching import NO_LIFE, Beat, Cover

MAGIC: Final = 0x5261_796C_6F67_0001
"""Marks layout 1. Processes of a release with another layout send heartbeats themselves."""
_LAYOUT, _EPOCH, _CONFIRMED_MS, USED_MS, _SLOTS = range(5)
_KEY, _INCARNATION, _BEAT_MS, _HANGING_MS, _VOUCHED = range(5)
HEADER_WORDS: Final = 8
SLOT_WORDS: Final = 8
"""More words than are used: a cache line, with room for what a later release adds."""
_FREE: Final = 0
LEFT_AFTER_MS: Final = 600_000
"""After so long without a beat, a slot may be given to another replica."""


def key_of(topic_id: str, partition: int) -> int:
    """Return the number by which a replica finds its slot; never 0."""
    digest = hashlib.blake2b(f"{topic_id}/{partition}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2 | 1 << 62


class BeatTable:
    """The broker's view of the table."""

    def __init__(self, pages: SharedPages) -> None:
        """Use the table in these pages; make an empty one if they hold none of this layout."""
        self._words = words = pages.words
        if words[_LAYOUT] != MAGIC:
            words[_LAYOUT] = 0
            for place in range(1, len(words)):
                words[place] = 0
            words[_EPOCH] = NO_LIFE
            words[_LAYOUT] = MAGIC

    def begin(self, controller_epoch: int) -> None:
        """Begin a session with a controller, which has confirmed nothing yet.

        The epoch is written last, so a replica that reads the new epoch finds no mark of the session before.
        """
        for beat in self.beats():
            self.unmark(beat.slot)
        self._words[_CONFIRMED_MS] = 0
        self._words[_EPOCH] = controller_epoch

    def beats(self) -> list[Beat]:
        """Return the slots of replicas that have an incarnation."""
        words = self._words
        end = HEADER_WORDS + SLOT_WORDS * words[_SLOTS]
        rows = words[HEADER_WORDS:end].tolist()
        return [
            Beat(slot, *rows[slot + _INCARNATION : slot + _VOUCHED + 1])
            for slot in range(0, len(rows), SLOT_WORDS)
            if rows[slot] != _FREE and rows[slot + _INCARNATION] != NO_LIFE
        ]

    def mark(self, slot: int, incarnation: int) -> None:
        """Let a replica rely on its broker, if the slot still belongs to this incarnation."""
        if self._words[HEADER_WORDS + slot + _INCARNATION] == incarnation:
            self._words[HEADER_WORDS + slot + _VOUCHED] = incarnation

    def unmark(self, slot: int) -> None:
        """Let a replica send its own heartbeats again."""
        self._words[HEADER_WORDS + slot + _VOUCHED] = NO_LIFE

    def confirm(self, sent_ms: int) -> None:
        """Note that the controller has confirmed the broker's heartbeat that was sent at this time."""
        self._words[_CONFIRMED_MS] = sent_ms

    def used(self, now_ms: int) -> None:
        """Note that the table is in use at this time (monotonic milliseconds)."""
        self._words[USED_MS] = now_ms


class BeatSlot:
    """One replica's slot in the table."""

    def __init__(self, words: memoryview, slot: int, incarnation: int) -> None:
        """Made by :func:`claim`."""
        self._words, self._at = words, HEADER_WORDS + slot
        self._incarnation = incarnation

    def beat(self, now_ms: int, disk_hanging_ms: int) -> bool:
        """Note that this process runs, and for how long its disk has been hanging; False when it has lost the slot."""
        words, at = self._words, self._at
        if words[at + _INCARNATION] != self._incarnation:
            return False
        words[at + _HANGING_MS] = disk_hanging_ms
        words[at + _BEAT_MS] = now_ms
        return True

    def cover(self) -> Cover:
        """Return what the broker has noted. It is read in the opposite order of :meth:`BeatTable.begin`."""
        words = self._words
        confirmed_ms = words[_CONFIRMED_MS]
        return Cover(words[_EPOCH], confirmed_ms, words[self._at + _VOUCHED])

    def release(self) -> None:
        """Free the slot, because the replica stops."""
        words, at = self._words, self._at
        if words[at + _INCARNATION] == self._incarnation:
            words[at + _INCARNATION] = NO_LIFE
            words[at + _KEY] = _FREE


def claim(pages: SharedPages, key: int, incarnation: int, now_ms: int) -> BeatSlot | None:
    """Return a slot for a replica's incarnation: the slot that the replica had before, or a free one.

    None: the table is full or has another layout, or another process is claiming a slot right now.
    """
    words = pages.words
    with locked(pages) as is_locked:
        if not is_locked or words[_LAYOUT] != MAGIC:
            return None
        found = _find(words, key, now_ms)
        if found is None:
            return None
        at = HEADER_WORDS + found
        if words[at + _KEY] != key or words[at + _INCARNATION] != incarnation:
            # The broker ignores the slot while it has no incarnation, so that is written last.
            words[at + _INCARNATION] = NO_LIFE
            words[at + _VOUCHED] = NO_LIFE
            words[at + _BEAT_MS] = now_ms
            words[at + _HANGING_MS] = 0
            words[at + _KEY] = key
            words[at + _INCARNATION] = incarnation
        return BeatSlot(words, found, incarnation)


def _find(words: memoryview, key: int, now_ms: int) -> int | None:
    count = words[_SLOTS]
    free = None
    for number in range(count):
        slot = number * SLOT_WORDS
        at = HEADER_WORDS + slot
        if words[at + _KEY] == key:
            return slot
        if free is None and (words[at + _KEY] == _FREE or now_ms - words[at + _BEAT_MS] > LEFT_AFTER_MS):
            free = slot
    if free is None and HEADER_WORDS + (count + 1) * SLOT_WORDS <= len(words):
        free = count * SLOT_WORDS
        words[_SLOTS] = count + 1
    return free
