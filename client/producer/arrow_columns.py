"""Encodes Arrow columns as bodies of record batches, for `Producer.send_arrow`. Needs pyarrow and numpy.

The rows are ordered by partition, then cut into batches, and each column of a batch is encoded as a whole: byte strings
of equal length by numpy, in one copy; others as slices of the column's buffer, by msgspec. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from murmurhash2 import murmurhash2

from raylog.base.errors import InvalidRecord
from raylog.client.producer.batch import EncodedBody
from raylog.client.producer.partitioner import SEED
from raylog.client.producer.sizes import HEADER_OVERHEAD_BYTES, RECORD_OVERHEAD_BYTES, LargestRecord
from raylog.storage.batch.compression import compress

if TYPE_CHECKING:
    from numpy import bool_, int32, int64, uint8
    from numpy.typing import NDArray

STICKY = -1
"""Instead of a partition number: the sticky partition, for records without a key."""
_NIL = b"\xc0"
_FOUR_COLUMNS = b"\x94"
_encode = msgspec.msgpack.Encoder().encode


def header_type() -> Any:
    """The Arrow type of a column of headers."""
    return pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class ArrowColumns(NamedTuple):
    """Arrow arrays of equal length; None = all null. `timestamps_ms` has no nulls, `headers` has `header_type`."""

    values: Any
    keys: Any = None
    headers: Any = None
    timestamps_ms: Any = None

    def taken(self, rows: Any) -> ArrowColumns:
        """The rows with these indexes, in this order."""
        return ArrowColumns(*(None if column is None else column.take(rows) for column in self))

    def headers_of_rows(self) -> list[list[tuple[str, bytes | None]] | None]:
        """The headers of each row as a list; None where a row has none."""
        if self.headers is None:
            return [None] * len(self.values)
        return [
            None if not row else [(each["key"] or "", each["value"]) for each in row]
            for row in self.headers.to_pylist()
        ]

    def part(self, first: int, end: int) -> ArrowColumns:
        """The rows from `first` up to, not including, `end`."""
        return ArrowColumns(*(None if column is None else column.slice(first, end - first) for column in self))


def partitions_of(keys: Any, partitions: Any, rows: int, count: int) -> NDArray[int32]:
    """The partition of each row: from `partitions` (may have nulls), else by its key, else STICKY."""
    chosen: NDArray[int32] = np.full(rows, STICKY, dtype=np.int32)
    if keys is not None and keys.null_count < rows:
        data, starts, lengths = _bytes_of(keys)
        by_key = (hashes_of_keys(data, starts, lengths) % np.uint32(count)).astype(np.int32)
        chosen = np.where(_valid(keys), by_key, chosen) if keys.null_count else by_key
    if partitions is not None and partitions.null_count < rows:
        named = partitions.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        if np.any((named < 0) | (named >= 2**31)):
            wrong = named[(named < 0) | (named >= 2**31)][0]
            raise InvalidRecord(f"A partition is a number from 0 on, not {wrong}.")
        chosen = np.where(_valid(partitions), named, chosen).astype(np.int32)
    return chosen


def by_partition(columns: ArrowColumns, chosen: NDArray[int32]) -> Iterator[tuple[int, ArrowColumns]]:
    """Each partition with its rows, which keep their order."""
    if not len(chosen):
        return
    if (chosen == chosen[0]).all():
        yield int(chosen[0]), columns
        return
    order = np.argsort(chosen, kind="stable")
    ordered = chosen[order]
    edges = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(ordered)]
    for first, end in pairwise(edges):
        yield int(ordered[first]), columns.taken(pa.array(order[first:end]))


def bodies_of(
    columns: ArrowColumns, *, limit: int, largest: LargestRecord, compression: int, now_ms: int
) -> Iterator[EncodedBody]:
    """The batches of one partition, each of at most `limit` bytes but at least one record.

    Raises RecordTooLarge for a too large record, before anything is yielded.
    """
    sizes = sizes_of(columns)
    over = np.flatnonzero(sizes > largest.check_from)
    for row in over.tolist():
        key = None if columns.keys is None else columns.keys[row].as_py()
        largest.check(_as_bytes(key), _as_bytes(columns.values[row].as_py()), _headers_of_row(columns, row))
    ends = np.cumsum(sizes)
    first, begun = 0, 0
    while first < len(sizes):
        end = max(first + 1, int(np.searchsorted(ends, begun + limit, side="right")))
        counted = int(ends[end - 1]) - begun
        yield _body(columns.part(first, end), counted, compression, now_ms)
        first, begun = end, int(ends[end - 1])


def sizes_of(columns: ArrowColumns) -> NDArray[int64]:
    """The size of each record in bytes, as the producer counts it (uncompressed)."""
    sizes: NDArray[int64] = np.full(len(columns.values), RECORD_OVERHEAD_BYTES, dtype=np.int64)
    for column in (columns.values, columns.keys):
        if column is not None:
            sizes += _bytes_of(column)[2]
    headers = columns.headers
    if headers is not None and headers.null_count < len(headers):
        places = np.concatenate(([0], np.cumsum(_header_sizes(headers.flatten()))))
        counts = headers.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        ends = np.cumsum(counts)
        sizes += places[ends] - places[ends - counts]
    return sizes


def _header_sizes(entries: Any) -> NDArray[int64]:
    sizes: NDArray[int64] = np.full(len(entries), HEADER_OVERHEAD_BYTES, dtype=np.int64)
    for number in range(2):
        sizes += _bytes_of(entries.field(number))[2]
    return sizes


def _body(columns: ArrowColumns, counted: int, compression: int, now_ms: int) -> EncodedBody:
    rows = len(columns.values)
    first_ms = last_ms = now_ms
    deltas = _NIL
    if columns.timestamps_ms is not None:
        moments = columns.timestamps_ms.to_numpy(zero_copy_only=False).astype(np.int64)
        first_ms, last_ms = int(moments[0]), int(moments.max())
        deltas = _encoded_deltas(moments - moments[0])
    body = b"".join(
        (
            _FOUR_COLUMNS,
            deltas,
            _encoded_bytes(columns.keys),
            _encoded_bytes(columns.values),
            _encoded_headers(columns.headers),
        )
    )
    if compression:
        body = compress(compression, body)
    return EncodedBody(body, rows, first_ms, last_ms, counted, compression)


def _encoded_deltas(deltas: NDArray[int64]) -> bytes:
    low, high = int(deltas.min()), int(deltas.max())
    if low == high == 0:
        return _NIL
    if low >= 0 and high < 128:  # msgpack encodes these as one byte with the same value
        return _array_head(len(deltas)) + deltas.astype(np.uint8).tobytes()
    return _encode(deltas.tolist())


def _encoded_bytes(column: Any) -> bytes:
    if column is None or column.null_count == len(column):
        return _NIL
    data, starts, lengths = _bytes_of(column)
    width = int(lengths[0])
    if not column.null_count and (lengths == width).all():
        head = _bytes_head(width)
        rows = np.empty((len(lengths), len(head) + width), dtype=np.uint8)
        rows[:, : len(head)] = np.frombuffer(head, dtype=np.uint8)
        first = int(starts[0])
        rows[:, len(head) :] = data[first : first + len(lengths) * width].reshape(len(lengths), width)
        encoded: bytes = rows.tobytes()
        return _array_head(len(lengths)) + encoded
    return _encode(_entries(column, data, starts, lengths))


def _entries(column: Any, data: NDArray[uint8], starts: NDArray[int64], lengths: NDArray[int64]) -> list[bytes | None]:
    """The byte strings of a column, as slices of one copy of its buffer."""
    first = int(starts[0])
    end = int(starts[-1] + lengths[-1])
    joined = data[first:end].tobytes()
    begins = (starts - first).tolist()
    entries: list[bytes | None] = [
        joined[begin:end] for begin, end in zip(begins, (starts - first + lengths).tolist(), strict=True)
    ]
    if column.null_count:
        for row in np.flatnonzero(~_valid(column)).tolist():
            entries[row] = None
    return entries


def _encoded_headers(headers: Any) -> bytes:
    if headers is None or headers.null_count == len(headers):
        return _NIL
    rows = [None if not row else [(each["key"], each["value"]) for each in row] for row in headers.to_pylist()]
    if not any(rows):
        return _NIL
    if any(name is None for row in rows if row for name, _ in row):
        raise InvalidRecord("A header has no key (null); each header of a record needs a text as its key.")
    return _encode(rows)


def _headers_of_row(columns: ArrowColumns, row: int) -> list[tuple[str, bytes | None]] | None:
    if columns.headers is None:
        return None
    return [(each["key"] or "", each["value"]) for each in columns.headers[row].as_py() or ()]


def _as_bytes(entry: str | bytes | None) -> bytes | None:
    return entry.encode() if isinstance(entry, str) else entry


def _bytes_of(column: Any) -> tuple[NDArray[uint8], NDArray[int64], NDArray[int64]]:
    """The buffer of a binary or text column, and the start and length of each entry; a null has length 0."""
    rows = len(column)
    _, places, content = column.buffers()
    wide = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    kind = np.int64 if wide else np.int32
    if not rows or places is None:
        empty = np.zeros(rows, dtype=np.int64)
        return np.empty(0, dtype=np.uint8), empty, empty
    ends = np.frombuffer(places, dtype=kind)[column.offset : column.offset + rows + 1].astype(np.int64)
    data = np.empty(0, dtype=np.uint8) if content is None else np.frombuffer(content, dtype=np.uint8)
    lengths = np.diff(ends)
    if column.null_count:
        lengths = np.where(_valid(column), lengths, 0)
    return data, ends[:-1], lengths


def _valid(column: Any) -> NDArray[bool_]:
    valid: NDArray[bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _array_head(count: int) -> bytes:
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")


def _bytes_head(size: int) -> bytes:
    if size < 1 << 8:
        return bytes((0xC4, size))
    return b"\xc5" + size.to_bytes(2, "big") if size < 1 << 16 else b"\xc6" + size.to_bytes(4, "big")


if TYPE_CHECKING:
    from numpy import int64, uint8, uint32
    from numpy.typing import NDArray

VECTOR_BYTES = 256
"""The longest key that numpy hashes together with the others."""
_M: Any = 0x5BD1E995
"""A Python integer, so that arithmetic with a uint32 column stays within 32 bits."""
_POSITIVE: Any = 0x7FFFFFFF


def hashes_of_keys(data: NDArray[uint8], starts: NDArray[int64], lengths: NDArray[int64]) -> NDArray[uint32]:
    """Kafka's positive murmur2 of each key, which is `lengths` bytes of `data` from `starts` on."""
    found: NDArray[uint32] = np.empty(len(starts), dtype=np.uint32)
    long = np.flatnonzero(lengths > VECTOR_BYTES)
    for row in long.tolist():
        key = data[starts[row] : starts[row] + lengths[row]].tobytes()
        found[row] = murmurhash2(key, SEED) & 0x7FFFFFFF
    if len(long):
        short = np.flatnonzero(lengths <= VECTOR_BYTES)
        found[short] = _short(data, starts[short], lengths[short])
        return found
    return _short(data, starts, lengths)


def _short(data: NDArray[uint8], starts: NDArray[int64], lengths: NDArray[int64]) -> NDArray[uint32]:
    mixed: NDArray[uint32] = np.uint32(SEED) ^ lengths.astype(np.uint32)
    words = lengths >> 2
    most = int(words.max(initial=0))
    is_even = bool(len(words)) and int(words.min()) == most
    for number in range(most):
        if is_even:
            mixed = _with_word(mixed, _bytes_at(data, starts + 4 * number, 4))
        else:
            rows = np.flatnonzero(words > number)
            mixed[rows] = _with_word(mixed[rows], _bytes_at(data, starts[rows] + 4 * number, 4))
    rest = lengths & 3
    for count in range(1, 4):
        rows = np.flatnonzero(rest == count)
        if len(rows):
            mixed[rows] = (mixed[rows] ^ _bytes_at(data, starts[rows] + 4 * words[rows], count)) * _M
    mixed = (mixed ^ mixed >> 13) * _M
    positive: NDArray[uint32] = (mixed ^ mixed >> 15) & _POSITIVE
    return positive


def _with_word(mixed: NDArray[uint32], word: NDArray[uint32]) -> NDArray[uint32]:
    word = word * _M
    both: NDArray[uint32] = mixed * _M ^ (word ^ word >> 24) * _M
    return both


def _bytes_at(data: NDArray[uint8], at: NDArray[int64], count: int) -> NDArray[uint32]:
    """The little-endian integer of `count` bytes at each position."""
    word: NDArray[uint32] = data[at].astype(np.uint32)
    for number in range(1, count):
        word |= data[at + number].astype(np.uint32) << 8 * number
    return word


class _Library:
    """Stands for a module, which is imported when an attribute is used. Raises ImportError if it is not installed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(import_module(self._name), attribute)
        setattr(self, attribute, found)
        return found


np: Any = _Library("numpy")
pa: Any = _Library("pyarrow")
