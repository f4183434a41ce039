"""The loads with confluent-kafka, against the mock of a cluster that librdkafka has inside: no Kafka is needed."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import loads
from benchmarks.clients.confluent_client import Measured
from benchmarks.job import Job

library: Any = pytest.importorskip("confluent_kafka", reason="the extra `bench` brings confluent-kafka")
PARTITIONS = 4
"""What the mock gives every topic that a client requests."""


@pytest.fixture
def job(request: pytest.FixtureRequest) -> Iterator[Job]:
    # The mock lives as long as this producer does.
    mock = library.Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 1, "log_level": 0})
    brokers = mock.list_topics(timeout=10).brokers.values()
    address = {"bootstrap": ",".join(f"{broker.host}:{broker.port}" for broker in brokers)}
    deadline_s = time.monotonic() + 10
    while len(mock.list_topics("t", timeout=10).topics["t"].partitions) < PARTITIONS:
        assert time.monotonic() < deadline_s, "the mock did not make the topic"
    yield Job(
        load="", client="confluent", topic="t", address=address, partitions=PARTITIONS, warmup_s=0.0, seconds=0.1,
        linger_ms=0,
    )  # fmt: skip
    mock.flush(1)


def ready() -> None:
    """What a load calls when it begins; no process waits for it here."""


def test_every_record_that_is_sent_is_stored_and_read(job: Job) -> None:
    sent = loads.produce(job, Measured, ready)
    assert sent["records"] == sent["stored"] > 0
    read = loads.consume(replace(job, count=sent["stored"], seconds=30.0, once=True), Measured, ready)
    assert read["once"] == sent["stored"]


def test_small_producers_each_have_one_record_on_its_way(job: Job) -> None:
    found = loads.small(replace(job, connections=3), Measured, ready)
    assert found["records"] == Measured(job).stored() >= 3


def test_a_probe_sees_every_acknowledgement(job: Job) -> None:
    found = loads.probe(replace(job, rate=100.0, seconds=0.2), Measured, ready)
    assert found["records"] == 20


def test_each_partition_of_a_created_topic_gets_a_record(job: Job) -> None:
    assert loads.create(job, Measured, ready)["records"] == PARTITIONS
    assert Measured(job).stored() == PARTITIONS


def test_latency_is_taken_of_every_record(job: Job) -> None:
    job = replace(job, rate=200.0, count=20)
    outcome: dict[str, Any] = {}
    listening = threading.Event()
    reader = threading.Thread(target=lambda: outcome.update(loads.follow(job, Measured, listening.set)))
    reader.start()
    assert listening.wait(30)
    loads.pace(job, Measured, ready)
    reader.join(60)
    assert (outcome["records"], outcome["p50_ms"] > 0) == (20, True)
