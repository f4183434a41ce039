"""What read tasks give out, without a Ray session: blocks of the right columns and types, once each."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from raylog.base.errors import ClientClosed, OffsetOutOfRange
from raylog.client.config import ConsumerConfig
from raylog.client.consumer.consumer import Consumer
from raylog.client.ranges.planning import RangesWanted, plan_read
from raylog.client.ranges.reading import RangeReading, read_range
from raylog.client.reading.range_fetcher import PartitionRange
from raylog.data.columns import SCHEMA, schema_of
from raylog.data.datasink import WriteTask
from raylog.data.datasource import RangesTask, RaylogDatasource
from raylog.data.following import FollowingTask
from raylog.data.offsets import end_of, start_of
from raylog.data.serializing import Fields
from raylog.storage.batch.cleaned import filler
from raylog.storage.batch.header import parse_header
from tests.unit.client.toy_server import SECRET, ToyCluster
from tests.unit.spark.support import START_MS, fill, value_of
from tests.waiting import wait_for

ALL = tuple(SCHEMA.names)


@pytest.fixture
def cluster() -> Iterator[ToyCluster]:
    """A cluster in memory with 300 records in each of the two partitions of `orders`."""
    with ToyCluster(brokers=2) as running:
        running.create_topic("orders", 2)
        for partition in (0, 1):
            fill(running, "orders", partition, [70, 80, 150])
        yield running


def ranges(cluster: ToyCluster, start: Any = "earliest", end: Any = "latest", **given: Any) -> list[PartitionRange]:
    """What `raylog.data.read` plans."""
    wanted = {"fail_on_data_loss": False, "refuses_start_behind_end": True, "latest_without_match": True, **given}
    options: dict[str, Any] = {"bootstrap": cluster.bootstrap, "secret": SECRET.hex()}
    return plan_read(RangesWanted(topics=("orders",), start=start_of(start), end=end_of(end), **options, **wanted))


def blocks(found: list[PartitionRange], names: tuple[str, ...] = ALL) -> list[Any]:
    """What a task with these ranges gives out, pickled in between as on its way to a worker."""
    task = pickle.loads(pickle.dumps(RangesTask(tuple(found), RangeReading(), names, None)))
    return list(task())


def test_blocks_have_the_columns_of_rays_kafka_source(cluster: ToyCluster) -> None:
    table = pa.concat_tables(blocks(ranges(cluster)))
    assert table.schema.equals(SCHEMA)
    rows = table.to_pylist()
    assert {(row["partition"], row["offset"]) for row in rows} == {(p, o) for p in (0, 1) for o in range(300)}
    assert all(row["value"] == value_of("orders", row["partition"], row["offset"]) for row in rows)
    assert all((row["key"] is None) == (row["offset"] % 3 == 0) for row in rows)
    assert {(row["topic"], row["timestamp_type"]) for row in rows} == {("orders", 1)}
    assert all(row["timestamp"] == START_MS + row["offset"] for row in rows)
    assert [row["headers"] for row in rows[:2]] == [[("h", b"0")], []]


def test_columns_are_made_as_chosen_and_in_that_order(cluster: ToyCluster) -> None:
    (first, *_) = blocks(ranges(cluster), ("value", "offset"))
    assert first.schema.equals(schema_of(("value", "offset")))


def test_ranges_begin_and_end_inside_batches(cluster: ToyCluster) -> None:
    found = ranges(cluster, {"orders": {0: 65, 1: 299}}, {"orders": {0: 71}})
    table = pa.concat_tables(blocks(found))
    assert list(zip(*table.select(["partition", "offset"]).to_pydict().values(), strict=True)) == [
        *((0, offset) for offset in range(65, 71)),
        (1, 299),
    ]


def test_a_repeated_task_makes_the_same_blocks(cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raylog.client.ranges.arrow.ROWS", 64)
    first = blocks(ranges(cluster))
    assert len(first) > 4
    cluster.move_leader("orders", 1)
    again = list(RangesTask(tuple(ranges(cluster)), RangeReading(fetch_max_bytes=5_000), ALL, None)())
    assert [block.to_pylist() for block in again] == [block.to_pylist() for block in first]


def test_a_repeated_task_refuses_what_was_compacted_since(cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic was made compacted after the read was planned; Ray would drop other blocks than those that arrived."""
    monkeypatch.setattr("raylog.client.ranges.arrow.ROWS", 64)
    found = ranges(cluster)
    assert not any(item.may_be_compacted for item in found)
    log = cluster.partitions["orders", 0]
    (header, _), *others = log.batches
    emptied = filler(header.base_offset, header.next_offset, header.partition_leader_epoch)
    cluster.do(lambda: log.batches.__setitem__(slice(None), [(parse_header(emptied), emptied), *others]))
    assert sum(block.num_rows for block in blocks(found)) == 600 - 70
    with pytest.raises(OffsetOutOfRange, match="Compaction has removed records of orders-0 from offset 0 on"):
        list(read_range(found[0], RangeReading(repeats=True)))


def test_a_task_gives_out_what_it_has_when_its_time_is_over(cluster: ToyCluster) -> None:
    first = ranges(cluster)[0]
    found = (replace(first, end=first.end + 5),)  # 5 records that never come
    began_s = time.monotonic()
    assert sum(block.num_rows for block in RangesTask(found, RangeReading(), ALL, 1.0)()) == 300
    assert time.monotonic() - began_s < 10


def test_a_worker_loads_no_client_that_its_task_does_not_need() -> None:
    code = "import sys, raylog.data.datasource; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert not {"raylog.client.consumer.consumer", "raylog.client.producer.producer"} & set(done.stdout.split())


def test_a_topic_without_records_is_an_empty_block_with_columns() -> None:
    (block,) = blocks([])
    assert (block.num_rows, block.schema) == (0, SCHEMA)


def test_a_task_says_which_partitions_it_reads_and_holds_no_secret(cluster: ToyCluster) -> None:
    found = ranges(cluster)
    source = RaylogDatasource([found], ALL, RangeReading(), None)
    (task,) = source.get_read_tasks(200)
    assert list(task.metadata.input_files or ()) == ["raylog://orders/0", "raylog://orders/1"]
    assert SCHEMA.equals(task.schema)
    assert SECRET not in pickle.dumps(source)
    assert SECRET.hex().encode() not in pickle.dumps(source)


def test_columns_are_made_as_a_dataset_selects_them(cluster: ToyCluster) -> None:
    source = RaylogDatasource([ranges(cluster)], ALL, RangeReading(), None)
    (task,) = source.apply_projection({"value": "value", "offset": "offset"}).get_read_tasks(1)
    assert getattr(task.schema, "names", None) == ["value", "offset"]
    assert pa.concat_tables(list(task())).schema.names == ["value", "offset"]


def test_counting_makes_no_column_and_keeps_the_rows(cluster: ToyCluster) -> None:
    source = RaylogDatasource([ranges(cluster)], ALL, RangeReading(), None).apply_projection({})
    (task,) = source.get_read_tasks(1)
    assert sum(block.num_rows for block in task()) == 600


def followed(cluster: ToyCluster, *, timeout_s: float | None = None, **given: Any) -> FollowingTask:
    found = ranges(cluster, follows=True, **given)
    return FollowingTask(tuple(found), ConsumerConfig(auto_offset_reset="none"), ("partition", "offset"), timeout_s)


def test_a_following_task_ends_where_it_shall(cluster: ToyCluster) -> None:
    task = pickle.loads(pickle.dumps(followed(cluster, start={"orders": {1: 290}}, end={"orders": {0: 5, 1: 310}})))
    timer = threading.Timer(0.3, fill, (cluster, "orders", 1, [50]))
    timer.start()
    try:
        table = pa.concat_tables(list(task()))
    finally:
        timer.join()
    assert sorted(zip(*table.to_pydict().values(), strict=True)) == [
        *((0, offset) for offset in range(5)),
        *((1, offset) for offset in range(290, 310)),
    ]


def test_a_following_task_rides_out_a_new_leader(cluster: ToyCluster) -> None:
    task = followed(cluster, end={"orders": {0: 300, 1: 350}})
    found, moved = 0, False
    for block in task():
        found += block.num_rows
        if not moved:
            moved = True
            cluster.move_leader("orders", 1)
            fill(cluster, "orders", 1, [50])
    assert found == 650


def test_a_following_task_ends_after_its_time(cluster: ToyCluster) -> None:
    assert sum(block.num_rows for block in followed(cluster, timeout_s=0.5)()) == 600


def test_a_following_task_fetches_no_more_than_its_bound_ahead(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Consumer] = []

    class Kept(Consumer):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            made.append(self)

    monkeypatch.setattr("raylog.data.following.Consumer", Kept)
    bound, fetch = 20_000, 10_000
    config = ConsumerConfig(auto_offset_reset="none", fetch_max_bytes=bound, max_partition_fetch_bytes=fetch)
    task = FollowingTask(tuple(ranges(cluster, follows=True)), config, ("offset",), None)
    given_out: Any = task()
    assert next(given_out).num_rows > 0
    for partition in (0, 1):  # some hundred kilobytes each, while no block is taken
        fill(cluster, "orders", partition, [50] * 200)
    wait_for(lambda: made[0].metrics()["fetch-buffered-bytes"] >= bound, "the consumer has fetched what it may")
    assert made[0].metrics()["fetch-buffered-bytes"] <= bound + 2 * fetch
    given_out.close()
    with pytest.raises(ClientClosed):
        made[0].poll(0)


def test_a_written_table_is_read_back_the_same(cluster: ToyCluster) -> None:
    cluster.create_topic("copies", 2)
    table = pa.concat_tables(blocks(ranges(cluster)))
    fields = Fields(value="value", key="key", headers="headers", timestamp="timestamp", partition="partition")
    task = WriteTask("copies", fields, cluster.bootstrap, None, {"secret": SECRET})
    assert task([table.slice(0, 250), table.slice(250)]) == 600
    wanted = RangesWanted(
        topics=("copies",), start=start_of(None), end=end_of(None), bootstrap=cluster.bootstrap, secret=SECRET
    )
    copied = pa.concat_tables(blocks(plan_read(wanted)))
    same = [name for name in ALL if name != "topic"]
    assert copied.select(same).combine_chunks().equals(table.select(same).combine_chunks())
