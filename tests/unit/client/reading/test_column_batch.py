"""Records as columns: what `consume_batch` gives, and what becomes of it in Arrow."""

import pyarrow as pa
import pytest

from raylog.base.errors import CorruptMessage, RecordDeserializationFailed
from raylog.base.ids import TopicPartition
from raylog.client.consumer.consumer import Consumer
from raylog.client.consumer.partition import PartitionState, Start
from raylog.client.producer.producer import Producer
from raylog.client.reading.column_batch import ColumnBatch
from raylog.client.reading.decode import BatchOpener
from raylog.storage.batch.header import MAGIC_COLUMNS
from raylog.storage.batch.records import BatchMeta, Header, assemble_batch, encode_batch, encode_kafka_batch
from tests.unit.client.toy_server import ToyCluster

HERE = TopicPartition("t", 0)
THERE = TopicPartition("u", 3)


def state_of(*batches: bytes, partition: TopicPartition = HERE) -> PartitionState:
    state = PartitionState(partition, BatchOpener(partition), Start.POLICY)
    state.move_to(0)
    state.add(state.session, memoryview(b"".join(batches)))
    return state


def taken(state: PartitionState, limit: int = 1_000_000) -> ColumnBatch:
    pieces = []
    while limit > 0 and (piece := state.take_columns(limit, fail=True)) is not None:
        pieces.append(piece)
        limit -= piece.rows
    return ColumnBatch(pieces)


def two_batches() -> tuple[bytes, bytes]:
    headers: list[list[Header] | None] = [[("h", b"x"), ("h", b"y")], None]
    return (
        encode_batch([b"a", b"b"], [b"1", None], [10, 20], headers),
        encode_kafka_batch(None, [b"3", b"4", b"5"], [30, 30, 30], None, BatchMeta(base_offset=2)),
    )


def test_all_columns_have_the_order_of_the_records() -> None:
    batch = taken(state_of(*two_batches()))
    assert len(batch) == 5
    assert batch.partitions == [HERE]
    assert batch.topics == ["t"] * 5
    assert batch.partition_numbers == [0] * 5
    assert batch.offsets == [0, 1, 2, 3, 4]
    assert batch.timestamps_ms == [10, 20, 30, 30, 30]
    assert batch.keys == [b"a", b"b", None, None, None]
    assert batch.values == [b"1", None, b"3", b"4", b"5"]
    assert batch.headers == [(("h", b"x"), ("h", b"y")), (), (), (), ()]


def test_an_arrow_table_has_the_same_and_always_one_schema() -> None:
    table = taken(state_of(*two_batches())).to_arrow()
    assert table.column_names == ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
    assert table["topic"].to_pylist() == ["t"] * 5
    assert table["offset"].to_pylist() == [0, 1, 2, 3, 4]
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [10, 20, 30, 30, 30]
    assert table["value"].to_pylist() == [b"1", None, b"3", b"4", b"5"]
    assert table["headers"].to_pylist() == [
        [{"key": "h", "value": b"x"}, {"key": "h", "value": b"y"}],
        *[None] * 4,
    ]
    empty = ColumnBatch([]).to_arrow()
    assert empty.schema == table.schema
    assert empty.num_rows == 0


def test_partitions_can_be_distinguished() -> None:
    one, other = taken(state_of(*two_batches())), taken(state_of(*two_batches(), partition=THERE))
    both = ColumnBatch(one._pieces + other._pieces)
    assert both.partitions == [HERE, THERE]
    assert {partition: batch.offsets for partition, batch in both.by_partition().items()} == {
        HERE: [0, 1, 2, 3, 4],
        THERE: [0, 1, 2, 3, 4],
    }
    table = both.to_arrow()
    assert table["topic"].to_pylist() == ["t"] * 5 + ["u"] * 5
    assert table["partition"].to_pylist() == [0] * 5 + [3] * 5


def test_rows_are_dicts() -> None:
    assert taken(state_of(*two_batches()), limit=1).to_pylist() == [
        {
            "topic": "t",
            "partition": 0,
            "offset": 0,
            "timestamp_ms": 10,
            "key": b"a",
            "value": b"1",
            "headers": (("h", b"x"), ("h", b"y")),
        }
    ]


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_a_limit_cuts_through_batches_and_the_rest_comes_next(limit: int) -> None:
    state = state_of(*two_batches())
    parts = []
    while len(part := taken(state, limit)):
        assert len(part) <= limit
        assert part.to_arrow().num_rows == len(part)
        parts.append(part)
    assert [offset for part in parts for offset in part.offsets] == [0, 1, 2, 3, 4]
    assert [value for part in parts for value in part.values] == [b"1", None, b"3", b"4", b"5"]
    assert state.position == 5
    assert state.buffered_bytes == 0


def test_columns_go_on_where_records_ended() -> None:
    state = state_of(*two_batches())
    assert [record.offset for record in state.take(1)] == [0]
    assert taken(state, 2).offsets == [1, 2]
    assert [record.offset for record in state.take(1)] == [3]
    assert taken(state).offsets == [4]


def test_a_record_that_a_deserializer_refused_is_given_as_bytes() -> None:
    state = PartitionState(HERE, BatchOpener(HERE, None, int), Start.POLICY)
    state.move_to(0)
    state.add(state.session, memoryview(encode_batch(None, [b"1", b"x", b"3"], [1, 1, 1])))
    assert [record.value for record in state.take(9)] == [1]
    with pytest.raises(RecordDeserializationFailed):
        state.take(9)
    assert taken(state).values == [b"x", b"3"]


def test_a_damaged_batch_is_refused_before_the_position_passes_it() -> None:
    good, bad = two_batches()
    state = state_of(good, bad[:-1] + b"?")
    piece = state.take_columns(9, fail=True)
    assert piece is not None
    assert ColumnBatch([piece]).offsets == [0, 1]
    with pytest.raises(CorruptMessage):
        state.take_columns(9, fail=True)
    assert state.position == 2


def test_columns_travel_from_a_producer_to_a_consumer(cluster: ToyCluster) -> None:
    cluster.create_topic("t", partitions=2)
    values = [b"%d" % number for number in range(5000)]
    with Producer(**cluster.options) as producer:
        producer.send_batch("t", values[:2500], partition=0)
        producer.send_batch("t", pa.array(values[2500:]), partition=1)
    found: list[bytes | None] = []
    with Consumer("t", auto_offset_reset="earliest", **cluster.options) as consumer:
        while len(found) < 5000:
            batch = consumer.consume_batch(1000, timeout=10)
            assert 0 < len(batch) <= 1000
            assert batch.to_arrow()["value"].to_pylist() == batch.values
            found += batch.values
        assert len(consumer.consume_batch(timeout=0)) == 0
        assert not consumer.consume_batch(timeout=0.01)
    assert sorted(map(bytes, filter(None, found)), key=int) == values


def test_a_column_can_be_read_twice_and_outlives_the_batch() -> None:
    values = taken(state_of(*two_batches())).values
    assert list(values) == list(values) == [b"1", None, b"3", b"4", b"5"]
    assert (len(values), values[0], values[-1], values[1:4]) == (5, b"1", b"5", [None, b"3", b"4"])
    assert repr(values) == "<BytesColumn of 5 values>"
    with pytest.raises(IndexError):
        values[5]
    assert len(ColumnBatch([]).values) == 0
    assert ColumnBatch([]).values == []


def test_a_column_goes_to_arrow_and_to_a_producer_as_a_list_does(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    values = taken(state_of(*two_batches())).values
    assert pa.array(values, pa.binary()).to_pylist() == values
    with Producer(**cluster.options) as producer:
        producer.send_batch("t", values).result(10)
    with Consumer("t", auto_offset_reset="earliest", **cluster.options) as consumer:
        assert consumer.consume_batch(timeout=10).values == values


def test_an_unreadable_batch_raises_when_its_turn_comes() -> None:
    good = encode_batch(None, [b"1"], [1])
    nonsense = assemble_batch(MAGIC_COLUMNS, b"\x94\xc0\xc0\x91\x07\xc0", [1], BatchMeta(base_offset=1))
    batch = taken(state_of(good, nonsense))
    assert batch.offsets == [0, 1]
    each = iter(batch.values)
    assert next(each) == b"1"
    with pytest.raises(CorruptMessage):
        next(each)
    with pytest.raises(CorruptMessage):
        batch.to_arrow()
