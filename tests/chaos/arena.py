"""The interface of every kind of cluster under test: processes on one Ray node, Ray nodes, or network namespaces.

Implemented by ``processes.py``, ``nodes.py`` and ``network.py``; used by the run and by the figures.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, Protocol, TypeAlias

OBJECT_STORE_BYTES: Final = 80 * 1024 * 1024
CLUSTER_CONFIG: Final = {"default.replication.factor": 3, "group.initial.rebalance.delay.ms": 100}
PARTS: Final = ("processes", "nodes", "network", "copies", "spark")


class NoTarget(Exception):
    """The fault has no target at the moment."""


class LeftOut(Exception):
    """This part cannot run here; the text gives the reason in a sentence."""


def at_once() -> None:
    """Heal nothing: the fault was over at once."""


def already() -> bool:
    """Always true: there is nothing to wait for."""
    return True


@dataclass(slots=True)
class Injected:
    """A fault in effect: its target, and how to end it."""

    target: str
    back: Callable[[], bool] = already
    """Whether the killed process has been replaced."""
    hold_s: float = 0.0
    heal: Callable[[], None] = at_once
    note: str = ""


Strike: TypeAlias = Callable[[Random], Injected]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Settings of an arena."""

    root: Path
    """The cluster's data."""
    topic: str
    partitions: int
    brokers: int
    start_s: float = 180.0
    config: Mapping[str, object] = field(default_factory=lambda: dict(CLUSTER_CONFIG))


class Arena(Protocol):
    """A cluster that can be injured. ``close`` ends everything that was started, even after an error."""

    remarks: list[str]
    faults: Mapping[str, Strike]
    """The available faults, by name."""

    def start(self) -> None:
        """Start the cluster."""

    def stop(self) -> None:
        """Stop it cleanly, so that its files can be read."""

    def close(self) -> None:
        """End every process and remove everything made outside the folder."""

    def release(self) -> None:
        """Undo every fault that is still in effect."""

    def clients(self) -> dict[str, Any]:
        """Return the arguments with which a client finds the cluster."""

    def secret(self) -> str:
        """Return the cluster's secret in hexadecimal."""

    def status(self) -> dict[str, Any] | None:
        """Return the controller's view, None when it does not answer."""

    def replica_states(self) -> list[dict[str, Any]]:
        """Return the status of every replica that answers."""

    def missing(self) -> str:
        """Return the reason why the cluster is not whole, as text; "" when it is whole."""

    def directories(self) -> dict[int, Path]:
        """Return the data directory of each broker."""

    def keep(self, folder: Path) -> None:
        """Copy the processes' logs into the folder."""


def incomplete(view: Mapping[str, Any] | None, brokers: int) -> str:
    """Return what the controller's view lacks, as text; "" when nothing."""
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
