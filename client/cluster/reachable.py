"""Whether any broker listens at the given addresses, found out before a query is planned.

A client that is a service waits for a cluster that restarts until its own deadline, and reports the last failure of a
connection. A query is typed by a person: a wrong address should be reported within seconds. May touch: the network,
the event loop's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from raylog.client.cluster.deadline import Deadline
from raylog.client.cluster.discovery import Endpoint
from raylog.core.errors import ConnectionFailed

ANSWER_TIMEOUT_S = 15.0
"""Long enough for a broker that is restarted."""
ATTEMPT_TIMEOUT_S = 3.0
PAUSE_S = 0.2


async def require_an_answer(endpoints: Sequence[Endpoint], *, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
    """Return when one of them takes a TCP connection; after `timeout_s` raise ConnectionFailed with what to check."""
    deadline = Deadline(timeout_s)
    while True:
        for host, port in endpoints:
            try:
                limit_s = min(ATTEMPT_TIMEOUT_S, deadline.left_s)
                _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), limit_s)
            except (OSError, TimeoutError):
                continue
            writer.close()
            return
        if deadline.is_over:
            raise ConnectionFailed(
                f"No broker answers at {', '.join(f'{host}:{port}' for host, port in endpoints)}, for {timeout_s:.0f} "
                "seconds: check the address (`raylog status` on a machine of the cluster shows it), and that the "
                "cluster runs."
            )
        await asyncio.sleep(PAUSE_S)
