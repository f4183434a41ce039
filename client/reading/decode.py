"""Turns fetched batches into `Record` objects, a whole batch at a time. Called by `partition.py`. Pure.

Records are made by `map` over the batch's columns, without a Python statement per record: this dominates the time of
poll(). Only when a deserializer refuses a record is the batch decoded one by one, to find which.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from operator import lt
from typing import Any, NamedTuple

from raylog.client.reading.expiry import Expiry
from raylog.client.types import Record
from raylog.core.errors import CorruptMessage, RaylogError, RecordDeserializationFailed
from raylog.core.ids import TopicPartition
from raylog.storage.batch.compression import Buffer
from raylog.storage.batch.grids import FOUR_COLUMNS
from raylog.storage.batch.header import BatchHeader, check_crc
from raylog.storage.batch.records import Columns, Grid, Layout, OpenBatch, open_batch
from raylog.storage.batch.structure import has_sound_heads
from raylog.storage.errors import CorruptBatch

Deserializer = Callable[[bytes], Any]


class FetchedBatch(NamedTuple):
    """One whole batch inside a fetch's answer, not opened yet."""

    buffer: memoryview | bytes
    place: int
    """Where it begins there; negative when the buffer begins with the bytes that its checksum covers (see
    `local_files.py`)."""
    header: BatchHeader
    is_near: bool = False
    """Whether it was read from a local file, and not sent by the leader."""
    is_aborted: bool = False
    """Whether its records were aborted, and this is a reader of committed ones."""
    is_skipped: bool = False
    """Whether none of its records is wanted: the buffer then has only the bytes that show it."""

    @property
    def is_hidden(self) -> bool:
        """Whether it has no records for the user: it is a marker, was aborted, or skipped."""
        return self.is_aborted or self.is_skipped or self.header.is_control


class Opened(NamedTuple):
    """The records of one batch from the wanted offset on; `failure` is the error for those behind them."""

    records: list[Record]
    failure: RaylogError | None


class OpenPiece:
    """Consecutive records of an open batch: its columns from `begin` up to `stop`. Access raises CorruptMessage."""

    __slots__ = ("_next_offset", "_opened", "_partition", "begin", "offsets", "stop")

    def __init__(
        self, partition: TopicPartition, opened: OpenBatch, begin: int, stop: int, next_offset: int | None
    ) -> None:
        """`next_offset`: behind the whole batch; None where its header cannot be relied on."""
        self._partition = partition
        self._next_offset = next_offset
        self._opened = opened
        self.begin = begin
        self.stop = stop
        self.offsets = opened.offsets[begin:stop]

    def column(self, name: str) -> list[Any] | None:
        """`timestamps`, `keys`, `values` or `headers`; None where all of the batch are null."""
        opened, begin, stop = self._opened, self.begin, self.stop
        try:
            # A whole batch is read once or twice, parts of one perhaps a thousand times.
            if stop - begin == opened.rows:
                return opened.column(name)
            found = opened.kept_column(name)
        except RaylogError as error:
            raise self.corrupt(error) from error
        return None if found is None else found[begin:stop]

    def strings(self, name: str) -> Sequence[bytes | None]:
        """`keys` or `values`."""
        column = self.column(name)
        return [None] * len(self.offsets) if column is None else column

    def part(self, begin: int, stop: int) -> OpenPiece:
        """The records from place `begin` of these up to `stop`."""
        return OpenPiece(self._partition, self._opened, self.begin + begin, self.begin + stop, self._next_offset)

    @property
    def layout(self) -> Layout | None:
        """Positions of keys and values of the whole batch, if they have one length each and there are no headers."""
        return self._opened.layout

    def grid(self, name: str) -> Grid | None:
        """`keys` or `values` of the whole batch, where all have one length."""
        try:
            return self._opened.grid(name)
        except RaylogError as error:
            raise self.corrupt(error) from error

    def has_only_nulls(self, name: str) -> bool:
        """Whether `keys`, `values` or `headers` of the whole batch are null; known without decoding each."""
        try:
            return self._opened.has_only_nulls(name)
        except RaylogError as error:
            raise self.corrupt(error) from error

    @property
    def source(self) -> tuple[Buffer, int, int]:
        """A buffer, and where the body of the whole batch, decompressed, begins and ends there."""
        return self._opened.source

    @property
    def has_sound_heads(self) -> bool:
        """Whether the columns of the whole batch begin as they should."""
        opened = self._opened
        if not opened.is_encoded:
            return True
        data, start, end = opened.source
        return data[start] != FOUR_COLUMNS or has_sound_heads(data, start, end, opened.rows)

    @property
    def plain_bytes(self) -> int:
        """Size of the body of the whole batch, decompressed."""
        return self._opened.plain_bytes

    @property
    def rows_of_batch(self) -> int:
        """The records of the whole batch."""
        return self._opened.rows

    @property
    def timestamp_base(self) -> tuple[int, bool]:
        """The base of the timestamp deltas, and whether it is already the timestamp of all records."""
        return self._opened.timestamp_base

    def corrupt(self, cause: Exception) -> CorruptMessage:
        """The error for a column that cannot be read."""
        return corrupt(self._partition, self._opened.offsets[0], cause, self._next_offset)


class BatchOpener:
    """Opens the batches of one partition."""

    __slots__ = (
        "_check_crcs",
        "_checked",
        "_expiry",
        "_key_deserializer",
        "_parted",
        "_partition",
        "_value_deserializer",
        "opened_bytes",
    )

    def __init__(
        self,
        partition: TopicPartition,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        *,
        check_crcs: bool = True,
        expiry: Expiry | None = None,
    ) -> None:
        """`None` for a deserializer: bytes pass as they are. `expiry`: what `open` leaves out; None = nothing."""
        self._partition = partition
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._check_crcs = check_crcs
        self._expiry = expiry
        self.opened_bytes = 0
        """Bytes of all bodies that were opened for records, decompressed."""
        self._checked: FetchedBatch | None = None
        self._parted: tuple[FetchedBatch, OpenBatch] | None = None

    def columns(self, batch: FetchedBatch, wanted: int) -> Columns:
        """The records at offset `wanted` and above, as columns. Raises CorruptMessage."""
        self._check(batch)
        try:
            opened = open_batch(batch.buffer, batch.place, batch.header)
            self.opened_bytes += opened.plain_bytes
            columns = opened.all()
            _check_offsets(columns.offsets, batch.header)
        except Exception as error:  # a hostile body may raise more than RaylogError; name the batch anyway
            raise self._poisoned(batch, error) from error
        first = _first_at_or_above(columns.offsets, wanted)
        return columns if first == 0 else _sliced(columns, first, len(columns.offsets))

    def piece(self, batch: FetchedBatch, first: int, end: int) -> OpenPiece:
        """The records from offset `first` up to `end`, of a verified batch. Raises CorruptMessage."""
        opened = self._parted[1] if self._parted is not None and self._parted[0] is batch else None
        if opened is None:
            try:
                opened = open_batch(batch.buffer, batch.place, batch.header)
                _check_offsets(opened.offsets, batch.header)
            except Exception as error:  # see `columns`
                raise self._poisoned(batch, error) from error
        offsets = opened.offsets
        # Most batches lie inside.
        begin = 0 if not offsets or offsets[0] >= first else _first_at_or_above(offsets, first)
        stop = opened.rows if not offsets or offsets[-1] < end else _first_at_or_above(offsets, end)
        # A batch that is taken a few records at a time is opened once.
        self._parted = (batch, opened) if stop < opened.rows else None
        return OpenPiece(self._partition, opened, begin, stop, self._behind(batch))

    def sound_piece(self, batch: FetchedBatch, first: int, end: int) -> OpenPiece:
        """As `piece`, of a body that opens as far as can be found without decoding a column. Raises CorruptMessage."""
        piece = self.piece(batch, first, end)
        try:
            is_sound = piece.has_sound_heads
        except IndexError:
            is_sound = False
        if not is_sound:
            raise self._poisoned(batch, CorruptBatch("its body has not the columns that it should have"))
        return piece

    def check(self, batch: FetchedBatch) -> None:
        """Verify a batch that is not opened now: damage may be the reason it is skipped. Raises CorruptMessage."""
        if batch is not self._checked:
            self._check(batch)
            self._checked = batch

    def _check(self, batch: FetchedBatch) -> None:
        if self._check_crcs:
            try:
                check_crc(batch.buffer, batch.place, batch.header)
            except RaylogError as error:
                raise corrupt(self._partition, batch.header.base_offset, error) from error

    def _poisoned(self, batch: FetchedBatch, error: Exception) -> CorruptMessage:
        """The error of a batch with a valid checksum, so that its header can be relied on."""
        return corrupt(self._partition, batch.header.base_offset, error, self._behind(batch))

    def _behind(self, batch: FetchedBatch) -> int | None:
        """The first offset behind a batch; None where it was not verified."""
        return batch.header.next_offset if self._check_crcs else None

    def open(self, batch: FetchedBatch, wanted: int) -> Opened:
        """The records at offset `wanted` and above. Raises CorruptMessage."""
        columns = self.columns(batch, wanted)
        if self._expiry is not None:
            columns = self._expiry.unexpired(columns)
        return self._made(columns)

    def pick(self, batch: FetchedBatch, ranges: Sequence[tuple[int, int]]) -> Opened:
        """The records whose offsets are in ranges [first, end), which rise; others become no objects.

        Raises CorruptMessage.
        """
        columns = self.columns(batch, ranges[0][0])
        if len(ranges) == 1:
            return self._made(_sliced(columns, 0, _first_at_or_above(columns.offsets, ranges[0][1])))
        return self._made(_picked(columns, ranges))

    def _made(self, columns: Columns) -> Opened:
        try:
            return Opened(self._records(columns), None)
        except Exception as error:  # any error of the user's deserializer: the record is to be named
            return self._up_to_the_refused(columns, error)

    def _records(self, columns: Columns) -> list[Record]:
        offsets, timestamps, keys, values, headers = columns
        topic, partition = self._partition
        return list(
            map(
                Record,
                repeat(topic),
                repeat(partition),
                offsets,
                timestamps,
                repeat(None) if keys is None else _converted(keys, self._key_deserializer),
                repeat(None) if values is None else _converted(values, self._value_deserializer),
                repeat(()) if headers is None else (tuple(row or ()) for row in headers),
            )
        )

    def _raw(self, columns: Columns) -> Record:
        """The first of these records, with its bytes (KIP-1036)."""
        bare = BatchOpener(self._partition)
        return bare._records(columns)[0]

    def _refused_part(self, record: Record) -> str:
        """Whether a record's key or its value is what a deserializer refuses."""
        try:
            if record.key is not None and self._key_deserializer is not None:
                self._key_deserializer(record.key)
        except Exception:  # any error of the user's deserializer, as before
            return "key"
        return "value"

    def _up_to_the_refused(self, columns: Columns, error: Exception) -> Opened:
        good: list[Record] = []
        for at, offset in enumerate(columns.offsets):
            try:
                good += self._records(_sliced(columns, at, at + 1))
            except Exception as refusal:  # see above; the first refused record is the one reported
                raw = self._raw(_sliced(columns, at, at + 1))
                origin = self._refused_part(raw)
                failure = RecordDeserializationFailed(
                    f"The {origin} of the record at offset {offset} of {self._partition} cannot be deserialized "
                    f"({type(refusal).__name__}: {refusal}); seek to {offset + 1} to go on without it. The error's "
                    "details have the record with its bytes.",
                    topic=self._partition.topic,
                    partition=self._partition.partition,
                    offset=offset,
                    origin=origin,
                    record=raw,
                )
                failure.__cause__ = refusal
                return Opened(good, failure)
        raise error  # refused only together with others: no record can be named


class ColumnPiece(NamedTuple):
    """Consecutive records of one batch of one partition: those at `first` offset and behind it, below `end`."""

    partition: TopicPartition
    batch: FetchedBatch
    opener: BatchOpener
    first: int
    end: int
    rows: int
    opened: OpenPiece | None = None
    """The open batch, where the whole of these records was looked at when they were taken."""

    def open(self) -> OpenPiece:
        """Open the batch. Raises CorruptMessage when its producer wrote a body that cannot be decoded."""
        return self.opened or self.opener.piece(self.batch, self.first, self.end)


def corrupt(partition: TopicPartition, offset: int, cause: Exception, next_offset: int | None = None) -> CorruptMessage:
    """The error for a batch that cannot be decoded; `next_offset` is the first behind it, where that is certain."""
    behind = "seek behind it" if next_offset is None else f"seek to {next_offset} to go on behind it"
    what = str(cause) if isinstance(cause, RaylogError) else f"{type(cause).__name__}: {cause}"
    place = {"offset": offset} if next_offset is None else {"offset": offset, "next_offset": next_offset}
    return CorruptMessage(
        f"The batch at offset {offset} of {partition} cannot be read ({what}). It is fetched again, at most once in "
        f"a second; if that does not help, {behind}.",
        topic=partition.topic,
        partition=partition.partition,
        **place,
    )


def _check_offsets(offsets: range | list[int], header: BatchHeader) -> None:
    """CorruptBatch unless the offsets rise within the header's range: others would move a position back."""
    if isinstance(offsets, list) and offsets:
        is_rising = all(map(lt, offsets, offsets[1:]))
        if not is_rising or offsets[0] < header.base_offset or offsets[-1] > header.last_offset:
            raise CorruptBatch("its offsets do not rise within its range")


def _first_at_or_above(offsets: range | list[int], wanted: int) -> int:
    """How many of the ascending offsets lie below the wanted one."""
    return bisect_left(offsets, wanted)


def _sliced(columns: Columns, first: int, end: int) -> Columns:
    offsets, timestamps, keys, values, headers = columns
    return Columns(
        offsets[first:end],
        timestamps[first:end],
        None if keys is None else keys[first:end],
        None if values is None else values[first:end],
        None if headers is None else headers[first:end],
    )


def _picked(columns: Columns, ranges: Sequence[tuple[int, int]]) -> Columns:
    """The rows whose offsets are in the ranges."""
    offsets, timestamps, keys, values, headers = columns
    rows: list[int] = []
    for first, end in ranges:
        begin = bisect_left(offsets, first)
        if end == first + 1:
            if begin < len(offsets) and offsets[begin] == first:
                rows.append(begin)
        else:
            rows += range(begin, bisect_left(offsets, end))
    return Columns(
        [offsets[row] for row in rows],
        [timestamps[row] for row in rows],
        None if keys is None else [keys[row] for row in rows],
        None if values is None else [values[row] for row in rows],
        None if headers is None else [headers[row] for row in rows],
    )


def _converted(column: Iterable[bytes | None], convert: Deserializer | None) -> Iterable[Any]:
    """Apply a deserializer; null stays null (a tombstone)."""
    return column if convert is None else _each(column, convert)


def _each(column: Iterable[bytes | None], convert: Deserializer) -> Iterator[Any]:
    for data in column:
        yield None if data is None else convert(data)
