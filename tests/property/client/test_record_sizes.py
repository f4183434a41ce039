"""The producer counts exactly what the leader checks: no record passes `send()` and is refused for its size."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.base.errors import RecordTooLarge
from raylog.client.producer.columns import Columns, pieces_of
from raylog.client.producer.sizes import (
    MESSAGE_BYTES_DEFAULT,
    RECORD_OVERHEAD_BYTES,
    LargestRecord,
    headers_size,
    lone_batch_bytes,
    most_counted_bytes,
)
from raylog.core.configuration.config import TopicConfig
from raylog.storage.batch.records import BatchMeta, encode_stamped
from raylog.storage.log.config import LogConfig
from raylog.storage.log.validation import check_produced, inspect

SIZES = st.integers(0, 80) | st.sampled_from([255, 256, 257, 65_535, 65_536, 65_537])
BYTES = st.none() | SIZES.map(bytes)
NAMES = st.text(max_size=40) | st.sampled_from(["n" * 31, "n" * 32, "é" * 16, "n" * 255, "n" * 256])
HEADERS = st.none() | st.lists(st.tuples(NAMES, BYTES), max_size=20)


def batch(rows: list[tuple[Any, Any, Any]], moments: list[int]) -> bytes:
    keys, values, headers = (list(column) for column in zip(*rows, strict=True))
    stamps = list(enumerate(moments))
    columns: Any = keys, values, stamps, headers, BatchMeta(1, 0, 0)
    header, body = encode_stamped(*columns, compression=0)
    return header + body


def leader_takes(payload: bytes, limit: int) -> bool:
    try:
        check_produced(inspect(payload), LogConfig(max_message_bytes=limit), now_ms=0)
    except RecordTooLarge:
        return False
    return True


@given(key=BYTES, value=BYTES, headers=HEADERS, off_by=st.integers(-2, 2))
@settings(max_examples=300, deadline=None)
def test_a_record_is_taken_exactly_if_the_leader_takes_its_batch(
    key: bytes | None, value: bytes | None, headers: Any, off_by: int
) -> None:
    payload = batch([(key, value, headers)], [7])
    assert lone_batch_bytes(key, value, headers) == len(payload)
    largest = LargestRecord("t", 10**9, len(payload) + off_by, is_compressed=False)
    try:
        largest.check(key, value, headers)
        taken = True
    except RecordTooLarge:
        taken = False
    assert taken == leader_takes(payload, largest.message_bytes)
    counted = len(key or b"") + len(value or b"") + headers_size(headers or []) + RECORD_OVERHEAD_BYTES
    assert taken or counted > largest.check_from, "it would not have been looked at"


@given(
    rows=st.lists(st.tuples(st.none() | SIZES.map(bytes), BYTES, HEADERS), min_size=1, max_size=30),
    moments=st.lists(st.integers(0, 2**63 - 1), min_size=30, max_size=30),
)
@settings(max_examples=200, deadline=None)
def test_a_batch_that_was_filled_up_to_the_limit_is_taken(rows: list[tuple[Any, Any, Any]], moments: list[int]) -> None:
    counted = sum(
        len(key or b"") + len(value or b"") + headers_size(headers or []) + RECORD_OVERHEAD_BYTES
        for key, value, headers in rows
    )
    limit = next(limit for limit in range(counted, 3 * counted + 200) if most_counted_bytes(limit) >= counted)
    assert leader_takes(batch(rows, moments[: len(rows)]), limit)


def test_the_default_is_the_brokers() -> None:
    assert TopicConfig.from_dict({}).max_message_bytes == MESSAGE_BYTES_DEFAULT


@given(sizes=st.lists(st.integers(0, 400), min_size=1, max_size=20), limit=st.integers(80, 500))
def test_columns_are_refused_exactly_if_one_of_their_records_is(sizes: list[int], limit: int) -> None:
    columns = Columns([bytes(size) for size in sizes], None)
    largest = LargestRecord("t", limit, MESSAGE_BYTES_DEFAULT, is_compressed=True)
    fits = all(lone_batch_bytes(None, value, None) <= limit for value in columns.values)
    try:
        assert sum(len(piece.columns.values) for piece in pieces_of(columns, 300, largest)) == len(sizes)
        assert fits
    except RecordTooLarge:
        assert not fits
