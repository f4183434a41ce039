"""The model of a log: its batches, its durability promises, and the possible effects of a call in progress.

`run` reports calls and results to it; `checks` compares it with a log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from raylog.storage.batch.header import iter_headers, parse_header
from raylog.storage.batch.records import Columns, Header, decode_batch


class Records(NamedTuple):
    """The columns of a batch; None = all null."""

    timestamps: list[int]
    keys: list[bytes | None] | None = None
    values: list[bytes | None] | None = None
    headers: list[list[Header] | None] | None = None


class Stored(NamedTuple):
    """One batch as stored in the file."""

    base: int
    end: int
    data: bytes
    epoch: int
    records: Records
    producer: int = -1
    first_sequence: int = -1
    producer_epoch: int = -1
    offsets: tuple[int, ...] | None = None
    """Of its records, in a batch that was cleaned; None = there are no gaps."""

    @classmethod
    def cleaned(cls, data: bytes) -> Stored:
        """A batch as a cleaner has left it."""
        header = parse_header(data)
        found = Columns([], [], None, None, None) if header.is_control else decode_batch(data, 0, header)
        return cls(
            header.base_offset,
            header.next_offset,
            data,
            header.partition_leader_epoch,
            Records(found.timestamps, found.keys, found.values, found.headers),
            header.producer_id,
            header.base_sequence,
            header.producer_epoch,
            tuple(found.offsets),
        )

    @property
    def newest(self) -> int:
        """The time that its header states."""
        return parse_header(self.data).max_timestamp

    def rows(self) -> list[tuple[int, int, bytes | None, bytes | None, object]]:
        """Offset, time, key, value and headers of each record."""
        offsets = range(self.base, self.end) if self.offsets is None else self.offsets
        times, keys, values, headers = self.records
        nothing = [None] * len(times)
        return list(zip(offsets, times, keys or nothing, values or nothing, headers or nothing, strict=True))

    @property
    def last_sequence(self) -> int:
        """The sequence of its last record."""
        return self.first_sequence + self.end - self.base - 1

    @property
    def timestamps(self) -> list[int]:
        """The times of its records."""
        return self.records.timestamps


@dataclass(slots=True)
class Model:
    """The state of one partition; offsets are exclusive ends."""

    batches: list[Stored] = field(default_factory=list)
    """Every batch that was appended and not truncated, including those retention has dropped since."""
    sent: list[Stored] = field(default_factory=list)
    """The same, as they were appended: what producers are known by."""
    epochs: list[tuple[int, int]] = field(default_factory=list)
    start: int = 0
    durable_start: int = 0
    """After a crash the log start lies between the two."""
    floor: int = 0
    """End of what was reported as synced: no crash loses anything below."""
    end: int = 0
    committed: int = 0
    """The highest watermark that the file may hold."""
    kept: int = 0
    """A watermark that the file holds even after a crash."""
    ghosts: list[Stored] = field(default_factory=list)
    """Batches of failed appends since the last sync: their bytes were cut off, and a crash may bring them back."""
    known_from: dict[int, int] = field(default_factory=dict)
    """Batches of a producer below this offset may be forgotten, because it was idle for long."""

    cleaned_to: int = 0
    """Below this offset batches were cleaned: only the last one of each producer is certain to be there."""
    superseded_to: int = 0
    """Where the last cleaning was to end, of which a crash may have left the first part alone."""
    forgotten_to: int = 0
    """The log was cut below what was cleaned: of a producer whose last batch lies below this, no batch may be left."""

    # Possible effects of a call that did not return.
    cleanings: list[list[Stored]] = field(default_factory=list)
    """What may stand in place of the batches in its range of offsets."""
    tail: list[Stored] = field(default_factory=list)
    epochs_begun: list[tuple[int, int]] = field(default_factory=list)
    start_wanted: int | None = None
    cutting: bool = False
    """Epochs that begin at or after `floor` may be lost."""
    restart: int | None = None
    """A truncation to nothing was begun, with a restart at this offset."""

    def settled(self) -> None:
        """The call returned: no call is in progress."""
        self.tail, self.epochs_begun, self.start_wanted, self.restart, self.cutting = [], [], None, None, False

    @property
    def epoch(self) -> int:
        """The latest leader epoch, at least that of the last batch, which may lie before the start of the log."""
        return max(self.epochs[-1][0] if self.epochs else 0, self.batches[-1].epoch if self.batches else 0)

    def appended(self, stored: Stored) -> None:
        """A batch was appended."""
        self.assigned(stored.epoch, stored.base)
        self.batches.append(stored)
        self.sent.append(stored)
        self.end = stored.end

    def assigned(self, epoch: int, start: int) -> None:
        """A leader epoch begins at an offset."""
        if self.epochs and self.epochs[-1][0] == epoch:
            return
        self.epochs = [entry for entry in self.epochs if entry[1] < start]
        self.epochs.append((epoch, start))

    def cut_end(self, offset: int) -> int:
        """The log end after a truncation of every batch that reaches to or beyond `offset`."""
        return next((batch.base for batch in self.batches if batch.end > offset), self.end)

    def take_ghosts(self, data: bytes) -> None:
        """Ghosts among the bytes that were found replace what was appended after them."""
        present = {data[place : place + header.size] for place, header in iter_headers(data)}
        back = [batch for batch in self.ghosts if batch.data in present]
        if back:
            batches = [batch for batch in self.batches if batch.base < self.floor or batch.data in present]
            self.batches = sorted(
                {batch.data: batch for batch in (*batches, *back)}.values(), key=lambda found: found.base
            )
            kept = {batch.data for batch in self.batches}
            self.sent = [batch for batch in self.sent if batch.end <= self.cleaned_to or batch.data in kept]
            self.sent = sorted(
                {batch.data: batch for batch in (*self.sent, *back)}.values(), key=lambda found: found.base
            )
        self.ghosts = []

    def take_cleaned(self, data: bytes | None = None) -> None:
        """What was cleaned stands in place of the old batches, if it is among the bytes that were found, and they not.

        Below the start, where batches may be missing, the cleaned ones may differ only there.
        """
        present = None if data is None else {data[at : at + header.size] for at, header in iter_headers(data)}
        for batches in self.cleanings:
            base, end = batches[0].base, batches[-1].end
            visible = [batch for batch in batches if batch.end > self.start] or batches
            replaced = {batch.data for batch in self.batches if base <= batch.base < end}
            replaced -= {batch.data for batch in batches}
            if present is None or (all(batch.data in present for batch in visible) and not replaced & present):
                others = [batch for batch in self.batches if batch.end <= base or batch.base >= end]
                self.batches = sorted([*others, *batches], key=lambda found: found.base)
                self.cleaned_to = max(self.cleaned_to, end)
                self.superseded_to = max(self.superseded_to, self.cleanings[-1][-1].end)
        self.cleanings = []

    def cut(self, offset: int) -> None:
        """The log was truncated at `offset`, durably."""
        end = self.cut_end(offset)
        self.epochs = [entry for entry in self.epochs if entry[1] < min(end, offset)]
        self.ghosts = []
        self.ends_at(end)

    def ends_at(self, end: int) -> None:
        """The log ends here, entirely on disk."""
        self.batches = [batch for batch in self.batches if batch.end <= end]
        self.sent = [batch for batch in self.sent if batch.end <= end]
        if end < self.superseded_to:  # of what superseded earlier batches of its producer, some is cut
            self.superseded_to, self.forgotten_to = end, min(end, self.cleaned_to)
        self.cleaned_to = min(self.cleaned_to, end)
        self.end = self.floor = end
        self.start, self.durable_start = min(self.start, end), min(self.durable_start, end)
        self.committed, self.kept = min(self.committed, end), min(self.kept, end)

    def restarted(self, offset: int) -> None:
        """Everything was dropped, and the log restarts at `offset`."""
        self.batches, self.sent, self.epochs, self.ghosts = [], [], [], []
        self.start = self.durable_start = self.end = self.floor = offset
        self.cleaned_to = self.superseded_to = self.forgotten_to = 0

    def starts_at(self, offset: int, *, durable: bool) -> None:
        """The log start moved up."""
        self.start = offset
        if durable:
            self.durable_start = offset
        held = [entry for entry in self.epochs if entry[1] <= offset]
        if held:
            self.epochs[: len(held)] = [(held[-1][0], offset)]

    def readable(self, end: int) -> list[Stored]:
        """The batches with records between the log start and `end`."""
        return [batch for batch in self.batches if batch.end > self.start and batch.end <= end]

    def last_of(self, producer: int, behind: list[Stored] | None = None) -> Stored | None:
        """The last batch of a producer, in the log or in a list of batches to append."""
        batches = [*self.sent, *(behind or ())]
        return next((batch for batch in reversed(batches) if batch.producer == producer), None)

    def may_have_forgotten(self, last: Stored) -> bool:
        """Whether a producer, by its last batch, may be known by earlier ones only, because that one was cleaned.

        So after the log was cut below what was cleaned, or after the producer was idle for long.
        """
        idle_to = self.known_from.get(last.producer, 0) if self.cleaned_to else 0
        return last.base < max(self.forgotten_to, idle_to)

    def turn_of(self, producer: int) -> list[Stored]:
        """The batches of a producer in its latest epoch."""
        last = self.last_of(producer)
        found = [batch for batch in self.sent if batch.producer == producer]
        return [batch for batch in found if last is not None and batch.producer_epoch == last.producer_epoch]
