"""`spark.read.format("raylog")` from end to end: a local Spark, its own Python workers, real sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StructField, StructType

from tests.unit.client.toy_server import SECRET, ToyCluster
from tests.unit.spark.support import START_MS, fill, value_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = 3_000
PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def topic(cluster: ToyCluster) -> ToyCluster:
    """The cluster with 3,000 records in each of the two partitions of `orders`."""
    cluster.create_topic("orders", 2)
    for partition in (0, 1):
        fill(cluster, "orders", partition, [700, 800, ROWS - 1500])
    return cluster


def load(spark: SparkSession, cluster: ToyCluster, **given: Any) -> DataFrame:
    chosen = {"raylog.bootstrap": cluster.bootstrap, "raylog.secret": SECRET.hex(), **given}
    return spark.read.format("raylog").options(**chosen).load()


def test_every_record_arrives_once_with_its_columns(spark: SparkSession, topic: ToyCluster) -> None:
    rows = load(spark, topic, subscribe="orders").collect()
    assert {(row.partition, row.offset) for row in rows} == {(p, offset) for p in (0, 1) for offset in range(ROWS)}
    assert len(rows) == 2 * ROWS
    assert all(bytes(row.value) == value_of("orders", row.partition, row.offset) for row in rows)
    assert all((row.key is None) == (row.offset % 3 == 0) for row in rows)
    assert {(row.topic, row.timestampType) for row in rows} == {("orders", 0)}


def test_timestamps_and_headers_mean_what_kafkas_mean(spark: SparkSession, topic: ToyCluster) -> None:
    frame = load(spark, topic, subscribe="orders", includeHeaders=True).where("partition = 1 and offset in (10, 11)")
    found = frame.selectExpr("offset", "unix_millis(timestamp) as ms", "headers[0].key as h", "headers is null as none")
    rows = found.orderBy("offset").collect()
    assert [tuple(row) for row in rows] == [(10, START_MS + 10, "h", False), (11, START_MS + 11, None, True)]


def test_sql_reads_a_topic_through_a_view(spark: SparkSession, topic: ToyCluster) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW orders USING raylog OPTIONS (subscribe 'orders', "
        f"raylog.bootstrap '{topic.bootstrap}', raylog.secret '{SECRET.hex()}', "
        f'startingOffsets \'{{"orders": {{"0": 100, "1": -2}}}}\')'
    )
    rows = spark.sql("SELECT partition, count(*), max(offset) FROM orders GROUP BY 1 ORDER BY 1").collect()
    assert [tuple(row) for row in rows] == [(0, ROWS - 100, ROWS - 1), (1, ROWS, ROWS - 1)]


def test_partitions_are_cut_into_tasks_as_configured(spark: SparkSession, topic: ToyCluster) -> None:
    frame = load(spark, topic, subscribe="orders", minPartitions=5)
    assert frame.rdd.getNumPartitions() == 5
    assert frame.count() == 2 * ROWS


def test_nothing_to_read_is_no_rows(spark: SparkSession, topic: ToyCluster) -> None:
    topic.create_topic("quiet", 2)
    assert load(spark, topic, subscribe="quiet").count() == 0


def test_a_limit_ends_the_reading_early(spark: SparkSession, topic: ToyCluster) -> None:
    assert len(load(spark, topic, subscribe="orders").limit(5).collect()) == 5


@pytest.mark.parametrize("push_down", ["false", "true"])
def test_filters_give_the_same_rows_with_push_down_and_without(
    spark: SparkSession, topic: ToyCluster, push_down: str
) -> None:
    spark.conf.set(PUSH_DOWN, push_down)
    try:
        where = (
            f"partition in (1, 7) and offset >= 10 and offset < 900 and timestamp >= timestamp_millis({START_MS + 800})"
        )
        frame = load(spark, topic, subscribe="orders").where(where)
        assert sorted(row.offset for row in frame.collect()) == list(range(800, 900))
        assert frame.rdd.getNumPartitions() == (1 if push_down == "true" else 2)
    finally:
        spark.conf.unset(PUSH_DOWN)


def test_a_leader_that_has_moved_after_planning_is_found_again(spark: SparkSession, topic: ToyCluster) -> None:
    frame = load(spark, topic, subscribe="orders")
    assert frame.rdd.getNumPartitions() == 2  # planned now
    topic.move_leader("orders", 0)
    assert frame.count() == 2 * ROWS


def test_mistakes_are_reported_when_the_frame_is_made(spark: SparkSession, topic: ToyCluster) -> None:
    with pytest.raises(Exception, match="did you mean 'startingOffsets'"):
        load(spark, topic, subscribe="orders", startingOfsets="earliest")
    with pytest.raises(Exception, match="startingOffsets cannot be latest"):
        load(spark, topic, subscribe="orders", startingOffsets="latest").count()
    with pytest.raises(Exception, match=r"columns of format.*are fixed"):
        spark.read.format("raylog").schema("value binary").option("subscribe", "orders").load().count()


def test_columns_that_every_record_has_are_never_null(spark: SparkSession, topic: ToyCluster) -> None:
    frame = load(spark, topic, subscribe="orders", includeHeaders="true")
    assert [field.name for field in frame.schema if field.nullable] == ["key", "value", "headers"]
    assert frame.where("offset is null or topic is null or timestamp is null").count() == 0
    kafkas = StructType([StructField(field.name, field.dataType) for field in frame.schema])  # as of Spark's source
    options = {"subscribe": "orders", "includeHeaders": "true", "raylog.secret": SECRET.hex()}
    reader = spark.read.format("raylog").schema(kafkas).options(**options)
    same = reader.option("raylog.bootstrap", topic.bootstrap).load()
    assert all(field.nullable for field in same.schema)
    order = ["partition", "offset"]
    assert same.orderBy(*order).collect() == frame.orderBy(*order).collect()


def test_an_unknown_topic_is_answered_with_the_nearest_one(spark: SparkSession, topic: ToyCluster) -> None:
    with pytest.raises(Exception, match="did you mean 'orders'"):
        load(spark, topic, subscribe="ordres").count()


def test_the_secret_is_in_no_plan(spark: SparkSession, topic: ToyCluster) -> None:
    frame = load(spark, topic, subscribe="orders")
    assert SECRET.hex() not in frame._jdf.queryExecution().toString()
    assert SECRET.hex() not in frame._jdf.queryExecution().executedPlan().toString()
