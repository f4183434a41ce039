"""What a worker reads: exactly its offsets, whatever batches, leaders and retention do meanwhile."""

import gc
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition

from raylog.base.errors import AuthenticationFailed, CorruptMessage, OffsetOutOfRange, RequestTimedOut, UnknownTopicId
from raylog.client.ranges.narrowing import Narrowing
from raylog.client.reading.range_fetcher import KEPT, PartitionRange, RangeFetcher
from raylog.client.runtime import shared
from raylog.spark.reading.options import ReadOptions
from raylog.spark.reading.reader import RangePartition, keep_what_is_loaded
from tests.unit.client.toy_server import ToyCluster
from tests.unit.spark.support import (
    START_MS,
    batches_of,
    drop_before,
    fill,
    options,
    plan,
    reader_of,
    rows_of,
    value_of,
)
from tests.waiting import wait_for


def planned(cluster: ToyCluster, **given: object) -> tuple[PartitionRange, ReadOptions]:
    """The first range of `orders`, read in fetches so small that each brings one batch."""
    chosen = options(cluster, subscribe="orders", **{"kafka.max.partition.fetch.bytes": 1, **given})
    return plan(chosen)[0], chosen


def offsets_of(wanted: PartitionRange, chosen: ReadOptions) -> list[int]:
    return [row["offset"] for row in rows_of(wanted, chosen)]


def test_rows_have_kafkas_columns(cluster: ToyCluster) -> None:
    wanted, chosen = planned(cluster, includeHeaders=True)
    rows = rows_of(wanted, chosen)
    assert len(rows) == 100
    row = rows[20]
    assert row.pop("timestamp").timestamp() * 1000 == START_MS + 20
    assert row == {
        "key": b"k20",
        "value": value_of("orders", 0, 20),
        "topic": "orders",
        "partition": 0,
        "offset": 20,
        "timestampType": 0,
        "headers": [{"key": "h", "value": b"20"}],
    }
    assert (rows[21]["key"], rows[21]["headers"]) == (None, None)


@pytest.mark.parametrize(("start", "end"), [(0, 100), (29, 31), (30, 60), (31, 59), (45, 46), (99, 100)])
def test_a_range_may_begin_and_end_inside_a_batch(cluster: ToyCluster, start: int, end: int) -> None:
    wanted, chosen = planned(cluster)
    assert offsets_of(replace(wanted, start=start, end=end), chosen) == list(range(start, end))


def test_an_empty_partition_of_spark_gives_nothing(cluster: ToyCluster) -> None:
    assert list(reader_of(options(cluster, subscribe="orders")).read(InputPartition(None))) == []


def test_reading_goes_on_at_the_new_leader_without_a_gap_or_a_repetition(cluster: ToyCluster) -> None:
    wanted, chosen = planned(cluster)
    cluster.move_leader("orders", 0)
    assert offsets_of(wanted, chosen) == list(range(100))


def test_a_leader_that_moves_in_the_middle_is_followed(cluster: ToyCluster) -> None:
    fill(cluster, "orders", 0, [70_000, 70_000, 10])
    wanted, chosen = planned(cluster)
    batches: Iterator[pa.RecordBatch] = batches_of(wanted, chosen)
    first = next(batches)
    cluster.move_leader("orders", 0)
    found = [*first.column("offset").to_pylist()]
    for batch in batches:
        found += batch.column("offset").to_pylist()
    assert found == list(range(140_110))


def test_broken_connections_are_made_again(cluster: ToyCluster) -> None:
    fill(cluster, "orders", 0, [70_000, 70_000, 10])
    wanted, chosen = planned(cluster)
    batches = batches_of(wanted, chosen)
    rows = next(batches).num_rows
    cluster.cut_connections()
    assert rows + sum(batch.num_rows for batch in batches) == 140_110


def test_no_broker_is_needed_while_the_leader_is_there(cluster: ToyCluster) -> None:
    wanted, chosen = planned(cluster)
    assert len(offsets_of(replace(wanted, brokers=(("127.0.0.1", 1),)), chosen)) == 100


def test_a_range_without_a_known_leader_is_read_too(cluster: ToyCluster) -> None:
    wanted, chosen = planned(cluster)
    assert len(offsets_of(replace(wanted, leader=None), chosen)) == 100


def test_a_task_that_gets_nothing_fails_after_its_deadline(cluster: ToyCluster) -> None:
    wanted, chosen = planned(cluster, **{"kafkaConsumer.pollTimeoutMs": 700})
    with pytest.raises(RequestTimedOut, match="gave nothing at offset 100"):
        offsets_of(replace(wanted, start=90, end=101), chosen)


def test_offsets_that_retention_took_fail_the_task(cluster: ToyCluster) -> None:
    wanted, chosen = planned(cluster)
    drop_before(cluster, "orders", 0, 60)
    with pytest.raises(OffsetOutOfRange, match="failOnDataLoss"):
        offsets_of(wanted, chosen)


def test_offsets_that_retention_took_are_passed_over_if_loss_is_accepted(
    cluster: ToyCluster, caplog: pytest.LogCaptureFixture
) -> None:
    wanted, chosen = planned(cluster, failOnDataLoss=False)
    drop_before(cluster, "orders", 0, 60)
    assert offsets_of(wanted, chosen) == list(range(60, 100))
    assert "Offsets 0 to 59 of orders-0 are lost" in caplog.text


def test_a_recreated_topic_is_not_taken_for_the_old_one(cluster: ToyCluster) -> None:
    wanted, chosen = planned(cluster)
    cluster.delete_topic("orders")
    cluster.create_topic("orders", 2)
    fill(cluster, "orders", 0, [100])
    with pytest.raises(UnknownTopicId, match="created again"):
        offsets_of(wanted, chosen)
    assert offsets_of(wanted, replace(chosen, reading=replace(chosen.reading, fail_on_data_loss=False))) == []


def test_a_narrow_time_filter_fetches_a_hundredth_of_the_bytes(cluster: ToyCluster) -> None:
    cluster.create_topic("trips")
    fill(cluster, "trips", 0, [500] * 400)
    stored = cluster.do(lambda: sum(len(batch) for _, batch in cluster.partitions["trips", 0].batches))
    chosen = options(cluster, subscribe="trips", **{"raylog.timestampLatenessMs": 0})
    bounds = Narrowing(time_low_ms=START_MS + 70_100, time_end_ms=START_MS + 70_200)
    (wanted,) = plan(chosen, bounds)
    fetcher = RangeFetcher(wanted)

    async def fetch() -> None:
        while await fetcher.next() is not None:
            pass
        await fetcher.close()

    shared().run(fetch(), 30.0)
    assert 0 < fetcher.bytes_read < stored / 100
    assert [row["offset"] for row in rows_of(wanted, chosen)] == list(range(70_100, 70_200))


def test_a_damaged_batch_fails_the_task_and_says_where(cluster: ToyCluster) -> None:
    def damage() -> None:
        one = cluster.partitions["orders", 0]
        header, batch = one.batches[1]
        one.batches[1] = header, batch[:-1] + struct.pack("B", batch[-1] ^ 1)

    cluster.do(damage)
    wanted, chosen = planned(cluster)
    with pytest.raises(CorruptMessage, match="offset 30 of orders-0"):
        offsets_of(wanted, chosen)


def test_a_reader_that_is_left_early_leaves_no_connection_behind(cluster: ToyCluster) -> None:
    fill(cluster, "orders", 0, [70_000] * 4)
    wanted, chosen = planned(cluster)
    batches = batches_of(wanted, chosen)
    next(batches)
    batches.close()  # type: ignore[attr-defined]  # a generator, as Spark closes it
    place = cluster.replicas["orders", 0, cluster.partitions["orders", 0].leader]
    assert cluster.do(lambda: all(connection.is_closed for connection in place.server.connections))


def test_the_next_range_of_a_token_opens_no_connection(cluster: ToyCluster) -> None:
    shared().run(KEPT.close(), 5)
    wanted, chosen = planned(cluster)
    leader = cluster.replicas["orders", 0, cluster.partitions["orders", 0].leader]

    def open_connections() -> list[Any]:
        return cluster.do(lambda: [found for found in leader.server.connections if not found.is_closed])

    assert offsets_of(wanted, chosen) == list(range(100))
    before = open_connections()
    assert offsets_of(wanted, chosen) == list(range(100))
    assert open_connections() == before
    assert len(before) == 1
    # Other credentials never use it.
    with pytest.raises(AuthenticationFailed):
        offsets_of(replace(wanted, secret=b"a wrong secret, long enough"), chosen)
    cluster.cut_connections()
    assert offsets_of(wanted, chosen) == list(range(100))
    shared().run(KEPT.close(), 5)
    wait_for(lambda: not open_connections(), "what was kept is closed", 10)


def test_a_leader_that_moves_between_two_ranges_of_a_token_is_found(cluster: ToyCluster) -> None:
    wanted, chosen = planned(cluster)
    assert offsets_of(wanted, chosen) == list(range(100))
    cluster.move_leader("orders", 0)
    assert offsets_of(wanted, chosen) == list(range(100))


def test_planners_and_workers_freeze_what_they_have_loaded_once(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    wanted, chosen = planned(cluster)
    reader = reader_of(chosen)
    keep_what_is_loaded.cache_clear()
    reader.partitions()
    keep_what_is_loaded.cache_clear()
    for _ in range(2):
        assert sum(batch.num_rows for batch in reader.read(RangePartition(wanted))) == 100
    assert frozen == [1, 1]
