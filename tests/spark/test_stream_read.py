"""`spark.readStream.format("raylog")` from end to end: Spark's own planner process, workers, journal and triggers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StructField, StructType

from raylog.spark.reading.columns import TYPES
from raylog.spark.reading.options import COLUMNS
from tests.unit.client.toy_server import SECRET, ToyCluster
from tests.unit.spark.support import fill, value_of
from tests.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.slow]

WAIT_S = 60
Found = list[tuple[str, int, int]]


@pytest.fixture
def topic(cluster: ToyCluster) -> ToyCluster:
    """The cluster with 100 and 50 records in the two partitions of `orders`."""
    cluster.create_topic("orders", 2)
    fill(cluster, "orders", 0, [60, 40])
    fill(cluster, "orders", 1, [50])
    return cluster


class Run:
    """One run of a query into a list, with its micro-batches."""

    def __init__(self, spark: SparkSession, cluster: ToyCluster, checkpoint: Path) -> None:
        self._spark = spark
        self._cluster = cluster
        self._checkpoint = checkpoint
        self.batches: dict[int, Found] = {}
        """The records of each batch; a repeated one replaces what a failed attempt had."""
        self.fails_at: int | None = None
        """The batch that fails once, after its records were read."""

    def start(self, trigger: dict[str, Any], **given: Any) -> StreamingQuery:
        chosen = {
            "raylog.bootstrap": self._cluster.bootstrap,
            "raylog.secret": SECRET.hex(),
            "startingOffsets": "earliest",
            **given,
        }
        stream = self._spark.readStream.format("raylog").options(**chosen).load()
        writer = stream.writeStream.foreachBatch(self._take).option("checkpointLocation", str(self._checkpoint))
        return writer.trigger(**trigger).start()

    def finish(self, trigger: dict[str, Any] | None = None, **given: Any) -> StreamingQuery:
        """Run to the end of what is there. Raises what the query fails with."""
        query = self.start(trigger or {"availableNow": True}, **given)
        try:
            assert query.awaitTermination(WAIT_S)
        finally:
            query.stop()
        return query

    def _take(self, frame: DataFrame, batch: int) -> None:
        rows = frame.collect()
        assert all(bytes(row.value) == value_of(row.topic, row.partition, row.offset) for row in rows)
        self.batches[batch] = sorted((row.topic, row.partition, row.offset) for row in rows)
        if batch == self.fails_at:
            self.fails_at = None
            raise RuntimeError("this batch fails")

    @property
    def records(self) -> Found:
        """Everything that was read, in order."""
        return sorted(record for batch in self.batches.values() for record in batch)


@pytest.fixture
def run(spark: SparkSession, topic: ToyCluster, tmp_path: Path) -> Run:
    return Run(spark, topic, tmp_path / "checkpoint")


def every(topic: str, *sizes: int) -> Found:
    return [(topic, partition, offset) for partition, size in enumerate(sizes) for offset in range(size)]


def test_available_now_reads_in_limited_batches_and_resumes(spark: SparkSession, run: Run, topic: ToyCluster) -> None:
    query = run.finish(subscribe="orders", maxOffsetsPerTrigger=60)
    assert run.records == every("orders", 100, 50)
    assert [len(batch) for batch in run.batches.values()] == [60, 60, 30]
    first, *_, last = query.recentProgress
    assert json.loads(first["sources"][0]["latestOffset"]) == {"orders": {"0": 100, "1": 50}}
    assert last["numInputRows"] == 30
    fill(topic, "orders", 1, [25])
    run.finish(subscribe="orders", minOffsetsPerTrigger=1_000)
    assert run.records == every("orders", 100, 75)
    behind = spark.read.format("raylog").options(**{"raylog.bootstrap": topic.bootstrap, "raylog.secret": SECRET.hex()})
    place = first["sources"][0]["endOffset"]  # with the ids of the topics
    assert behind.options(subscribe="orders", startingOffsets=place).load().count() == 175 - 60


def test_a_first_batch_that_fails_is_repeated_from_the_same_offsets(run: Run, topic: ToyCluster) -> None:
    """Spark does not keep where the first batch began, and `latest` is another offset by then."""
    query = run.start({"processingTime": "0 seconds"}, subscribe="orders", startingOffsets="latest")
    try:
        wait_for(lambda: 0 in run.batches, "the first batch", WAIT_S)
        run.fails_at = 1
        fill(topic, "orders", 0, [10])
        with pytest.raises(Exception, match="this batch fails"):
            query.awaitTermination(WAIT_S)
    finally:
        query.stop()
    fill(topic, "orders", 0, [7])
    run.finish(subscribe="orders", startingOffsets="latest")
    assert run.records == [("orders", 0, offset) for offset in range(100, 117)]
    assert [len(batch) for batch in run.batches.values()] == [0, 10, 7]


def test_topics_that_match_later_are_read_from_their_beginning(run: Run, topic: ToyCluster) -> None:
    run.finish({"once": True}, subscribePattern="ord.*", startingOffsets="latest", maxOffsetsPerTrigger=1)
    topic.create_topic("orders.eu", 2)
    topic.create_topic("other", 1)
    fill(topic, "orders.eu", 1, [20])
    fill(topic, "other", 0, [5])
    run.finish(subscribePattern="ord.*", maxOffsetsPerTrigger=15)
    assert run.records == [("orders.eu", 1, offset) for offset in range(20)]


def test_state_of_a_query_with_nullable_columns_is_read(spark: SparkSession, topic: ToyCluster, tmp_path: Path) -> None:
    """Earlier releases declared all columns as nullable, and a checkpoint has that in the schema of its state."""
    chosen = {"raylog.bootstrap": topic.bootstrap, "raylog.secret": SECRET.hex(), "startingOffsets": "earliest"}
    found: list[tuple[Any, ...]] = []

    def run(schema: StructType | None) -> int:
        reader = spark.readStream.format("raylog").options(subscribe="orders", **chosen)
        frame = (reader if schema is None else reader.schema(schema)).load()
        distinct = frame.select("topic", "partition", "offset").dropDuplicates(["topic", "partition"])
        writer = distinct.writeStream.foreachBatch(lambda rows, _: found.extend(map(tuple, rows.collect())))
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(WAIT_S)
        return len(found)

    assert run(StructType([StructField(name, TYPES[name]) for name in COLUMNS])) == 2
    fill(topic, "orders", 1, [25])
    assert run(None) == 2  # as the state remembers


def test_a_checkpoint_of_other_records_is_refused_with_what_to_do(run: Run, topic: ToyCluster) -> None:
    run.finish(subscribe="orders")
    topic.create_topic("payments", 1)
    with pytest.raises(Exception, match=r"The checkpoint is of 'orders', but the options of the query name 'payments'"):
        run.finish(subscribe="payments")
    topic.delete_topic("orders")
    topic.create_topic("orders", 2)
    fill(topic, "orders", 0, [3])
    with pytest.raises(Exception, match=r"created again since the checkpoint was written.*new checkpointLocation"):
        run.finish(subscribe="orders")
    run.batches.clear()
    run.finish(subscribe="orders", failOnDataLoss=False)
    assert run.records == every("orders", 3)
