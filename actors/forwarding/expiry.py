"""The role that sends expired records to their dead-letter topic, at the leader of their partition.

Every partition of a user's topic has one. Without ``ttl.ms`` and ``dead.letter.topic`` of the topic it does nothing and
imports nothing. A module of its own, because the machine behind it is loaded only where a topic has both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raylog.actors.roles.host import RoleHost
from raylog.actors.roles.role import Role
from raylog.core.forwarding.settings import expires, files

if TYPE_CHECKING:
    from raylog.actors.forwarding.expiring import Expiring


class ExpiryRole(Role):
    """The role of expiry in one leader epoch; `Expiring` does the work."""

    kind = "expiry"

    def __init__(self, host: RoleHost) -> None:
        """Nothing is done before :meth:`begin`."""
        super().__init__(host)
        self._work: Expiring | None = None

    def begin(self) -> None:
        """Begin to forward, if the topic's settings require it."""
        self.reconfigured()

    def reconfigured(self) -> None:
        """Begin when the topic's settings require it for the first time; otherwise pass changes on."""
        if self._work is not None:
            self._work.look_again()
        elif expires(self.host.config) or files(self.host.config):
            from raylog.actors.forwarding.expiring import Expiring

            self._work = Expiring(self.host)
            self._work.begin()

    @property
    def is_busy(self) -> bool:
        """Whether records wait for the time when they expire, or are on their way."""
        return self._work is not None and self._work.is_busy

    def figures(self) -> dict[str, int]:
        """Return counters and gauges."""
        return {} if self._work is None else self._work.figures()
