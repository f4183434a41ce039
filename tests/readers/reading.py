"""The readers of trials on a real cluster: each gives out rows while its faults can come. May touch: Ray, Spark, files.

Ray Data's blocks are taken one by one. A Spark job is held by a function between the read and its result, which counts
what has come in a file and waits while it is more than it may be.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import raylog
from raylog.base.ids import TopicPartition
from tests.readers.topics import Rows, columns_of, level_of, rows_of
from tests.readers.trials import Trial

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("partition", "offset", "value")
TOKEN_S = 1.0
"""Of trials whose token ends."""
STALL_MS = 40_000
POLL_S = 0.005
WITHOUT_END = 1 << 60


@dataclass
class Reading:
    """One read that is about to begin."""

    trial: Trial
    topic: str
    ends: dict[TopicPartition, int]
    cluster: raylog.Cluster
    folder: Path
    spark: SparkSession | None = None

    def rows(self, limit: Callable[[int], int]) -> Iterator[Rows]:
        """What arrives. `limit` is called with the number of rows that the reader has, and carries out what is due
        before there are more; it returns up to how many may come until it is called again."""
        return {"ray": self._ray, "follow": self._follow, "columns": self._columns}.get(self.trial.reader, self._held)(
            limit
        )

    def _data(self, **more: Any) -> Any:
        expires: dict[str, Any] = {"token_lifetime_s": TOKEN_S} if "expire" in self.trial.kinds else {}
        return raylog.data.read(
            self.topic,
            columns=COLUMNS,
            isolation_level=level_of(self.trial),
            fail_on_data_loss=self.trial.fails_on_loss,
            consumer_config={"short_circuit_reads": self.trial.near},
            override_num_blocks=self.trial.tasks,
            **expires,
            **more,
        )

    def _ray(self, limit: Callable[[int], int]) -> Iterator[Rows]:
        yield from _blocks(self._data(), limit)

    def _follow(self, limit: Callable[[int], int]) -> Iterator[Rows]:
        ends = {self.topic: {place.partition: end for place, end in self.ends.items()}}
        yield from _blocks(self._data(trigger="continuous", end_offset=ends), limit)

    def _columns(self, limit: Callable[[int], int]) -> Iterator[Rows]:
        more: dict[str, Any] = {"short_circuit_reads": self.trial.near, "max_partition_fetch_bytes": 100_000}
        if "expire" in self.trial.kinds:
            with raylog.Admin() as admin:
                more["token"] = admin.create_token(read=[self.topic], lifetime_s=TOKEN_S)
            more["bootstrap"] = self.cluster.bootstrap()
        more["auto_offset_reset"] = "none" if self.trial.fails_on_loss else "earliest"
        count = 0
        limit(0)
        for rows in columns_of(self.trial, self.topic, self.ends, **more):
            yield rows
            count += len(rows)
            limit(count)

    def _held(self, limit: Callable[[int], int]) -> Iterator[Rows]:
        """Spark's readers, in a thread of their own while this one looks at how far they are."""
        hold = Hold(self.folder)
        found: list[Rows] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                (self._spark if self.trial.reader == "spark" else self._stream)(hold, found)
            except BaseException as error:  # whatever it is, it is judged
                errors.append(error)

        hold.allow(limit(0))
        thread = threading.Thread(target=work, name="spark read", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(POLL_S)
            hold.allow(limit(hold.seen))
        yield from found
        if errors:
            raise errors[0]

    def _options(self) -> dict[str, Any]:
        trial = self.trial
        options = {
            "raylog.bootstrap": self.cluster.bootstrap(),
            "raylog.secret": self.cluster.secret(),
            "subscribe": self.topic,
            "columns": ",".join(COLUMNS),
            "startingOffsets": "earliest",
            "kafka.isolation.level": level_of(trial),
            "kafka.short.circuit.reads": str(trial.near).lower(),
            "failOnDataLoss": str(trial.fails_on_loss).lower(),
            "kafkaConsumer.pollTimeoutMs": STALL_MS,
        }
        if "expire" in trial.kinds:
            options["raylog.tokenLifetimeMs"] = int(TOKEN_S * 1000)
        if trial.tasks > 1:
            options["minPartitions"] = trial.tasks
        return options

    def _spark(self, hold: Hold, found: list[Rows]) -> None:
        assert self.spark is not None
        frame = self.spark.read.format("raylog").options(**self._options()).load()
        found.append(rows_of(hold.held(frame).toArrow()))

    def _stream(self, hold: Hold, found: list[Rows]) -> None:
        assert self.spark is not None
        options = self._options()
        options["maxOffsetsPerTrigger"] = max(1, sum(self.ends.values()) // 3)

        def take(frame: DataFrame, batch: int) -> None:
            found.append(rows_of(hold.held(frame).toArrow()))

        stream = self.spark.readStream.format("raylog").options(**options).load()
        writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(self.folder / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()


class Hold:
    """Holds a Spark job: its workers count rows in one file, and wait while there are more than another one allows."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._seen, self._allowed = folder / "seen", folder / "allowed"
        self._last = -1
        self._seen.touch()
        self.allow(0)

    @property
    def seen(self) -> int:
        """The rows that have come, those of lost workers counted as well."""
        return self._seen.stat().st_size

    def allow(self, rows: int) -> None:
        """Let so many rows come."""
        if rows != self._last:
            self._last = rows
            new = self._allowed.with_suffix(".new")
            new.write_text(str(rows))
            new.replace(self._allowed)

    def held(self, frame: DataFrame) -> DataFrame:
        """The frame, behind a function that counts and waits."""
        seen, allowed = str(self._seen), str(self._allowed)

        def wait(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                with open(seen, "ab") as file:
                    file.truncate(os.fstat(file.fileno()).st_size + batch.num_rows)
                while os.stat(seen).st_size > int(Path(allowed).read_text()):
                    time.sleep(POLL_S)
                yield batch

        return frame.mapInArrow(wait, frame.schema)


def _blocks(ds: Any, limit: Callable[[int], int]) -> Iterator[Rows]:
    count = 0
    limit(0)
    for batch in ds.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        rows = rows_of(batch)
        yield rows
        count += len(rows)
        limit(count)
