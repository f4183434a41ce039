"""Key and value of an only record are found from the first bytes of its batch, or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.storage.batch.compression import COMPRESSIONS
from raylog.storage.batch.grids import key_and_value
from raylog.storage.batch.header import HEADER_BYTES, parse_header
from raylog.storage.batch.records import encode_batch

BYTES = st.one_of(st.binary(max_size=40), st.integers(0, 70_000).map(bytes))


@given(BYTES, BYTES, st.integers(0, 200))
def test_the_places_are_those_of_key_and_value(key: bytes, value: bytes, cut: int) -> None:
    batch = encode_batch([key], [value], [5])
    places = key_and_value(batch, parse_header(batch))
    assert places is not None
    assert batch[places[0].start : places[0].end] == key
    assert batch[places[1].start : places[1].end] == value
    found = key_and_value(batch[: HEADER_BYTES + cut], parse_header(batch))
    assert found in (None, places), "a short beginning says the same, or nothing"


@pytest.mark.parametrize(
    "batch",
    [
        encode_batch([b"k"] * 2, [b"v"] * 2, [5, 5]),
        encode_batch([b"k"] * 2, [b"v"] * 2, [5, 6]),
        encode_batch([None], [b"v"], [5]),
        encode_batch([b"k"], [None], [5]),
        encode_batch([b"k"], [b"v" * 500], [5], compression=COMPRESSIONS["gzip"]),
    ],
    ids=["two records", "two times", "no key", "no value", "compressed"],
)
def test_other_batches_are_left_alone(batch: bytes) -> None:
    assert key_and_value(batch, parse_header(batch)) is None
