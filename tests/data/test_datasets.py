"""Ray Data over a real Raylog, found through Ray: reading, following, writing, and a loop that trains on a topic."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import ray

import raylog
from raylog.base.errors import InvalidConfig, InvalidRecord, UnknownTopicOrPartition
from raylog.data.columns import SCHEMA
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray[.]data"),  # Ray warns of what it sets by itself
]

ROWS = 3_000


def value_of(offset: int) -> bytes:
    return b'{"x": %d, "y": %d}' % (offset, 3 * offset + 1)


@pytest.fixture(scope="module")
def flights(cluster: raylog.Cluster) -> str:
    """A topic of two partitions with 3,000 records each; the value of each is made of its offset."""
    with raylog.Admin() as admin, raylog.Producer() as producer:
        admin.create_topic("flights", partitions=2, replication_factor=1)
        values = [value_of(offset) for offset in range(ROWS)]
        for partition in (0, 1):
            producer.send_batch("flights", values, partition=partition).result(30)
    return "flights"


def test_each_record_is_read_once_in_tasks_that_share_partitions(flights: str) -> None:
    ds = raylog.data.read(flights, override_num_blocks=5).materialize()
    assert ds.num_blocks() == 5
    assert ds.schema().base_schema.equals(SCHEMA)
    rows = ds.take_all()
    assert {(row["partition"], row["offset"]) for row in rows} == {(p, o) for p in (0, 1) for o in range(ROWS)}
    assert len(rows) == 2 * ROWS
    assert all(row["value"] == value_of(row["offset"]) for row in rows)


def test_tasks_run_on_the_nodes_of_their_leaders(cluster: raylog.Cluster, flights: str) -> None:
    status = cluster.status()
    node_of = {row["broker"]: row["node_id"] for row in status["brokers"]}
    leaders = {row["partition"]: node_of[row["leader"]] for row in status["topics"][flights]}
    assert len(set(leaders.values())) == 2
    found = {}
    for bundle in raylog.data.read(flights).materialize().iter_internal_ref_bundles():
        for block in bundle.blocks:
            (partition,) = set(ray.get(block.ref)["partition"].to_pylist())
            found[partition] = block.metadata.exec_stats.node_id
    assert found == leaders


def test_a_dataset_is_read_in_another_process(flights: str) -> None:
    ds = raylog.data.read(flights, columns=["offset"])
    assert ds.schema(fetch_if_missing=False).names == ["offset"]  # without a read
    total: Any = ray.remote(num_cpus=0)(lambda found: found.sum("offset"))
    assert ray.get(total.remote(ds), timeout=60) == ROWS * (ROWS - 1)


def test_counting_choosing_and_limits_work(flights: str) -> None:
    ds = raylog.data.read(flights, start_offset={"flights": {0: ROWS - 10, 1: ROWS}})
    assert ds.count() == 10
    assert ds.select_columns(["offset"]).schema().names == ["offset"]
    assert [row["offset"] for row in ds.select_columns(["offset"]).take_all()] == list(range(ROWS - 10, ROWS))
    assert len(raylog.data.read(flights).limit(7).take_all()) == 7


def test_a_loop_trains_on_a_topic_in_one_expression(flights: str) -> None:
    def parsed(batch: pa.Table) -> dict[str, Any]:
        rows = [json.loads(value) for value in batch["value"].to_pylist()]
        return {"x": np.array([row["x"] for row in rows], float), "y": np.array([row["y"] for row in rows], float)}

    xtx, xty = np.zeros((2, 2)), np.zeros(2)
    for batch in raylog.data.read(flights).map_batches(parsed, batch_format="pyarrow").iter_batches(batch_size=512):
        inputs = np.stack([batch["x"], np.ones(len(batch["x"]))], axis=1)
        xtx, xty = xtx + inputs.T @ inputs, xty + inputs.T @ batch["y"]
    assert np.allclose(np.linalg.solve(xtx, xty), [3, 1])


def test_following_tasks_run_on_the_nodes_of_their_leaders(cluster: raylog.Cluster, admin: raylog.Admin) -> None:
    admin.create_topic("followed", partitions=4)
    with raylog.Producer() as producer:
        for partition in range(4):
            producer.send("followed", b"0", partition=partition).result(30)
    status = cluster.status()
    node_of = {row["broker"]: row["node_id"] for row in status["brokers"]}
    leaders = {row["partition"]: node_of[row["leader"]] for row in status["topics"]["followed"]}
    assert len(set(leaders.values())) == 2
    ds = raylog.data.read("followed", trigger="continuous", end_offset=1, columns=["partition"])
    found = {}
    for bundle in ds.materialize().iter_internal_ref_bundles():
        for block in bundle.blocks:
            for partition in ray.get(block.ref)["partition"].to_pylist():
                found[partition] = block.metadata.exec_stats.node_id
    assert found == leaders


def test_a_topic_is_followed_until_the_loop_is_left(admin: raylog.Admin) -> None:
    admin.create_topic("live", partitions=3)
    ds = raylog.data.read("live", trigger="continuous", columns=["partition", "value", "timestamp"])
    latencies: list[float] = []
    with raylog.Producer() as producer:
        producer.send("live", b"0", partition=0).result(30)
        count = 0
        batches: Any = ds.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0)
        for batch in batches:
            latencies += [time.time() - moment / 1000 for moment in batch["timestamp"].to_pylist()]
            count += batch.num_rows
            assert count == len(latencies)
            if count == 10:
                break
            producer.send("live", b"%d" % count, partition=count % 3).result(30)
    assert sorted(latencies[3:])[3] < 2, latencies  # by far more than it takes; the first ones wait for the tasks
    left: Any = ray.available_resources
    wait_for(lambda: left().get("CPU") == 2, "the tasks of the read have ended")


def test_a_bounded_follower_ends_and_works_behind_an_operator(flights: str) -> None:
    ds = raylog.data.read(flights, trigger="continuous", end_offset=ROWS, columns=["offset"])
    assert ds.map_batches(lambda batch: {"twice": batch["offset"] * 2}).sum("twice") == 2 * ROWS * (ROWS - 1)


def test_fewer_followers_than_nodes_read_all_partitions(flights: str) -> None:
    alone: dict[str, Any] = {"override_num_blocks": 1, "columns": ["offset"]}
    assert raylog.data.read(flights, trigger="continuous", end_offset=ROWS, **alone).sum("offset") == ROWS * (ROWS - 1)


def test_rows_are_written_as_json_and_columns_as_they_are(admin: raylog.Admin, flights: str) -> None:
    admin.create_topic("rows", partitions=2)
    raylog.data.write(ray.data.range(500), "rows", key_field="id")
    back = raylog.data.read("rows").take_all()
    assert sorted(json.loads(row["value"])["id"] for row in back) == list(range(500))
    assert all(row["key"] == str(json.loads(row["value"])["id"]).encode() for row in back)

    admin.create_topic("copy", partitions=2)
    source = raylog.data.read(flights)
    raylog.data.write(source, "copy", value_field="value", partition_field="partition", timestamp_field="timestamp")
    copied = raylog.data.read("copy", columns=["partition", "timestamp", "value"])
    assert sorted(copied.take_all(), key=str) == sorted(
        source.select_columns(["partition", "timestamp", "value"]).take_all(), key=str
    )


def test_what_is_wrong_is_stated_in_one_sentence(admin: raylog.Admin, flights: str) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="did you mean 'flights'"):
        raylog.data.read("flihgts")
    with pytest.raises(InvalidConfig, match=r"names partitions that do not exist or are not read: flights-9"):
        raylog.data.read(flights, start_offset={"flights": {9: 0}})
    with pytest.raises(InvalidConfig, match="begins at offset 5000, behind its end 3000"):
        raylog.data.read(flights, start_offset=5_000)
    with pytest.raises(InvalidConfig, match=r"3 tasks of 1 CPUs|2 tasks of 2 CPUs"):
        raylog.data.read(flights, trigger="continuous", num_cpus=2)
    with pytest.raises(UnknownTopicOrPartition, match="did you mean 'flights'"):
        raylog.data.write(ray.data.range(3), "flihgts")
    with pytest.raises(InvalidConfig, match="key_field: Unknown column 'ids'; did you mean 'id'"):
        raylog.data.write(ray.data.range(3), flights, key_field="ids")
    with pytest.raises(InvalidRecord, match="'key' holds bytes, which JSON cannot"):
        raylog.data.write(raylog.data.read(flights), flights)
    with pytest.raises(InvalidConfig, match="token"):
        raylog.data.read(flights, token="no-token")


def test_a_token_reads_its_topic_and_no_other(cluster: raylog.Cluster, admin: raylog.Admin, flights: str) -> None:
    import ray.data

    admin.create_topic("private", partitions=1)
    token = admin.create_token(read=[flights])
    given: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap(), "token": token}
    assert raylog.data.read(flights, end_offset=5, **given).count() == 10
    with pytest.raises(raylog.ClusterAuthorizationFailed, match="`raylog token create --read private`"):
        raylog.data.read("private", **given)
    with pytest.raises(raylog.ClusterAuthorizationFailed, match="`raylog token create --write flights`"):
        raylog.data.write(ray.data.range(3), flights, **given)
