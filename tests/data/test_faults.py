"""Datasets while leaders are killed, and while replicas sleep: every record once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import ray.data
from ray.data import DataContext
from ray.exceptions import WorkerCrashedError

import raylog
from raylog.base.errors import RecordTooLarge
from raylog.base.ids import TopicPartition
from tests.cluster.ray_support import kill_leaders
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray[.]data"),  # Ray warns of what it sets by itself
]

PARTITIONS, ROWS = 2, 20_000


def fill(topic: str, rows: int = ROWS) -> None:
    """The same number of records into each partition; their values are their offsets."""
    with raylog.Producer() as producer:
        for partition in range(PARTITIONS):
            producer.send_batch(topic, [b"%d" % number for number in range(rows)], partition=partition).result(60)


def seen_of(batch: Any) -> Counter[tuple[int, int]]:
    found = {name: batch[name].to_pylist() for name in ("partition", "offset", "value")}
    assert [int(value) for value in found["value"]] == found["offset"]
    return Counter(zip(found["partition"], found["offset"], strict=True))


def test_leaders_that_are_killed_while_a_topic_is_read(admin: raylog.Admin) -> None:
    admin.create_topic("killed", partitions=PARTITIONS, replication_factor=2)
    fill("killed")
    ds = raylog.data.read("killed", override_num_blocks=8, concurrency=1)
    assert kill_leaders(admin, "killed") == PARTITIONS  # each task is planned, and meets a leader that is dead
    seen: Counter[tuple[int, int]] = Counter()
    for number, batch in enumerate(ds.iter_batches(batch_size=None, batch_format="pyarrow")):
        seen += seen_of(batch)
        if number == 0:
            kill_leaders(admin, "killed")
    assert len(seen) == PARTITIONS * ROWS
    assert set(seen.values()) == {1}


def test_leaders_that_are_killed_while_a_topic_is_followed(admin: raylog.Admin) -> None:
    admin.create_topic("pursued", partitions=PARTITIONS, replication_factor=2)
    fill("pursued", 500)
    ds = raylog.data.read("pursued", trigger="continuous", end_offset=1_500)
    seen: Counter[tuple[int, int]] = Counter()
    kills, written = 0, 500
    with raylog.Producer() as producer:
        for batch in ds.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
            seen += seen_of(batch)
            if len(seen) == PARTITIONS * written and written < 1_500:
                kills += kill_leaders(admin, "pursued")
                values = [b"%d" % number for number in range(written, written + 500)]
                for partition in range(PARTITIONS):
                    producer.send_batch("pursued", values, partition=partition)
                written += 500
    assert kills == 2 * PARTITIONS
    assert len(seen) == PARTITIONS * 1_500
    assert set(seen.values()) == {1}


def test_a_topic_that_sleeps_is_read(cluster: raylog.Cluster, admin: raylog.Admin) -> None:
    admin.create_topic("asleep", partitions=PARTITIONS, config={"replica.sleep.after.ms": "1000"})
    fill("asleep", 10)
    ds = raylog.data.read("asleep")
    wait_for(lambda: all(row["asleep"] for row in cluster.status()["topics"]["asleep"]), "the topic sleeps", 30)
    assert ds.count() == PARTITIONS * 10


def test_large_records_and_topics_without_any(admin: raylog.Admin) -> None:
    admin.create_topic("large", partitions=1)
    assert raylog.data.read("large").take_all() == []
    assert raylog.data.read("large").schema().names[0] == "offset"
    values = {b"%d" % number: bytes([number]) * 900_000 for number in range(40)}
    rows = [{"id": int(key), "value": value} for key, value in values.items()]
    raylog.data.write(ray.data.from_items(rows), "large", value_field="value", key_field="id")
    found = {row["key"]: row["value"] for row in raylog.data.read("large").iter_rows()}
    assert found == values
    with pytest.raises(RecordTooLarge):
        raylog.data.write(ray.data.from_items([{"value": b"v" * 2_000_000}]), "large", value_field="value")


@pytest.fixture
def small_blocks() -> Iterator[None]:
    """Blocks of some thousand rows, so that a task gives out many, and waits while they are not taken."""
    context = DataContext.get_current()
    before = context.target_max_block_size
    context.target_max_block_size = 256 * 1024
    yield
    context.target_max_block_size = before


def kill_reader() -> None:
    """Kill the worker that reads now: a descendant of this process, beside which another Ray may read."""
    readers = [each for each in psutil.Process().children(recursive=True) if "ray::ReadRaylog" in _line(each)]
    assert readers, "a worker reads"
    for each in readers:
        each.kill()


def _line(process: psutil.Process) -> str:
    try:
        return "".join(process.cmdline())
    except psutil.Error:  # it has ended
        return ""


def offsets_of(batch: Any) -> list[int]:
    return [int(offset) for offset in batch["offset"].to_pylist()]


def rows_of(ds: ray.data.Dataset, meanwhile: Any) -> list[int]:
    """The offsets that arrive, with a fault once some have."""
    found: list[int] = []
    for batch in ds.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        has_some = len(found) > ROWS
        found += offsets_of(batch)
        if len(found) > ROWS and not has_some:
            meanwhile()
    return found


def test_a_worker_that_is_lost_costs_no_row_and_repeats_none(admin: raylog.Admin, small_blocks: None) -> None:
    admin.create_topic("workers", partitions=1)
    with raylog.Producer() as producer:
        producer.send_batch("workers", [b"%0100d" % number for number in range(5 * ROWS)]).result(60)
    ds = raylog.data.read("workers", override_num_blocks=1)
    assert rows_of(ds, kill_reader) == list(range(5 * ROWS))


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_a_lost_worker_whose_records_were_deleted_is_an_error(
    admin: raylog.Admin, small_blocks: None, fail_on_data_loss: bool
) -> None:
    topic = f"deleted-{fail_on_data_loss}"
    admin.create_topic(topic, partitions=1)
    with raylog.Producer() as producer:
        producer.send_batch(topic, [b"%0100d" % number for number in range(5 * ROWS)]).result(60)
    ds = raylog.data.read(topic, override_num_blocks=1, fail_on_data_loss=fail_on_data_loss)

    def fault() -> None:
        admin.delete_records({TopicPartition(topic, 0): 2 * ROWS})
        kill_reader()

    with pytest.raises(WorkerCrashedError):
        rows_of(ds, fault)


def test_a_lost_worker_of_a_continuous_read_is_an_error(admin: raylog.Admin) -> None:
    admin.create_topic("followed-by-a-worker", partitions=1)
    with raylog.Producer() as producer:
        producer.send_batch("followed-by-a-worker", [b"%d" % number for number in range(2 * ROWS)]).result(60)
    ds = raylog.data.read("followed-by-a-worker", trigger="continuous")
    with pytest.raises(WorkerCrashedError):
        rows_of(ds, kill_reader)
