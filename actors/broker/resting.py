"""What the other parts of a broker need of its dozing replicas. Implemented by ``dozers.py``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from raylog.core.vouching import NONE_RESTS


@dataclass(frozen=True, slots=True)
class DozingReplica:
    """A replica whose process is stopped now, as it was when it began to doze: nothing has changed since."""

    status: Mapping[str, object] = field(default_factory=dict)
    """As ``replica_status`` answers."""
    metrics: Mapping[str, object] = field(default_factory=dict)
    """As ``replica_metrics`` answers."""


class Resting(Protocol):
    """The replicas that a broker may stop."""

    def rested(self, now_ms: int) -> Mapping[int, int]:
        """Return until when this broker had stopped the process of each incarnation; ``now_ms``: it is stopped now."""

    def rely_until(self, until_ms: int | None) -> None:
        """Continue all processes that send no heartbeats at this time, unless a later one is given before.

        None = now, and until a time is given.
        """

    def expect(self, silent_ms: int) -> None:
        """Have all processes continued when this broker does not run for so long."""

    def wake(self, incarnation: int) -> None:
        """Continue the process of this incarnation, if it is stopped."""

    def held_awake(self, name: str) -> AbstractContextManager[None]:
        """Let the replica of this name run meanwhile, because a call to its process must be answered."""

    def dozing(self) -> Mapping[str, DozingReplica]:
        """Return the replicas whose processes are stopped now, by their names."""

    def dozing_count(self) -> int:
        """Return how many processes are stopped now."""


class NeverResting:
    """A broker that stops no processes."""

    def rested(self, now_ms: int) -> Mapping[int, int]:
        """Return that none is stopped."""
        return NONE_RESTS

    def rely_until(self, until_ms: int | None) -> None:
        """Do nothing."""

    def expect(self, silent_ms: int) -> None:
        """Do nothing."""

    def wake(self, incarnation: int) -> None:
        """Do nothing."""

    def held_awake(self, name: str) -> AbstractContextManager[None]:
        """Do nothing: it runs."""
        return nullcontext()

    def dozing(self) -> Mapping[str, Any]:
        """Return that none is stopped."""
        return {}

    def dozing_count(self) -> int:
        """Return that none is stopped."""
        return 0


NEVER = NeverResting()
