"""What `send` refuses at once: what could not be encoded, or not be stored, later."""

from typing import Any

import pytest

from raylog.base.errors import RecordTooLarge
from raylog.client.arguments import TIMESTAMP_MAX_MS, checked_timestamp
from raylog.client.producer.producer import AsyncProducer, Producer
from raylog.client.producer.sizes import LargestRecord
from tests.unit.client.toy_server import ToyCluster


class WholeNumber:
    """An integer of another library, such as numpy's."""

    def __index__(self) -> int:
        return 7


@pytest.mark.parametrize(
    ("moment", "error", "hint"),
    [
        (1_700_000_000_000.5, TypeError, r"int\(time.time\(\) \* 1000\)"),
        (5.0, TypeError, "whole number of milliseconds"),
        (True, TypeError, "bool"),
        ("2024-01-01", TypeError, "str"),
        (-1, ValueError, "from 0 to"),
        (-62_135_596_800_000, ValueError, "from 0 to"),
        (TIMESTAMP_MAX_MS + 1, ValueError, "from 0 to"),
    ],
)
def test_a_timestamp_that_cannot_be_stored_is_refused_by_send(
    cluster: ToyCluster, moment: Any, error: type[Exception], hint: str
) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options, delivery_timeout_ms=20_000) as producer:
        good = producer.send("t", b"good")
        with pytest.raises(error, match=hint):
            producer.send("t", b"bad", timestamp_ms=moment)
        with pytest.raises(error, match=hint):
            producer.send_batch("t", [b"bad"], timestamp_ms=moment)
        assert good.result(10).offset == 0
        producer.flush(10)
    assert [value for _, _, value in cluster.records("t", 0)] == [b"good"]


@pytest.mark.parametrize("when", [{"delay": "1h"}, {"deliver_at": 5}])
async def test_a_delayed_record_takes_no_timestamp_that_would_be_lost(
    cluster: ToyCluster, when: dict[str, Any]
) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options) as producer:
        with pytest.raises(ValueError, match="has the time when it is due as its timestamp"):
            producer.send("t", b"x", timestamp_ms=5, **when)
        with pytest.raises(ValueError, match="has the time when it is due as its timestamp"):
            producer.send_batch("t", [b"x"], timestamp_ms=[5], **when)
    async with AsyncProducer(**cluster.options) as sender:
        with pytest.raises(ValueError, match="leave out timestamp_ms"):
            await (await sender.send("t", b"x", timestamp_ms=5, **when))
        with pytest.raises(ValueError, match="leave out timestamp_ms"):
            await (await sender.send_batch("t", [b"x"], timestamp_ms=[5], **when))


def test_timestamps_from_the_first_to_the_last_are_stored(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    moments = [0, TIMESTAMP_MAX_MS, 1, checked_timestamp(WholeNumber())]  # type: ignore[arg-type]
    with Producer(**cluster.options, linger_ms=1000) as producer:
        found = [producer.send("t", b"x", timestamp_ms=moment) for moment in moments]
        producer.flush(10)
        assert [each.result(0).timestamp_ms for each in found] == [0, TIMESTAMP_MAX_MS, 1, 7]
    (_, columns), *_ = cluster.do(cluster.partitions["t", 0].columns)
    assert columns.timestamps == [0, TIMESTAMP_MAX_MS, 1, 7]


@pytest.mark.parametrize(
    ("headers", "error", "hint"),
    [
        ("ab", TypeError, "mapping of str to bytes"),
        (7, TypeError, "mapping of str to bytes"),
        ([("a",)], TypeError, "mapping of str to bytes"),
        ([("a", "text")], TypeError, "header 'a' must be bytes or None, not str"),
        ({b"a": b"1"}, TypeError, "name of a header must be str, not bytes"),
        ([("\ud800", b"1")], ValueError, "surrogates"),
    ],
)
def test_headers_that_cannot_be_encoded_are_refused_by_send(
    cluster: ToyCluster, headers: Any, error: type[Exception], hint: str
) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options) as producer, pytest.raises(error, match=hint):
        producer.send("t", b"bad", headers=headers)
    assert not cluster.records("t", 0)


def test_headers_may_be_a_mapping_or_pairs_with_a_name_twice(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options) as producer:
        producer.send("t", b"x", headers={"a": b"1", "b": bytearray(b"2")})  # type: ignore[dict-item]
        producer.send("t", b"y", headers=[("a", b"1"), ("a", b"2")])
        producer.send("t", b"z", headers=[["a", b"1"]])  # type: ignore[list-item]
        producer.send("t", b"n", headers={"null": None})
    rows = [row for _, columns in cluster.do(cluster.partitions["t", 0].columns) for row in columns.headers or ()]
    assert rows == [[("a", b"1"), ("b", b"2")], [("a", b"1"), ("a", b"2")], [("a", b"1")], [("null", None)]]


@pytest.mark.parametrize("topic", [None, 7, b"t", ""])
def test_a_topic_that_is_no_name_is_refused_without_a_request(cluster: ToyCluster, topic: Any) -> None:
    cluster.create_topic("t")
    with Producer(**cluster.options) as producer:
        requests = len(cluster.requests_seen)
        with pytest.raises((TypeError, ValueError), match="The topic must be its name"):
            producer.send(topic, b"x")
        assert len(cluster.requests_seen) == requests


async def test_the_asynchronous_producer_refuses_the_same(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    async with AsyncProducer(**cluster.options) as producer:
        with pytest.raises(TypeError, match="timestamp_ms"):
            await producer.send_and_wait("t", b"x", timestamp_ms=1.5)
        with pytest.raises(TypeError, match="Headers"):
            await producer.send_and_wait("t", b"x", headers="ab")
        with pytest.raises(ValueError, match="timestamp_ms"):
            await (await producer.send_batch("t", [b"x"], timestamp_ms=-5))
        with pytest.raises(TypeError, match="topic"):
            await producer.send_and_wait(None, b"x")  # type: ignore[arg-type]


def test_no_configuration_makes_a_record_that_no_reader_opens() -> None:
    """Compressed it may be tiny: what counts is the size that readers have to decompress."""
    huge = 1 << 30
    limit = LargestRecord("t", request_bytes=huge, message_bytes=huge, is_compressed=True)
    limit.check(None, bytes(120_000_000), None)
    with pytest.raises(RecordTooLarge, match=r"a reader opens \d+ at most; send less"):
        limit.check(None, bytes(140_000_000), None)
    plain = LargestRecord("t", request_bytes=huge, message_bytes=huge, is_compressed=False)
    with pytest.raises(RecordTooLarge, match=r"one request takes \d+ at most; send less"):
        plain.check(None, bytes(120_000_000), None)
