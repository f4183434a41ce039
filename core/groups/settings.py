"""Settings of a group coordinator. Made by the shell from the cluster's configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Limits and waits of all groups of one coordinator; times are milliseconds."""

    initial_rebalance_delay_ms: int = 300
    """How long the first round of an empty group waits for more members. Kafka waits 3000; members here
    start within one Ray job and usually arrive together, so a tenth is enough."""
    min_session_timeout_ms: int = 1_000
    max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 10_000
    """Most members of one group, and most member ids pending."""
    groups_max: int = 100_000
    """Most groups of a coordinator."""
    subscribed_names_max: int = 100_000
    """Most topic names in all subscriptions of a group of the consumer protocol; equal subscriptions count once."""
    offsets_max: int = 100_000
    """Most committed offsets of a group: a commit may name partitions that do not exist."""
    notes_bytes_max: int = 16 * 1024 * 1024
    """Most bytes of all notes (Kafka's commit metadata) beside the committed offsets of a group."""
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    """Retention of committed offsets that are not in use: see ``offsets.py``, ``expired``."""
    txn_fence_retention_ms: int = 24 * 3_600_000
    """How long a producer's epoch is kept in a group after its last transaction there, to refuse its late commits."""
    offsets_retention_check_ms: int = 600_000
    """Interval of the check for expired offsets."""
    offset_metadata_bytes_max: int = 4_096
    """Most UTF-8 bytes of the note that a member may store beside an offset."""
    record_bytes_max: int = 1_000_000
    """Largest record that `__consumer_offsets` takes: one generation of a group with all its members, or one offset."""
    sleep_after_ms: int = -1
    """A coordinator without members ends after so long without use; -1 = never."""
    assignment_interval_ms: int = 100
    """Least time between two target assignments of a group of the consumer protocol: members that come together
    cause one rebalance."""
    topics_check_ms: int = 1_000
    """Interval at which the topics of groups of the consumer protocol are looked up again."""
