"""Which leader epoch wrote which offsets: Kafka's leader epoch cache, as a pure value.

The partition log keeps one and persists it as `leader-epoch-checkpoint`; the simulator's log keeps one too. It answers
OffsetsForLeaderEpoch (KIP-101/279), by which a follower learns where its history parts from the leader's. No input or
output happens here; `to_text` and `from_text` give the file's form. Every end is exclusive.
"""

from __future__ import annotations

from bisect import bisect_right

UNDEFINED = (-1, -1)
_VERSION = 0


class LeaderEpochHistory:
    """A list of (epoch, start offset), both strictly rising; an epoch ends where the next one starts."""

    __slots__ = ("entries",)

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self.entries: list[tuple[int, int]] = list(entries or [])
        self.validate()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeaderEpochHistory) and self.entries == other.entries

    __hash__ = None  # type: ignore[assignment]  # a mutable value

    def __repr__(self) -> str:
        return f"LeaderEpochHistory({self.entries})"

    @property
    def latest(self) -> tuple[int, int] | None:
        """The newest (epoch, start offset), or None where no leader has ever been."""
        return self.entries[-1] if self.entries else None

    def assign(self, epoch: int, start: int) -> bool:
        """Note that `epoch` writes from offset `start`; True when the history changed.

        Entries that would not lie strictly below the new one (an epoch as high, or a start at or behind `start`) are
        replaced, as in Kafka: they belong to a leader that wrote nothing which survived.
        """
        if epoch < 0 or start < 0:
            raise ValueError(f"Epoch {epoch} and start offset {start} must not be negative.")
        latest = self.latest
        if latest is not None and latest[0] == epoch and latest[1] <= start:
            return False
        while self.entries and (self.entries[-1][0] >= epoch or self.entries[-1][1] >= start):
            self.entries.pop()
        self.entries.append((epoch, start))
        return True

    def end_offset_for(self, epoch: int, log_end: int) -> tuple[int, int]:
        """The largest known epoch not above `epoch`, and its end offset.

        (-1, -1) when `epoch` is newer than all we know, or we know none. An epoch older than all we know ends where
        our first one starts.
        """
        if not self.entries or epoch < 0 or epoch > self.entries[-1][0]:
            return UNDEFINED
        if epoch == self.entries[-1][0]:
            return epoch, log_end
        above = bisect_right(self.entries, epoch, key=lambda entry: entry[0])
        floor = self.entries[above - 1][0] if above > 0 else epoch
        return floor, self.entries[above][1]

    def epoch_for(self, offset: int) -> int | None:
        """The epoch that wrote the record at `offset`; None below the first entry."""
        above = bisect_right(self.entries, offset, key=lambda entry: entry[1])
        return self.entries[above - 1][0] if above > 0 else None

    def truncate_from_end(self, offset: int) -> bool:
        """Forget epochs that start at or behind `offset`; True when something was forgotten."""
        before = len(self.entries)
        while self.entries and self.entries[-1][1] >= offset:
            self.entries.pop()
        return len(self.entries) != before

    def truncate_from_start(self, offset: int) -> bool:
        """Forget epochs that end at or before `offset`; the one that holds it then starts there."""
        above = bisect_right(self.entries, offset, key=lambda entry: entry[1])
        if above == 0 or (above == 1 and self.entries[0][1] == offset):
            return False
        self.entries[:above] = [(self.entries[above - 1][0], offset)]
        return True

    def validate(self) -> None:
        """Raise ValueError unless epochs and start offsets rise strictly and none is negative."""
        previous = (-1, -1)
        for entry in self.entries:
            if entry[0] <= previous[0] or entry[1] <= previous[1]:
                raise ValueError(f"Leader epoch {entry} does not follow {previous}; both numbers must rise.")
            previous = entry

    def to_text(self) -> str:
        """The checkpoint file: version, count, then one `epoch start` line each, as Kafka writes it."""
        lines = [str(_VERSION), str(len(self.entries)), *(f"{epoch} {start}" for epoch, start in self.entries)]
        return "\n".join(lines) + "\n"

    @classmethod
    def from_text(cls, text: str) -> LeaderEpochHistory:
        """Read `to_text`; ValueError when the text is cut off or not ours."""
        lines = text.splitlines()
        if len(lines) < 2 or lines[0] != str(_VERSION) or len(lines) != 2 + int(lines[1]):
            raise ValueError("The leader epoch checkpoint is cut off or of an unknown version.")
        entries = []
        for line in lines[2:]:
            epoch, _, start = line.partition(" ")
            entries.append((int(epoch), int(start)))
        return cls(entries)
