"""The interface of dozing replicas to the other parts of their broker. Implemented by ``actors/broker/dozers.py``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from raylog.core.vouching import NONE_RESTS


@dataclass(frozen=True, slots=True)
class DozingReplica:
    """The reports of a replica whose process is stopped, from when it began to doze: nothing has changed since."""

    status: Mapping[str, object] = field(default_factory=dict)
    """As ``replica_status`` answers."""
    metrics: Mapping[str, object] = field(default_factory=dict)
    """As ``replica_metrics`` answers."""


class Resting(Protocol):
    """The replicas whose processes a broker may stop."""

    def rested(self, now_ms: int) -> Mapping[int, int]:
        """Return, by incarnation, until when this broker had stopped its process; ``now_ms`` if it is stopped now."""

    def rely_until(self, until_ms: int | None) -> None:
        """Continue all processes that send no heartbeats at this time, unless a later call extends it before.

        None: continue them now, and stop none until a call gives a time.
        """

    def expect(self, silent_ms: int) -> None:
        """Let all processes be continued if this broker does not run for so long."""

    def wake(self, incarnation: int) -> None:
        """Continue the process of this incarnation, if it is stopped."""

    def held_awake(self, name: str) -> AbstractContextManager[None]:
        """Keep the replica of this name running during a block, because a call to its process must be answered."""

    def dozing(self) -> Mapping[str, DozingReplica]:
        """Return the replicas whose processes are stopped now, by their names."""

    def dozing_count(self) -> int:
        """Return how many replicas' processes are stopped now."""


class NeverResting:
    """A broker that stops no processes."""

    def rested(self, now_ms: int) -> Mapping[int, int]:
        """Return an empty mapping: none is stopped."""
        return NONE_RESTS

    def rely_until(self, until_ms: int | None) -> None:
        """Do nothing."""

    def expect(self, silent_ms: int) -> None:
        """Do nothing."""

    def wake(self, incarnation: int) -> None:
        """Do nothing."""

    def held_awake(self, name: str) -> AbstractContextManager[None]:
        """Do nothing, because it runs."""
        return nullcontext()

    def dozing(self) -> Mapping[str, Any]:
        """Return an empty mapping: none is stopped."""
        return {}

    def dozing_count(self) -> int:
        """Return 0: none is stopped."""
        return 0


NEVER = NeverResting()
