"""What came of one run. Returned by ``runs.py``, whichever world the seed belongs to."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation.world import Violation


@dataclass(frozen=True, slots=True)
class Result:
    """What one run did, and what it found."""

    seed: int
    profile: str
    violation: Violation | None
    story: list[str]
    events: int
    steps: int
    elections: int
    """Leaders of partitions, generations of groups, or controllers that came about."""
    acks: int
    committed: int
    lost: bool
    """The only in-sync copy was lost on purpose, and the partition ended without a leader, as it should."""
    trace: int
    seconds: float
    """Processor time, which does not count what else the machine does meanwhile."""
