"""What the operating system does for dozing replicas, as their broker sees it. The simulator has its own in its place.

:class:`raylog.actors.dozing.processes.SystemProcesses` is that of Linux.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A replica that rests offers its process to be stopped."""

    name: str
    life: int
    """The incarnation of which its broker's heartbeats keep the session alive; NO_LIFE = it sends its own in time."""
    until_ms: int
    """When it has something to do, in milliseconds of the machine's monotonic clock."""
    descriptors: int
    """How many it has open. More or fewer of them: something came that it does not watch."""
    report: Mapping[str, Any]
    """``status`` and ``metrics``, as it answers them."""


class ProcessEvents(Protocol):
    """What a broker learns of one process."""

    def offered(self, offer: Offer) -> None:
        """The replica rests, and reads nothing before it has sent word; its sockets can be watched."""

    def awoken(self) -> None:
        """It has sent word that it reads again."""

    def readable(self) -> None:
        """Something can be read from the watched sockets."""

    def ended(self) -> None:
        """It has ended, or offers no more; the port has let go of it."""


class StoppableProcess(Protocol):
    """The process of one replica."""

    def stop(self) -> None:
        """Stop it now; raises OSError when that is not possible now, PermissionError when it will never be."""

    def resume(self) -> None:
        """Continue it; nothing happens when it runs."""

    def watch(self) -> None:
        """Report ``readable`` from now on, for as long as something can be read."""

    def unwatch(self) -> None:
        """Let go of the sockets that were offered last."""

    def has_input(self) -> bool:
        """Return whether something can be read from its sockets or its channel now."""

    def has_other_descriptors(self) -> bool:
        """Return whether it has other descriptors than when it offered: something may wait where it does not look."""

    def notify(self, *, may_doze: bool) -> None:
        """Send word that its rest is over; ``may_doze`` False: for good."""

    def close(self) -> None:
        """Let go of it. Reports nothing any more."""


class Processes(Protocol):
    """The processes of one broker's replicas."""

    async def start(self, joined: Callable[[StoppableProcess], ProcessEvents], paused: Callable[[], None]) -> None:
        """Take offers from now on; raises OSError and others where that is not possible.

        ``paused`` is called when processes may have been continued by the keeper: this broker did not run for a while,
        or the keeper has ended.
        """

    def expect(self, silent_ms: int) -> None:
        """Have the keeper continue all processes when this broker is silent for so long."""

    async def stop(self) -> None:
        """Take no more offers; everything that may be stopped is continued."""
