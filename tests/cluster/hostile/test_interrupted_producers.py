"""An exception at any step of a producer's call: each record at most once, each future ends, the next call works."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from raylog.client.consumer.consumer import Consumer
from raylog.client.producer.arrow_columns import ArrowColumns
from raylog.client.producer.futures import SendFuture
from raylog.client.producer.producer import Producer
from tests.cluster.hostile.striking import Interrupt, Measured, Strike, spread
from tests.cluster.hostile.world import NEXT_S, Remains, World

pytestmark = pytest.mark.filterwarnings("ignore")  # of what an interrupted call has left, and the next one closes

Call = Callable[[Producer, str, bytes], Any]
CALLS: dict[str, Call] = {
    "plain": lambda producer, topic, value: producer.send(topic, value),
    "keyed": lambda producer, topic, value: producer.send(topic, value, b"k"),
    "partition": lambda producer, topic, value: producer.send(topic, value, partition=0),
    "headers": lambda producer, topic, value: producer.send(topic, value, headers=[("h", b"x")]),
    "columns": lambda producer, topic, value: producer.send_batch(topic, [value], partition=0),
    "arrow": lambda producer, topic, value: producer.send_arrow(topic, ArrowColumns(pa.array([value], pa.binary()))),
    "flush": lambda producer, _, __: producer.flush(NEXT_S),
    "partitions": lambda producer, topic, _: producer.partitions_for(topic),
    "awaited": lambda producer, topic, value: producer.send(topic, value).result(NEXT_S),
}


def stored(world: World, topic: str) -> list[Any]:
    """The values of all records in a topic."""
    with Consumer(topic, **world.options, auto_offset_reset="earliest", consumer_timeout_ms=500) as consumer:
        return [record.value for record in consumer]


@pytest.mark.parametrize("name", list(CALLS))
def test_a_call_of_a_producer_is_interrupted_anywhere(world: World, name: str) -> None:
    call, remains = CALLS[name], Remains()
    topic = world.topic(2)
    futures: dict[bytes, SendFuture] = {}
    sent: set[bytes] = set()
    with Producer(**world.options, batch_size=600, linger_ms=1) as producer:
        call(producer, topic, b"0")
        number = 0
        with Measured() as measured:
            call(producer, topic, b"1")
        for at in spread(measured.steps):
            for _ in range(2):  # at an empty queue, and at one with an open batch
                number += 1
                value = b"%d" % number * 60
                sent.add(value)
                strike = Strike(at)
                with suppress(Interrupt), strike:
                    found = call(producer, topic, value)
                    if isinstance(found, SendFuture):
                        futures[value] = found
            after = b"after %d" % number
            sent.add(after)
            assert producer.send(topic, after, partition=0).result(NEXT_S).offset >= 0
        producer.flush(NEXT_S)
        assert all(future.result(0).offset >= 0 for future in futures.values())
        assert producer.metrics()["buffer-available-bytes"] == producer.config.buffer_memory
    values = stored(world, topic)
    assert len(values) == len(set(values))
    assert futures.keys() <= set(values)
    remains.check()


def test_a_close_is_interrupted_anywhere(world: World) -> None:
    topic, remains = world.topic(), Remains()
    with Producer(**world.options) as first, Measured() as measured:
        first.send(topic, b"first")
        first.close()
    for at in spread(measured.steps):
        producer = Producer(**world.options)
        future = producer.send(topic, b"%d" % at)
        strike = Strike(at)
        with suppress(Interrupt), strike:
            producer.close(NEXT_S)
        producer.close(NEXT_S)
        future.exception(NEXT_S)  # it is known what has become of the record
        remains.check(strike.place)
    values = stored(world, topic)
    assert len(values) == len(set(values))
