"""How many records go into one batch for another partition, by their sizes and its limit. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

BATCH_BYTES: Final = 512 * 1024
"""Most bytes of records of one batch, before compression, where the target's limit is not below."""
RECORD_BYTES: Final = 64
"""About what a record takes beside its key, value and headers."""
ROOM_BYTES: Final = 64 * 1024
"""By how much a topic of copies takes more than the topic of the records: for the headers that are added."""


def size_of(key: bytes | None, value: bytes | None, headers: Iterable[Sequence[Any]] | None) -> int:
    """Return about how many bytes a record takes in a batch, before compression."""
    added = sum(len(name) + len(content or b"") for name, content in headers or ())
    return len(key or b"") + len(value or b"") + added + RECORD_BYTES


class Room:
    """How much more one batch takes."""

    def __init__(self, bytes_max: int | None) -> None:
        """``bytes_max``: of its records; None = as many as there are."""
        self._left = bytes_max
        self._is_empty = True

    def takes(self, size: int) -> bool:
        """Take a record of so many bytes, if there is room; the first one always has it: it may fit compressed."""
        if self._left is not None:
            if size > self._left and not self._is_empty:
                return False
            self._left -= size
        self._is_empty = False
        return True
