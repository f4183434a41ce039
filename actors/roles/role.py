"""The interface of a leader's role: the scheduler of `__scheduled`, the queues of a partition, a forwarder.

A role begins and ends with a leadership. It uses its own log as a client would (``host.py``), so that a partition
without roles pays nothing for them. ``actors/replica/leader_roles.py`` owns the roles, and calls them on the replica's
event loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from raylog.actors.roles.host import RoleHost
from raylog.base.errors import InvalidRequest
from raylog.protocol.message import Message
from raylog.rpc import Request


class Role(ABC):
    """One role in one leader epoch."""

    kind: ClassVar[str]
    """The name in logs and metrics."""
    requests: ClassVar[frozenset[type[Message]]] = frozenset()
    """The requests that the role answers."""

    def __init__(self, host: RoleHost) -> None:
        """The role does nothing before :meth:`begin`."""
        self.host = host

    @abstractmethod
    def begin(self) -> None:
        """Begin the work of this leadership; returns at once. Longer work runs in tasks of the host."""

    def reconfigured(self) -> None:  # noqa: B027  most roles read the configuration when they need it
        """Apply the topic's changed settings; returns at once."""

    def receive(self, request: Request, args: Any) -> None:
        """Take one of :attr:`requests`, and answer it now or later. An error that is raised is the answer."""
        raise InvalidRequest(f"The role {self.kind} answers no requests.")

    async def end(self) -> None:  # noqa: B027  most roles hold nothing but tasks
        """Release resources: the leadership is over, and its tasks have ended. Nothing can be written any more."""

    @property
    def is_busy(self) -> bool:
        """Whether the replica must neither doze nor sleep."""
        return False

    @property
    def needed_from(self) -> int | None:
        """The lowest offset that the role has still to copy elsewhere; retention waits for it. None = none."""
        return None

    def figures(self) -> dict[str, int]:
        """Return counters and gauges for the replica's metrics."""
        return {}
