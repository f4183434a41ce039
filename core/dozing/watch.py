"""A broker's decisions about one replica's process: when it is stopped, and when it must be continued.

No wake-up is lost, for three reasons. The replica reads nothing between its offer and its next message, so incoming
bytes stay in its sockets, where the broker sees them. The broker watches *before* it looks, and looks before it stops.
The watch is level-triggered, not edge-triggered: bytes that came between the look and the stop are seen after the stop.
Pure; used by the broker's shell, and by the model in ``tests/unit/core/dozing``.
"""

from __future__ import annotations

from enum import Enum


class Act(Enum):
    """What the shell has to do, in this order."""

    WATCH = "watch"
    """From now on, report for as long as something can be read from the replica's sockets."""
    LOOK = "look"
    """Find out now whether something can be read, and report that to :meth:`ProcessWatch.looked`."""
    STOP = "stop"
    CONTINUE = "continue"
    UNWATCH = "unwatch"
    NOTIFY = "notify"
    """Notify the replica that its rest is over: it may read from its sockets again."""


class ProcessWatch:
    """One replica's process, which may be stopped while it offers that. Times are monotonic milliseconds.

    The methods report what happened, and return what the shell has to do now.
    """

    def __init__(self) -> None:
        """Begin with a process that runs and has offered nothing."""
        self.until_ms: int | None = None
        """When the process must be continued; None = this broker has not stopped it."""
        self._offered_until_ms: int | None = None
        self._holds = 0

    @property
    def is_stopped(self) -> bool:
        """Whether this broker has stopped the process and not continued it."""
        return self.until_ms is not None

    def offered(self, until_ms: int) -> list[Act]:
        """The replica offers to be stopped until then; it reads nothing before its next message."""
        if self._holds:
            return [Act.NOTIFY]
        self._offered_until_ms = until_ms
        return [Act.WATCH, Act.LOOK]

    def looked(self, *, readable: bool, now_ms: int) -> list[Act]:
        """The outcome of a look: stop the process, unless something can be read or the offer is over."""
        until_ms, self._offered_until_ms = self._offered_until_ms, None
        if until_ms is None:
            return []
        if readable or self._holds or now_ms >= until_ms:
            return [Act.UNWATCH, Act.NOTIFY]
        self.until_ms = until_ms
        return [Act.STOP]

    def readable(self) -> list[Act]:
        """Something can be read from the replica's sockets."""
        return self._wake() if self.is_stopped else []

    def awoken(self) -> list[Act]:
        """The replica has sent a message that it reads again."""
        self._offered_until_ms = None
        return self._wake() if self.is_stopped else [Act.UNWATCH]

    def ticked(self, now_ms: int) -> list[Act]:
        """Time has passed."""
        return self._wake() if self.until_ms is not None and now_ms >= self.until_ms else []

    def end(self) -> list[Act]:
        """The rest must end now for another reason; the process may offer another one at once."""
        if self._offered_until_ms is not None:
            self._offered_until_ms = None
            return [Act.UNWATCH, Act.NOTIFY]
        return self._wake() if self.is_stopped else []

    def hold(self) -> list[Act]:
        """A call to the process must be answered: it runs until :meth:`release`."""
        self._holds += 1
        return self._wake() if self.is_stopped else []

    def release(self) -> None:
        """The call was answered, or given up."""
        self._holds -= 1

    def refused(self) -> list[Act]:
        """The system does not let this broker stop the process."""
        self.until_ms = None
        return [Act.UNWATCH, Act.NOTIFY]

    def _wake(self) -> list[Act]:
        self.until_ms = None
        return [Act.CONTINUE, Act.UNWATCH, Act.NOTIFY]
