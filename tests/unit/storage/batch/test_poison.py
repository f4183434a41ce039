"""Batches that are small and claim to be large cost a consumer little memory and one CorruptBatch."""

import tracemalloc
from typing import Any

import google_crc32c
import msgspec
import pytest

from raylog.storage.batch import header as header_format
from raylog.storage.batch import records
from raylog.storage.batch.compression import compress, decompress
from raylog.storage.errors import CorruptBatch

MIB = 1 << 20


def poison(body: bytes, *, rows: int, codec: int = 4, magic: int = header_format.MAGIC_COLUMNS) -> bytes:
    """A batch of this body whose header declares so many records; its CRC is right."""
    packed = compress(codec, body) if codec else body
    header = header_format.header_before(
        packed, magic=magic, count=rows, first_timestamp=0, max_timestamp=0, compression=codec, meta=header_format.PLAIN
    )
    return header + packed


def array(count: int, element: bytes) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big") + element * count


def peak_of(data: bytes, look: Any) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatch):
            look(data, header_format.parse_header(data))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def whole(data: bytes, header: header_format.BatchHeader) -> None:
    records.decode_batch(data, 0, header)


def values(data: bytes, header: header_format.BatchHeader) -> None:
    records.open_batch(data, 0, header).column("values")


def headers(data: bytes, header: header_format.BatchHeader) -> None:
    records.open_batch(data, 0, header).kept_column("headers")


NULLS, LISTS = array(4 * MIB, b"\xc0"), array(4 * MIB, b"\x90")


@pytest.mark.parametrize("look", [whole, values, headers])
@pytest.mark.parametrize(
    "body",
    [
        b"\x94\xc0\xc0" + NULLS + b"\xc0",
        b"\x94\xc0" + NULLS + b"\xc0\xc0",
        b"\x94\xc0\xc0\xc0" + LISTS,
        b"\x94" + array(4 * MIB, b"\x00") + b"\xc0\xc0\xc0",
        b"\x95\xc0\xc0\xc0\xc0" + array(4 * MIB, b"\x00"),
    ],
)
def test_a_column_longer_than_the_batch_is_not_made_a_list(body: bytes, look: Any) -> None:
    data = poison(body, rows=1)
    assert len(data) < 1000
    assert peak_of(data, look) < 3 * len(body), "a list of it would take 32 MiB, one of lists 256 MiB"


def test_millions_of_headers_in_one_record_are_refused() -> None:
    pairs = b"\xdd" + (5 * MIB).to_bytes(4, "big") + b"\x92\xa0\xc0" * (5 * MIB)
    data = poison(b"\x94\xc0\xc0\xc0\x91" + pairs, rows=1)
    assert peak_of(data, whole) < 5 * len(pairs), "their tuples would take 320 MiB"


def test_a_kafka_batch_with_more_records_than_bytes_is_refused_at_once() -> None:
    data = poison(b"\x0c\x00\x00\x00\x01\x01\x00", rows=records.RECORDS_MAX, magic=header_format.MAGIC_KAFKA)
    assert peak_of(data, whole) < MIB


@pytest.mark.parametrize("codec", [0, 4])
def test_arrays_within_arrays_without_end_are_corrupt(codec: int) -> None:
    data = poison(b"\x94\xc0\xc0\xc0" + b"\x91" * 100_000 + b"\xc0", rows=1, codec=codec)
    for look in (whole, values, headers):
        with pytest.raises(CorruptBatch):
            look(data, header_format.parse_header(data))


def test_a_snappy_block_does_not_declare_more_than_it_can_hold() -> None:
    declared = b"\xff\xff\xff\x3f"  # 128 MiB, as a varint
    with pytest.raises(CorruptBatch, match="cannot hold"):
        decompress(2, declared + b"\x00a", max_bytes=256 * MIB)
    long = b"a" * MIB
    assert decompress(2, compress(2, long), max_bytes=MIB) == long


def test_honest_batches_of_every_shape_still_open() -> None:
    for rows in (1, 2, 300, 70_000):
        for column in ([None] * rows, [b""] * rows, [b"x"] * rows):
            for codec in (0, 1, 2, 3, 4):
                data = records.encode_batch(list(column), list(column), list(range(rows)), compression=codec)
                found = records.decode_batch(data, 0, header_format.parse_header(data))
                assert found.timestamps == list(range(rows))
                assert (found.values or [None] * rows) == column


def test_the_body_of_these_tests_is_what_the_decoder_reads() -> None:
    """Otherwise the poison would be refused for another reason."""
    body = b"\x94\xc0\xc0" + array(3, b"\xc0") + b"\xc0"
    assert msgspec.msgpack.decode(body) == [None, None, [None] * 3, None]
    data = poison(body, rows=3)
    assert records.decode_batch(data, 0, header_format.parse_header(data)).values == [None] * 3
    assert google_crc32c.value(data[header_format.CRC_START :]) == header_format.parse_header(data).crc
