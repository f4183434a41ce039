"""Laws of record batches: what was encoded comes back, and what was changed is noticed."""

from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.base.errors import RaylogError
from raylog.storage.batch import header as header_format
from raylog.storage.batch import records
from raylog.storage.batch.compression import compress, decompress
from raylog.storage.errors import CorruptBatch

maybe_bytes = st.none() | st.binary(max_size=40)
header_list = st.none() | st.lists(st.tuples(st.text(max_size=5), maybe_bytes), min_size=1, max_size=3)
timestamp = st.integers(min_value=-(2**40), max_value=2**45)
row = st.tuples(maybe_bytes, maybe_bytes, timestamp, header_list)
codecs = st.integers(min_value=0, max_value=4)
encoders = st.sampled_from([records.encode_batch, records.encode_kafka_batch])


@settings(max_examples=100, deadline=None)
@given(st.lists(row, min_size=1, max_size=30), codecs, encoders, st.integers(0, 2**50))
def test_every_codec_and_magic_gives_back_what_was_encoded(rows, codec, encode, base_offset) -> None:  # type: ignore[no-untyped-def]
    keys, values, timestamps, headers = (list(column) for column in zip(*rows, strict=True))
    data = encode(
        keys, values, timestamps, headers, header_format.BatchMeta(base_offset=base_offset), compression=codec
    )
    for buffer in (data, bytearray(data), memoryview(b"before" + data)[6:]):
        header = header_format.parse_header(buffer)
        columns = records.decode_batch(buffer, 0, header)
        assert list(columns.offsets) == list(range(base_offset, base_offset + len(rows)))
        assert columns.timestamps == timestamps
        assert columns.keys == (keys if any(k is not None for k in keys) else None)
        assert columns.values == (values if any(v is not None for v in values) else None)
        assert columns.headers == (headers if any(headers) else None)
        assert (header.compression, header.max_timestamp) == (codec, max(timestamps))


@settings(max_examples=100, deadline=None)
@given(st.lists(row, min_size=1, max_size=5), codecs, encoders, st.data())
def test_a_flipped_bit_is_seen_or_lies_in_a_field_the_leader_stamps(rows, codec, encode, choose) -> None:  # type: ignore[no-untyped-def]
    keys, values, timestamps, headers = (list(column) for column in zip(*rows, strict=True))
    data = bytearray(encode(keys, values, timestamps, headers, compression=codec))
    position = choose.draw(st.integers(0, len(data) - 1))
    data[position] ^= 1 << choose.draw(st.integers(0, 7))
    try:
        records.decode_batch(data, 0, header_format.parse_header(data))
    except CorruptBatch:
        return
    assert position < 8 or 12 <= position < 16


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300), codecs, st.data())
def test_noise_never_crashes_a_decompressor(noise: bytes, codec: int, choose: st.DataObject) -> None:
    packed = bytearray(compress(codec, noise))
    if packed:
        packed[choose.draw(st.integers(0, len(packed) - 1))] ^= choose.draw(st.integers(1, 255))
    for data in (bytes(packed), noise):
        try:
            decompress(codec, data, max_bytes=1 << 20)
        except RaylogError:
            pass


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.sampled_from([2, 77]), st.integers(0, 100))
def test_a_right_crc_over_a_senseless_body_never_crashes_the_decoder(body: bytes, magic: int, count: int) -> None:
    data = records.assemble_batch(magic, body, [0] * max(count, 1))
    try:
        records.decode_batch(data, 0, header_format.parse_header(data))
    except CorruptBatch:
        pass
