"""The memory that processes of one host share: lost with the host's power, kept when a process is killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylog.actors.beats import beat_memory
from tests.simulation.shared_pages import SimPages, open_in

if TYPE_CHECKING:
    from tests.simulation.whole.loop.scheduler import Scheduler


class SharedMemory:
    """The shared memory of all hosts, in place of the operating system's."""

    def __init__(self, scheduler: Scheduler) -> None:
        """Empty."""
        self._scheduler = scheduler
        self._hosts: dict[str, dict[str, SimPages]] = {}

    def bind(self) -> None:
        """Have the shipped modules use it, in this process."""
        beat_memory.open_pages = self.open_pages
        beat_memory.remove_abandoned = lambda *_: None

    def open_pages(self, name: str, *, make: bool) -> SimPages | None:
        """As :func:`raylog.actors.beats.beat_memory.open_pages`, for the process that runs."""
        process = self._scheduler.current
        assert process is not None, "pages are opened outside every process"
        return open_in(self._hosts.setdefault(process.host, {}), name, make=make)

    def lose_power(self, host: str) -> None:
        """A host has lost its power."""
        self._hosts.pop(host, None)
