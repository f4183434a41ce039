"""Whole columns of records: what `send_batch()` makes of lists and Arrow arrays, and its future.

Values and keys pass unchanged from the caller's lists into the batches' columns: per record there are only C loops.
Used by `Producer` and `AsyncProducer`. Pure; pyarrow is never imported here, an Arrow array is recognised by its
methods.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import accumulate, pairwise, repeat
from typing import Any, NamedTuple

import msgspec

from raylog.client.arguments import as_bytes
from raylog.client.producer.accumulator import Accumulator
from raylog.client.producer.batch import Batch
from raylog.client.producer.futures import AsyncSendFuture
from raylog.client.producer.queues import PartitionQueue, TopicQueues
from raylog.client.producer.sizes import RECORD_OVERHEAD_BYTES, LargestRecord
from raylog.core.errors import RaylogError

Column = list[bytes | None]
Convert = Callable[[Any], bytes | None]
_PLAIN = frozenset({bytes, type(None)})


class BatchMetadata(msgspec.Struct, frozen=True, gc=False):
    """Where one piece of a `send_batch()` was stored: `count` records at `offset` and behind it.

    `offset` is -1 when that is not known (acks=0, or a very old duplicate).
    """

    topic: str
    partition: int
    offset: int
    count: int


class SentBatch:
    """The outcome of one `send_batch()`. May be waited for in any thread."""

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
        """Where the records were stored, in pieces; those of a partition in order. Waits up to `timeout` seconds.

        Raises TimeoutError when the result is not known by then, or the first error of a record: the others may be
        stored nevertheless.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error.with_traceback(None)  # see `SendFuture.result`
        return [
            BatchMetadata(batch.topic, batch.partition, batch.base_offset, count)
            for batch, count in zip(self._batches, self._counts, strict=True)
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
    """The same for AsyncProducer: it can be awaited."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, list[BatchMetadata]]:
        """Wait in a coroutine."""
        for batch in self._batches:
            if not batch.is_done:
                try:
                    yield from AsyncSendFuture(batch, 0).__await__()
                except RaylogError:
                    pass  # raised below, when the results of all are known
        return self.result(0)


class Columns(NamedTuple):
    """Checked columns: bytes or null only, of equal length."""

    values: Column
    keys: Column | None


def checked_columns(values: Any, keys: Any, convert_value: Convert | None, convert_key: Convert | None) -> Columns:
    """The columns as lists of bytes. `convert_*` is applied to each entry if given, and to each that is not bytes.

    Raises TypeError for an entry that is not bytes, ValueError for columns of unequal length.
    """
    checked = Columns(
        _column("values", values, convert_value),
        None if keys is None else _column("keys", keys, convert_key),
    )
    if checked.keys is not None and len(checked.keys) != len(checked.values):
        raise ValueError(f"There are {len(checked.values)} values, but {len(checked.keys)} keys.")
    return checked


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
    """The entries of an Arrow array; those of a binary or text array are sliced from its one buffer of bytes."""
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
    """Consecutive rows of one partition's columns that make one batch."""

    columns: Columns
    size: int


def pieces_of(columns: Columns, limit: int, largest: LargestRecord) -> Iterator[Piece]:
    """Cut columns into batches of at most `limit` bytes, and at least one record each.

    Raises RecordTooLarge, before anything is yielded, for a record over the limit.
    """
    values, keys = columns
    if not values:
        return
    sizes = _sizes(values)
    if keys is not None:
        sizes = list(map(int.__add__, sizes, _sizes(keys)))
    if max(sizes) + RECORD_OVERHEAD_BYTES > largest.check_from:
        for value, key in zip(values, repeat(None) if keys is None else keys):  # noqa: B905  # `repeat` has no end
            largest.check(key, value, None)
    total = sum(sizes) + RECORD_OVERHEAD_BYTES * len(sizes)
    if total <= limit:
        yield Piece(columns, total)
        return
    ends = list(accumulate(map(RECORD_OVERHEAD_BYTES.__add__, sizes)))
    first, begun = 0, 0
    while first < len(values):
        end = max(first + 1, bisect_right(ends, begun + limit))
        rows = slice(first, end)
        yield Piece(Columns(values[rows], None if keys is None else keys[rows]), ends[end - 1] - begun)
        first, begun = end, ends[end - 1]


def _sizes(column: Column) -> list[int]:
    try:
        return list(map(len, column))  # type: ignore[arg-type]  # a null is caught below
    except TypeError:
        return [0 if entry is None else len(entry) for entry in column]


class Planned(NamedTuple):
    """A batch to append, and its queue; None = the current one for records without key."""

    queue: PartitionQueue | None
    piece: Piece


def planned(
    accumulator: Accumulator, topic_queues: TopicQueues, columns: Columns, partition: int | None
) -> list[Planned]:
    """The batches that these columns become. Raises RecordTooLarge, UnknownTopicOrPartition."""
    limit, largest = topic_queues.largest, topic_queues.largest_record
    if partition is None and columns.keys is None and not accumulator.chooses:
        return [Planned(None, piece) for piece in pieces_of(columns, limit, largest)]
    keys = columns.keys
    if partition is not None or keys is None:
        queues = {accumulator.queue_of(topic_queues, None, partition): columns}
    else:
        queues = _by_queue(accumulator, topic_queues, columns.values, keys)
    return [Planned(queue, piece) for queue, part in queues.items() for piece in pieces_of(part, limit, largest)]


def _by_queue(
    accumulator: Accumulator, topic_queues: TopicQueues, values: Column, keys: Column
) -> dict[PartitionQueue | None, Columns]:
    chosen: dict[bytes | None, Columns] = {}
    queues: dict[PartitionQueue | None, Columns] = {}
    for key, value in zip(keys, values, strict=True):
        part = chosen.get(key)
        if part is None:
            queue = accumulator.queue_of(topic_queues, key, None)
            part = chosen[key] = queues.setdefault(queue, Columns([], []))
        part.values.append(value)
        part.keys.append(key)  # type: ignore[union-attr]  # made with keys, two lines above
    return queues
