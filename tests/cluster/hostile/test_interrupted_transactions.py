"""An exception at any step of a transaction: all of its records are read or none, and the next one works."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from raylog.base.errors import InvalidTxnState
from raylog.base.ids import TopicPartition
from raylog.client.consumer.consumer import Consumer
from raylog.client.producer.producer import Producer
from raylog.client.types import ConsumerGroupMetadata
from tests.cluster.hostile.striking import Interrupt, Measured, Strike, spread
from tests.cluster.hostile.world import NEXT_S, Remains, World

pytestmark = pytest.mark.filterwarnings("ignore")  # of what an interrupted call has left, and the next one closes

Steps = dict[str, Callable[[Producer, str, bytes], Any]]
STEPS: Steps = {
    "begin_transaction": lambda producer, _, __: producer.begin_transaction(),
    "send": lambda producer, topic, value: [producer.send(topic, value, partition=number) for number in (0, 1)],
    "send_offsets_to_transaction": lambda producer, topic, _: producer.send_offsets_to_transaction(
        {TopicPartition(topic, 0): 1}, ConsumerGroupMetadata(topic), NEXT_S
    ),
    "commit_transaction": lambda producer, _, __: producer.commit_transaction(NEXT_S),
}
ABORT: Steps = {**STEPS, "abort_transaction": lambda producer, _, __: producer.abort_transaction(NEXT_S)}
del ABORT["commit_transaction"]


def run(producer: Producer, topic: str, value: bytes, steps: Steps, struck: str, strike: Measured) -> bool:
    """Take the steps of a transaction, one of them under a strike; whether all of them returned."""
    for name, step in steps.items():
        if name != struck:
            step(producer, topic, value)
            continue
        with suppress(Interrupt), strike:
            step(producer, topic, value)
        if getattr(strike, "place", ""):
            return False
    return True


def give_up(producer: Producer) -> None:
    """Abort what an interrupted transaction has left, if it has left one; a commit that has begun is only repeated."""
    try:
        producer.abort_transaction(NEXT_S)
    except InvalidTxnState as error:
        if "Legal now: commit_transaction()" in str(error):
            producer.commit_transaction(NEXT_S)


def committed(world: World, topic: str) -> list[list[bytes]]:
    """What readers of committed records see in both partitions."""
    found: list[list[bytes]] = [[], []]
    options = {**world.options, "auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    with Consumer(topic, **options, consumer_timeout_ms=500) as consumer:
        for record in consumer:
            found[record.partition].append(record.value or b"")
    return found


@pytest.mark.parametrize(
    ("name", "steps"),
    [*((name, STEPS) for name in STEPS), ("abort_transaction", ABORT)],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_call_of_a_transaction_is_interrupted_anywhere(world: World, name: str, steps: Steps) -> None:
    topic, remains = world.topic(2), Remains()
    done: set[bytes] = set()
    with Producer(**world.options, transactional_id=world.name()) as producer:
        producer.init_transactions(timeout=NEXT_S)
        run(producer, topic, b"warm", steps, name, Measured())
        with Measured() as measured:
            run(producer, topic, b"first", steps, name, measured)
        for at in spread(measured.steps):
            value = b"%d" % at
            if run(producer, topic, value, steps, name, Strike(at)) and steps is STEPS:
                done.add(value)
            give_up(producer)
            with producer.transaction():
                producer.send(topic, b"after " + value, partition=0)
                producer.send(topic, b"after " + value, partition=1)
            done.add(b"after " + value)
    both = committed(world, topic)
    assert sorted(both[0]) == sorted(both[1]), "all of a transaction is read, or none"
    assert len(both[0]) == len(set(both[0]))
    assert done <= set(both[0])
    remains.check()
