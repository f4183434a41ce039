"""Splits checkpoints that are larger than a row into pieces, and joins them again. Pure.

A scheduler's state grows with the records that wait for targets without leaders, and with half messages; the log limits
the size of a row. So a large checkpoint is stored in several rows, and a last row has their offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from raylog.actors.scheduling.rows import decode_key, encode_key
from raylog.base.errors import UnsupportedVersion
from raylog.core.scheduling.events import RowRead
from raylog.core.scheduling.rows import Checkpoint, CheckpointEnd, CheckpointPart
from raylog.storage.errors import CorruptBatch

PART_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of a piece. A checkpoint that is not larger is one row."""


def pieces(row: Checkpoint, part_bytes: int = PART_BYTES) -> list[tuple[CheckpointPart, bytes]]:
    """Return the pieces of a checkpoint, each with its value; none if it fits into one row."""
    data = encode_key(row)
    if len(data) <= part_bytes:
        return []
    cut = (data[start : start + part_bytes] for start in range(0, len(data), part_bytes))
    return [(CheckpointPart(row.number, index), part) for index, part in enumerate(cut)]


def joined(end: CheckpointEnd, rows: Sequence[RowRead | None]) -> Checkpoint:
    """Return the checkpoint that consists of these rows.

    Raises CorruptBatch if a row is not the expected piece, and UnsupportedVersion for one of another release.
    """
    data: list[bytes] = []
    for index, read in enumerate(rows):
        if read is None or read.row != CheckpointPart(end.number, index):
            raise CorruptBatch(f"there is no piece {index} of checkpoint {end.number}")
        data.append(read.value)
    try:
        row = decode_key(b"".join(data))
    except (ValueError, msgspec.MsgspecError) as error:
        raise UnsupportedVersion(
            f"Checkpoint {end.number} of the scheduler cannot be read ({error}); another release of Raylog wrote it: "
            "install that release."
        ) from error
    if not isinstance(row, Checkpoint):
        raise CorruptBatch(f"the pieces of checkpoint {end.number} are another row")
    return row
