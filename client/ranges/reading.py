"""Reads planned ranges into Arrow record batches. The next fetch is in flight while the last one is decoded.

Files on this machine are read in the caller's thread, where the record batches are made. This runs in the process of a
task: it needs neither Ray nor a broker as long as the leader named in its range can be reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from raylog.base.errors import OffsetOutOfRange, RaylogError
from raylog.client.ranges.arrow import KAFKA_SCHEMA, ArrowBuilder
from raylog.client.reading.decode import FetchedBatch
from raylog.client.reading.range_fetcher import FETCH_MAX_BYTES, PartitionRange, RangeFetcher
from raylog.client.runtime import Pending, shared
from raylog.storage.batch.cleaned import is_cleaned
from raylog.storage.batch.header import BatchHeader
from raylog.storage.batch.times import TimeBounds

CLOSE_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeReading:
    """How tasks read their ranges. It holds no credentials: each range has its token."""

    fail_on_data_loss: bool = True
    """Lost offsets are an error; if False, they are skipped with a warning."""
    repeats: bool = False
    """Whether an earlier attempt may have read the same range: then records that compaction removed are an error, and
    so are lost offsets, whatever `fail_on_data_loss` says."""
    stall_timeout_s: float = 120.0
    """How long a task waits for data before it fails."""
    fetch_max_bytes: int | None = None
    """The most bytes of one fetch; None = `FETCH_MAX_BYTES`."""
    isolation_level: str = "read_uncommitted"
    check_crcs: bool = True
    short_circuit_reads: bool = True
    """Read the files of a leader on this machine."""
    times: TimeBounds | None = None
    """Records outside these bounds are not needed, and may be left out; None = all are needed."""


def read_range(wanted: PartitionRange, reading: RangeReading, schema: Any = KAFKA_SCHEMA) -> Iterator[Any]:
    """The records of one range as record batches, in order; `schema` as in `ArrowBuilder`.

    Raises OffsetOutOfRange or UnknownTopicId for lost data, with `repeats` also for records that compaction removed;
    CorruptMessage, RequestTimedOut, and permanent errors.
    """
    return read_ranges([wanted], reading, schema)


def read_ranges(wanted: Sequence[PartitionRange], reading: RangeReading, schema: Any = KAFKA_SCHEMA) -> Iterator[Any]:
    """As `read_range` for several ranges, one after another; the first fetch of each is sent at the beginning."""
    opened: list[_OpenRange] = []
    try:
        opened += (_OpenRange(item, reading, schema) for item in wanted)
        for item in opened:
            yield from item.batches()
    finally:  # including when the caller has enough rows and closes the generator
        for item in opened:
            item.close()


class _OpenRange:
    """A range whose first fetch is in flight."""

    def __init__(self, wanted: PartitionRange, reading: RangeReading, schema: Any) -> None:
        self._runtime = shared()
        self._repeats = reading.repeats
        self._fetcher = RangeFetcher(
            wanted,
            fail_on_data_loss=reading.fail_on_data_loss or reading.repeats,
            max_bytes=reading.fetch_max_bytes or FETCH_MAX_BYTES,
            stall_timeout_s=reading.stall_timeout_s,
            short_circuit_reads=reading.short_circuit_reads,
            isolation_level=reading.isolation_level,
            times=reading.times,
            keeps_connections=True,
        )
        self._builder = ArrowBuilder(
            wanted.topic_partition, wanted.start, wanted.end, schema, check_crcs=reading.check_crcs
        )
        # A little longer than the fetcher's own timeout, so that its error arrives, which has the cause.
        self._timeout_s = reading.stall_timeout_s + CLOSE_TIMEOUT_S
        self._coming = self._next()

    def _next(self) -> Pending[Any]:
        return self._runtime.begin(self._fetcher.next(leaves_files=True))

    def batches(self) -> Iterator[Any]:
        """The records of the range as record batches, in order."""
        try:
            for batch in self._fetched():
                if self._repeats and is_cleaned(batch.header):
                    raise _removed(self._fetcher.wanted, batch.header)
                self._builder.add(batch)
                if self._builder.is_full:
                    yield from self._builder.take()
        except RaylogError:
            yield from self._builder.take()  # the records before the error
            raise
        yield from self._builder.take()

    def _fetched(self) -> Iterator[FetchedBatch]:
        while (batches := self._coming.result(self._timeout_s)) is not None:
            while not batches and (found := self._fetcher.near()):
                yield from found
            self._coming = self._next()
            yield from batches

    def close(self) -> None:
        """Close its connections, or keep them for the next range of this process."""
        self._coming.cancel()
        self._runtime.run(self._fetcher.close(), CLOSE_TIMEOUT_S)


def _removed(wanted: PartitionRange, header: BatchHeader) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        f"Compaction has removed records of {wanted.topic_partition} from offset {header.base_offset} on, perhaps "
        "since an earlier attempt read them: read the topic again."
    )
