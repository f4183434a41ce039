"""`df.write` and `df.writeStream` with `format("raylog")`: a local Spark, its own workers, a whole cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from raylog.client.admin.admin import Admin
from tests.spark.whole_cluster import WholeCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeCluster]:
    """One broker; each test has topics of its own."""
    with WholeCluster(tmp_path_factory.mktemp("whole")) as running:
        yield running


def numbers(spark: SparkSession, count: int, tasks: int = 2) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr("cast(id as string) as value")


def expected(count: int) -> list[bytes]:
    return sorted(str(number).encode() for number in range(count))


def test_a_batch_is_appended(spark: SparkSession, whole: WholeCluster) -> None:
    whole.create_topic("appended", 3, retention_ms="-1")  # the records are of 1970: a new leader soon removes those
    frame = spark.range(0, 5000, 1, 2).selectExpr(
        "cast(id as string) as value",
        "cast(id % 7 as string) as key",
        "array(struct('h' as key, cast('v' as binary) as value)) as headers",
        "timestamp_millis(1000 + id) as timestamp",
    )
    frame.write.format("raylog").options(**whole.spark_options, topic="appended").mode("append").save()
    assert whole.values("appended", 3) == expected(5000)
    rows = (
        spark.read.format("raylog").options(**whole.spark_options, subscribe="appended", includeHeaders="true").load()
    )
    found = rows.selectExpr(
        "count(*)",
        "count(distinct key, partition)",
        "min(unix_millis(timestamp))",
        "max(unix_millis(timestamp))",
        "max(headers[0].key)",
    )
    assert tuple(found.collect()[0]) == (5000, 7, 1000, 5999, "h")


def by_token(whole: WholeCluster, topic: str, **rights: Any) -> dict[str, str]:
    """Options of a writer that has a token for this topic instead of the secret."""
    with Admin(**whole.options) as admin:
        token = admin.create_token(write=[topic], **rights)
    return {"raylog.bootstrap": whole.options["bootstrap"], "raylog.token": token, "topic": topic}


def test_a_token_that_writes_a_topic_is_enough_for_a_batch(spark: SparkSession, whole: WholeCluster) -> None:
    whole.create_topic("by-token", 2)
    numbers(spark, 500).write.format("raylog").options(**by_token(whole, "by-token")).mode("append").save()
    assert whole.values("by-token", 2) == expected(500)


def test_a_job_that_fails_half_way_leaves_nothing_visible(spark: SparkSession, whole: WholeCluster) -> None:
    whole.create_topic("half-way", 1)
    rows = numbers(spark, 50_000, tasks=1)
    # 20 MB: more than lies between Spark and its Python worker, so that Spark does not fail before that one has begun.
    fails = rows.selectExpr("if(value = '49999', string(raise_error('the last row')), rpad(value, 400, ' ')) as value")
    given: dict[str, Any] = {**whole.spark_options, "topic": "half-way", "deliveryGuarantee": "exactly-once"}
    # Rows of the first half are stored before the second is read. What the killed worker had just begun times out.
    small = {"kafka.buffer.memory": 65_536, "kafka.transaction.timeout.ms": 30_000}
    with pytest.raises(Exception, match="the last row"):
        fails.write.format("raylog").options(**given, **small).mode("append").save()
    assert whole.values_at_rest("half-way") == []
    assert whole.values("half-way", isolation_level="read_uncommitted"), "records of the task that failed"
    rows.write.format("raylog").options(**given).mode("append").save()
    assert whole.values_at_rest("half-way") == expected(50_000)


def test_exactly_once_batch(spark: SparkSession, whole: WholeCluster) -> None:
    whole.create_topic("batch-once", 2)
    given: dict[str, Any] = {**whole.spark_options, "topic": "batch-once", "deliveryGuarantee": "exactly-once"}
    numbers(spark, 3000).write.format("raylog").options(**given).mode("append").save()
    assert whole.values_at_rest("batch-once", 2) == expected(3000)


def test_exactly_once_stream(spark: SparkSession, whole: WholeCluster, tmp_path: Path) -> None:
    """With a token, which names the prefix of the transactions."""
    whole.create_topic("stream-in", 1)
    whole.create_topic("stream-once", 2)
    source = str(tmp_path / "source")
    numbers(spark, 1000).write.text(source)
    query = (
        spark.readStream.schema("value string")
        .text(source)
        .writeStream.format("raylog")
        .options(**by_token(whole, "stream-once", transactional_id_prefix="once"), transactionalIdPrefix="once")
        .option("deliveryGuarantee", "exactly-once")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(60)
    finally:
        query.stop()
    assert whole.values_at_rest("stream-once", 2) == expected(1000)


def test_changed_rows_are_written_with_foreach_batch(spark: SparkSession, whole: WholeCluster, tmp_path: Path) -> None:
    """As docs/spark.md has it, because Spark lets no source in Python have streams in `update` mode."""
    whole.create_topic("counts", 1)
    source = str(tmp_path / "source")
    spark.createDataFrame([("a",), ("b",), ("a",)], "value string").write.text(source)
    words = spark.readStream.schema("value string").text(source).groupBy("value").count()
    changes = words.selectExpr("value as key", "cast(count as string) as value")
    given: dict[str, Any] = {**whole.spark_options, "topic": "counts", "checkpointLocation": str(tmp_path / "sink")}
    refused = changes.writeStream.format("raylog").options(**given).outputMode("update").start()
    with pytest.raises(Exception, match="does not support Update mode"):
        refused.awaitTermination(60)

    def write_changes(rows: DataFrame, number: int) -> None:
        rows.write.format("raylog").options(**whole.spark_options, topic="counts").mode("append").save()

    stream = changes.writeStream.outputMode("update").foreachBatch(write_changes)
    query = stream.option("checkpointLocation", str(tmp_path / "each")).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(60)
    finally:
        query.stop()
    assert whole.values("counts") == [b"1", b"2"]
