"""What a voter of the simulated metadata quorum has on disk."""

from __future__ import annotations

from dataclasses import dataclass, field

from raylog.core.quorum import Found, LogHistory, Span, put_together

Members = tuple[tuple[int, str], ...]
Batch = tuple[Span, str, Members | None]
"""One batch: its span, what it says, and the configuration that counts from then on, if it has one."""
Snapshot = tuple[int, int, tuple[Batch, ...]]
"""Its end, the epoch of its last record, and what it stands for."""


class Broken(AssertionError):
    """A check failed."""


def last_members(batches: tuple[Batch, ...] | list[Batch]) -> dict[int, str]:
    """Return the configuration in force behind these batches; empty where there is none."""
    return dict(next((members for _, _, members in reversed(batches) if members), ()))


@dataclass
class Disk:
    """What a voter has on disk; ``batches`` beyond ``synced`` may be lost in a crash, and so may ``unsaved``."""

    identity: str
    batches: list[Batch] = field(default_factory=list)
    synced: int = 0
    promised: int = 0
    candidate: str = ""
    trusted: bool = False
    founder: bool = False
    """Chosen by the start that creates the cluster. A directory that was lost is no founder's any more."""
    start: int = 0
    snapshot: Snapshot | None = None
    unsaved: Snapshot | None = None
    """A snapshot that was not brought to disk (a planted bug)."""

    def log(self) -> LogHistory:
        """What the log alone says."""
        history = LogHistory(end=self.start, start=self.start)
        history.append([span for span, _, _ in self.batches])
        return history

    def end(self) -> int:
        return self.batches[-1][0].end if self.batches else self.start

    def durable_end(self) -> int:
        return self.batches[self.synced - 1][0].end if self.synced else self.start

    def truncate(self, to: int) -> None:
        self.batches = [batch for batch in self.batches if batch[0].end <= to]
        self.synced = len(self.batches)

    def start_at(self, at: int) -> None:
        self.batches = [batch for batch in self.batches if batch[0].start >= at]
        self.start, self.synced = at, len(self.batches)

    def drop(self, to: int) -> None:
        kept = [batch for batch in self.batches if batch[0].start >= to]
        self.synced = max(0, self.synced - (len(self.batches) - len(kept)))
        self.batches, self.start = kept, to

    def sync(self, *, is_lying: bool) -> None:
        """Make everything durable; ``is_lying``: the log is not, though it seems to be."""
        if not is_lying:
            self.synced = len(self.batches)

    def save(self) -> None:
        """Have the snapshot that was not brought to disk yet."""
        if self.unsaved is not None:
            self.snapshot, self.unsaved = self.unsaved, None

    def found(self) -> Found:
        snapshot = self.unsaved or self.snapshot
        return put_together(self.log(), None if snapshot is None else snapshot[:2])

    def content(self) -> tuple[Batch, ...]:
        """All batches, those in the snapshot in front."""
        snapshot = self.unsaved or self.snapshot
        before = () if snapshot is None else snapshot[2]
        return (*before, *self.batches)
