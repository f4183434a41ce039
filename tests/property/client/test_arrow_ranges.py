"""Record batches of Arrow equal a twin that goes record by record, whatever the batches, codecs, gaps and ranges."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.base.ids import TopicPartition
from raylog.client.ranges.arrow import KAFKA_SCHEMA, ArrowBuilder
from raylog.client.ranges.integers import msgpack_integers, record_places, varints_at
from raylog.client.ranges.kafka_rows import KafkaRows
from raylog.client.ranges.strings import of_places
from raylog.client.reading.decode import FetchedBatch
from raylog.storage.batch.cleaned import thinned
from raylog.storage.batch.header import CRC_START, TIMESTAMP_TYPE_BIT, parse_header
from raylog.storage.batch.kafka_rows import decode_records
from raylog.storage.batch.records import BatchMeta, decode_batch, encode_batch, encode_kafka_batch
from raylog.storage.errors import CorruptBatch

PLACE = TopicPartition("t", 7)
SIZES = st.sampled_from([0, 1, 5, 12, 13, 40, 300, 66_000])
STRING = st.builds(lambda size, letter: bytes([letter]) * size, SIZES, st.integers(0, 255)) | st.binary(max_size=20)
HEADERS = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2)
ROWS = st.integers(1, 20)


@st.composite
def columns(draw: st.DrawFn) -> tuple[Any, ...]:
    """Keys, values, timestamps and headers of one batch: often alike, as records are, sometimes wild."""
    rows = draw(ROWS)

    def strings() -> list[bytes | None] | None:
        kind = draw(st.sampled_from(["null", "alike", "nearly", "wild", "holes"]))
        if kind == "null":
            return None
        if kind in ("alike", "nearly"):
            sizes = [draw(SIZES)] * rows
            if kind == "nearly":  # by a low byte of the length, or a high one
                sizes[draw(st.integers(0, rows - 1))] += draw(st.sampled_from([1, 256, 65_536]))
            return [bytes([row % 256]) * size for row, size in enumerate(sizes)]
        one = STRING if kind == "wild" else st.none() | STRING
        return draw(st.lists(one, min_size=rows, max_size=rows))

    step = draw(st.sampled_from([0, 1, 3, 50, 10_000, -7, 2**33]))
    first = draw(st.integers(0, 2**41))
    moments = [first + step * row for row in range(rows)]
    if draw(st.booleans()):
        moments[draw(st.integers(0, rows - 1))] = draw(st.integers(0, 2**41))
    pairs = draw(st.none() | st.lists(st.none() | HEADERS, min_size=rows, max_size=rows))
    return strings(), strings(), moments, pairs


@st.composite
def batches(draw: st.DrawFn) -> list[FetchedBatch]:
    """Consecutive batches of a log, as fetched or as read from a file; some hidden, some cleaned."""
    found: list[FetchedBatch] = []
    offset = draw(st.integers(0, 50))
    for _ in range(draw(st.integers(1, 4))):
        encode = draw(st.sampled_from([encode_batch, encode_kafka_batch]))
        keys, values, moments, pairs = draw(columns())
        attributes = draw(st.sampled_from([0, 0, TIMESTAMP_TYPE_BIT]))
        meta = BatchMeta(base_offset=offset, attributes=attributes)
        data = encode(keys, values, moments, pairs, meta, compression=draw(st.sampled_from([0, 0, 1, 3, 4])))
        header = parse_header(data)
        if draw(st.booleans()) and not attributes:
            chosen = draw(st.lists(st.integers(0, 1), min_size=len(moments), max_size=len(moments)))
            if any(chosen):
                data = thinned(header, decode_batch(data, 0, header), chosen, draw(st.none() | st.integers(0, 9)))
                header = parse_header(data)
        hidden = draw(st.integers(0, 9)) == 0
        if draw(st.booleans()):
            found.append(FetchedBatch(data[CRC_START:], -CRC_START, header, True, hidden))
        else:
            found.append(FetchedBatch(memoryview(b"before" + data), 6, header, False, hidden))
        offset = header.next_offset
    return found


def rows_of(batch: FetchedBatch) -> list[dict[str, Any]]:
    """The twin: one record after the other."""
    one = decode_batch(batch.buffer, batch.place, batch.header, verify=False)
    kind = 1 if batch.header.attributes & TIMESTAMP_TYPE_BIT else 0
    return [
        {
            "key": None if one.keys is None else one.keys[row],
            "value": None if one.values is None else one.values[row],
            "topic": "t",
            "partition": 7,
            "offset": offset,
            "timestamp": one.timestamps[row] * 1000,
            "timestampType": kind,
            "headers": [{"key": name, "value": data} for name, data in (one.headers or {row: None})[row] or ()] or None,
        }
        for row, offset in enumerate(one.offsets)
    ]


def plain(made: Any) -> list[dict[str, Any]]:
    """Rows of a record batch, timestamps in microseconds."""
    made.validate(full=True)
    if "timestamp" in made.schema.names:
        at = made.schema.get_field_index("timestamp")
        made = made.set_column(at, "timestamp", made.column(at).cast(pa.int64()))
    rows: list[dict[str, Any]] = made.to_pylist()
    return rows


@given(
    fetched=batches(),
    cut=st.tuples(st.integers(0, 200), st.integers(0, 200)),
    whole=st.booleans(),
    names=st.lists(st.sampled_from(KAFKA_SCHEMA.names), min_size=1, unique=True),
    takes=st.integers(1, 3),
)
@settings(max_examples=40, deadline=None)
def test_arrow_batches_equal_the_records_one_by_one(
    fetched: list[FetchedBatch], cut: tuple[int, int], whole: bool, names: list[str], takes: int
) -> None:
    start, end = (0, 10**6) if whole else cut
    schema = pa.schema([KAFKA_SCHEMA.field(name) for name in names])
    builder = ArrowBuilder(PLACE, start, end, schema)
    found: list[dict[str, Any]] = []
    for number, batch in enumerate(fetched):
        if batch.header.next_offset > start and batch.header.base_offset < end:
            builder.add(batch)
        if number % takes == 0:
            found += [row for made in builder.take() for row in plain(made)]
    found += [row for made in builder.take() for row in plain(made)]
    expected = [row for batch in fetched if not batch.is_hidden for row in rows_of(batch)]
    assert found == [{name: row[name] for name in names} for row in expected if start <= row["offset"] < end]


@given(
    deltas=st.lists(st.integers(-(2**40), 2**62) | st.integers(0, 300), min_size=1, max_size=40), rising=st.booleans()
)
@settings(max_examples=200, deadline=None)
def test_integers_are_read_as_the_decoder_reads_them_or_left_to_it(deltas: list[int], rising: bool) -> None:
    numbers = sorted(deltas) if rising else deltas
    encoded = b"".join(msgspec.msgpack.encode(number) for number in numbers)
    found = msgpack_integers(np.frombuffer(encoded, dtype=np.uint8), len(numbers))
    assert found is None or (found[0].tolist(), found[1]) == (numbers, len(encoded))
    if all(0 <= number < 2**32 for number in numbers):
        assert found is not None, "the usual deltas are read without objects"


@given(data=st.binary(min_size=1, max_size=60), rows=st.integers(1, 8))
@settings(max_examples=300, deadline=None)
def test_noise_is_refused_as_the_simple_decoder_refuses_it(data: bytes, rows: int) -> None:
    header = parse_header(encode_kafka_batch(None, [b"x"] * rows, [0] * rows))
    try:
        expected = decode_records(data, header)
    except CorruptBatch:
        expected = None
    try:
        found = KafkaRows(data, header)
        found.headers(0, rows)
    except CorruptBatch:
        assert expected is None
    else:
        assert expected is not None


@given(strings=st.lists(st.none() | STRING, min_size=1, max_size=20), tail=st.binary(max_size=3))
@settings(max_examples=100, deadline=None)
def test_strings_are_gathered_from_anywhere(strings: list[bytes | None], tail: bytes) -> None:
    data, firsts = b"", []
    for string in strings:
        data += b"-"
        firsts.append(len(data))
        data += string or b""
    sizes = np.array([-1 if string is None else len(string) for string in strings], dtype=np.int64)
    found = of_places(np.frombuffer(data + tail, dtype=np.uint8), np.array(firsts, dtype=np.int64), sizes)
    found.validate(full=True)
    assert found.to_pylist() == strings


@given(
    sizes=st.lists(st.sampled_from([1, 5, 5, 5, 5, 63, 64, 9000]), min_size=1, max_size=200), repeat=st.integers(1, 90)
)
@settings(max_examples=100, deadline=None)
def test_runs_of_records_of_one_size_are_found(sizes: list[int], repeat: int) -> None:
    spread = [size for size in sizes for _ in range(repeat)][:400]
    data, places = bytearray(), []
    for size in spread:
        places.append(len(data))
        number = size << 1
        while number > 0x7F:
            data.append(number & 0x7F | 0x80)
            number >>= 7
        data.append(number)
        data += bytes(size)
    assert record_places(bytes(data), len(spread)).tolist() == [*places, len(data)]
    found, _ = varints_at(np.frombuffer(bytes(data), dtype=np.uint8), np.array(places, dtype=np.int64))
    assert found.tolist() == spread
