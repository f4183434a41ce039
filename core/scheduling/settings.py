"""Sizes and times of the scheduler. Those of a cluster are the defaults; the simulator sets smaller ones."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """Sizes and times of the scheduler."""

    round_keys: int = 4_096
    """Most records that one round resolves."""
    batch_keys: int = 2_048
    batch_bytes: int = 512 * 1024
    """Most records, and most bytes of records, in one batch. A single record may be larger."""
    seal_keys: int = 100_000
    """A run is written when so many keys are fresh; it has at most so many."""
    seal_margin_ms: int = 5_000
    """Keys that are due within this time are not sealed: they leave soon."""
    checkpoint_bytes: int = 16 * 1024 * 1024
    """A checkpoint is written after so many bytes of log: this bounds what a new leader reads."""
    checkpoint_rows: int = 20_000
    """A checkpoint is written after so many rows, too."""
    ack_within_ms: int = 1_000
    """A delivered batch is acknowledged in the log within this time, even if no round follows."""
    stretch_bytes: int = 8 * 1024 * 1024
    """Space in the log is counted and freed in stretches of about so many bytes."""
    space_min_bytes: int = 64 * 1024 * 1024
    """In a shorter log no record is moved."""
    look_ms: int = 1_000
    """Pause between two checks whether the log is too long."""
    area_records: int = 50_000
    """Most needed records in an area that is cleared at once, or one stretch has more: their offsets are in memory."""
    move_records: int = 256
    """Most records that one row moves."""
    move_pause_ms: int = 20
    """Pause after each row that moves records, and after each run that is searched for them."""
