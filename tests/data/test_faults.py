"""Datasets while leaders are killed, and while replicas sleep: every record once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import ray.data

import raylog
from raylog.core.errors import RecordTooLarge
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
