"""Columns, however they are looked at, hold what the records hold: eager decoding is the obvious twin."""

import os
import tempfile
from itertools import chain

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.base.ids import TopicPartition
from raylog.client.consumer.assignment import Assignment
from raylog.client.consumer.partition import PartitionState, Start
from raylog.client.reading.column_batch import ColumnBatch
from raylog.client.reading.decode import BatchOpener
from raylog.client.reading.local_files import ALONE_BYTES, Place, SegmentFile
from raylog.client.types import Record
from raylog.storage.batch.header import parse_header
from raylog.storage.batch.records import BatchMeta, Header, encode_batch, encode_kafka_batch

HERE = TopicPartition("flights", 0)
TEXTS = st.one_of(st.none(), st.binary(max_size=6))
HEADERS = st.one_of(
    st.none(), st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), min_size=1, max_size=2)
)


def strings(count: int) -> st.SearchStrategy[list[bytes | None] | None]:
    """A column: all null, of one length (also such that take two or three bytes to say), or of any lengths."""
    one_length = st.sampled_from([0, 1, 5, 300]).flatmap(
        lambda width: st.lists(st.binary(min_size=width, max_size=width), min_size=count, max_size=count)
    )
    return st.one_of(st.none(), one_length, st.lists(TEXTS, min_size=count, max_size=count))


@st.composite
def batches(draw: st.DrawFn) -> list[bytes]:
    made: list[bytes] = []
    offset = draw(st.sampled_from([0, 7]))
    for _ in range(draw(st.integers(1, 4))):
        count = draw(st.sampled_from([1, 2, 5, 16, 40]))
        latest = draw(st.sampled_from([0, 3, 127, 128, 70_000]))
        timestamps = [1_000 + draw(st.integers(0, latest)) for _ in range(count)]
        headers: list[list[Header] | None] | None = None
        if draw(st.integers(0, 3)) == 0:
            headers = draw(st.lists(HEADERS, min_size=count, max_size=count))
        encode = draw(st.sampled_from([encode_batch, encode_batch, encode_kafka_batch]))
        made.append(
            encode(
                draw(strings(count)),
                draw(strings(count)),
                timestamps,
                headers,
                # 8: the timestamp is that of the append
                BatchMeta(base_offset=offset, attributes=draw(st.sampled_from([0, 0, 8]))),
                compression=draw(st.sampled_from([0, 0, 1])),
            )
        )
        offset += count
    return made


def state_of(stored: list[bytes], *, near: bool) -> PartitionState:
    data = b"".join(stored)
    state = PartitionState(HERE, BatchOpener(HERE), Start.POLICY, near_chunk_bytes=300)
    state.move_to(parse_header(stored[0]).base_offset)
    if not near:
        state.add(state.session, memoryview(data))
        return state
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        status = os.fstat(file.fileno())
        segment = SegmentFile(file.name, (status.st_dev, status.st_ino))
    state.add_places(state.session, [Place(segment, 0, len(data))], 1_000)
    return state


def taken(state: PartitionState, limits: list[int]) -> list[ColumnBatch]:
    """Everything as columns, in portions of at most so many records, in turn."""
    assignment = Assignment(lambda _partition, _start: state)
    assignment.assign([HERE], Start.POLICY)
    found: list[ColumnBatch] = []
    while len(batch := assignment.take_columns(limits[len(found) % len(limits)])):
        found.append(batch)
    return found


@given(
    stored=batches(), limits=st.lists(st.sampled_from([1, 3, 30, 1_000]), min_size=1, max_size=3), near=st.booleans()
)
@settings(max_examples=100, deadline=None)
def test_columns_and_arrow_hold_what_the_records_hold(stored: list[bytes], limits: list[int], near: bool) -> None:
    records = state_of(stored, near=near).take(1_000)
    parts = taken(state_of(stored, near=near), limits)
    assert [len(part) for part in parts] == [len(part.offsets) for part in parts]
    rows = [
        Record(*row)
        for part in parts
        for row in zip(
            part.topics,
            part.partition_numbers,
            part.offsets,
            part.timestamps_ms,
            part.keys,
            part.values,
            part.headers,
            strict=True,
        )
    ]
    assert rows == records
    table = pa.concat_tables(part.to_arrow() for part in parts)
    table.validate(full=True)
    assert table["offset"].to_pylist() == [record.offset for record in records]
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [record.timestamp_ms for record in records]
    assert table["key"].to_pylist() == [record.key for record in records]
    assert table["value"].to_pylist() == [record.value for record in records]
    headers = [
        [] if row is None else [(item["key"], item["value"]) for item in row] for row in table["headers"].to_pylist()
    ]
    assert headers == [list(record.headers) for record in records]


@given(
    stored=batches(),
    limit=st.sampled_from([3, 1_000]),
    places=st.lists(st.integers(-90, 90), min_size=1, max_size=4),
    cut=st.slices(60),
)
@settings(max_examples=100, deadline=None)
def test_a_column_is_a_sequence_like_its_list(stored: list[bytes], limit: int, places: list[int], cut: slice) -> None:
    for part in taken(state_of(stored, near=False), [limit]):
        for column in (part.keys, part.values):
            whole = list(chain(column))
            assert column == whole == column.to_pylist()
            assert tuple(whole) == column
            assert column == column
            assert column != [*whole, None]
            assert column[cut] == whole[cut]
            assert list(reversed(column)) == whole[::-1]
            for place in places:
                if -len(whole) <= place < len(whole):
                    assert column[place] == whole[place]
                    assert whole[place] in column


@given(sizes=st.lists(st.sampled_from([10, 1_000, ALONE_BYTES]), min_size=1, max_size=6), most=st.integers(1, 200_000))
@settings(max_examples=50, deadline=None)
def test_large_and_small_batches_are_read_from_a_file_in_their_order(sizes: list[int], most: int) -> None:
    stored = [
        encode_batch(None, [bytes([at]) * size], [at], None, BatchMeta(base_offset=at)) for at, size in enumerate(sizes)
    ]
    data = b"".join(stored)
    state = PartitionState(HERE, BatchOpener(HERE), Start.POLICY, near_chunk_bytes=most)
    state.move_to(0)
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        status = os.fstat(file.fileno())
        segment = SegmentFile(file.name, (status.st_dev, status.st_ino))
    state.add_places(state.session, [Place(segment, 0, len(data))], len(sizes))
    values = [value for part in taken(state, [1_000]) for value in part.values]
    assert values == [bytes([at]) * size for at, size in enumerate(sizes)]
    assert (state.buffered_bytes, state.memory_bytes, state.has_places) == (0, 0, False)
