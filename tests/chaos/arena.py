"""What every kind of cluster under test offers to the run: processes on one Ray node, Ray nodes, or network namespaces.

Implemented by ``processes.py``, ``nodes.py`` and ``network.py``; used by the run and by the figures.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol, TypeAlias

OBJECT_STORE_BYTES: Final = 80 * 1024 * 1024
CLUSTER_CONFIG: Final = {"default.replication.factor": 3, "group.initial.rebalance.delay.ms": 100}
PARTS: Final = ("processes", "nodes", "network")


class NoTarget(Exception):
    """There is nobody to do it to at the moment."""


class LeftOut(Exception):
    """This part cannot run here; the text says why, in a sentence."""


def at_once() -> None:
    """Heal nothing: the fault was over when it was done."""


def already() -> bool:
    """Whether what was struck is back: there is nothing to wait for."""
    return True


@dataclass(slots=True)
class Injected:
    """A fault that is in effect: whom it met, and how it ends."""

    target: str
    back: Callable[[], bool] = already
    """Whether what was killed has been replaced."""
    hold_s: float = 0.0
    heal: Callable[[], None] = at_once
    note: str = ""


Strike: TypeAlias = Callable[[Random], Injected]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What an arena is made for."""

    root: Path
    """The cluster's data."""
    topic: str
    partitions: int
    brokers: int
    start_s: float = 180.0
    config: Mapping[str, object] = field(default_factory=lambda: dict(CLUSTER_CONFIG))


class Arena(Protocol):
    """A cluster that can be injured. ``close`` ends everything that was started, whatever happened."""

    remarks: list[str]
    faults: Mapping[str, Strike]
    """What can be done to it, by name."""

    def start(self) -> None:
        """Start the cluster."""

    def stop(self) -> None:
        """Stop it cleanly, so that its files can be read."""

    def close(self) -> None:
        """End every process and take away whatever was made outside the folder."""

    def release(self) -> None:
        """Take back whatever fault is still in effect."""

    def clients(self) -> dict[str, Any]:
        """Return the arguments by which a client finds the cluster."""

    def secret(self) -> str:
        """Return the cluster's secret in hexadecimal."""

    def status(self) -> dict[str, Any] | None:
        """Return the controller's view, None when it does not answer."""

    def replica_states(self) -> list[dict[str, Any]]:
        """Return the status of every replica that answers."""

    def missing(self) -> str:
        """Return what keeps the cluster from being whole, in words; "" when nothing does."""

    def directories(self) -> dict[int, Path]:
        """Return the data directory of each broker."""

    def keep(self, folder: Path) -> None:
        """Put the processes' logs into the folder."""


def incomplete(view: Mapping[str, Any] | None, brokers: int) -> str:
    """Return what the controller's view lacks, in words; "" when nothing."""
    if view is None:
        return "the controller does not answer"
    online = {broker["broker"] for broker in view["brokers"] if broker["online"]}
    for broker in range(1, brokers + 1):
        if broker not in online:
            return f"broker {broker} is offline"
    for topic, partitions in view["topics"].items():
        for partition in partitions:
            if partition["leader"] < 0:
                return f"{topic}-{partition['partition']} has no leader"
            if set(partition["isr"]) != set(partition["replicas"]):
                in_sync = f"{sorted(partition['isr'])} of {sorted(partition['replicas'])}"
                return f"{topic}-{partition['partition']} has in sync {in_sync}"
    return ""
