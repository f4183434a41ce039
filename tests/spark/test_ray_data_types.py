"""A topic written by Spark and read by Ray Data, and the reverse: the same records, in the types of each."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from raylog.client.ranges.planning import RangesWanted, plan_read
from raylog.client.ranges.reading import RangeReading
from raylog.data.columns import SCHEMA
from raylog.data.datasink import WriteTask
from raylog.data.datasource import RangesTask
from raylog.data.offsets import end_of, start_of
from raylog.data.serializing import Fields
from tests.unit.client.toy_server import SECRET, ToyCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ALL = Fields(value="value", key="key", headers="headers", timestamp="timestamp", partition="partition")
WHEN_MS = 1_767_323_045_678


def test_ray_data_reads_what_spark_wrote(spark: SparkSession, cluster: ToyCluster) -> None:
    cluster.create_topic("by-spark", 2)
    options = {"raylog.bootstrap": cluster.bootstrap, "raylog.secret": SECRET.hex(), "topic": "by-spark"}
    frame = spark.sql(
        f"SELECT binary('k') AS key, 'v' AS value, 1 AS partition, timestamp_millis({WHEN_MS}) AS timestamp, "
        "array(named_struct('key', 'h', 'value', binary('1'))) AS headers"
    )
    frame.write.format("raylog").options(**options).mode("append").save()
    given: dict[str, Any] = {"bootstrap": cluster.bootstrap, "secret": SECRET}
    ranges = plan_read(RangesWanted(topics=("by-spark",), start=start_of(None), end=end_of(None), **given))
    table = pa.concat_tables(RangesTask(tuple(ranges), RangeReading(), tuple(SCHEMA.names), None)())
    assert table.schema.equals(SCHEMA)
    assert table.to_pylist() == [
        {
            "offset": 0,
            "key": b"k",
            "value": b"v",
            "topic": "by-spark",
            "partition": 1,
            "timestamp": WHEN_MS,
            "timestamp_type": 1,
            "headers": [("h", b"1")],
        }
    ]


def test_spark_reads_what_ray_data_wrote(spark: SparkSession, cluster: ToyCluster) -> None:
    cluster.create_topic("by-ray", 2)
    row = {"key": b"k", "value": b"v", "partition": 1, "timestamp": WHEN_MS, "headers": [("h", b"1"), ("h", b"2")]}
    table = pa.Table.from_pylist([row], pa.schema([SCHEMA.field(name) for name in row]))
    assert WriteTask("by-ray", ALL, cluster.bootstrap, None, {"secret": SECRET})([table]) == 1
    options = {"raylog.bootstrap": cluster.bootstrap, "raylog.secret": SECRET.hex(), "subscribe": "by-ray"}
    (found,) = spark.read.format("raylog").options(**options, includeHeaders="true").load().collect()
    assert (bytes(found.key), bytes(found.value), found.partition, found.offset) == (b"k", b"v", 1, 0)
    assert found.timestamp.replace(tzinfo=UTC) == datetime.fromtimestamp(WHEN_MS / 1000, UTC)
    assert (found.timestampType, [(item.key, bytes(item.value)) for item in found.headers]) == (
        0,
        [("h", b"1"), ("h", b"2")],
    )
