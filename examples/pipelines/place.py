"""Where a pipeline runs: its Spark session, how tasks reach the brokers, and a folder for checkpoints and files."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

import raylog
from examples.pipelines.data import Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

NO_RETENTION_LIMIT: Final = {"retention.ms": -1}
"""The records have timestamps of 2013: the default of seven days would delete them within minutes."""
SEND_TIMEOUT_S: Final = 120.0
READ_TIMEOUT_S: Final = 120.0
QUERY_TIMEOUT_S: Final = 600
START_TIMEOUT_S: Final = 60.0
INITIALIZING: Final = "Initializing sources"
"""Spark's status of a query that is being started."""
LOOK_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Place:
    """What every pipeline needs. ``options`` holds address and credentials; on Ray, Spark finds both by itself."""

    spark: SparkSession
    folder: Path
    options: Mapping[str, str] = field(default_factory=dict)

    def stream(self, topic: str, **options: str | int) -> DataFrame:
        """Follow a topic from its first record on; of transactions, only what is committed."""
        chosen = {"startingOffsets": "earliest", "kafka.isolation.level": "read_committed", **options}
        reader = self.spark.readStream.format("raylog").option("subscribe", topic)
        return reader.options(**self.options, **chosen).load()

    def table(self, topic: str, **options: str | int) -> DataFrame:
        """Read a topic once; of transactions, only what is committed."""
        chosen = {"kafka.isolation.level": "read_committed", **options}
        reader = self.spark.read.format("raylog").option("subscribe", topic)
        return reader.options(**self.options, **chosen).load()

    def sink(self, rows: DataFrame, topic: str) -> DataStreamWriter:
        """Write a stream into a topic, each row once; the topic's name is also that of the query and its checkpoint."""
        writer = rows.writeStream.format("raylog").queryName(topic).options(**self.options)
        return writer.options(
            topic=topic, deliveryGuarantee="exactly-once", checkpointLocation=str(self.checkpoint(topic))
        )

    def write(self, rows: DataFrame, topic: str) -> None:
        """Write a table into a topic: all rows become visible at once, or none does."""
        chosen = {**self.options, "topic": topic, "deliveryGuarantee": "exactly-once"}
        rows.write.format("raylog").options(**chosen).mode("append").save()

    def checkpoint(self, name: str) -> Path:
        """Return the folder in which a query keeps its progress and state."""
        return self.folder / "checkpoints" / name


def make_topics(replication: int, partitions: Mapping[str, int], compacted: Iterable[str] = ()) -> None:
    """Create the topics, each with its number of partitions."""
    with raylog.Admin() as admin:
        for topic, count in partitions.items():
            config = {**NO_RETENTION_LIMIT, "cleanup.policy": "compact" if topic in compacted else "delete"}
            admin.create_topic(topic, partitions=count, replication_factor=replication, config=config)


def send(topic: str, records: Iterable[Record]) -> int:
    """Send records with acks=all; returns their number once each is acknowledged."""
    with raylog.Producer(acks="all", compression_type="lz4", linger_ms=5) as producer:
        sent = [producer.send(topic, value, key=key, timestamp_ms=at_ms) for key, value, at_ms in records]
        producer.flush(timeout=SEND_TIMEOUT_S)
        return len([future.result(timeout=SEND_TIMEOUT_S) for future in sent])


def read_rows(topic: str) -> pd.DataFrame:
    """Read the committed JSON values of a topic by a consumer, without Spark, as a frame."""
    rows: list[Any] = []
    with raylog.Consumer(
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        value_deserializer="json",
        max_poll_records=20_000,
    ) as consumer:
        places = [raylog.TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic))]
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        deadline = time.monotonic() + READ_TIMEOUT_S
        while any(consumer.position(place) < end for place, end in ends.items()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic} was not read to its end within {READ_TIMEOUT_S:.0f} s")
            rows += [record.value for found in consumer.poll(timeout_ms=500).values() for record in found]
    return pd.DataFrame(rows)


def end_offsets(topic: str) -> dict[int, int]:
    """Return the end of each partition: the offset that its next record will have."""
    with raylog.Consumer() as consumer:
        places = [raylog.TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic))]
        return {place.partition: end for place, end in consumer.end_offsets(places).items()}


def wait_until_started(query: StreamingQuery) -> StreamingQuery:
    """Return the query once its sources answer, each from a Python process of its own that Spark awaits for 10 s.

    On a small machine, many that start at the same moment may all take longer.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    while query.isActive and query.status["message"] == INITIALIZING:
        if time.monotonic() > deadline:
            raise TimeoutError(f"query {query.name} did not start within {START_TIMEOUT_S:.0f} s")
        time.sleep(LOOK_S)
    return query


def wait_until_done(query: StreamingQuery, timeout_s: int = QUERY_TIMEOUT_S) -> None:
    """Wait until a query with Trigger.AvailableNow has processed everything; raises what made it fail."""
    try:
        if not query.awaitTermination(timeout_s):
            raise TimeoutError(f"query {query.name} did not finish within {timeout_s} s: {query.status}")
    finally:
        query.stop()
