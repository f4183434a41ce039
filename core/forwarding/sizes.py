"""How many records go into one batch for another partition, by their sizes and its limit. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

BATCH_BYTES: Final = 512 * 1024
"""Most bytes of records in one batch, before compression, unless the target's limit is lower."""
RECORD_BYTES: Final = 64
"""About how many bytes a record takes beside its key, value and headers."""
ROOM_BYTES: Final = 64 * 1024
"""How much larger the batches of a topic of copies may be than those of the records' topic: for the added headers."""


def size_of(key: bytes | None, value: bytes | None, headers: Iterable[Sequence[Any]] | None) -> int:
    """Return about how many bytes a record takes in a batch, before compression."""
    added = sum(len(name) + len(content or b"") for name, content in headers or ())
    return len(key or b"") + len(value or b"") + added + RECORD_BYTES


class Room:
    """The room that is left in one batch."""

    def __init__(self, bytes_max: int | None) -> None:
        """Begin with an empty batch; ``bytes_max``: most bytes of its records, None = no limit."""
        self._left = bytes_max
        self._is_empty = True

    def takes(self, size: int) -> bool:
        """Return whether a record of so many bytes fits, and take it then. The first always fits: it may compress."""
        if self._left is not None:
            if size > self._left and not self._is_empty:
                return False
            self._left -= size
        self._is_empty = False
        return True
