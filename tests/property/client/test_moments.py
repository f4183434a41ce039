"""Each record keeps its timestamp, key and headers, however they lie, and when it is encoded again."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.client.producer.batch import Batch
from raylog.client.producer.futures import SendFuture
from raylog.storage.batch.header import parse_header
from raylog.storage.batch.records import BatchMeta, decode_batch, encode_batch

STAMPS = st.lists(st.integers(-3, 3) | st.integers(1_700_000_000_000, 1_700_000_000_002), min_size=1, max_size=60)


@settings(max_examples=100, deadline=None)
@given(stamps=STAMPS)
def test_each_record_keeps_its_columns_when_encoded_and_encoded_again(stamps: list[int]) -> None:
    batch = Batch("t", 0, 0.0, 9.0, None)
    keys = [b"k" if index % 3 else None for index in range(len(stamps))]
    headers: Any = [None if index % 4 else [("h", b"x")] for index in range(len(stamps))]
    indexes = [batch.add(*record) for record in zip(keys, [b"v"] * len(stamps), headers, stamps, strict=True)]
    assert indexes == list(range(len(stamps)))
    batch.encode(0, -1, -1, -1)
    assert isinstance(batch.encoded, bytes)
    header = parse_header(batch.encoded)
    assert decode_batch(batch.encoded, 0, header).timestamps == stamps
    values: list[bytes | None] = [b"v"] * len(stamps)
    assert batch.encoded == encode_batch(keys, values, stamps, headers)
    batch.encode_again(7, 2, 5)
    assert batch.encoded == encode_batch(keys, values, stamps, headers, BatchMeta(7, 2, 5))
    batch.complete(7)
    found = [SendFuture(batch, index).result(0) for index in indexes]
    assert [(entry.offset, entry.timestamp_ms) for entry in found] == [
        (7 + index, timestamp_ms) for index, timestamp_ms in enumerate(stamps)
    ]
