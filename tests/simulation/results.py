"""The result of one run. Returned by ``runs.py`` for a seed of any world."""

from __future__ import annotations

from dataclasses import dataclass

from tests.simulation.world import Violation


@dataclass(frozen=True, slots=True)
class Result:
    """The work of one run, and its finding."""

    seed: int
    profile: str
    violation: Violation | None
    story: list[str]
    events: int
    steps: int
    elections: int
    """Number of elected leaders of partitions, generations of groups, or controllers."""
    acks: int
    committed: int
    lost: bool
    """The only in-sync copy was lost on purpose, and the partition ended without a leader, as required."""
    trace: int
    seconds: float
    """Processor time, which excludes other work of the machine."""
    features: tuple[str, ...] = ()
    """What was mixed in the run, in the profile ``whole-everything``."""
