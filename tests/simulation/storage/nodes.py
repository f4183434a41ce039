"""Files of a virtual disk: the contents that reads show, those on disk, and the effect of a crash on the difference.

Used by `disk` only. The model is the page cache of Linux: a write changes the cache, a sync writes pending changes to
the disk, a failed sync drops them while reads still show them, and a loss of power leaves each sector as of some moment
between the last sync and now.
"""

from __future__ import annotations

import random
from typing import NamedTuple

PAGE_BYTES = 4096


class Write(NamedTuple):
    """Bytes written at a position of a file."""

    position: int
    data: bytes


class Resize(NamedTuple):
    """A file truncated, or extended by zeros."""

    size: int


Change = Write | Resize


def apply(image: bytearray, change: Change) -> None:
    """Change an image of a file."""
    if isinstance(change, Resize):
        del image[change.size :]
        image.extend(bytes(change.size - len(image)))
    elif change.data:
        image.extend(bytes(max(0, change.position - len(image))))
        image[change.position : change.position + len(change.data)] = change.data


class File:
    """One file. Its names belong to the folders."""

    __slots__ = ("content", "disk", "holders", "mode", "names", "number", "pending", "stale", "unreported")

    def __init__(self, number: int, mode: int, content: bytes = b"") -> None:
        """Begin with `content` on the disk."""
        self.number = number
        self.mode = mode
        self.content = bytearray(content)
        """The contents that reads show."""
        self.disk = bytearray(content)
        """The contents without the page cache."""
        self.pending: list[Change] = []
        """`content` = `disk` after these, except in `stale` pages."""
        self.stale: set[int] = set()
        """Pages marked clean that never reached the disk, because a sync failed."""
        self.unreported = False
        """A write-back failed in the background: the next sync reports it."""
        self.names = 1
        self.holders = 0
        """Names in the cached folders, and open descriptors: without either, its space is free."""

    def write(self, position: int, data: bytes) -> None:
        """Put bytes into the cache. A stale page that is written to is dirty again as a whole."""
        apply(self.content, Write(position, data))
        touched = range(position // PAGE_BYTES, (position + max(1, len(data)) - 1) // PAGE_BYTES + 1)
        if not self.stale.isdisjoint(touched):
            self.stale.difference_update(touched)
            position = touched.start * PAGE_BYTES
            data = bytes(self.content[position : touched.stop * PAGE_BYTES])
        self.pending.append(Write(position, data))

    def resize(self, size: int) -> None:
        """Truncate or extend the file."""
        apply(self.content, Resize(size))
        self.stale = {page for page in self.stale if page * PAGE_BYTES < size}
        self.pending.append(Resize(size))

    def sync(self) -> None:
        """Write pending changes to the disk, but no stale page."""
        for change in self.pending:
            apply(self.disk, change)
        self.pending.clear()
        apply(self.disk, Resize(len(self.content)))

    def fail_sync(self, draw: random.Random, sector: int) -> None:
        """Lose all or part of the pending changes, while reads still show them."""
        written = [change for change in self.pending if isinstance(change, Write)]
        settle(self.disk, self.pending, draw, sector, cuts=len(self.pending))
        self.pending.clear()
        for position, data in written:
            self.stale.update(range(position // PAGE_BYTES, (position + len(data) - 1) // PAGE_BYTES + 1))

    @property
    def is_clean(self) -> bool:
        """Whether the disk has all that reads show."""
        return not self.pending and not self.stale

    def flip(self, position: int, bit: int) -> None:
        """A bit changes by itself, on the disk of a clean file and in what reads show of it."""
        for image in (self.content, self.disk):
            image[position] ^= 1 << bit

    def drop_clean(self, start: int, end: int) -> None:
        """Drop clean pages that lie between two positions: reads show the disk there."""
        for page in sorted(self.stale):
            first, last = page * PAGE_BYTES, min((page + 1) * PAGE_BYTES, len(self.content))
            if start <= first < last <= end:
                held = bytes(self.disk[first:last])
                self.content[first:last] = held + bytes(last - first - len(held))
                self.stale.discard(page)

    def lose_power(self, draw: random.Random, sector: int) -> None:
        """Keep the contents on disk, and a random part of the pending changes."""
        cuts = draw.randint(0, sum(isinstance(change, Resize) for change in self.pending))
        settle(self.disk, self.pending, draw, sector, cuts=cuts)
        self.pending.clear()
        self.stale.clear()
        self.content[:] = self.disk
        self.unreported = False
        self.holders = 0


def settle(image: bytearray, pending: list[Change], draw: random.Random, sector: int, *, cuts: int) -> None:
    """Apply pending changes to `image` as a crash does: each sector as of a moment of its own, truncations in order.

    `cuts` is the number of size changes that survive. Writes after a lost one went to blocks that no size reaches. The
    size may also be ahead of the data: zeros are read there then.
    """
    if not pending:
        return
    fate = draw.choice(("nothing", "everything", "mixed", "mixed", "half"))
    moments: dict[int, int] = {}
    reached, done, within = draw.randint(0, len(pending)), 0, 1 << 62
    for place, change in enumerate(pending):
        if isinstance(change, Resize):
            done += 1
            if done <= cuts:
                apply(image, change)
            else:
                within = min(within, change.size)
            continue
        position, end = change.position, min(change.position + len(change.data), within)
        while position < end:
            border = min(end, (position // sector + 1) * sector)
            moment = moments.get(position // sector)
            if moment is None:
                moment = {"nothing": 0, "everything": len(pending), "half": reached}.get(fate, -1)
                moment = moments[position // sector] = draw.randint(0, len(pending)) if moment < 0 else moment
            if place < moment:
                start = change.position
                apply(image, Write(position, change.data[position - start : border - start]))
            position = border
    largest = max((c.position + len(c.data) for c in pending if isinstance(c, Write)), default=0)
    if done <= cuts and largest > len(image) and draw.random() < 0.25:
        apply(image, Resize(draw.randint(len(image), min(largest, within))) if within > len(image) else Write(0, b""))


class Folder:
    """One folder: the names that calls see, and those that survive a loss of power."""

    __slots__ = ("disk", "entries", "mode", "number")

    def __init__(self, number: int, mode: int) -> None:
        """Begin empty."""
        self.number = number
        self.mode = mode
        self.entries: dict[str, File | Folder] = {}
        self.disk: dict[str, File | Folder] = {}


Node = File | Folder


class Rename(NamedTuple):
    """One atomic change of names: each of these folders gets this node under this name, or loses the name (None)."""

    edits: tuple[tuple[Folder, str, Node | None], ...]

    def apply_to_disk(self) -> None:
        """Make it durable."""
        for folder, name, node in self.edits:
            if node is None:
                folder.disk.pop(name, None)
            else:
                folder.disk[name] = node

    @property
    def places(self) -> set[tuple[int, str]]:
        """The names it changes."""
        return {(id(folder), name) for folder, name, _ in self.edits}
