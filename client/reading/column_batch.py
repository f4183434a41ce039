"""`ColumnBatch`: records as columns, each decoded on first use. The result of `consume_batch()`.

It consists of pieces, each from one batch of the log. The checksum of a batch was verified when it was taken from the
buffer; its body is opened when a column is first read. The only objects made per record are its bytes, and for Arrow
usually not even those. Pure; pyarrow is imported by `to_arrow` only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, repeat
from operator import index
from typing import Any, overload

from raylog.base.ids import TopicPartition
from raylog.client.reading.decode import ColumnPiece, OpenPiece
from raylog.client.types import Header


class BytesColumn(Sequence[bytes | None]):
    """The keys or the values of a `ColumnBatch`: a sequence that creates each `bytes` on access.

    It equals a list, a tuple or a column with the same elements; a slice of it is a list. Iteration does not keep the
    elements in memory. Each access by index decodes a whole batch of the log: for random or repeated access, make a
    list of it.
    """

    __slots__ = ("_ends", "_name", "_pieces")
    __hash__ = None  # type: ignore[assignment]  # unhashable, as a list

    def __init__(self, pieces: Sequence[OpenPiece], name: str) -> None:
        self._pieces = pieces
        self._name = name
        self._ends = list(accumulate(len(piece.offsets) for piece in pieces))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[bytes | None]:
        # A batch of the log is decoded when the iteration reaches it, so its strings are in the processor's cache.
        return chain.from_iterable(piece.strings(self._name) for piece in self._pieces)

    @overload
    def __getitem__(self, at: int) -> bytes | None: ...
    @overload
    def __getitem__(self, at: slice) -> list[bytes | None]: ...
    def __getitem__(self, at: int | slice) -> bytes | list[bytes | None] | None:
        if isinstance(at, slice):
            wanted = range(len(self))[at]
            if not wanted:
                return []
            low, high = min(wanted[0], wanted[-1]), max(wanted[0], wanted[-1]) + 1
            found = list(BytesColumn(list(self._between(low, high)), self._name))
            return found[:: wanted.step]  # the range starts and ends at the first and last wanted elements
        place = range(len(self))[index(at)]  # raises IndexError as a list does
        return next(iter(BytesColumn(list(self._between(place, place + 1)), self._name)))

    def _between(self, low: int, high: int) -> Iterator[OpenPiece]:
        number = bisect_right(self._ends, low)
        while low < high:
            piece, end = self._pieces[number], self._ends[number]
            before = end - len(piece.offsets)
            yield piece.part(low - before, min(high, end) - before)
            low, number = end, number + 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BytesColumn | list | tuple):
            return NotImplemented
        return len(self) == len(other) and all(item == another for item, another in zip(self, other, strict=True))

    def __repr__(self) -> str:
        return f"<BytesColumn of {len(self)} {self._name}>"

    def to_pylist(self) -> list[bytes | None]:
        """All elements, as a list."""
        return list(self)


class ColumnBatch:
    """Records of one or more partitions, those of each in offset order. Empty after a timeout.

    All columns have the length of the batch and the same order. Keys and values are bytes or None. Reading a column
    raises CorruptMessage if a producer wrote a batch that cannot be decoded; the consumer's position is after it then.
    """

    __slots__ = ("_opened", "_pieces", "_rows")

    def __init__(self, pieces: list[ColumnPiece]) -> None:
        self._pieces = pieces
        self._rows = sum(piece.rows for piece in pieces)
        self._opened: list[OpenPiece] | None = None

    def __len__(self) -> int:
        """The number of records."""
        return self._rows

    def __repr__(self) -> str:
        return f"<ColumnBatch of {self._rows} records of {len(self.partitions)} partitions>"

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions that the records are from."""
        return list(dict.fromkeys(piece.partition for piece in self._pieces))

    @property
    def pieces(self) -> Sequence[ColumnPiece]:
        """The batches of the log that the records are from, each with the offsets that belong to this `ColumnBatch`."""
        return self._pieces

    def by_partition(self) -> dict[TopicPartition, ColumnBatch]:
        """The same records, split by partition."""
        return {
            partition: ColumnBatch([piece for piece in self._pieces if piece.partition == partition])
            for partition in self.partitions
        }

    # Columns

    @property
    def topics(self) -> list[str]:
        """The topic of each record."""
        return list(chain.from_iterable(repeat(piece.partition.topic, piece.rows) for piece in self._pieces))

    @property
    def partition_numbers(self) -> list[int]:
        """The partition number of each record."""
        return list(chain.from_iterable(repeat(piece.partition.partition, piece.rows) for piece in self._pieces))

    @property
    def offsets(self) -> list[int]:
        """The offset of each record."""
        return list(chain.from_iterable(piece.offsets for piece in self._open()))

    @property
    def timestamps_ms(self) -> list[int]:
        """The timestamp of each record, in milliseconds since 1970."""
        return self._column("timestamps")

    @property
    def keys(self) -> BytesColumn:
        """The key of each record."""
        return BytesColumn(self._open(), "keys")

    @property
    def values(self) -> BytesColumn:
        """The value of each record."""
        return BytesColumn(self._open(), "values")

    @property
    def headers(self) -> list[tuple[Header, ...]]:
        """The headers of each record."""
        return [tuple(row or ()) for row in self._column("headers")]

    def to_pylist(self) -> list[dict[str, Any]]:
        """A dict for each record: topic, partition, offset, timestamp_ms, key, value and headers."""
        names = ("topic", "partition", "offset", "timestamp_ms", "key", "value", "headers")
        columns = (
            self.topics,
            self.partition_numbers,
            self.offsets,
            self.timestamps_ms,
            self.keys,
            self.values,
            self.headers,
        )
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def to_arrow(self) -> Any:
        """A `pyarrow.Table` with the columns topic, partition, offset, timestamp, key, value and headers.

        The schema is always the same: topic is a dictionary of text, timestamp is in milliseconds and UTC, headers is a
        list of (key, value), null for a record without headers. Raises ImportError without pyarrow.
        """
        from raylog.client.reading.arrow import table

        return table(self._pieces, self._open())

    # Internals

    def _open(self) -> list[OpenPiece]:
        if self._opened is None:
            self._opened = [piece.open() for piece in self._pieces]
        return self._opened

    def _column(self, name: str) -> list[Any]:
        found: list[Any] = []
        for piece in self._open():
            column = piece.column(name)
            found += [None] * len(piece.offsets) if column is None else column
        return found
