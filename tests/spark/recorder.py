"""A data source that notes how Spark calls it, and a program that has Spark repeat tasks, batches and commits.

`python -m tests.spark.recorder FOLDER`: each case has a folder of its own in it, with the file `calls`. In a process of
its own, because Spark repeats tasks only if its session was made so. May touch: the folder, processes of Spark.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

PROPERTIES = ("sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id")


def note(folder: Path, what: str, **details: Any) -> None:
    """Add a call to the folder's list."""
    context = TaskContext.get()
    if context is not None:
        details["task"] = [context.partitionId(), context.attemptNumber()]
        details["properties"] = [context.getLocalProperty(name) for name in PROPERTIES]
    with (folder / "calls").open("a") as file:
        file.write(json.dumps({"what": what, "pid": os.getpid(), **details}) + "\n")


def fails(folder: Path, what: str) -> bool:
    """Whether this is to fail now: so many times as the folder's file of this name has bytes."""
    file = folder / what
    left = file.stat().st_size if file.exists() else 0
    if left:
        os.truncate(file, left - 1)
    return left > 0


@dataclass(frozen=True)
class Done(WriterCommitMessage):
    """What a task reports."""

    rows: int


class Reader(DataSourceReader):
    """Two partitions of three rows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def partitions(self) -> Sequence[InputPartition]:
        """Plan."""
        note(self.folder, "partitions")
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        """Give rows out; a worker that is to be lost ends behind the first."""
        note(self.folder, "read")
        for number in range(3):
            if number == 1 and partition.value == 1 and fails(self.folder, "lose"):
                os._exit(70)
            yield (f"{partition.value}-{number}",)


class _Writer:
    """What both kinds of writers note."""

    folder: Path

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Take all rows; a task that is to fail does so behind them."""
        rows = sum(batch.num_rows for batch in iterator)
        note(self.folder, "write", rows=rows)
        context = TaskContext.get()
        if context is not None and context.partitionId() == 1 and fails(self.folder, "raise"):
            raise OSError("the task fails")
        return Done(rows)

    def end(self, what: str, messages: Sequence[WriterCommitMessage | None], batch: int = -1) -> None:
        """Note a commit or an abort; one that is to fail does so."""
        rows = [each.rows if isinstance(each, Done) else None for each in messages]
        note(self.folder, what, messages=rows, batch=batch)
        if fails(self.folder, f"fail-{what}"):
            raise OSError(f"the {what} fails")


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Of a job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """All tasks have written."""
        self.end("commit", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """A task or the commit has failed."""
        self.end("abort", messages)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Of a query."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks of a batch have written."""
        self.end("commit", messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """A batch has failed."""
        self.end("abort", messages, batchId)


class Recorder(DataSource):
    """The format `recorder`."""

    @classmethod
    def name(cls) -> str:
        """For `format(...)`."""
        return "recorder"

    @property
    def folder(self) -> Path:
        """Of the case."""
        return Path(self.options["folder"])

    def schema(self) -> str:
        """One column."""
        return "value string"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Note that there is another."""
        note(self.folder, "reader")
        return Reader(self.folder)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Note that there is another."""
        note(self.folder, "writer")
        return BatchWriter(self.folder)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Note that there is another."""
        note(self.folder, "writer")
        return StreamWriter(self.folder)


def main(root: Path) -> None:
    """Run all cases."""
    from raylog.spark import java

    java.prepare()
    builder = SparkSession.builder.master("local[2,3]").config("spark.ui.enabled", "false")
    for name, value in {"spark.driver.memory": "512m", "spark.driver.bindAddress": "127.0.0.1"}.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(Recorder)
    try:
        _cases(spark, root)
    finally:
        spark.stop()


def _cases(spark: SparkSession, root: Path) -> None:
    def case(name: str, **failures: int) -> str:
        folder = root / name
        folder.mkdir()
        for what, times in failures.items():
            (folder / what.replace("_", "-")).write_bytes(b"." * times)
        return str(folder)

    frame = spark.read.format("recorder").option("folder", folder := case("read", lose=1)).load()
    found = sorted(row.value for _ in range(2) for row in frame.collect())
    note(Path(folder), "rows", rows=found)

    rows = spark.range(0, 6, 1, 2).selectExpr("cast(id as string) as value")
    failures: dict[str, dict[str, int]] = {
        "repeated": {"raise": 1},
        "failed": {"raise": 3},
        "uncommitted": {"fail_commit": 1},
    }
    for name, given in failures.items():
        with suppress(Exception):
            rows.write.format("recorder").option("folder", case(name, **given)).mode("append").save()

    folder = case("stream", fail_commit=1)
    source = f"{folder}/source"
    rows.write.text(source)
    for _ in range(2):
        stream = spark.readStream.schema("value string").text(source).writeStream.format("recorder")
        query = stream.options(folder=folder, checkpointLocation=f"{folder}/checkpoint").trigger(availableNow=True)
        with suppress(Exception):
            query.start().awaitTermination(60)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
