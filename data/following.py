"""An endless read as Ray Data's `Datasource`: tasks that follow their partitions, and give out what comes as blocks.

Each task owns some partitions. Its consumer follows leader changes and fetches ahead up to a bound. While the operators
behind a task have enough, Ray pauses it at its next block; Ray ends the task with the dataset. Used by reads.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import pyarrow as pa
from ray.data import Datasource, ReadTask
from ray.data.block import BlockMetadata

from raylog.base.ids import TopicPartition
from raylog.client.config import ConsumerConfig
from raylog.client.consumer.consumer import Consumer
from raylog.client.ranges.arrow import ArrowBuilder
from raylog.client.ranges.narrowing import OFFSET_MAX
from raylog.client.reading.decode import FetchedBatch
from raylog.client.reading.range_fetcher import PartitionRange
from raylog.data.attempts import attempt_number, seen_by_reader
from raylog.data.columns import built_schema, schema_of
from raylog.data.datasource import NotRepeatable, block_of, files_of

LINGER_S = 0.1
"""How long a block is filled after its first record: a block costs Ray some milliseconds, whatever its size."""
POLL_S = 0.2
"""Longest wait for records at once; a cancelled task notices it between two waits."""
BLOCK_BYTES_MAX = 16 << 20
"""An upper bound of a block's size: the fetched bytes of two of ArrowBuilder's record batches."""


class AtOnce(int):
    """A size in bytes that every block exceeds, for `DataContext.target_max_block_size`.

    Ray uses that size twice. It collects the blocks of a task until they exceed it, which an endless task of a quiet
    topic never does; and it cuts blocks that exceed it by half. The first comparison, `size > target`, calls `__lt__`
    below. The second multiplies the target first, and so compares with the number itself.
    """

    def __lt__(self, size: object) -> bool:
        """Whether a block of so many bytes is given out: each that is not empty."""
        return isinstance(size, int | float) and size > 0


@dataclass(frozen=True, slots=True)
class FollowingTask:
    """The function of one read task; pickled to where it runs."""

    ranges: tuple[PartitionRange, ...]
    """Where each partition begins and ends; all have the same token."""
    consumer: ConsumerConfig
    names: tuple[str, ...]
    timeout_s: float | None

    def __call__(self) -> Iterator[Any]:
        """Blocks of new records; ends when all partitions are at their ends, or after `timeout_s`."""
        attempt = attempt_number()
        return seen_by_reader(self._blocks(attempt), attempt)

    def _blocks(self, attempt: int) -> Iterator[Any]:
        if attempt > 0:
            # Blocks depend on when records came. A repeated task makes others, and Ray would drop the wrong ones.
            raise NotRepeatable(
                "A worker of a continuous read was lost, and only the program that iterates knows which records "
                "arrived from it: read again with start_offset behind their offsets."
            )
        deadline_s = float("inf") if self.timeout_s is None else time.monotonic() + self.timeout_s
        blocks = _Blocks(self.ranges, self.names)
        with Consumer(config=_config(self.consumer, self.ranges)) as consumer:
            consumer.assign([item.topic_partition for item in self.ranges])
            for item in self.ranges:
                consumer.seek(item.topic_partition, item.start)
            unfinished = {item.topic_partition: item.end for item in self.ranges}
            while unfinished and time.monotonic() < deadline_s:
                found = consumer.consume_batch(timeout=min(POLL_S, blocks.left_s()))
                for piece in found.pieces:
                    blocks.add(piece.partition, piece.batch)
                    if blocks.is_full:
                        yield blocks.take()
                if blocks.left_s() == 0:
                    yield blocks.take()
                for partition, end in list(unfinished.items()):
                    if end < OFFSET_MAX and consumer.position(partition) >= end:
                        consumer.pause(partition)
                        del unfinished[partition]
        yield blocks.take()


class _Blocks:
    """The block that is being filled."""

    def __init__(self, ranges: Sequence[PartitionRange], names: tuple[str, ...]) -> None:
        self._names = names
        self._schema = built_schema(names)
        self._builders = {
            item.topic_partition: ArrowBuilder(item.topic_partition, item.start, item.end, self._schema)
            for item in ranges
        }
        self._since_s: float | None = None

    def add(self, partition: TopicPartition, batch: FetchedBatch) -> None:
        """Add a batch of the log. Raises CorruptMessage."""
        self._builders[partition].add(batch)
        if self._since_s is None:
            self._since_s = time.monotonic()

    @property
    def is_full(self) -> bool:
        """Whether the block is large enough to be taken at once."""
        return any(builder.is_full for builder in self._builders.values())

    def left_s(self) -> float:
        """How long it may still be filled; 0 when it is due, POLL_S while it is empty."""
        return POLL_S if self._since_s is None else max(0.0, self._since_s + LINGER_S - time.monotonic())

    def take(self) -> Any:
        """Take what was added since the last call, as one table; the next block begins."""
        self._since_s = None
        tables = [block_of(batch, self._names) for builder in self._builders.values() for batch in builder.take()]
        return pa.concat_tables(tables) if tables else schema_of(self._names).empty_table()


class FollowingDatasource(Datasource):
    """Partitions that tasks follow; made by `raylog.data.read(trigger="continuous")`."""

    def __init__(self, tasks: Sequence[FollowingTask]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tasks = tasks

    def get_name(self) -> str:
        """The name in plans and progress bars: `ReadRaylogContinuously`."""
        return "RaylogContinuously"

    def estimate_inmemory_data_size(self) -> int | None:
        """None: the read has no end."""
        return None

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """One task for each group of partitions; `parallelism` is ignored."""
        return [
            ReadTask(
                task,
                BlockMetadata(
                    num_rows=None, size_bytes=None, input_files=tuple(files_of(task.ranges)), exec_stats=None
                ),
                schema=schema_of(task.names),
                per_task_row_limit=per_task_row_limit,
            )
            for task in self._tasks
        ]


def _config(consumer: ConsumerConfig, ranges: Sequence[PartitionRange]) -> dict[str, Any]:
    """The configuration of a task's consumer; all ranges of a task have the same brokers and token."""
    found = {field.name: getattr(consumer, field.name) for field in fields(consumer)}
    hosts = ((f"[{host}]" if ":" in host else host, port) for host, port in ranges[0].brokers)
    found["bootstrap"] = ",".join(f"{host}:{port}" for host, port in hosts)
    found["secret"] = ranges[0].secret
    return {name: value for name, value in found.items() if value is not None}
