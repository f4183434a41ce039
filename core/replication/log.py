"""The replication machine's view of its log: log start offset, log end offset, durable end, high watermark.

Updated only by events; shared by the leader and follower halves of one machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from raylog.base.epochs import EpochHistory
from raylog.base.ids import LeaderEpoch, Offset
from raylog.base.invariants import require
from raylog.core.replication.disk import DiskHealth

_ZERO = Offset(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSettings:
    """Replication settings from the topic's and the cluster's configuration; times in milliseconds."""

    min_insync_replicas: int
    majority: bool = False
    """Whether the minimum is the majority of the replicas that the partition's state names; ``min_insync_replicas`` is
    then an initial value."""
    replica_lag_time_max_ms: int = 30_000
    """A follower that has not caught up for this long leaves the ISR."""
    sync_time_max_ms: int = 10_000
    """A leader whose oldest sync is under way for this long lets another in-sync replica lead."""
    fetch_retry_ms: int = 20
    """Pause after a refused or failed fetch."""
    fetch_timeout_ms: int = 5_000
    """Fetch timeout: the fetch is sent again; must exceed the leader's long poll."""
    isr_retry_ms: int = 200
    """Pause before an ISR proposal of unknown outcome is sent again."""
    sleep_after_ms: int = -1
    """The partition sleeps when nothing was written to it or read from it for this long; -1 = never."""
    doze_after_ms: int = -1
    """The process may be stopped when nothing was written or read for this long; -1 = never."""
    catch_up_bytes_per_s: int = 0
    """Fetch rate of this replica while a reassignment adds it and it is not in sync; 0 = unlimited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSummary:
    """Result of log recovery; ends are exclusive."""

    log_start_offset: Offset
    log_end_offset: Offset
    durable_end_offset: Offset
    epochs: tuple[tuple[LeaderEpoch, Offset], ...]
    high_watermark: Offset = _ZERO
    """Everything below was committed according to the checkpoint of an earlier incarnation; 0 = none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCut:
    """The outcome of ``TruncateLog`` or ``ResetLog``, with the log as it is now.

    A cut removes whole batches, so the log may end before the requested offset. Not ``done``: the disk is full, and
    nothing was changed. A cut that fails halfway has no event: the replica ends, and recovery finds out.
    """

    cause: str
    now_ms: int
    log: LogSummary
    done: bool


class ReplicaLog:
    """Offsets and epochs of one log. Invariant: start <= high watermark <= durable end <= end."""

    __slots__ = ("disk", "durable_end", "end", "epochs", "held_from", "high_watermark", "in_transaction", "start")

    def __init__(self, summary: LogSummary) -> None:
        """Start from what recovery found, with the high watermark that was kept, as far as the log still reaches."""
        self.start = summary.log_start_offset
        self.end = summary.log_end_offset
        self.durable_end = summary.durable_end_offset
        self.epochs = EpochHistory(summary.epochs)
        self.disk = DiskHealth()
        self.held_from = -1
        """Lowest offset that the last leader's roles still had to copy elsewhere, as it stated; -1 = none.

        It stays when another replica leads, or this one: its roles may not know the offset yet."""
        self.in_transaction = False
        """Whether a transaction was open at the last tick."""
        self.high_watermark = max(self.start, min(summary.high_watermark, self.durable_end))
        self.validate()

    def appended(self, end: Offset, *, durable: bool = False) -> None:
        """Note that records up to ``end`` are in the log; ``durable`` if all of it counts as durable."""
        if end < self.end:
            require(False, f"an append moved the log end from {self.end} back to {end}")
        self.end = end
        if durable:
            self.durable_end = end

    def synced(self, end: Offset) -> None:
        """Note that everything below ``end`` is durable."""
        if end > self.end:
            require(False, f"synced up to {end}, beyond the log end {self.end}")
        self.durable_end = max(self.durable_end, end)

    def raise_watermark(self, to: Offset) -> bool:
        """Move the high watermark up to ``to``; it never falls. True when it moved."""
        if to <= self.high_watermark:
            return False
        if to > self.durable_end:
            require(False, f"high watermark {to} is beyond the durable end {self.durable_end}")
        self.high_watermark = to
        return True

    def was_cut(self, found: LogSummary) -> None:
        """Take over the log as it is after a cut; the high watermark falls to its durable end, if it was above."""
        self.start = found.log_start_offset
        self.end = found.log_end_offset
        self.durable_end = found.durable_end_offset
        self.epochs = EpochHistory(found.epochs)
        self.high_watermark = max(self.start, min(self.high_watermark, self.durable_end))
        self.disk.log_is(self.start, self.end)

    def begin_epoch(self, epoch: LeaderEpoch, start: Offset) -> None:
        """Note that a leader epoch writes from ``start``; the newest epoch keeps its start."""
        if epoch < self.epochs.latest:
            require(False, f"leader epoch {epoch} cannot follow epoch {self.epochs.latest}")
        self.epochs.assign(epoch, start)

    def advance_start(self, start: Offset) -> None:
        """Drop everything below ``start``. A restarted replica learns here that it was committed."""
        require(start <= self.durable_end, f"log start {start} is beyond the durable end {self.durable_end}")
        self.start = max(self.start, start)
        self.high_watermark = max(self.high_watermark, self.start)
        self.epochs.truncate_start(self.start)
        self.disk.log_is(self.start, self.end)

    def validate(self) -> None:
        """Raise InvariantBroken unless the numbers agree with each other."""
        # Evaluated after every step in simulation: the message is built only on failure.
        if not self.start <= self.high_watermark <= self.durable_end <= self.end:
            require(
                False,
                f"start {self.start}, high watermark {self.high_watermark}, durable end {self.durable_end} "
                f"and end {self.end} are out of order",
            )
        self.epochs.validate(self.end)
