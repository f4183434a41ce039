"""A topic's `max.message.bytes` is lowered under a producer: only what is too large alone fails."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from raylog.base.errors import RaylogError, RecordTooLarge
from raylog.client.producer.producer import Producer
from tests.unit.client.toy_server import ToyCluster

LIMIT = 20_000
OPTIONS: dict[str, Any] = {"linger_ms": 200, "batch_size": 900_000}


@pytest.fixture
def lower(cluster: ToyCluster) -> Callable[[], None]:
    """Create the topic `t`; returns what lowers its limit at the leader and in the metadata."""
    cluster.create_topic("t")

    def lower() -> None:
        cluster.do(lambda: setattr(cluster.partitions["t", 0], "message_bytes_max", LIMIT))
        cluster.do(lambda: cluster.topics["t"][1].update({"max.message.bytes": str(LIMIT)}))

    return lower


def stored(cluster: ToyCluster) -> list[bytes | None]:
    return [value for _, _, value in cluster.records("t", 0)]


@pytest.mark.parametrize("compression", ["none", "lz4"])
@pytest.mark.parametrize("options", [{}, {"enable_idempotence": False}, {"acks": 1}], ids=str)
def test_a_batch_above_the_limit_is_cut_and_what_is_too_large_alone_fails(
    cluster: ToyCluster, lower: Callable[[], None], compression: Any, options: dict[str, Any]
) -> None:
    noise = [bytes((number * 37 + at * 101 + at * at) % 251 for at in range(400)) for number in range(64)]
    values = [b"%06d" % number + noise[number % 64] for number in range(1_500)]
    values[700] = random.Random(7).randbytes(30_000)  # no codec makes it smaller
    with Producer(**cluster.options, **OPTIONS, **options, compression_type=compression) as producer:
        assert producer.send("t", b"first").result(10).offset == 0
        lower()
        futures = [producer.send("t", value, key=b"k%d" % number) for number, value in enumerate(values)]
        producer.flush()
        failures = {number: error for number, future in enumerate(futures) if (error := future.exception(0))}
        assert list(failures) == [700]
        assert isinstance(failures[700], RecordTooLarge)
        records = cluster.records("t", 0)
        assert [value for _, _, value in records] == [b"first", *values[:700], *values[701:]]
        for number, future in enumerate(futures):
            if number != 700:
                offset = future.result(0).offset
                assert records[offset] == (offset, b"k%d" % number, values[number])
        assert producer.metrics()["record-error-total"] == 1
        before = cluster.partitions["t", 0].produce_requests
        assert producer.send("t", b"x" * 10_000).result(10).offset == len(records)
        assert cluster.partitions["t", 0].produce_requests == before + 1, "the new limit is known"


def test_send_batch_shows_where_its_pieces_are_stored(cluster: ToyCluster, lower: Callable[[], None]) -> None:
    values: list[bytes | None] = [b"%06d" % number * 60 for number in range(500)]
    with Producer(**cluster.options, **OPTIONS) as producer:
        producer.send("t", b"first").result(10)
        lower()
        pieces = producer.send_batch("t", values).result(10)
    assert [(piece.offset, piece.count) for piece in pieces] != []
    assert sum(piece.count for piece in pieces) == 500
    assert stored(cluster) == [b"first", *values]
    assert pieces[0].offset == 1
    for before, after in itertools.pairwise(pieces):
        assert before.offset + before.count == after.offset


def test_pieces_are_stored_once_though_answers_are_lost(cluster: ToyCluster, lower: Callable[[], None]) -> None:
    values = [b"%06d" % number * 60 for number in range(800)]
    with Producer(**cluster.options, **OPTIONS, request_timeout_ms=500) as producer:
        producer.send("t", b"first").result(10)
        lower()
        cluster.set_faults("t", 0, ["store", "cut_after", "store", "cut_before", "lose_reply", "store", "cut_after"])
        futures = [producer.send("t", value) for value in values]
        producer.flush()
        assert [future.result(0).offset for future in futures] == list(range(1, 801))
    assert stored(cluster) == [b"first", *values]


def test_a_limit_that_the_metadata_does_not_show_yet_ends_by_halving(
    cluster: ToyCluster, lower: Callable[[], None]
) -> None:
    cluster.do(lambda: setattr(cluster.partitions["t", 0], "message_bytes_max", LIMIT))
    values = [b"%06d" % number * 60 for number in range(300)]
    with Producer(**cluster.options, **OPTIONS) as producer:
        futures = [producer.send("t", value) for value in values]
        producer.flush()
        errors: list[RaylogError] = [error for future in futures if (error := future.exception(0))]
    assert errors == []
    assert stored(cluster) == values
