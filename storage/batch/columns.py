"""The column body of a record batch (magic 77), opened: each column is decoded on first use.

Made by `records.open_batch`. A body is a msgpack array `[timestamp_deltas, keys, values, headers]`, in a cleaned batch
also `offset_deltas`; each column is an array, or nil where all its values are null. Pure.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from raylog.storage.batch.compression import Buffer
from raylog.storage.batch.grids import ARRAY_16, ARRAY_32, FOUR_COLUMNS, Grid, Layout, array_at, find_grid, find_layout
from raylog.storage.batch.grids import NIL as NIL_KIND
from raylog.storage.errors import CorruptBatch

Header = tuple[str, bytes | None]
Column = list[bytes | None]
HeaderColumn = list[list[Header] | None]

_NIL = bytes((NIL_KIND,))
HEADERS_MAX = 1 << 22
"""Most headers of one batch. Each takes 64 bytes and more when it is decoded, and may take 3 bytes in the body."""
_HEADER_BYTES_MIN = 3
_PAIR_KINDS = (0x92, ARRAY_16, ARRAY_32)
"""First bytes of an encoded pair."""
_RUNS_MAX = 16
"""A batch whose records span at most so many milliseconds has its timestamps decoded in runs."""


class Columns(NamedTuple):
    """The records of one batch, as columns of equal length; a column is None where all its values are null."""

    offsets: range | list[int]
    timestamps: list[int]
    keys: Column | None
    values: Column | None
    headers: HeaderColumn | None


class _Parts(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The body with its columns still encoded."""

    timestamp_deltas: msgspec.Raw
    keys: msgspec.Raw
    values: msgspec.Raw
    headers: msgspec.Raw
    offset_deltas: msgspec.Raw = msgspec.Raw(_NIL)


class _Whole(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The body for readers of every column."""

    timestamp_deltas: msgspec.Raw
    keys: Column | None
    values: Column | None
    headers: HeaderColumn | None


class _OnlyValues(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The body for readers of values only: one pass over them."""

    timestamp_deltas: msgspec.Raw
    keys: msgspec.Raw
    values: Column | None


_decode_whole = msgspec.msgpack.Decoder(_Whole).decode
_decode_values = msgspec.msgpack.Decoder(_OnlyValues).decode
_decode_parts = msgspec.msgpack.Decoder(_Parts).decode
_decode_integers = msgspec.msgpack.Decoder(list[int]).decode
_decode_bytes = msgspec.msgpack.Decoder(Column).decode
_DECODE = {"keys": _decode_bytes, "values": _decode_bytes, "headers": msgspec.msgpack.Decoder(HeaderColumn).decode}


def split_columns(body: Buffer) -> tuple[msgspec.Raw, msgspec.Raw, msgspec.Raw, msgspec.Raw]:
    """The four columns of a body, encoded. Raises what msgspec raises."""
    return msgspec.structs.astuple(_decode_parts(body))[:4]


class OpenBatch:
    """The records of one batch. Each access decodes a column again. Access raises CorruptBatch for malformed bytes."""

    __slots__ = (
        "_append_ms",
        "_base_ms",
        "_body",
        "_columns",
        "_is_checked",
        "_is_laid_out",
        "_kept",
        "_layout",
        "_parts",
        "_position",
        "_source",
        "offsets",
        "plain_bytes",
        "rows",
    )

    def __init__(
        self,
        body: Buffer,
        position: int,
        rows: int,
        base_offset: int,
        last_delta: int,
        base_ms: int,
        append_ms: int | None,
        source: tuple[Buffer, int, int] | None = None,
    ) -> None:
        """`append_ms` is the log append time where it applies to all records. Raises CorruptBatch.

        `source`: a buffer, and where the body begins and ends there; iteration over bytes is faster than over a view of
        them.
        """
        self.rows = rows
        self.plain_bytes = len(body)
        """Size of the body, decompressed."""
        # Compressed data may expand a thousand times: no list is made of it before it is known to have as many elements
        # as the batch has records.
        self._is_checked = source is not None
        self._source = source or (body, 0, len(body))
        self._layout: Layout | None = None
        self._is_laid_out = False
        """Whether the layout was looked for; `_layout` None means then that there is none."""
        self._position = position
        self._base_ms = base_ms
        self._append_ms = append_ms
        self._columns: Columns | None = None
        self._kept: dict[str, list[Any] | None] = {}
        self._body = body
        self._parts: _Parts | None = None
        self.offsets: range | list[int]
        """The offset of each record, rising."""
        # Without a fifth column, as usual, there are no gaps, and nothing to decode.
        if (len(body) == 0 or body[0] != FOUR_COLUMNS) and self.part("offset_deltas") is not None:
            self.offsets = [
                base_offset + delta for delta in self._decoded(_decode_integers, self._split().offset_deltas)
            ]
        elif last_delta == rows - 1:
            self.offsets = range(base_offset, base_offset + rows)
        else:
            raise self._corrupt("its record count does not fit its last offset")

    @classmethod
    def of_columns(cls, columns: Columns, plain_bytes: int) -> OpenBatch:
        """For a batch of magic 2, whose records are decoded already, from `plain_bytes` bytes."""
        one = cls.__new__(cls)
        one.plain_bytes = plain_bytes
        one.rows, one.offsets, one._columns, one._kept = len(columns.offsets), columns.offsets, columns, {}
        one._layout, one._is_laid_out, one._is_checked = None, True, True
        return one

    def all(self) -> Columns:
        """Every column, in one pass."""
        if self._columns is not None:
            return self._columns
        if not self._is_checked:
            self._check_lengths()
        try:  # not by `_decoded`: this is on the path of every batch
            body = _decode_whole(self._body)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise self._unreadable(error) from error
        keys, values, headers = body.keys, body.values, body.headers
        for column in (keys, values, headers):
            if column is not None and len(column) != self.rows:
                raise self._unequal(len(column))
        return Columns(self.offsets, self._moments(body.timestamp_deltas), keys, values, headers)

    def timestamps(self) -> list[int]:
        """The timestamp of each record, in milliseconds since 1970."""
        return self._moments(self._split().timestamp_deltas) if self._columns is None else self._columns.timestamps

    def _moments(self, deltas: msgspec.Raw) -> list[int]:
        part = self._elements(deltas)
        if self._append_ms is not None:
            return [self._append_ms] * self.rows
        base_ms = self._base_ms
        if part is None:
            return [base_ms] * self.rows
        runs = _runs(part)
        if runs is None:
            numbers: list[int] = self._decoded(_decode_integers, deltas)
            return [base_ms + delta for delta in numbers]
        found: list[int] = []
        for delta, count in runs:
            found += [base_ms + delta] * count
        return found

    def column(self, name: str) -> list[Any] | None:
        """`keys`, `values` or `headers` (or `timestamps`) of each record; None where all are null."""
        if self._columns is not None:
            found: list[Any] | None = getattr(self._columns, name)
            return found
        if name == "timestamps":
            return self.timestamps()
        if not self._is_checked:
            self._check_lengths()
        if name == "values" and self._parts is None:
            values: list[Any] | None = self._decoded(_decode_values, self._body).values
            if values is not None and len(values) != self.rows:
                raise self._unequal(len(values))
            return values
        if self.part(name) is None:
            return None
        column: list[Any] = self._decoded(_DECODE[name], getattr(self._split(), name))
        return column

    def kept_column(self, name: str) -> list[Any] | None:
        """As `column`, cached."""
        if name not in self._kept:
            self._kept[name] = self.column(name)
        return self._kept[name]

    @property
    def timestamp_base(self) -> tuple[int, bool]:
        """The base of the timestamp deltas, and whether it is already the timestamp of all records."""
        return (self._base_ms, False) if self._append_ms is None else (self._append_ms, True)

    def part(self, name: str) -> memoryview | None:
        """The encoded elements of a column, without their count; None for nil.

        Raises CorruptBatch unless there is one for each record of the batch. Only if `is_encoded`.
        """
        return self._elements(getattr(self._split(), name))

    def _elements(self, column: msgspec.Raw) -> memoryview | None:
        part = memoryview(column)
        if part[0] == NIL_KIND:
            return None
        found = array_at(part, 0)
        if found is None:
            raise self._corrupt("a column is no array")
        if found[0] != self.rows:
            raise self._unequal(found[0])
        return part[found[1] :]

    @property
    def is_encoded(self) -> bool:
        """Whether there are encoded columns to read."""
        return self._columns is None

    @property
    def source(self) -> tuple[Buffer, int, int]:
        """A buffer, and where the body, decompressed, begins and ends there. Only if `is_encoded`."""
        return self._source

    @property
    def layout(self) -> Layout | None:
        """Positions of keys and values, if a grid describes all of them."""
        if not self._is_laid_out:
            self._is_laid_out = True
            self._layout = find_layout(*self._source, self.rows)
        return self._layout

    def grid(self, name: str) -> Grid | None:
        """`keys` or `values` of one length, in the body; None where lengths differ, or they are not encoded."""
        layout = self.layout
        if layout is not None:
            return layout.keys if name == "keys" else layout.values
        part = self.part(name) if self.is_encoded else None
        return None if part is None else find_grid(part, 0, len(part), self.rows)

    def has_only_nulls(self, name: str) -> bool:
        """Whether all `keys`, `values` or `headers` are null, found without decoding each."""
        layout = self.layout
        if layout is not None:
            return name == "headers" or self.grid(name) is None
        if self._columns is not None:
            return getattr(self._columns, name) is None
        return self.part(name) is None

    def _split(self) -> _Parts:
        if self._parts is None:
            self._parts = self._decoded(_decode_parts, self._body)
        return self._parts

    def _decoded(self, decode: Any, part: Any) -> Any:
        try:
            return decode(part)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise self._unreadable(error) from error

    def _check_lengths(self) -> None:
        """CorruptBatch unless each column has one element per record; allocates nothing for them."""
        for name in ("timestamp_deltas", "keys", "values"):
            self.part(name)
        headers = self.part("headers")
        if headers is not None and len(headers) > HEADERS_MAX * _HEADER_BYTES_MIN:
            encoded = bytes(headers)
            if sum(encoded.count(kind) for kind in _PAIR_KINDS) > HEADERS_MAX:
                raise self._corrupt(f"it has more than {HEADERS_MAX} headers")
        self._is_checked = True

    def _unreadable(self, error: Exception) -> CorruptBatch:
        return self._corrupt(f"its columns cannot be read ({error})")

    def _unequal(self, count: int) -> CorruptBatch:
        return self._corrupt(f"a column holds {count} of {self.rows} records")

    def _corrupt(self, reason: str) -> CorruptBatch:
        return CorruptBatch(reason, position=self._position)


def _runs(part: memoryview) -> list[tuple[int, int]] | None:
    """Rising small integers as (value, count); None unless that is how the column is encoded, one byte each."""
    data = bytes(part)
    first, last = data[0], data[-1]
    if not first <= last <= min(0x7F, first + _RUNS_MAX):
        return None
    runs = []
    rising = b""
    for value in range(first, last + 1):
        count = data.count(value)
        runs.append((value, count))
        rising += bytes((value,)) * count
    return runs if rising == data else None
