"""The interface of a leader role: the scheduler of `__scheduled`, the queues of a partition, a forwarder.

A role begins with a leadership and ends with it. It is a client of its own log (``host.py``), so a partition without
one pays nothing for it. Roles are kept and called by ``leader_roles.py``, on the loop of the replica's process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from raylog.actors.roles.host import RoleHost
from raylog.core.errors import InvalidRequest
from raylog.protocol.message import Message
from raylog.rpc import Request


class Role(ABC):
    """One role in one leader epoch."""

    kind: ClassVar[str]
    """Its name in logs and metrics."""
    requests: ClassVar[frozenset[type[Message]]] = frozenset()
    """The requests that it answers."""

    def __init__(self, host: RoleHost) -> None:
        """Nothing is done before :meth:`begin`."""
        self.host = host

    @abstractmethod
    def begin(self) -> None:
        """Begin the work of this leadership; returns at once. What takes time runs in tasks of the host."""

    def reconfigured(self) -> None:  # noqa: B027  most roles read the configuration when they need it
        """Take note that the topic's own settings have changed; returns at once."""

    def receive(self, request: Request, args: Any) -> None:
        """Take one of :attr:`requests`, and answer it now or later. What it raises is the answer."""
        raise InvalidRequest(f"The role {self.kind} answers no requests.")

    async def end(self) -> None:  # noqa: B027  most roles hold nothing but tasks
        """Release what it holds: the leadership is over, and its tasks have ended. Nothing more is written."""

    @property
    def is_busy(self) -> bool:
        """Whether the process has to run: it neither dozes nor sleeps meanwhile."""
        return False

    @property
    def needed_from(self) -> int | None:
        """The lowest offset of a record that it has to copy elsewhere, for which retention waits; None = none."""
        return None

    def figures(self) -> dict[str, int]:
        """Return counters and gauges for the replica's metrics."""
        return {}
