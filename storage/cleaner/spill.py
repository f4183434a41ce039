"""Rows of bytes that grow at their ends, and move to a temporary file once they take more than a given memory.

What a row has in memory is written to the file as a piece, after the pieces of other rows. Each piece begins with the
place of the row's piece before it, so that a row takes a few bytes of memory, however many pieces it has. Used by
`survivors`. May touch: its file.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from raylog.storage import filesystem
from raylog.storage.descriptors import open_file
from raylog.storage.errors import from_os_error
from raylog.storage.files import read_at, remove, write_at

_BEFORE: Final = struct.Struct("<QI")
"""Position and bytes of the piece before; no bytes = there is none."""
_WRITE_BYTES: Final = 1 << 20


class Spill:
    """The rows. `close` removes the file."""

    def __init__(self, path: Path, rows: int, memory_bytes: int) -> None:
        """`memory_bytes`: bytes of all rows that are not in the file; a growing row may take twice as much."""
        self.rows = [bytearray() for _ in range(rows)]
        """What is not in the file yet. To be appended to by the owner, which calls `look` now and then."""
        self._places, self._lengths = array("Q", bytes(8 * rows)), array("I", bytes(4 * rows))
        """The last piece of each row in the file."""
        self._path, self._memory_bytes = path, memory_bytes
        self._fd = -1
        self._end = 0

    def look(self, added: int) -> bool:
        """Write everything to the file if it takes too much memory; `added`: the bytes since it was last written.

        Returns whether it was written. Raises DiskFull, StorageIoError, DescriptorsExhausted.
        """
        if added < self._memory_bytes:
            return False
        try:
            if self._fd < 0:
                self._fd = open_file(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            self._write()
        except OSError as error:
            raise from_os_error(f"write {self._path}", error) from error
        return True

    def _write(self) -> None:
        waiting, begin = bytearray(), self._end
        for row, data in enumerate(self.rows):
            if not data:
                continue
            place = begin + len(waiting)
            waiting += _BEFORE.pack(self._places[row], self._lengths[row])
            waiting += data
            self._places[row], self._lengths[row] = place, len(data)
            self.rows[row] = bytearray()
            if len(waiting) >= _WRITE_BYTES:
                write_at(self._fd, waiting, begin)
                begin += len(waiting)
                waiting = bytearray()
        write_at(self._fd, waiting, begin)
        self._end = begin + len(waiting)

    def pieces(self, row: int) -> Iterator[bytes | bytearray]:
        """The bytes of a row, piece by piece, in their order. Raises StorageIoError."""
        places, lengths = array("Q"), array("I")
        place, length = self._places[row], self._lengths[row]
        while length:
            places.append(place)
            lengths.append(length)
            place, length = _BEFORE.unpack(self._read(place, _BEFORE.size))
        for place, length in zip(reversed(places), reversed(lengths), strict=True):
            yield self._read(place + _BEFORE.size, length)
        yield self.rows[row]

    def close(self) -> None:
        """Remove the file. Idempotent. Raises StorageIoError."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            filesystem.close(fd)
            remove(self._path)

    def _read(self, place: int, length: int) -> bytes:
        try:
            return read_at(self._fd, length, place)
        except OSError as error:
            raise from_os_error(f"read {self._path}", error) from error
