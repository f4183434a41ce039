"""Filling a cluster in memory, and reading it as the data source does, without a Spark session."""

from collections.abc import Iterator, Sequence
from typing import Any

from raylog.client.ranges.narrowing import Narrowing
from raylog.client.ranges.planning import plan_read
from raylog.client.ranges.reading import read_range
from raylog.client.reading.range_fetcher import PartitionRange
from raylog.spark.reading.columns import arrow_schema, row_schema
from raylog.spark.reading.options import ReadOptions, parse_options
from raylog.spark.reading.reader import RaylogReader
from raylog.storage.batch.records import encode_batch
from tests.unit.client.toy_server import SECRET, ToyCluster

START_MS = 1_700_000_000_000
"""The timestamp of the first record that `fill` writes; each further one is a millisecond younger."""


def value_of(topic: str, partition: int, offset: int) -> bytes:
    """What `fill` writes."""
    return f"{topic}-{partition}@{offset}".encode()


def fill(cluster: ToyCluster, topic: str, partition: int, batches: Sequence[int]) -> None:
    """Append batches of so many records each; every third record has no key, every fifth a header."""

    def append() -> None:
        one = cluster.partitions[topic, partition]
        for rows in batches:
            offsets = range(one.log_end, one.log_end + rows)
            batch = encode_batch(
                [None if offset % 3 == 0 else b"k%d" % offset for offset in offsets],
                [value_of(topic, partition, offset) for offset in offsets],
                [START_MS + offset for offset in offsets],
                [[("h", b"%d" % offset)] if offset % 5 == 0 else None for offset in offsets],
            )
            one.append(memoryview(batch))
        one.advance()

    cluster.do(append)


def drop_before(cluster: ToyCluster, topic: str, partition: int, log_start: int) -> None:
    """What retention does: the log begins at `log_start` from now on."""

    def drop() -> None:
        one = cluster.partitions[topic, partition]
        one.log_start = log_start
        one.batches = [(header, batch) for header, batch in one.batches if header.next_offset > log_start]

    cluster.do(drop)


def options(cluster: ToyCluster, **given: object) -> ReadOptions:
    """Checked options with the cluster's address; names without a dot as they are."""
    texts = {name: str(value) for name, value in given.items()}
    return parse_options({"raylog.bootstrap": cluster.bootstrap, "raylog.secret": SECRET.hex(), **texts})


def plan(chosen: ReadOptions, narrowing: Narrowing | None = None) -> list[PartitionRange]:
    """What the driver does."""
    return plan_read(chosen.wanted, narrowing or Narrowing())


def batches_of(wanted: PartitionRange, chosen: ReadOptions) -> Iterator[Any]:
    """What a worker reads."""
    return read_range(wanted, chosen.reading, arrow_schema(row_schema(chosen.columns)))


def reader_of(chosen: ReadOptions) -> RaylogReader:
    """What Spark is given for a batch read."""
    return RaylogReader(chosen, row_schema(chosen.columns))


def rows_of(wanted: PartitionRange, chosen: ReadOptions) -> list[dict[str, Any]]:
    """What a worker reads, as plain rows."""
    return [row for batch in batches_of(wanted, chosen) for row in batch.to_pylist()]


def spans(ranges: Sequence[PartitionRange]) -> list[tuple[str, int, int, int]]:
    """Ranges as (topic, partition, start, end)."""
    return [(item.topic, item.partition, item.start, item.end) for item in ranges]
