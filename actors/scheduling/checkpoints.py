"""Splits checkpoints that are larger than a row into pieces, and joins them again. Pure.

A scheduler's state grows with the records that wait for targets without leaders, and with half messages; the log limits
the size of a row. So a large checkpoint is stored in several rows, and a last row has their offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from raylog.base.errors import UnsupportedVersion
from raylog.core.scheduling.rows import Checkpoint, CheckpointEnd, CheckpointPart, Row, from_wire, to_wire
from raylog.storage.errors import CorruptBatch

PART_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of a piece. A checkpoint that is not larger is one row."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


def pieces(row: Checkpoint, part_bytes: int = PART_BYTES) -> list[CheckpointPart]:
    """Return the pieces of a checkpoint; none if it fits into one row."""
    data = _encode(to_wire(row))
    if len(data) <= part_bytes:
        return []
    cut = (data[start : start + part_bytes] for start in range(0, len(data), part_bytes))
    return [CheckpointPart(row.number, index, part) for index, part in enumerate(cut)]


def joined(end: CheckpointEnd, rows: Sequence[Row | None]) -> Checkpoint:
    """Return the checkpoint that consists of these rows.

    Raises CorruptBatch if a row is not the expected piece, and UnsupportedVersion for one of another release.
    """
    data: list[bytes] = []
    for index, row in enumerate(rows):
        if not isinstance(row, CheckpointPart) or (row.number, row.index) != (end.number, index):
            raise CorruptBatch(f"there is no piece {index} of checkpoint {end.number}")
        data.append(row.data)
    try:
        wire: list[Any] = _decode(b"".join(data))
        row = from_wire(wire)
    except (ValueError, TypeError, LookupError, msgspec.MsgspecError) as error:
        raise UnsupportedVersion(
            f"Checkpoint {end.number} of the scheduler cannot be read ({error}); another release of Raylog wrote it: "
            "install that release."
        ) from error
    if not isinstance(row, Checkpoint):
        raise CorruptBatch(f"the pieces of checkpoint {end.number} are another row")
    return row
