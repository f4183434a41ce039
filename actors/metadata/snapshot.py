"""A snapshot of the metadata: the result of all records below an offset, as bytes with a checksum.

Made by the controller, kept by voters in one file, and sent in the same form. After a header come the image's records
as record batches. A CRC covers everything, because the snapshot replaces its records.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final, Self

import google_crc32c

from raylog.actors.metadata.codec import decoded, encoded
from raylog.core.metadata.image import MetadataImage
from raylog.core.metadata.records import MetadataRecord
from raylog.storage.errors import LogDamaged, from_os_error
from raylog.storage.files import read_bytes, write_atomically

SNAPSHOT: Final = "snapshot"
"""The file's name in a voter's folder."""
BATCH_RECORDS: Final = 1_000
_MAGIC: Final = b"RLMETA01"
_HEAD: Final = struct.Struct(">8sqiqI")
"""Magic, end offset, epoch of the last record, bytes of the batches, CRC-32C of these fields and the batches."""


@dataclass(frozen=True, slots=True)
class MetadataSnapshot:
    """The result of the records below ``end``; ``epoch``: the controller epoch of the last of them."""

    end: int
    epoch: int
    batches: bytes

    @property
    def size(self) -> int:
        """Bytes of its record batches."""
        return len(self.batches)

    @classmethod
    def of(cls, records: Sequence[MetadataRecord], end: int, epoch: int, now_ms: int | None = None) -> Self:
        """Encode an image's records; ``now_ms``: timestamp of the batches. May run in a thread."""
        left = iter(records)
        parts = []
        while chunk := list(islice(left, BATCH_RECORDS)):
            parts.append(encoded(chunk, now_ms))
        return cls(end, epoch, b"".join(parts))

    def image(self) -> MetadataImage:
        """Return the image at its version. Raises ValueError for records that a newer release wrote."""
        return MetadataImage.restore(self.end, decoded(self.batches))

    def to_bytes(self) -> bytes:
        """Return the form for the file and the wire."""
        return self._head(self._crc()) + self.batches

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse that form. Raises ValueError with the reason."""
        if len(data) < _HEAD.size:
            raise ValueError(f"{len(data)} bytes are no metadata snapshot")
        magic, end, epoch, size, crc = _HEAD.unpack_from(data)
        found = cls(end, epoch, data[_HEAD.size :])
        if magic != _MAGIC or size != len(found.batches):
            raise ValueError("this is no metadata snapshot, or not all of one")
        if crc != found._crc():
            raise ValueError("the CRC does not match")
        return found

    def _head(self, crc: int) -> bytes:
        return _HEAD.pack(_MAGIC, self.end, self.epoch, len(self.batches), crc)

    def _crc(self) -> int:
        crc: int = google_crc32c.extend(google_crc32c.value(self._head(0)), self.batches)
        return crc


def write_snapshot(folder: Path, data: bytes) -> None:
    """Replace the snapshot, durably and atomically: a crash leaves the old or the new one."""
    write_atomically(folder / SNAPSHOT, data)


def read_snapshot(folder: Path) -> MetadataSnapshot | None:
    """Return the snapshot in a voter's folder, or None. Raises :class:`LogDamaged`."""
    path = folder / SNAPSHOT
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise from_os_error(f"read {path}", error) from error
    try:
        return MetadataSnapshot.from_bytes(data)
    except ValueError as wrong:
        raise LogDamaged(path, 0, 0, str(wrong)) from None
