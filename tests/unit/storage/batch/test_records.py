"""Record batches: header fields, stamping, refusals."""

import struct
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from raylog.base.errors import UnsupportedCompression
from raylog.storage.batch import header as header_format
from raylog.storage.batch import records
from raylog.storage.batch.compression import decompress
from raylog.storage.errors import CorruptBatch


def batch(count: int = 3, **fields: Any) -> bytes:
    values: list[bytes | None] = [b"value-%d" % n for n in range(count)]
    moments = list(range(1000, 1000 + count))
    return records.encode_batch(None, values, moments, None, records.BatchMeta(**fields))


def test_the_header_is_61_bytes_laid_out_as_kafkas() -> None:
    data = batch(5, producer_id=7, producer_epoch=2, base_sequence=11, base_offset=40, partition_leader_epoch=3)
    header = header_format.parse_header(data)
    assert header_format.HEADER_BYTES == 61
    assert (header.base_offset, header.last_offset, header.next_offset) == (40, 44, 45)
    assert header.size == len(data)
    assert (header.magic, header.partition_leader_epoch, header.record_count) == (77, 3, 5)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (7, 2, 11, 15)
    assert (header.base_timestamp, header.max_timestamp) == (1000, 1004)
    assert not header.is_control
    assert not header.is_transactional


def test_a_kafka_batch_matches_bytes_worked_out_by_hand() -> None:
    data = records.encode_kafka_batch([b"k"], [b"v"], [5], [[("h", b"x")]])
    assert data[61:] == bytes([24, 0, 0, 0, 2]) + b"k" + bytes([2]) + b"v" + bytes([2, 2]) + b"h" + bytes([2]) + b"x"
    assert struct.unpack_from(">i", data, 8)[0] == len(data) - 12


def test_the_last_sequence_wraps_to_zero_after_the_largest() -> None:
    header = header_format.parse_header(batch(3, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2))
    assert header.last_sequence == 0


def test_stamping_changes_offset_and_epoch_and_keeps_the_crc_right() -> None:
    data = bytearray(batch())
    header_format.stamp(data, 0, 123_456_789_012, 42)
    header = header_format.parse_header(data)
    assert (header.base_offset, header.partition_leader_epoch) == (123_456_789_012, 42)
    header_format.check_crc(data, 0, header)


def test_headers_are_iterated_up_to_a_cut_off_tail() -> None:
    whole = batch(1) + batch(2) + batch(3)
    found = list(header_format.iter_headers(whole + batch(4)[:-1]))
    assert [header.record_count for _, header in found] == [1, 2, 3]
    assert found[1][0] == len(batch(1))


def test_columns_that_are_all_null_are_not_stored_and_come_back_null() -> None:
    data = records.encode_batch([None, None], [None, None], [9, 9], [None, []])
    columns = records.decode_batch(data, 0, header_format.parse_header(data))
    assert columns == records.Columns(range(2), [9, 9], None, None, None)
    assert len(data) == 61 + 5


def test_a_cleaned_batch_with_gaps_keeps_its_offsets() -> None:
    body = msgspec.msgpack.encode([None, None, [b"a", b"b"], None, [1, 7]])
    data = records.assemble_batch(77, body, [5, 5], records.BatchMeta(base_offset=100))
    assert records.decode_batch(data, 0, header_format.parse_header(data)).offsets == [101, 107]


@pytest.mark.parametrize("magic", [0, 1, 3, -1])
def test_an_unknown_magic_is_corrupt(magic: int) -> None:
    data = bytearray(batch())
    struct.pack_into(">b", data, 16, magic)
    with pytest.raises(CorruptBatch, match="magic"):
        header_format.parse_header(data)


def test_too_few_bytes_for_a_header_are_corrupt() -> None:
    with pytest.raises(CorruptBatch, match="fewer bytes"):
        header_format.parse_header(batch()[:60])


def test_a_body_that_is_not_columns_is_corrupt_even_when_its_crc_is_right() -> None:
    for body in (b"", b"\xc1", msgspec.msgpack.encode([None, None, [b"one"], None])):
        data = records.assemble_batch(77, body, [5, 5])
        with pytest.raises(CorruptBatch):
            records.decode_batch(data, 0, header_format.parse_header(data))


def test_unequal_columns_and_empty_batches_are_refused_when_encoding() -> None:
    with pytest.raises(ValueError, match="column keys"):
        records.encode_batch([b"k"], [b"a", b"b"], [1, 2])
    with pytest.raises(ValueError, match="at least one record"):
        records.encode_batch(None, [], [])
    with pytest.raises(UnsupportedCompression):
        records.encode_batch(None, [b"a"], [1], compression=5)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_decompression_bomb_is_refused(codec: int) -> None:
    data = records.encode_batch(None, [bytes(1 << 20)], [1], compression=codec)
    body = data[61:]
    with pytest.raises(CorruptBatch, match="beyond"):
        decompress(codec, body, max_bytes=1 << 16)
    assert len(decompress(codec, body, max_bytes=2 << 20)) > 1 << 20


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_cut_off_compressed_body_is_corrupt(codec: int) -> None:
    body = records.encode_batch(None, [bytes(range(256)) * 20], [1], compression=codec)[61:]
    for cut in (0, 1, 5, len(body) // 2, len(body) - 1):
        with pytest.raises(CorruptBatch):
            decompress(codec, body[:cut], max_bytes=1 << 20)


def test_records_import_loads_no_heavy_library() -> None:
    script = (
        "import sys, raylog.storage.batch.records; "
        "print(sorted({'ray', 'numpy', 'pandas', 'pyarrow', 'cramjam', 'lz4'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60).stdout == "[]\n"


def test_the_end_of_what_was_fetched_is_that_of_its_last_whole_batch() -> None:
    whole = batch(3) + batch(4, base_offset=3)
    assert header_format.end_offset(b"", 9) == 9
    assert header_format.end_offset(whole, 9) == 7
    assert header_format.end_offset(whole[:-1], 9) == 3
    assert header_format.end_offset(batch(3)[:-1], 9) == 9
    with pytest.raises(CorruptBatch):
        header_format.end_offset(whole + bytes(61), 9)


def test_the_end_of_checked_batches_is_that_of_the_last() -> None:
    whole = batch(3) + batch(1, base_offset=3) + batch(4, base_offset=4)
    for data in (whole, bytearray(whole), memoryview(whole)):
        assert header_format.end_of_checked(data, 9) == header_format.end_offset(data, 9) == 8
    assert header_format.end_of_checked(b"", 9) == 9
    with pytest.raises(CorruptBatch, match="impossible"):
        header_format.end_of_checked(whole + bytes(61), 9)
