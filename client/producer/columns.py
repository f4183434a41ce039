"""Whole columns of records for `send_batch()`: checks lists and Arrow arrays, cuts them into batches; its future.

Values and keys pass unchanged from the caller's lists into the batches' columns. So the work per record is done by C
loops, unless records have headers or different partitions. Used by `Producer` and `AsyncProducer`. Pure; pyarrow is
never imported here: an Arrow array is recognised by its methods.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import accumulate, groupby, pairwise, repeat
from typing import Any, NamedTuple

import msgspec

from raylog.base.errors import ClientClosed, RaylogError
from raylog.client.arguments import as_bytes, checked_headers, checked_timestamp, now_ms
from raylog.client.producer.accumulator import Accumulator
from raylog.client.producer.batch import Batch
from raylog.client.producer.futures import AsyncSendFuture
from raylog.client.producer.partition_queues import PartitionQueue, TopicQueues
from raylog.client.producer.sizes import RECORD_OVERHEAD_BYTES, LargestRecord, headers_size
from raylog.client.runtime import park_at_exit
from raylog.client.types import Header

Column = list[bytes | None]
HeadersColumn = list[list[Header] | None]
Convert = Callable[[Any], bytes | None]
_PLAIN = frozenset({bytes, type(None)})


class BatchMetadata(msgspec.Struct, frozen=True, gc=False):
    """Where one piece of a `send_batch()` was stored: `count` records from `offset` on.

    `offset` is -1 if it is not known (acks=0, or a very old duplicate).
    """

    topic: str
    partition: int
    offset: int
    count: int


class SentBatch:
    """The outcome of one `send_batch()`. Any thread may wait for it."""

    __slots__ = ("_batches", "_counts")

    def __init__(self, batches: list[Batch], counts: list[int]) -> None:
        self._batches = batches
        self._counts = counts

    def __len__(self) -> int:
        """How many records were sent."""
        return sum(self._counts)

    def done(self) -> bool:
        """Whether every record was stored or has failed."""
        return all(batch.is_done for batch in self._batches)

    def result(self, timeout: float | None = None) -> list[BatchMetadata]:
        """Where the records were stored, in pieces; those of one partition in order. Waits up to `timeout` seconds.

        Raises TimeoutError if the result is not known by then, or the first error of a record; other records may be
        stored nevertheless.
        """
        error = self.exception(timeout)
        if error is not None:
            if isinstance(error, ClientClosed):
                park_at_exit()
            raise error.with_traceback(None)  # see `SendFuture.result`
        return [
            BatchMetadata(leaf.topic, leaf.partition, leaf.base_offset, leaf.record_count if batch.pieces else count)
            for batch, count in zip(self._batches, self._counts, strict=True)
            for leaf in batch.leaves()
        ]

    def exception(self, timeout: float | None = None) -> RaylogError | None:
        """The first error of a record, or None. Raises TimeoutError after `timeout` seconds."""
        deadline_s = None if timeout is None else time.monotonic() + timeout
        for batch in self._batches:
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            if not batch.is_done and not batch.wait(left_s):
                raise TimeoutError(
                    f"The records were neither all stored nor refused within {timeout} seconds; they are still sent."
                )
        return next((batch.error for batch in self._batches if batch.error is not None), None)


class AsyncSentBatch(SentBatch):
    """The outcome of `AsyncProducer.send_batch`: it can be awaited."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, list[BatchMetadata]]:
        """Wait until all records are stored or have failed; the result is that of `result`."""
        for batch in self._batches:
            if not batch.is_done:
                try:
                    yield from AsyncSendFuture(batch, 0).__await__()
                except RaylogError:
                    pass  # raised below, when the results of all are known
        return self.result(0)


class Columns(NamedTuple):
    """Checked columns, of equal length."""

    values: Column
    """Bytes or None; so are the keys."""
    keys: Column | None
    headers: HeadersColumn | None = None
    timestamps: list[int] | None = None
    """In milliseconds; None = all records have the same one, which is passed separately."""

    def part(self, rows: slice) -> Columns:
        """The records of a slice."""
        return Columns(*(None if column is None else column[rows] for column in self))  # type: ignore[arg-type]  # values are there

    def stamps(self, moment_ms: int) -> list[tuple[int, int]]:
        """The timestamps as in `Batch.stamps`; `moment_ms` for all records if there is no column of them."""
        if self.timestamps is None:
            return [(0, moment_ms)]
        stamps, index = [], 0
        for timestamp_ms, run in groupby(self.timestamps):
            stamps.append((index, timestamp_ms))
            index += sum(1 for _ in run)
        return stamps


def checked_columns(
    values: Any,
    keys: Any,
    convert_value: Convert | None,
    convert_key: Convert | None,
    *,
    headers: Any = None,
    timestamps: Any = None,
) -> Columns:
    """The columns as lists of bytes. `convert_value` and `convert_key`, if given, are applied to each entry.

    Raises TypeError for an entry of a wrong type, ValueError for columns of unequal length and for timestamps that
    cannot be stored.
    """
    checked = Columns(
        _column("values", values, convert_value),
        None if keys is None else _column("keys", keys, convert_key),
        None if headers is None else _headers_column(headers),
        None if timestamps is None else _timestamps_column(timestamps),
    )
    for name, column in zip(Columns._fields, checked, strict=True):
        if column is not None and len(column) != len(checked.values):
            raise ValueError(f"There are {len(checked.values)} values, but {len(column)} {name}.")
    return checked


def is_column(entry: Any) -> bool:
    """Whether an argument is a column with a value for each record, and not one value for all."""
    return hasattr(entry, "to_pylist") or (isinstance(entry, Sequence) and not isinstance(entry, str | bytes))


def distinct_of(partitions: Any) -> list[int]:
    """The distinct numbers in an Arrow array of partitions; [] for None. Raises TypeError for anything else."""
    if partitions is not None and not hasattr(partitions, "drop_null"):
        raise TypeError(f"The partitions must be an Arrow array of integers, not {type(partitions).__name__}.")
    numbers: list[int] = [] if partitions is None else partitions.drop_null().unique().to_pylist()
    return numbers


def check_arrow(columns: Any) -> None:
    """Raise TypeError for anything but ArrowColumns."""
    if not hasattr(columns, "keys") or not hasattr(columns, "values") or callable(columns.values):
        raise TypeError(f"The columns must be ArrowColumns, not {type(columns).__name__}: {columns!r:.100}.")


def _headers_column(column: Any) -> HeadersColumn:
    if not isinstance(column, Sequence) or isinstance(column, str | bytes):
        raise TypeError(
            f"The headers must be a list with the headers of each record, or None for it, not {type(column).__name__}."
        )
    try:
        return [checked_headers(entry) for entry in column]
    except TypeError as error:
        raise TypeError(
            f"{error} In send_batch() the headers are a list with an entry for each record: its headers, or None."
        ) from error


def _timestamps_column(column: Any) -> list[int]:
    entries = column.to_pylist() if hasattr(column, "to_pylist") else column
    if set(map(type, entries)) == {int} and min(entries) >= 0:
        checked_timestamp(max(entries))
        return list(entries)
    moment_ms = now_ms()
    return [moment_ms if (checked := checked_timestamp(entry)) is None else checked for entry in entries]


def _column(name: str, column: Any, convert: Convert | None) -> Column:
    if hasattr(column, "combine_chunks") and hasattr(column, "chunks"):  # an Arrow ChunkedArray
        return [entry for chunk in column.chunks for entry in _column(name, chunk, convert)]
    if hasattr(column, "buffers") and hasattr(column, "null_count"):  # an Arrow Array
        entries = _of_arrow(column)
    elif isinstance(column, Sequence) and not isinstance(column, str | bytes | bytearray | memoryview):
        entries = list(column)  # a copy, because the caller may change the original
    else:
        raise TypeError(f"The {name} must be a list of bytes or an Arrow array, not {type(column).__name__}.")
    if convert is not None:
        return [convert(entry) for entry in entries]
    if not _PLAIN.issuperset(set(map(type, entries))):
        return [None if entry is None else as_bytes(name.rstrip("s"), entry) for entry in entries]
    return entries


def _of_arrow(array: Any) -> list[Any]:
    """The entries of an Arrow array; a binary or text array without nulls is sliced from one copy of its buffer."""
    kind = str(array.type)
    if kind not in ("binary", "string", "large_binary", "large_string") or array.null_count or not len(array):
        entries: list[Any] = array.to_pylist()
        return [entry.encode() for entry in entries] if kind.endswith("string") and not array.null_count else entries
    _, places, content = array.buffers()
    ends = memoryview(places).cast("q" if kind.startswith("large") else "i")
    ends = ends[array.offset : array.offset + len(array) + 1]
    first = ends[0]
    joined = b"" if content is None else bytes(memoryview(content)[first : ends[len(array)]])
    return [joined[begin - first : end - first] for begin, end in pairwise(ends)]


class Piece(NamedTuple):
    """Consecutive rows of one partition's columns that make one batch, and their size in bytes."""

    columns: Columns
    size: int


def pieces_of(columns: Columns, limit: int, largest: LargestRecord) -> Iterator[Piece]:
    """Cut columns into batches, each of at most `limit` bytes but at least one record.

    Raises RecordTooLarge for a too large record, before anything is yielded.
    """
    values, keys, headers = columns.values, columns.keys, columns.headers
    if not values:
        return
    sizes = _sizes(values)
    if keys is not None:
        sizes = list(map(int.__add__, sizes, _sizes(keys)))
    if headers is not None:
        sizes = [size + (headers_size(entry) if entry else 0) for size, entry in zip(sizes, headers, strict=True)]
    if max(sizes) + RECORD_OVERHEAD_BYTES > largest.check_from:
        for value, key, entry in zip(values, keys or repeat(None), headers or repeat(None)):  # noqa: B905  # no end
            largest.check(key, value, entry)
    total = sum(sizes) + RECORD_OVERHEAD_BYTES * len(sizes)
    if total <= limit:
        yield Piece(columns, total)
        return
    ends = list(accumulate(map(RECORD_OVERHEAD_BYTES.__add__, sizes)))
    first, begun = 0, 0
    while first < len(values):
        end = max(first + 1, bisect_right(ends, begun + limit))
        yield Piece(columns.part(slice(first, end)), ends[end - 1] - begun)
        first, begun = end, ends[end - 1]


def _sizes(column: Column) -> list[int]:
    try:
        return list(map(len, column))  # type: ignore[arg-type]  # a null is caught below
    except TypeError:
        return [0 if entry is None else len(entry) for entry in column]


class Planned(NamedTuple):
    """A batch to append, and its queue; None = the sticky queue."""

    queue: PartitionQueue | None
    piece: Piece


def planned(
    accumulator: Accumulator, topic_queues: TopicQueues, columns: Columns, partition: int | None
) -> list[Planned]:
    """The batches that these columns make, each with its queue. Raises RecordTooLarge, UnknownTopicOrPartition."""
    limit, largest = topic_queues.largest, topic_queues.largest_record
    if partition is not None:
        queues = {accumulator.queue_of(topic_queues, None, None, partition): columns}
    elif accumulator.chooses:
        queues = _by_rule(accumulator, topic_queues, columns)
    elif columns.keys is None:
        queues = {None: columns}
    else:
        queues = _by_key(topic_queues, columns, columns.keys)
    return [Planned(queue, piece) for queue, part in queues.items() for piece in pieces_of(part, limit, largest)]


def _by_key(topic_queues: TopicQueues, columns: Columns, keys: Column) -> dict[PartitionQueue | None, Columns]:
    if columns.headers is not None or columns.timestamps is not None:
        rows: dict[PartitionQueue | None, list[int]] = {}
        for row, key in enumerate(keys):
            rows.setdefault(None if key is None else topic_queues.queue_of_key(key), []).append(row)
        return _chosen(columns, rows)
    # Only keys and values, as usual: a look-up and two appends for each record.
    chosen: dict[bytes | None, tuple[Column, Column]] = {}
    queues: dict[PartitionQueue | None, tuple[Column, Column]] = {}
    for key, value in zip(keys, columns.values, strict=True):
        part = chosen.get(key)
        if part is None:
            queue = None if key is None else topic_queues.queue_of_key(key)
            part = chosen[key] = queues.setdefault(queue, ([], []))
        part[0].append(value)
        part[1].append(key)
    return {queue: Columns(*part) for queue, part in queues.items()}


def _by_rule(
    accumulator: Accumulator, topic_queues: TopicQueues, columns: Columns
) -> dict[PartitionQueue | None, Columns]:
    """The rows by queue. The partitioner is called for every record, since it may use values, or take turns."""
    rows: dict[PartitionQueue | None, list[int]] = {}
    for row, (key, value) in enumerate(zip(columns.keys or repeat(None), columns.values)):  # noqa: B905  # no end
        rows.setdefault(accumulator.queue_of(topic_queues, key, value, None), []).append(row)
    return _chosen(columns, rows)


def _chosen(columns: Columns, rows: dict[PartitionQueue | None, list[int]]) -> dict[PartitionQueue | None, Columns]:
    return {
        queue: Columns(*(None if column is None else [column[row] for row in chosen] for column in columns))  # type: ignore[arg-type]  # values are there
        for queue, chosen in rows.items()
    }
