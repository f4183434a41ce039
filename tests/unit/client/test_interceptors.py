"""Interceptors of producers and consumers."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from raylog.base.errors import InterceptorFailed, InvalidConfig, InvalidRequest, RecordTooLarge
from raylog.base.ids import TopicPartition
from raylog.client.consumer.consumer import AsyncConsumer, Consumer
from raylog.client.interceptors import ConsumerInterceptor, ProducerInterceptor, ProducerRecord
from raylog.client.producer.arrow_columns import ArrowColumns
from raylog.client.producer.producer import AsyncProducer, Producer
from raylog.client.types import OffsetAndMetadata, Record, RecordMetadata
from tests.unit.client.consumer_support import fill, numbers, offsets, read, with_coordinator
from tests.unit.client.toy_server import ToyCluster
from tests.waiting import wait_for

T0 = TopicPartition("t", 0)


class Audit(ProducerInterceptor):
    """Adds to a record's value, and keeps what became of it."""

    def __init__(self, mark: str = "+") -> None:
        self.mark = mark
        self.outcomes: list[tuple[RecordMetadata | None, Exception | None]] = []
        self.is_closed = False

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        if record.value == "bad":
            raise ValueError("not this value")
        return msgspec.structs.replace(record, value=f"{record.value}{self.mark}", headers={"by": b"audit"})

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
        self.outcomes.append((metadata, error))

    def close(self) -> None:
        self.is_closed = True


class ByLength:
    """A partitioner that shows what it is given."""

    def __init__(self) -> None:
        self.seen: list[bytes | None] = []

    def partition(self, topic: str, key: bytes | None, value: bytes | None, count: int) -> int:
        self.seen.append(value)
        return 0


def test_interceptors_come_first_then_serializers_then_the_partitioner(cluster: ToyCluster) -> None:
    cluster.create_topic("t", partitions=2)
    first, second, partitioner = Audit("+"), Audit("*"), ByLength()
    options = {**cluster.options, "value_serializer": lambda value: f"<{value}>".encode(), "partitioner": partitioner}
    with Producer(**options, interceptors=[first, second]) as producer:
        metadata = producer.send("t", "a", timestamp_ms=5).result(10)
        wait_for(lambda: first.outcomes and second.outcomes, "the outcome is reported")
    assert partitioner.seen == [b"<a+*>"]
    assert [value for _, _, value in cluster.records("t", 0)] == [b"<a+*>"]
    assert first.outcomes == second.outcomes == [(metadata, None)]
    assert first.is_closed
    assert second.is_closed


def test_a_record_whose_interceptor_raises_is_not_sent(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    audit = Audit()
    with Producer(**cluster.options, value_serializer="string", interceptors=audit) as producer:
        with pytest.raises(InterceptorFailed, match=r"Audit.on_send raised for a record of topic 't'") as caught:
            producer.send("t", "bad")
        producer.send("t", "good").result(10)
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.details["record"] == ProducerRecord("t", "bad")
    assert [value for _, _, value in cluster.records("t", 0)] == [b"good+"]
    assert audit.outcomes[0] == (None, caught.value)


def test_a_record_that_send_refuses_is_reported(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    audit = Audit()
    options = {**cluster.options, "max_request_size": 1000, "interceptors": [audit]}
    with Producer(**options, value_serializer="string") as producer, pytest.raises(RecordTooLarge):
        producer.send("t", "x" * 2000)
    ((metadata, error),) = audit.outcomes
    assert metadata is None
    assert isinstance(error, RecordTooLarge)


def test_every_record_of_a_batch_passes_and_is_reported(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    audit = Audit()
    with Producer(**cluster.options, value_serializer="string", interceptors=[audit]) as producer:
        producer.send_batch("t", ["0", "1", "2"], [b"a", b"b", b"c"], timestamp_ms=[7, 8, 9]).result(10)
        wait_for(lambda: len(audit.outcomes) == 3, "all outcomes are reported")
        with pytest.raises(InterceptorFailed):
            producer.send_batch("t", ["3", "bad"])
        with pytest.raises(InvalidRequest, match=r"use send_batch\(\) instead"):
            producer.send_arrow("t", ArrowColumns(pa.array([b"x"])))
    assert [(key, value) for _, key, value in cluster.records("t", 0)] == [(b"a", b"0+"), (b"b", b"1+"), (b"c", b"2+")]
    ((_, columns),) = cluster.do(cluster.partitions["t", 0].columns)
    assert list(columns.timestamps) == [7, 8, 9]
    assert columns.headers == [[("by", b"audit")]] * 3
    assert [metadata.offset for metadata, _ in audit.outcomes[:3] if metadata] == [0, 1, 2]
    assert [type(error) for _, error in audit.outcomes[3:]] == [InterceptorFailed] * 2


def test_an_error_in_a_report_is_logged_and_changes_nothing(
    cluster: ToyCluster, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(ProducerInterceptor):
        def on_acknowledgement(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
            raise ValueError

    cluster.create_topic("t")
    audit = Audit()
    with (
        caplog.at_level(logging.ERROR),
        Producer(**cluster.options, value_serializer="string", interceptors=[Broken(), audit]) as producer,
    ):
        assert producer.send("t", "a").result(10).offset == 0
        wait_for(lambda: audit.outcomes, "the next interceptor is called")
    assert "Broken.on_acknowledgement raised an error" in caplog.text


def test_in_a_coroutine(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    audit = Audit()

    async def scenario() -> Record:
        options = {**cluster.options, "value_serializer": "string", "interceptors": [audit]}
        async with AsyncProducer(**options) as producer:
            await producer.send_and_wait("t", "a")
            with pytest.raises(InterceptorFailed):
                await producer.send_and_wait("t", "bad")
        async with AsyncConsumer(
            "t", **cluster.options, auto_offset_reset="earliest", interceptors=[Doubled()]
        ) as consumer:
            return await consumer.getone()

    assert asyncio.run(scenario()).value == b"a+a+"
    assert len(audit.outcomes) == 2


class Doubled(ConsumerInterceptor):
    """Doubles values, leaves some records out, and fails for others until it is repaired."""

    def __init__(self) -> None:
        self.refused: set[int] = set()
        self.left_out: set[int] = set()
        self.calls: list[int] = []
        self.commits: list[dict[TopicPartition, int]] = []
        self.is_closed = False

    def on_consume(self, record: Record) -> Record | None:
        self.calls.append(record.offset)
        if record.offset in self.refused:
            raise KeyError("no such key in the vault")
        if record.offset in self.left_out:
            return None
        return msgspec.structs.replace(record, value=record.value * 2)

    def on_commit(self, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.commits.append({each: found.offset for each, found in committed.items()})

    def close(self) -> None:
        self.is_closed = True


def consumer_of(cluster: ToyCluster, *topics: str, **options: Any) -> Consumer:
    return Consumer(*topics, **{**cluster.options, "auto_offset_reset": "earliest", **options})


def test_a_consumers_interceptor_sees_what_the_deserializers_made(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    fill(cluster, "t", 0, numbers(0, 10))
    doubled = Doubled()
    doubled.left_out = {0, 4, 9}
    with consumer_of(cluster, "t", value_deserializer="string", interceptors=[doubled]) as consumer:
        records = read(consumer, 7)
        assert consumer.position(T0) == 10
        consumer.seek(T0, 3)
        assert [next(consumer).offset for _ in range(3)] == [3, 5, 6]
        assert consumer.position(T0) == 7
        with pytest.raises(InvalidRequest, match=r"use poll\(\) instead"):
            consumer.consume_batch(timeout=1)
    assert [record.value for record in records] == [f"{number}" * 2 for number in (1, 2, 3, 5, 6, 7, 8)]
    assert doubled.calls == [*range(10), 3, 4, 5, 6]
    assert doubled.is_closed


def test_a_record_whose_interceptor_raises_can_be_stepped_over(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    fill(cluster, "t", 0, numbers(0, 10))
    doubled = Doubled()
    doubled.refused = {4}
    with consumer_of(cluster, "t", interceptors=[doubled]) as consumer:
        assert offsets(read(consumer, 4)) == [0, 1, 2, 3]
        with pytest.raises(InterceptorFailed):
            consumer.poll(5_000)
        with pytest.raises(InterceptorFailed, match=r"Doubled.on_consume raised .* at offset 4 of t-0") as caught:
            consumer.poll(5_000)  # again
        assert consumer.position(T0) == 4
        found = caught.value.details["record"]
        assert isinstance(found, Record)
        assert (found.offset, found.value, caught.value.details["offset"]) == (4, b"4", 4)
        assert isinstance(caught.value.__cause__, KeyError)
        with pytest.raises(InterceptorFailed):
            next(consumer)
        consumer.seek(T0, 5)
        assert offsets(read(consumer, 5)) == [5, 6, 7, 8, 9]
        consumer.seek(T0, 4)
        doubled.refused = set()
        assert offsets(read(consumer, 6)) == [4, 5, 6, 7, 8, 9]


def test_commits_are_reported(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    with_coordinator(cluster)
    fill(cluster, "t", 0, numbers(0, 10))
    doubled = Doubled()
    with consumer_of(cluster, group_id="g", enable_auto_commit=False, interceptors=[doubled]) as consumer:
        consumer.assign([T0])
        read(consumer, 10)
        consumer.commit()
        consumer.commit({T0: 3})
    assert doubled.commits == [{T0: 10}, {T0: 3}]


def test_interceptors_are_named_as_in_configuration_files(cluster: ToyCluster) -> None:
    cluster.create_topic("t")
    names = f"{__name__}.Audit,{__name__}:Audit"
    with Producer({"interceptor.classes": names, **cluster.options, "value.serializer": "string"}) as producer:
        producer.send("t", "a").result(10)
    assert [value for _, _, value in cluster.records("t", 0)] == [b"a++"]


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [("raylog.Nothing", "cannot be imported"), ([object()], "on_send or on_acknowledgement"), (7, "has neither"),
     ([Doubled()], "on_send or on_acknowledgement")],
)  # fmt: skip
def test_what_is_no_interceptor_is_refused(choice: Any, sentence: str) -> None:
    with pytest.raises(InvalidConfig, match=sentence):
        Producer(interceptors=choice, bootstrap="127.0.0.1:1")
