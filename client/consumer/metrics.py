"""A consumer's metrics: lag and lead, by the names of Kafka's consumer. Pure.

Read from any thread: each number is one read of counters that have one writer each.
"""

from __future__ import annotations

from raylog.client.consumer.assignment import Assignment
from raylog.client.consumer.partition import PartitionState


def lag_of(state: PartitionState) -> int | None:
    """Committed records that poll() has not returned, as of the leader's last answer."""
    position, high_watermark = state.position, state.high_watermark
    return None if position is None or high_watermark < 0 else max(0, high_watermark - position)


def lead_of(state: PartitionState) -> int | None:
    """Records between the beginning of the log and the position: near 0, retention may soon remove unread records."""
    position, start = state.position, state.log_start_offset
    return None if position is None or start < 0 else max(0, position - start)


def metrics_of(assignment: Assignment) -> dict[str, float]:
    """`records-lag-max`, `records-lag` (the sum), `records-lead-min`, `assigned-partitions`, `fetch-buffered-bytes`.

    Partitions with unknown lag do not count. `records-lead-min` is infinite while no lead is known.
    """
    states = list(assignment.states.values())
    lags = [lag for state in states if (lag := lag_of(state)) is not None]
    leads = [lead for state in states if (lead := lead_of(state)) is not None]
    return {
        "records-lag-max": max(lags, default=0),
        "records-lag": sum(lags),
        "records-lead-min": min(leads, default=float("inf")),
        "assigned-partitions": len(states),
        "fetch-buffered-bytes": sum(state.memory_bytes for state in states),
    }
