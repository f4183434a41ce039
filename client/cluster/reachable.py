"""Whether any broker listens at the given addresses, and what a client says when none does.

A new client, or a query, with a wrong address reports it within seconds. A client that has worked waits for its
cluster for as long as it has to, and says so in its log. May touch: the network, the event loop's clock, the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from raylog.client.cluster.deadline import Deadline, now_s
from raylog.client.cluster.discovery import Endpoint
from raylog.core.errors import ConnectionFailed

ANSWER_TIMEOUT_S = 15.0
"""Long enough for a broker that is restarted."""
ATTEMPT_TIMEOUT_S = 3.0
PAUSE_S = 0.2
QUIET_S = 5.0
"""How long no broker may be reached before a client says so."""
WARN_EVERY_S = 30.0
NAMED_MAX = 8
logger = logging.getLogger(__name__)


class Reach:
    """Logs that a client reaches no broker: after some seconds, then twice a minute, and when it has ended."""

    def __init__(self, name: str, brokers: Callable[[], Sequence[Endpoint]] = tuple) -> None:
        """`name`: the client's; `brokers` returns their addresses, the only ones that a user could have given."""
        self._name = name
        self._brokers = brokers
        self._since_s: float | None = None
        self._warned_s: float | None = None
        self._reasons: dict[Endpoint, str] = {}
        self.trouble = ""
        """Why the last attempt failed; empty when a connection was opened since."""

    def failed(self, endpoint: Endpoint, reason: str) -> None:
        """An attempt to connect has failed, and no connection is open."""
        now = now_s()
        self._since_s = now if self._since_s is None else self._since_s
        self._reasons[endpoint] = self.trouble = reason
        is_due = self._warned_s is None or now - self._warned_s >= WARN_EVERY_S
        if now - self._since_s >= QUIET_S and is_due:
            self._warned_s = now
            brokers = self._brokers()
            tried = [place for place in self._reasons if place in brokers] or list(self._reasons)
            named = ", ".join(f"{host}:{port}" for host, port in tried[:NAMED_MAX])
            logger.warning(
                "Client %r has reached no broker for %.0f seconds, at %s (%s). It goes on trying; check that the "
                "cluster runs, and that these are its addresses (`raylog status` on a machine of the cluster shows "
                "them).",
                self._name,
                now - self._since_s,
                named,
                reason.rstrip("."),
            )

    def reached(self, endpoint: Endpoint) -> None:
        """A connection was opened."""
        if self._warned_s is not None and self._since_s is not None:
            logger.warning(
                "Client %r has reached a broker again, at %s:%s, after %.0f seconds.",
                self._name,
                *endpoint,
                now_s() - self._since_s,
            )
        self._since_s = self._warned_s = None
        self._reasons.clear()
        self.trouble = ""


async def require_an_answer(
    endpoints: Sequence[Endpoint], *, timeout_s: float = ANSWER_TIMEOUT_S, waited_s: float = 0.0
) -> None:
    """Return when one of them takes a TCP connection; after `timeout_s` raise ConnectionFailed with what to check.

    `waited_s`: for how long none did before.
    """
    deadline = Deadline(timeout_s)
    while True:
        for host, port in endpoints:
            try:
                async with asyncio.timeout(min(ATTEMPT_TIMEOUT_S, deadline.left_s)):
                    _, writer = await asyncio.open_connection(host, port)
            except (OSError, TimeoutError):
                continue
            writer.close()
            return
        if deadline.is_over:
            named = ", ".join(f"{host}:{port}" for host, port in endpoints)
            raise ConnectionFailed(
                f"No broker answers at {named}, for {waited_s + timeout_s:.0f} seconds: check the address (`raylog "
                "status` on a machine of the cluster shows it), and that the cluster runs."
            )
        await asyncio.sleep(PAUSE_S)
