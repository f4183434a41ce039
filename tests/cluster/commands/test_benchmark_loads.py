"""The loads of the benchmarks run against a cluster: each counts correctly at any speed."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from benchmarks import loads
from benchmarks.clients.raylog_client import Measured
from benchmarks.job import Job
from tests.cluster.counts import PAGE_CACHE, Stage, stage
from tests.cluster.local_cluster import SECRET

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def staged() -> Iterator[Stage]:
    with stage() as one:
        yield one


@pytest.fixture
def job(staged: Stage, request: pytest.FixtureRequest) -> Job:
    topic = request.node.name.replace("[", "-").strip("]")[:60]
    staged.create(topic, 1, PAGE_CACHE)
    address = {"bootstrap": staged.address["bootstrap"], "secret": SECRET.hex()}
    return Job(load="", client="raylog", topic=topic, address=address, warmup_s=0.05, seconds=0.2, linger_ms=0)


def ready() -> None:
    """Stands in for the callback at the start of a load; returns at once."""


@pytest.mark.parametrize("acks", ["all", "1"])
def test_every_record_that_is_sent_is_stored(job: Job, acks: str) -> None:
    found = loads.produce(replace(job, acks=acks, warmup_s=0.0), Measured, ready)
    assert found["records"] == found["stored"] > 0


@pytest.mark.parametrize("form", ["records", "columns", "arrow"])
def test_every_record_that_is_stored_is_read(job: Job, form: str) -> None:
    sent = loads.produce(replace(job, warmup_s=0.0), Measured, ready)
    reading = replace(job, form=form, count=sent["stored"], warmup_s=0.0, seconds=30.0, once=True)
    found = loads.consume(reading, Measured, ready)
    assert found["once"] == sent["stored"]
    assert found["bytes"] == found["records"] * job.size


def test_latency_is_taken_of_every_record_behind_the_warm_up(job: Job) -> None:
    job = replace(job, rate=500.0, count=100, warmup_s=0.1)
    outcome: dict[str, Any] = {}
    listening = threading.Event()
    reader = threading.Thread(target=lambda: outcome.update(loads.follow(job, Measured, listening.set)))
    reader.start()
    assert listening.wait(30)
    loads.pace(job, Measured, ready)
    reader.join(30)
    assert outcome["records"] == 100
    assert 0 < outcome["p50_ms"] <= outcome["p99_ms"] <= outcome["max_ms"]


def test_small_producers_each_have_one_record_on_its_way(job: Job) -> None:
    found = loads.small(replace(job, connections=5), Measured, ready)
    assert found["records"] >= 5
    assert Measured(job).stored() >= found["records"]


def test_a_group_shares_a_topic_until_it_is_read(job: Job) -> None:
    sent = loads.produce(replace(job, warmup_s=0.0), Measured, ready)
    found = loads.group(replace(job, connections=1, count=sent["stored"]), Measured, ready)
    assert (found["members"], found["records"]) == (1, sent["stored"])


def test_a_probe_sees_every_acknowledgement(job: Job) -> None:
    found = loads.probe(replace(job, rate=100.0, seconds=0.3), Measured, ready)
    assert found["records"] == 30
    assert found["gap_ms"] > 0


def test_a_topic_counts_as_created_when_each_partition_has_a_record(job: Job) -> None:
    found = loads.create(job, Measured, ready)
    assert found["records"] == 1
    assert Measured(job).stored() == 1
