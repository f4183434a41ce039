"""A stored row of another release is one error that names the row and says what to do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from raylog.actors.forwarding.progress import decode_progress, encode_progress
from raylog.actors.scheduling.rows import encode_key, joined, read_batches
from raylog.base.errors import UnsupportedVersion
from raylog.core.forwarding.progress import Progress
from raylog.core.scheduling.events import RowRead
from raylog.core.scheduling.machine import SchedulerMachine
from raylog.core.scheduling.rows import CheckpointEnd, CheckpointPart
from raylog.core.scheduling.settings import SchedulerSettings
from raylog.storage.batch.records import encode_batch

PROGRESS = Progress(producer_id=1, position=2, decided_end=3)
CHECKPOINT = msgspec.msgpack.decode(encode_key(SchedulerMachine(lambda *_: b"", SchedulerSettings()).checkpoint()))


def shorter(wire: list[Any]) -> bytes:
    """The row as a release wrote it that did not know its last field."""
    return msgspec.msgpack.encode(wire[:-1])


@pytest.mark.parametrize("key", [shorter(CHECKPOINT), msgspec.msgpack.encode([99]), b"\xc1"])
def test_a_row_of_the_scheduler_is_named_by_its_offset(key: bytes) -> None:
    with pytest.raises(UnsupportedVersion, match=r"scheduler at offset 0 cannot be read .*; .* install that release\."):
        list(read_batches(encode_batch([key], [None], [0]), 0))


def test_a_checkpoint_in_pieces_is_named_by_its_number() -> None:
    parts = [RowRead(offset=0, row=CheckpointPart(4, 0), size_bytes=0, value=shorter(CHECKPOINT))]
    with pytest.raises(UnsupportedVersion, match=r"Checkpoint 4 of the scheduler .* install that release\."):
        joined(CheckpointEnd(4, 5, (0,)), parts)


def test_the_note_of_a_forwarder_is_named_by_its_topic() -> None:
    assert decode_progress(encode_progress(PROGRESS)) == PROGRESS
    with pytest.raises(UnsupportedVersion, match=r"note in __forwarding cannot be read .* install that release\."):
        decode_progress(b"\x92\x01\x02")
