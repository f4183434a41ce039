"""Python data sources that cost Spark nothing but Spark: ready-made Arrow batches, in the columns of a topic.

What Spark does with them is the ceiling of any source in Python, Raylog's included. Registered by `spark_worker`; runs
in Spark's Python workers.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from raylog.client.ranges.buffers import integers, repeated, texts
from raylog.spark.reading.columns import TYPES, row_schema

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
BATCH_ROWS = 65_536
EPOCH_MS = 1_700_000_000_000


def schema_of(nulls: str) -> StructType:
    """The columns of a topic. `nulls` is `possible`, as in Spark's source for Kafka, or as `declared` by Raylog's."""
    return (
        row_schema(COLUMNS) if nulls == "declared" else StructType([StructField(name, TYPES[name]) for name in COLUMNS])
    )


@cache
def batch_of(rows: int, size: int, nulls: str) -> Any:
    """A batch of so many records with values of `size` bytes, in the columns of a topic.

    Made without pandas, as Raylog's are: the contestants share Spark's Python workers, which walk through all that is
    loaded after each task, so each of them would pay for what one has loaded.
    """
    schema = to_arrow_schema(schema_of(nulls), timezone="UTC")
    offsets = np.arange(rows, dtype=np.int64)
    columns = [
        pa.nulls(rows, pa.binary()),
        texts([b"v" * size] * rows, pa.binary()),
        repeated("ready-made", rows, pa.string()),
        repeated(0, rows, pa.int32()),
        integers(offsets),
        integers((offsets + EPOCH_MS) * 1000).view(pa.timestamp("us", "UTC")),
        repeated(0, rows, pa.int32()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def batches(rows: int, size: int, nulls: str) -> Iterator[Any]:
    """So many rows, in slices of one batch that is made once in each Python process."""
    whole = batch_of(BATCH_ROWS, size, nulls)
    for first in range(0, rows, BATCH_ROWS):
        yield whole.slice(0, min(BATCH_ROWS, rows - first))


@dataclass(frozen=True)
class Rows(InputPartition):
    """One task's share."""

    count: int


class ReadyMade(DataSource):
    """`format("readymade")` with the options records, size, partitions, and for streams rate (records a second).

    `nulls` as that of schema_of.
    """

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "readymade"

    def schema(self) -> StructType:
        """The columns of a topic."""
        return schema_of(self._nulls)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read all records once."""
        records, size, partitions = (int(self.options[name]) for name in ("records", "size", "partitions"))
        return ReadyMadeReader(records, size, partitions, self._nulls)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Read what is due by the clock."""
        return ReadyMadeStream(int(self.options["rate"]), int(self.options["size"]), self._nulls)

    @property
    def _nulls(self) -> str:
        return self.options.get("nulls", "possible")


class ReadyMadeReader(DataSourceReader):
    """The same number of records in each partition."""

    def __init__(self, records: int, size: int, partitions: int, nulls: str) -> None:
        self._share = records // partitions
        self._size = size
        self._nulls = nulls
        self._partitions = partitions

    def partitions(self) -> list[InputPartition]:
        """One task for each partition."""
        return [Rows(self._share)] * self._partitions

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one task."""
        return batches(partition.count if isinstance(partition, Rows) else 0, self._size, self._nulls)


class ReadyMadeStream(DataSourceStreamReader):
    """So many records a second; the offset is the number of those that are due."""

    def __init__(self, rate: int, size: int, nulls: str) -> None:
        self._rate = rate
        self._size = size
        self._nulls = nulls
        self._began_s = time.time()

    def initialOffset(self) -> dict[str, int]:
        """The first record."""
        return {"due": 0}

    def latestOffset(self, *_: Any) -> dict[str, int]:
        """How many are due now."""
        return {"due": int((time.time() - self._began_s) * self._rate)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """One task."""
        return [Rows(end["due"] - start["due"])]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of one task."""
        return batches(partition.count if isinstance(partition, Rows) else 0, self._size, self._nulls)
