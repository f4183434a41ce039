"""The sockets between a broker and the replicas that it may stop: messages within a host arrive at once, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tests.simulation.whole.loop.processes import SimProcess


class ChannelEnd:
    """One end, which its process's kernel closes when the process is killed."""

    def __init__(self, process: SimProcess) -> None:
        """Unconnected; see :func:`connected`."""
        self.process = process
        self.inbox: deque[object] = deque()
        self.peer: ChannelEnd | None = None
        self.is_closed = False
        self.arrived: Callable[[], None] = lambda: None
        """Called when something has come in, or the other end was closed."""
        process.closers[self.close] = None

    @property
    def is_readable(self) -> bool:
        """Whether there is a message, or the end."""
        return bool(self.inbox) or self.peer is None or self.peer.is_closed

    def send(self, message: object) -> None:
        """Send; raises BrokenPipeError when the other end is closed."""
        if self.is_closed or self.peer is None or self.peer.is_closed:
            raise BrokenPipeError("the other end is closed")
        self.peer.inbox.append(message)
        self.peer.arrived()

    def receive(self) -> object:
        """Return the next message; None = the end, or none yet."""
        return self.inbox.popleft() if self.inbox else None

    def close(self) -> None:
        """Close this end. Idempotent."""
        if not self.is_closed:
            self.is_closed = True
            self.process.closers.pop(self.close, None)
            if self.peer is not None and not self.peer.is_closed:
                self.peer.arrived()


def connected(one: SimProcess, other: SimProcess) -> tuple[ChannelEnd, ChannelEnd]:
    """Return the two ends of a new connection."""
    near, far = ChannelEnd(one), ChannelEnd(other)
    near.peer, far.peer = far, near
    return near, far
