"""A batch that cannot be read gives one clear error with its place, again at each poll, and a way on behind it."""

import time
from typing import Any

import msgspec
import pytest

from raylog.base.errors import CorruptMessage, UnknownServerError
from raylog.base.ids import TopicPartition
from raylog.client.consumer.consumer import Consumer
from raylog.rpc import Request
from raylog.storage.batch.header import MAGIC_COLUMNS, MAGIC_KAFKA
from raylog.storage.batch.records import COMPRESSIONS, BatchMeta, assemble_batch, encode_batch
from tests.unit.client.consumer_support import fill, numbers, read
from tests.unit.client.toy_server import ToyCluster

HERE = TopicPartition("t", 0)
pack = msgspec.msgpack.encode


def poison(body: bytes, *, magic: int = MAGIC_COLUMNS, attributes: int = 0, count: int = 3) -> bytes:
    """A batch with a right checksum, as a hostile producer makes it."""
    return assemble_batch(magic, body, [1] * count, BatchMeta(attributes=attributes & ~7), attributes & 7)


BODIES = {
    "no columns": poison(b"\xc1\x00"),
    "nothing": poison(b""),
    "too few values": poison(pack([None, None, [b"a"], None])),
    "values of another type": poison(pack([None, None, [1, 2, 3], None])),
    "a nest": poison(b"\x94" + b"\x91" * 5000 + b"\xc0"),
    "no zstd": poison(b"no zstd", attributes=4),
    "no lz4": poison(b"no lz4", attributes=3),
    "no snappy": poison(b"\xff\xff\xff\xff\x0f", attributes=2),
    "no gzip": poison(b"no gzip", attributes=1),
    "kafka's records cut off": poison(b"\x02\x00", magic=MAGIC_KAFKA),
    "offsets that fall": poison(pack([None, None, [b"a", b"b", b"c"], None, [2, 1, 0]])),
    "offsets before the batch": poison(pack([None, None, [b"a", b"b", b"c"], None, [-9, 0, 1]])),
    "offsets behind the batch": poison(pack([None, None, [b"a", b"b", b"c"], None, [0, 1, 99]])),
    "timestamps of text": poison(pack([["a", "b", "c"], None, [b"a", b"b", b"c"], None])),
    "headers of one part": poison(pack([None, None, [b"a", b"b", b"c"], [[["x"]], None, None]])),
}


def fill_around(cluster: ToyCluster, batch: bytes) -> None:
    """Two good records, the poison at offsets 2 to 4, and two good ones."""
    cluster.create_topic("t")
    fill(cluster, "t", 0, numbers(0, 2))

    def append() -> None:
        one = cluster.partitions["t", 0]
        one.append(memoryview(batch))
        one.advance()

    cluster.do(append)
    fill(cluster, "t", 0, numbers(5, 7))


@pytest.mark.parametrize("batch", BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize("way", ["poll", "iterate"])
def test_it_is_named_and_can_be_passed(cluster: ToyCluster, batch: bytes, way: str) -> None:
    fill_around(cluster, batch)
    with Consumer(**cluster.options, auto_offset_reset="earliest", consumer_timeout_ms=5_000) as consumer:
        consumer.assign([HERE])
        assert len(read(consumer, 2)) == 2

        def take() -> Any:
            return consumer.poll(5_000) if way == "poll" else next(consumer)

        for _ in range(2):
            with pytest.raises(CorruptMessage, match=r"offset 2 of t-0 cannot be read .*seek to 5 to go on") as found:
                take()
            details = found.value.details
            assert (details["topic"], details["partition"], details["offset"], details["next_offset"]) == ("t", 0, 2, 5)
        assert consumer.position(HERE) == 2
        consumer.seek(HERE, 5)
        assert [record.offset for record in read(consumer, 2)] == [5, 6]


@pytest.mark.parametrize("batch", BODIES.values(), ids=BODIES.keys())
def test_columns_of_it_are_refused_when_they_are_looked_at(cluster: ToyCluster, batch: bytes) -> None:
    fill_around(cluster, batch)

    def look(consumer: Consumer) -> None:
        found = consumer.consume_batch(timeout=5)
        for column in (found.values.to_pylist, lambda: found.headers, lambda: found.timestamps_ms, found.to_arrow):
            column()

    with Consumer(**cluster.options, auto_offset_reset="earliest") as consumer:
        consumer.assign([HERE])
        assert len(read(consumer, 2)) == 2
        with pytest.raises(CorruptMessage, match="offset 2 of t-0 cannot be read"):
            look(consumer)
        consumer.seek(HERE, 5)
        assert [record.offset for record in read(consumer, 2)] == [5, 6]


def test_a_column_that_cannot_be_read_names_the_way_behind_it(cluster: ToyCluster) -> None:
    """Also where its batch had the right shape when it was taken, and the position is behind it already."""
    fill_around(cluster, BODIES["values of another type"])
    with Consumer(**cluster.options, auto_offset_reset="earliest") as consumer:
        consumer.assign([HERE])
        found = consumer.consume_batch(timeout=5)
        while found.offsets[-1] < 2:
            found = consumer.consume_batch(timeout=5)
        with pytest.raises(CorruptMessage, match=r"offset 2 of t-0 cannot be read .*seek to 5 to go on"):
            found.values.to_pylist()
        consumer.seek(HERE, 5)
        assert [record.offset for record in read(consumer, 2)] == [5, 6]


SHAPELESS = (
    "no columns",
    "nothing",
    "too few values",
    "no zstd",
    "no lz4",
    "no snappy",
    "no gzip",
    "offsets that fall",
)


@pytest.mark.parametrize("name", SHAPELESS)
def test_columns_move_the_position_behind_what_opens_alone(cluster: ToyCluster, name: str) -> None:
    """The good records before it come first; at it the position stays, and what lies behind is not lost."""
    fill_around(cluster, BODIES[name])
    with Consumer(**cluster.options, auto_offset_reset="earliest") as consumer:
        consumer.assign([HERE])
        found: list[int] = []
        while len(found) < 2:
            found += consumer.consume_batch(timeout=5).offsets
        for _ in range(2):
            with pytest.raises(CorruptMessage, match="seek to 5 to go on"):
                consumer.consume_batch(timeout=5)
            assert consumer.position(HERE) == 2
        consumer.seek(HERE, 5)
        while len(found) < 4:
            found += consumer.consume_batch(timeout=5).offsets
        assert found == [0, 1, 5, 6]


def test_an_error_that_stays_is_raised_about_once_in_a_second(cluster: ToyCluster) -> None:
    fill_around(cluster, BODIES["no zstd"])
    with Consumer(**cluster.options, auto_offset_reset="earliest") as consumer:
        consumer.assign([HERE])
        assert len(read(consumer, 2)) == 2
        errors, began = 0, time.monotonic()
        while time.monotonic() - began < 1.5:
            try:
                assert consumer.poll(20) == {}
            except CorruptMessage:
                errors += 1
        assert 2 <= errors <= 5, errors
        consumer.seek(HERE, 5)
        assert [record.offset for record in read(consumer, 2)] == [5, 6]


def test_a_poll_is_bounded_by_what_its_batches_decompress_to(cluster: ToyCluster) -> None:
    """Forty batches of some hundred bytes, each with a record of 20 MiB."""
    cluster.create_topic("t")
    batch = encode_batch(None, [bytes(20 << 20)], [1], compression=COMPRESSIONS["zstd"])

    def append() -> None:
        one = cluster.partitions["t", 0]
        for _ in range(12):
            one.append(memoryview(bytearray(batch)))
        one.advance()

    cluster.do(append)
    with Consumer(**cluster.options, auto_offset_reset="earliest") as consumer:
        consumer.assign([HERE])
        for way in ("records", "columns"):
            consumer.seek(HERE, 0)
            counts: list[int] = []
            while sum(counts) < 12:
                if way == "columns":
                    counts.append(len(consumer.consume_batch(timeout=5)))
                else:
                    counts.append(len(consumer.poll(5_000).get(HERE, [])))
            assert max(counts) <= 4, counts


def test_a_malformed_answer_is_raised_and_does_not_end_the_fetching(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic("t")
    fill(cluster, "t", 0, numbers(0, 2))
    normal = Request.reply
    garbage = [["soon", None], {"no": "list"}, []]

    def garble(request: Request, args: Any = None, *rest: Any) -> None:
        wrong = garbage.pop() if garbage and request.method.startswith("fetch") else args
        normal(request, wrong, *rest)

    monkeypatch.setattr(Request, "reply", garble)
    with Consumer(**cluster.options, auto_offset_reset="earliest", retry_backoff_ms=1) as consumer:
        consumer.assign([HERE])
        with pytest.raises(UnknownServerError):
            read(consumer, 2)
        found = 0
        for _ in range(20):
            try:
                found += len(read(consumer, 2 - found))
                break
            except UnknownServerError:
                pass
        assert found == 2
