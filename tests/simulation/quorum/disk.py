"""The disk of a voter of the simulated metadata quorum, in the bytes of the real format."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from raylog.actors.metadata.codec import Batch, decoded, split
from raylog.actors.metadata.snapshot import MetadataSnapshot
from raylog.core.metadata.records import MetadataRecord, VotersEntered
from raylog.core.quorum import Found, LogHistory, put_together


class Broken(AssertionError):
    """A check failed."""


@lru_cache(maxsize=4096)
def records_of(payload: bytes) -> tuple[MetadataRecord, ...]:
    """Return the records of a batch."""
    return tuple(decoded(payload))


@lru_cache(maxsize=1024)
def batches_of(payload: bytes) -> tuple[Batch, ...]:
    """Return the batches of a message."""
    return tuple(split(payload))


@lru_cache(maxsize=1024)
def snapshot_of(data: bytes) -> MetadataSnapshot:
    """Return a snapshot from its wire form."""
    return MetadataSnapshot.from_bytes(data)


def members_in(batch: Batch) -> dict[int, str]:
    """Return the configuration that a batch enters; empty if none."""
    entered = [record for record in records_of(batch[1]) if isinstance(record, VotersEntered)]
    return {int(number): identity for number, identity in entered[-1].voters.items()} if entered else {}


def last_members(batches: Iterable[Batch], snapshot: MetadataSnapshot | None = None) -> dict[int, str]:
    """Return the configuration in force after these batches; empty if none."""
    for batch in reversed(list(batches)):
        members = members_in(batch)
        if members:
            return members
    voters = {} if snapshot is None else snapshot.image().voters
    return {int(number): identity for number, identity in voters.items()}


@dataclass
class Disk:
    """A voter's disk; ``batches`` beyond ``synced`` may be lost in a crash."""

    identity: str
    batches: list[Batch] = field(default_factory=list)
    synced: int = 0
    promised: int = 0
    candidate: str = ""
    trusted: bool = False
    founder: bool = False
    """Chosen by the start that creates the cluster. A directory that replaces a lost one is no founder's any more."""
    start: int = 0
    snapshot: MetadataSnapshot | None = None
    holds_data: bool = False
    """Its broker has partitions of topics."""
    was_damaged: bool = False
    """The log or the snapshot was lost, and the rest of the folder is there."""

    def log(self) -> LogHistory:
        """The history in the log alone."""
        history = LogHistory(end=self.start, start=self.start)
        history.append([span for span, _ in self.batches])
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

    def found(self) -> Found:
        snapshot = self.snapshot
        return put_together(self.log(), None if snapshot is None else (snapshot.end, snapshot.epoch))

    def is_lost(self) -> bool:
        """Return whether this copy cannot be used, as in ``actors/metadata/voter_files.py``."""
        return bool(self.found().lost) or (self.trusted and self.was_damaged and not self.has_log())

    def has_log(self) -> bool:
        return bool(self.batches) or self.snapshot is not None

    def members(self) -> dict[int, str]:
        """Return the last configuration that this copy knows."""
        return last_members(self.batches, self.snapshot)
