"""The interface through which a broker stops and continues replicas' processes. The simulator has a model of it.

:class:`raylog.actors.dozing.processes.SystemProcesses` implements it for Linux.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The offer of an idle replica to stop its process."""

    name: str
    life: int
    """The incarnation whose session the broker's heartbeats keep alive; NO_LIFE = it sends its own in time."""
    until_ms: int
    """When it has something to do, in milliseconds of the machine's monotonic clock."""
    descriptors: int
    """How many file descriptors it has open. If the number changes, something came that is not watched."""
    report: Mapping[str, Any]
    """Its answers to ``status`` and ``metrics``."""


class ProcessEvents(Protocol):
    """Notifications to a broker about one process."""

    def offered(self, offer: Offer) -> None:
        """The replica is idle, and reads nothing before it has sent AWAKE; its sockets can be watched."""

    def awoken(self) -> None:
        """It has sent AWAKE: it reads again."""

    def readable(self) -> None:
        """Something can be read from the watched sockets."""

    def ended(self) -> None:
        """It has ended, or will make no more offers; the port has released it."""


class StoppableProcess(Protocol):
    """The process of one replica."""

    def stop(self) -> None:
        """Stop it now. Raises OSError if that is not possible now, PermissionError if it never will be."""

    def resume(self) -> None:
        """Continue it; nothing happens when it runs."""

    def watch(self) -> None:
        """Report ``readable`` from now on, for as long as something can be read."""

    def unwatch(self) -> None:
        """Let go of the sockets that were offered last."""

    def has_input(self) -> bool:
        """Return whether something can be read from its sockets or its channel now."""

    def has_other_descriptors(self) -> bool:
        """Return whether its number of descriptors has changed since its offer: something may wait unwatched."""

    def notify(self, *, may_doze: bool) -> None:
        """Send it OVER: its doze is over. ``may_doze`` False: send OFF, it may never doze."""

    def close(self) -> None:
        """Release it; nothing is reported any more."""


class Processes(Protocol):
    """The processes of one broker's replicas."""

    async def start(self, joined: Callable[[StoppableProcess], ProcessEvents], paused: Callable[[], None]) -> None:
        """Take offers from now on. Raises OSError or another error where that is not possible.

        ``paused`` is called when the keeper may have continued processes: this broker did not run for a while, or the
        keeper has ended.
        """

    def expect(self, silent_ms: int) -> None:
        """Let the keeper continue all processes when this broker is silent for so long."""

    async def stop(self) -> None:
        """Take no more offers; all stopped processes are continued."""
