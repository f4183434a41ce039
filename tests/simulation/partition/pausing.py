"""Processes of the simulator that can be paused, as by SIGSTOP: messages that arrive meanwhile wait in their sockets.

Used by the shells of replicas, of the controller, and of groups. The waiting messages are taken in order of arrival,
before any that arrive after the pause, however the pause ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tests.simulation.world import World


class Pausable:
    """One life of a process. ``paused_until_us`` may be set at any time; :meth:`wake` ends a pause early."""

    def __init__(self, world: World) -> None:
        """Begin awake."""
        self.world = world
        self.paused_until_us = 0
        self._inbox: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self._taking = False

    @property
    def paused(self) -> bool:
        """True until the pause is over."""
        return self.paused_until_us > self.world.now_us

    def waits(self, call: Callable[..., None], *args: object) -> bool:
        """True when the call has to wait: it is repeated, with this method, once the process resumes."""
        if self._taking or not (self._inbox or self.paused):
            return False
        if not self._inbox:
            self.world.at(max(self.paused_until_us, self.world.now_us), self._go_on)
        self._inbox.append((call, args))
        return True

    def wake(self) -> None:
        """End the pause now."""
        self.paused_until_us = 0
        self._go_on()

    def forget_inbox(self) -> None:
        """Drop the waiting messages: the process has ended."""
        self._inbox.clear()

    def _go_on(self) -> None:
        if self.paused:
            self.world.at(self.paused_until_us, self._go_on)
            return
        self._taking = True
        try:
            while self._inbox:
                call, args = self._inbox.popleft()
                call(*args)
        finally:
            self._taking = False
