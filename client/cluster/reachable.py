"""Detects and reports that no broker listens at the given addresses.

A new client with a wrong address gets an error within seconds. A client that was connected before waits for its cluster
as long as it takes, and logs that. May touch: the network, the event loop's clock, the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from raylog.base.errors import ConnectionFailed
from raylog.client.cluster.deadline import Deadline, now_s
from raylog.client.cluster.discovery import Endpoint

ANSWER_TIMEOUT_S = 15.0
"""How long a new client waits for any broker; long enough for one that is being restarted."""
ATTEMPT_TIMEOUT_S = 3.0
"""Limit of one attempt to connect."""
PAUSE_S = 0.2
"""Pause between two attempts."""
QUIET_S = 5.0
"""For how long no broker is reached before a client logs it."""
WARN_EVERY_S = 30.0
NAMED_MAX = 8
"""How many addresses a warning names, at most."""
logger = logging.getLogger(__name__)


class Reach:
    """Logs that a client reaches no broker, after `QUIET_S` and every `WARN_EVERY_S`; and that it reaches one again."""

    def __init__(self, name: str, brokers: Callable[[], Sequence[Endpoint]] = tuple) -> None:
        """`name`: the client's. `brokers` returns the brokers' addresses: a warning prefers them to other endpoints.

        A user knows them; replicas and coordinators have addresses that users do not configure.
        """
        self._name = name
        self._brokers = brokers
        self._since_s: float | None = None
        self._warned_s: float | None = None
        self._reasons: dict[Endpoint, str] = {}
        self.trouble = ""
        """Why the last attempt failed; empty once a connection was opened after it."""

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
    """Return as soon as an endpoint accepts a TCP connection; after `timeout_s` raise ConnectionFailed.

    `waited_s`: how long the caller waited before, for the message.
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
