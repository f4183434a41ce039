"""What a seed decides about one run of the consumer protocol's world. Rates are events per virtual second."""

from __future__ import annotations

import random
from dataclasses import dataclass

LATE_MS = 1_500
"""Longest extra delay of a message whose connection has broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerFaults:
    """Everything that a seed decides about one run."""

    slots: int = 3
    static_share: float = 0.0
    partitions: int = 6
    topics: int = 1
    assignor: str = ""
    session_timeout_ms: int = 600
    rebalance_timeout_ms: int = 1_200
    max_wait_ms: int = 200
    revoke_ms: float = 20
    """How long a member takes to give partitions up."""
    chaos_s: float = 8
    delay_ms: float = 3
    append_ms: float = 5
    append_fails: float = 0
    """Share of appends whose outcome the coordinator does not learn."""
    batch_bytes_max: int = 1_000_000
    break_rate: float = 0
    """A connection breaks; what is under way may arrive later all the same, and is not answered."""
    crash_rate: float = 0
    pause_rate: float = 0
    leave_rate: float = 0
    slow_rate: float = 0
    """A member takes longer to give partitions up than its rebalance timeout, or never does."""
    coordinator_crash_rate: float = 0
    coordinator_move_rate: float = 0
    coordinator_pause_rate: float = 0
    grow_rate: float = 0
    """A topic gets partitions."""
    recreate_rate: float = 0
    """A topic is deleted and made again under its name."""
    resubscribe_rate: float = 0


def draw(seed: int) -> ConsumerFaults:
    """Return the options of one run."""
    source = random.Random(seed * 1_000_003 + 848)

    def sometimes(rate: float) -> float:
        return rate if source.random() < 0.5 else 0.0

    batch_bytes_max = source.choice((120, 400, 1_000_000))
    return ConsumerFaults(
        slots=source.choice((1, 2, 3, 4, 6)),
        static_share=source.choice((0.0, 0.0, 0.5, 1.0)),
        partitions=source.choice((1, 4, 8)),
        topics=source.choice((1, 1, 2)),
        assignor=source.choice(("", "uniform", "range")),
        session_timeout_ms=source.choice((400, 600, 1_200)),
        rebalance_timeout_ms=source.choice((400, 1_200)),
        max_wait_ms=source.choice((0, 50, 200)),
        revoke_ms=source.choice((1, 20, 100)),
        delay_ms=source.choice((1, 3, 20)),
        append_ms=source.choice((1, 5, 40)) if batch_bytes_max > 400 else 1,
        append_fails=sometimes(0.02),
        batch_bytes_max=batch_bytes_max,
        break_rate=sometimes(3.0),
        crash_rate=sometimes(1.0),
        pause_rate=sometimes(1.0),
        leave_rate=sometimes(1.0),
        slow_rate=sometimes(0.3),
        coordinator_crash_rate=sometimes(0.5),
        coordinator_move_rate=sometimes(0.5),
        coordinator_pause_rate=sometimes(0.3),
        grow_rate=sometimes(0.4),
        recreate_rate=sometimes(0.2),
        resubscribe_rate=sometimes(0.3),
    )
