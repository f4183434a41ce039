"""Turns fetched batches into `Record` objects or columns, a batch at a time. Used by `partition.py`, ranges. Pure.

Records are made by `map` over the batch's columns, without a Python statement per record, since this takes most of the
time of poll(). Only if a deserializer raises are records made one by one, to find the one that it refuses.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from operator import lt
from typing import Any, NamedTuple

from raylog.base.errors import CorruptMessage, RaylogError, RecordDeserializationFailed
from raylog.base.ids import TopicPartition
from raylog.client.reading.expiry import Expiry
from raylog.client.types import Record
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
    """Where it begins in the buffer; negative if the buffer begins with the bytes that its checksum covers (see
    `local_files.py`)."""
    header: BatchHeader
    is_near: bool = False
    """Whether it was read from a local file, and not sent by the leader."""
    is_aborted: bool = False
    """Whether its records were aborted; only with isolation_level=read_committed."""
    is_skipped: bool = False
    """Whether none of its records is wanted; then the buffer has only as many bytes as show this."""

    @property
    def is_hidden(self) -> bool:
        """Whether it has no records for the user: it is a control batch, was aborted, or is skipped."""
        return self.is_aborted or self.is_skipped or self.header.is_control


class Opened(NamedTuple):
    """Records of one batch; `failure`: the error for the record that would follow them, None = all were made."""

    records: list[Record]
    failure: RaylogError | None


class OpenPiece:
    """Consecutive records of an open batch: its columns from `begin` up to `stop`. Access raises CorruptMessage."""

    __slots__ = ("_next_offset", "_opened", "_partition", "begin", "offsets", "stop")

    def __init__(
        self, partition: TopicPartition, opened: OpenBatch, begin: int, stop: int, next_offset: int | None
    ) -> None:
        """`next_offset`: after the whole batch, for errors; None = its header was not checked."""
        self._partition = partition
        self._next_offset = next_offset
        self._opened = opened
        self.begin = begin
        self.stop = stop
        self.offsets = opened.offsets[begin:stop]

    def column(self, name: str) -> list[Any] | None:
        """`timestamps`, `keys`, `values` or `headers`; None = all of the batch are null."""
        opened, begin, stop = self._opened, self.begin, self.stop
        try:
            # The column is cached only for parts: a batch may be taken in a thousand parts, but a whole one only once
            # or twice.
            if stop - begin == opened.rows:
                return opened.column(name)
            found = opened.kept_column(name)
        except RaylogError as error:
            raise self.corrupt(error) from error
        return None if found is None else found[begin:stop]

    def strings(self, name: str) -> Sequence[bytes | None]:
        """`keys` or `values`, as a list even if all are null."""
        column = self.column(name)
        return [None] * len(self.offsets) if column is None else column

    def part(self, begin: int, stop: int) -> OpenPiece:
        """The records from index `begin` up to `stop` of this piece."""
        return OpenPiece(self._partition, self._opened, self.begin + begin, self.begin + stop, self._next_offset)

    @property
    def layout(self) -> Layout | None:
        """The layout of the whole batch, if its keys and its values have one length each, and there are no headers."""
        return self._opened.layout

    def grid(self, name: str) -> Grid | None:
        """`keys` or `values` of the whole batch as a grid; None = they do not have one length."""
        try:
            return self._opened.grid(name)
        except RaylogError as error:
            raise self.corrupt(error) from error

    def has_only_nulls(self, name: str) -> bool:
        """Whether all `keys`, `values` or `headers` of the whole batch are null; found without decoding them."""
        try:
            return self._opened.has_only_nulls(name)
        except RaylogError as error:
            raise self.corrupt(error) from error

    @property
    def source(self) -> tuple[Buffer, int, int]:
        """A buffer, and where the decompressed body of the whole batch begins and ends in it."""
        return self._opened.source

    @property
    def has_sound_heads(self) -> bool:
        """Whether the columns of the whole batch have valid beginnings; checked without decoding them."""
        opened = self._opened
        if not opened.is_encoded:
            return True
        data, start, end = opened.source
        return data[start] != FOUR_COLUMNS or has_sound_heads(data, start, end, opened.rows)

    @property
    def plain_bytes(self) -> int:
        """The size in bytes of the decompressed body of the whole batch."""
        return self._opened.plain_bytes

    @property
    def rows_of_batch(self) -> int:
        """How many records the whole batch has."""
        return self._opened.rows

    @property
    def timestamp_base(self) -> tuple[int, bool]:
        """The base of the timestamp deltas (ms), and whether it is the timestamp of all records."""
        return self._opened.timestamp_base

    def corrupt(self, cause: Exception) -> CorruptMessage:
        """The error for a column that cannot be read."""
        return corrupt(self._partition, self._opened.offsets[0], cause, self._next_offset)


class BatchOpener:
    """Opens the batches of one partition: as records (`open`, `pick`) or as columns (`piece`)."""

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
        """A deserializer of None leaves bytes as is. `expiry`: leaves out expired records in `open`; None = none."""
        self._partition = partition
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._check_crcs = check_crcs
        self._expiry = expiry
        self.opened_bytes = 0
        """Bytes ever decompressed to make records."""
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
        except Exception as error:  # a malformed body may raise anything: the error has to name the batch
            raise self._poisoned(batch, error) from error
        first = _first_at_or_above(columns.offsets, wanted)
        return columns if first == 0 else _sliced(columns, first, len(columns.offsets))

    def piece(self, batch: FetchedBatch, first: int, end: int) -> OpenPiece:
        """The records from offset `first` up to `end` of a checked batch. Raises CorruptMessage."""
        opened = self._parted[1] if self._parted is not None and self._parted[0] is batch else None
        if opened is None:
            try:
                opened = open_batch(batch.buffer, batch.place, batch.header)
                _check_offsets(opened.offsets, batch.header)
            except Exception as error:  # see `columns`
                raise self._poisoned(batch, error) from error
        offsets = opened.offsets
        # No search for batches that lie wholly inside, as most do.
        begin = 0 if not offsets or offsets[0] >= first else _first_at_or_above(offsets, first)
        stop = opened.rows if not offsets or offsets[-1] < end else _first_at_or_above(offsets, end)
        # Keep the open batch if records are left in it: a batch that is taken in parts is opened only once.
        self._parted = (batch, opened) if stop < opened.rows else None
        return OpenPiece(self._partition, opened, begin, stop, self._behind(batch))

    def sound_piece(self, batch: FetchedBatch, first: int, end: int) -> OpenPiece:
        """As `piece`, but also checks the body as far as that is possible without decoding. Raises CorruptMessage."""
        piece = self.piece(batch, first, end)
        try:
            is_sound = piece.has_sound_heads
        except IndexError:
            is_sound = False
        if not is_sound:
            raise self._poisoned(batch, CorruptBatch("its body has not the columns that it should have"))
        return piece

    def check(self, batch: FetchedBatch) -> None:
        """Check a batch that is not opened: it may be skipped only because of damage. Raises CorruptMessage."""
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
        """The error for a batch that has a valid checksum, if that is checked, and still cannot be read."""
        return corrupt(self._partition, batch.header.base_offset, error, self._behind(batch))

    def _behind(self, batch: FetchedBatch) -> int | None:
        """The offset after a batch; None = its header was not checked."""
        return batch.header.next_offset if self._check_crcs else None

    def open(self, batch: FetchedBatch, wanted: int) -> Opened:
        """The records at offset `wanted` and above, except expired ones. Raises CorruptMessage."""
        columns = self.columns(batch, wanted)
        if self._expiry is not None:
            columns = self._expiry.unexpired(columns)
        return self._made(columns)

    def pick(self, batch: FetchedBatch, ranges: Sequence[tuple[int, int]]) -> Opened:
        """The records whose offsets are in the ascending `ranges` [first, end). Raises CorruptMessage."""
        columns = self.columns(batch, ranges[0][0])
        if len(ranges) == 1:
            return self._made(_sliced(columns, 0, _first_at_or_above(columns.offsets, ranges[0][1])))
        return self._made(_picked(columns, ranges))

    def _made(self, columns: Columns) -> Opened:
        try:
            return Opened(self._records(columns), None)
        except Exception as error:  # the user's deserializer may raise anything: find the record
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
        """The first of these records, not deserialized (KIP-1036)."""
        bare = BatchOpener(self._partition)
        return bare._records(columns)[0]

    def _refused_part(self, record: Record) -> str:
        """ "key" or "value": the part of a record for which a deserializer raises."""
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
            except Exception as refusal:  # the first such record is reported
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
        raise error  # no single record fails: only all together did


class ColumnPiece(NamedTuple):
    """Consecutive records of one batch of one partition: from offset `first` up to, not including, `end`."""

    partition: TopicPartition
    batch: FetchedBatch
    opener: BatchOpener
    first: int
    end: int
    rows: int
    opened: OpenPiece | None = None
    """The open piece, if the batch had to be opened when the records were taken."""

    def open(self) -> OpenPiece:
        """Open the batch. Raises CorruptMessage if its producer wrote a body that cannot be decoded."""
        return self.opened or self.opener.piece(self.batch, self.first, self.end)


def corrupt(partition: TopicPartition, offset: int, cause: Exception, next_offset: int | None = None) -> CorruptMessage:
    """The error for a batch that cannot be read; `next_offset`: the offset after it, None = not certain."""
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
    """Raise CorruptBatch unless offsets rise within the header's range: others could move a position back."""
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
