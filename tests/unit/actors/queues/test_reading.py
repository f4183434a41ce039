"""What the leader of a queue knows of a piece of the log: which offsets are work for members."""

from __future__ import annotations

from typing import Any

import pytest

from raylog.actors.queues import reading
from raylog.actors.queues.reading import Chunk
from raylog.protocol.replica import AbortedTxn
from raylog.storage.batch.header import TRANSACTIONAL_BIT, stamp
from raylog.storage.batch.marker import TxnMarker
from raylog.storage.batch.records import BatchMeta, Columns, decode_batch, encode_batch


def stamped(raw: bytes, offset: int) -> bytes:
    found = bytearray(raw)
    stamp(found, 0, offset, 0)
    return bytes(found)


def batch(producer: int, count: int, *, transactional: bool = True) -> bytes:
    attributes = TRANSACTIONAL_BIT if transactional else 0
    meta = BatchMeta(producer, 0, 0, attributes=attributes)
    return encode_batch([b"k"] * count, [b"v"] * count, [1_000] * count, meta=meta)


def marker(producer: int, *, committed: bool) -> bytes:
    return TxnMarker(producer, 1, 0, committed).encode()


def chunk(*, first: int = 0) -> Chunk:
    """Aborted 0 to 4, its marker 5, committed 6 to 8 of the same producer, its marker 9, a hole, others 15 and 16."""
    log = [
        (0, batch(7, 5)),
        (5, marker(7, committed=False)),
        (6, batch(7, 3)),
        (9, marker(7, committed=True)),
        (15, batch(8, 2, transactional=False)),
    ]
    payload = b"".join(stamped(raw, offset) for offset, raw in log if offset >= first)
    return Chunk(first, payload, [AbortedTxn(7, 0)])


def test_what_was_aborted_and_markers_and_holes_are_no_work() -> None:
    assert chunk().gaps(0, 17) == [(0, 6), (9, 15)]
    assert chunk().gaps(2, 5) == [(2, 5)]
    assert chunk().gaps(6, 9) == []
    assert chunk().gaps(7, 16) == [(9, 15)]


def test_a_chunk_that_begins_inside_an_aborted_transaction_knows_its_end() -> None:
    assert chunk(first=5).gaps(5, 17) == [(5, 6), (9, 15)]


def test_keys_are_those_of_committed_records() -> None:
    assert [offset for offset, _ in chunk().keys(0)] == [6, 7, 8, 15, 16]


def test_the_records_of_a_batch_are_read_one_by_one_and_it_is_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []

    def counted(payload: Any, place: int, header: Any) -> Columns:
        opened.append(header.base_offset)
        return decode_batch(payload, place, header)

    monkeypatch.setattr(reading, "decode_batch", counted)
    piece = chunk()
    found = [piece.record(offset) for offset in (6, 7, 8, 15, 16)]
    assert [each and each[0].offsets[each[1]] for each in found] == [6, 7, 8, 15, 16]
    assert opened == [6, 15]
    assert [piece.record(offset) for offset in (3, 9, 12, 17)] == [None] * 4
