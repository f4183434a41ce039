"""Batches that a span of time skips by their first bytes: never one with a record within."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.client.reading.decode import FetchedBatch
from raylog.client.reading.local_files import Place
from raylog.storage.batch.header import HEADER_BYTES, TIMESTAMP_TYPE_BIT, parse_header
from raylog.storage.batch.records import BatchMeta, encode_batch, encode_kafka_batch
from raylog.storage.batch.times import TimeBounds
from tests.unit.client.reading.test_local_files import segment

LOW, END = 1_000, 2_000
TIMES = TimeBounds(LOW, END)


def batch_of(moments: list[int], *, base_offset: int = 0, compression: int = 0, attributes: int = 0) -> bytes:
    meta = BatchMeta(base_offset=base_offset, attributes=attributes)
    return encode_batch(None, [b"v" * 50] * len(moments), moments, None, meta, compression=compression)


def is_excluded(batch: bytes, times: TimeBounds = TIMES) -> bool:
    header = parse_header(batch)
    return times.exclude(header, batch[HEADER_BYTES : HEADER_BYTES + times.bytes_to_show(header)])


@given(
    st.lists(st.integers(0, 3_000), min_size=1, max_size=40),
    st.sampled_from([0, 1, 4]),
    st.sampled_from([encode_batch, encode_kafka_batch]),
    st.none() | st.integers(0, 3_000),
    st.none() | st.integers(0, 3_000),
)
def test_no_batch_with_a_record_within_is_excluded(
    moments: list[int], compression: int, encode: object, low_ms: int | None, end_ms: int | None
) -> None:
    assert callable(encode)
    batch: bytes = encode(None, [b"v"] * len(moments), moments, compression=compression)
    if is_excluded(batch, TimeBounds(low_ms, end_ms)):
        assert not any((low_ms or 0) <= moment < (2**62 if end_ms is None else end_ms) for moment in moments)


@pytest.mark.parametrize(
    ("moments", "excluded"),
    [
        ([END, END], True),
        ([END, END + 127], True),
        ([END + 127] * 20, True),
        ([END + at for at in range(120)], True),
        ([END + 10, END - 1], False),
        ([END, END + 200], False),  # two bytes: it is read
        ([LOW - 1, LOW - 5], True),
        ([LOW - 1, LOW], False),
        ([LOW - 1, END], False),
    ],
)
def test_plain_batches_are_excluded_by_their_first_bytes(moments: list[int], *, excluded: bool) -> None:
    assert is_excluded(batch_of(moments)) is excluded


def test_only_the_header_is_relied_on_where_the_body_is_compressed() -> None:
    assert not is_excluded(batch_of([END + 5] * 40, compression=4))
    assert is_excluded(batch_of([LOW - 5] * 40, compression=4))
    assert is_excluded(batch_of([END + 5] * 40, compression=4, attributes=TIMESTAMP_TYPE_BIT))
    assert not is_excluded(batch_of([END + 5] * 40), TimeBounds(LOW, None))


def test_a_body_that_is_cut_off_or_foreign_excludes_nothing() -> None:
    batch = batch_of([END, END + 1] * 20)
    header, body = parse_header(batch), batch[HEADER_BYTES:]
    assert TIMES.exclude(header, body)
    assert not any(TIMES.exclude(header, body[:size]) for size in range(43))
    assert not TIMES.exclude(header, b"\x00" + body[1:])


def test_a_place_reads_the_first_bytes_of_what_it_skips(tmp_path: Path) -> None:
    stored = [batch_of([at * 500 + 1] * 40, base_offset=at * 40) for at in range(6)]
    place: Place | None = Place(segment(tmp_path / "s", b"".join(stored)), 0, sum(map(len, stored)))
    found: list[FetchedBatch] = []
    while place is not None:
        batches, place = place.read(1, 40 * len(found), TIMES)
        found += batches
    assert [batch.header.base_offset for batch in found] == [0, 40, 80, 120, 160, 200]
    assert [batch.is_skipped for batch in found] == [True, True, False, False, True, True]
    assert [batch.is_hidden for batch in found] == [batch.is_skipped for batch in found]
    assert all(len(batch.buffer) <= HEADER_BYTES + 46 for batch in found if batch.is_skipped)
