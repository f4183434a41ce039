"""Timestamps: however they lie, and whichever way a record is added, each record keeps its own."""

from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.client.producer.batch import Batch
from raylog.client.producer.futures import SendFuture
from raylog.storage.batch.header import parse_header
from raylog.storage.batch.records import decode_batch, encode_batch

STAMPS = st.lists(st.integers(-3, 3) | st.integers(1_700_000_000_000, 1_700_000_000_002), min_size=1, max_size=60)


@settings(max_examples=100, deadline=None)
@given(stamps=STAMPS)
def test_each_record_keeps_its_timestamp(stamps: list[int]) -> None:
    batch = Batch("t", 0, 0.0, 9.0, None)
    indexes = [batch.add(None, b"v", None, timestamp_ms) for timestamp_ms in stamps]
    assert indexes == list(range(len(stamps)))
    batch.encode(0, -1, -1, -1)
    assert isinstance(batch.encoded, bytes)
    header = parse_header(batch.encoded)
    assert decode_batch(batch.encoded, 0, header).timestamps == stamps
    assert batch.encoded == encode_batch(None, [b"v"] * len(stamps), stamps)
    batch.complete(7)
    found = [SendFuture(batch, index).result(0) for index in indexes]
    assert [(entry.offset, entry.timestamp_ms) for entry in found] == [
        (7 + index, timestamp_ms) for index, timestamp_ms in enumerate(stamps)
    ]
