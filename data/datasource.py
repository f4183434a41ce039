"""A bounded read as Ray Data's `Datasource`: read tasks of some ranges each. Used by reads.py.

Offsets are fixed before this is made, so a dataset has the same records each time it is executed. A task holds a token
and the brokers' addresses, never a secret, and finds a partition's new leader by itself. The batches of the log decide
where a block ends, so a repeated task makes the same blocks, as Ray requires. Where it cannot, because the log has
changed since, it fails in a way that the reader notices (`attempts`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ray.data import Datasource, ReadTask
from ray.data.block import BlockMetadata

from raylog.base.errors import CorruptMessage, RaylogError
from raylog.client.ranges.reading import RangeReading, read_range
from raylog.client.reading.range_fetcher import PartitionRange
from raylog.data.attempts import attempt_number, seen_by_reader
from raylog.data.columns import built_schema, schema_of, table_of

logger = logging.getLogger(__name__)


class NotRepeatable(RaylogError):
    """A read task was repeated after its worker was lost, and would not give out the same blocks: read again."""


@dataclass(frozen=True, slots=True)
class RangesTask:
    """The function of one read task; pickled to where it runs."""

    ranges: tuple[PartitionRange, ...]
    reading: RangeReading
    names: tuple[str, ...]
    timeout_s: float | None

    def __call__(self) -> Iterator[Any]:
        """The blocks of the ranges, one after the other; after `timeout_s` it ends with those read so far."""
        attempt = attempt_number()
        return seen_by_reader(self._blocks(attempt), attempt)

    def _blocks(self, attempt: int) -> Iterator[Any]:
        deadline_s = None if self.timeout_s is None else time.monotonic() + self.timeout_s
        schema = built_schema(self.names)
        reading = replace(self.reading, repeats=attempt > 0)
        has_any = False
        for item in self.ranges:
            if attempt > 0 and item.may_be_compacted:
                raise NotRepeatable(
                    f"A worker that read {item.topic_partition} was lost, and compaction may have removed records "
                    "since it began: read the topic again."
                )
            for batch in self._batches(item, reading, schema, deadline_s):
                has_any = True
                yield block_of(batch, self.names)
        if not has_any:
            yield schema_of(self.names).empty_table()

    def _batches(
        self, item: PartitionRange, reading: RangeReading, schema: Any, deadline_s: float | None
    ) -> Iterator[Any]:
        """The record batches of a range that come before the deadline; a warning says when it is reached."""
        if deadline_s is None:
            yield from read_range(item, reading, schema)
            return
        left_s = deadline_s - time.monotonic()
        wait_s = min(reading.stall_timeout_s, left_s)
        try:
            if wait_s > 0:
                is_late = False
                for batch in read_range(item, replace(reading, stall_timeout_s=wait_s), schema):
                    if is_late:
                        break
                    yield batch
                    is_late = time.monotonic() >= deadline_s
                else:
                    return
        except RaylogError as error:
            if not error.retriable or isinstance(error, CorruptMessage) or wait_s < left_s:
                raise
        logger.warning("%s was read for timeout_ms, and not up to its end.", item.topic_partition)


class RaylogDatasource(Datasource):
    """Ranges of topics; made by `raylog.data.read`."""

    def __init__(
        self,
        tasks: Sequence[Sequence[PartitionRange]],
        names: tuple[str, ...],
        reading: RangeReading,
        timeout_s: float | None,
    ) -> None:
        """`tasks`: the ranges of each read task, at least one task."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._tasks = tasks
        self._names = names
        self._reading = reading
        self._timeout_s = timeout_s
        self._projection_map: dict[str, str] | None = None

    def get_name(self) -> str:
        """The name in plans and progress bars: `ReadRaylog`."""
        return "Raylog"

    def estimate_inmemory_data_size(self) -> int | None:
        """None, not known: ranges count records, not bytes."""
        return None

    def supports_projection_pushdown(self) -> bool:
        """True: columns that `select_columns` leaves out are never made."""
        return True

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """One task for each group of ranges. `parallelism` is ignored: `override_num_blocks` has decided already."""
        names = self._names
        if self._projection_map is not None:
            # In the order of the selection: Ray drops the operator that would have brought them into it.
            names = tuple(name for name in self._projection_map if name in names)
        return [
            ReadTask(
                RangesTask(tuple(ranges), self._reading, names, self._timeout_s),
                # How many rows is not known: markers of transactions and compaction leave offsets without a record.
                BlockMetadata(num_rows=None, size_bytes=None, input_files=tuple(files_of(ranges)), exec_stats=None),
                schema=schema_of(names),
                per_task_row_limit=per_task_row_limit,
            )
            for ranges in self._tasks
        ]


def files_of(ranges: Sequence[PartitionRange]) -> Iterator[str]:
    """What `Dataset.input_files()` shows: the partitions."""
    return (f"raylog://{item.topic}/{item.partition}" for item in ranges)


def block_of(batch: Any, names: Sequence[str]) -> Any:
    """The block of a record batch. A block without columns has Ray's internal column that keeps the number of rows."""
    if names:
        return table_of(batch, names)
    import pyarrow as pa
    from ray.data._internal.arrow_block import _BATCH_SIZE_PRESERVING_STUB_COL_NAME as ROWS_ONLY

    return pa.table({ROWS_ONLY: pa.nulls(batch.num_rows)})
