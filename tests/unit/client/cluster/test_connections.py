"""The connections of a client."""

import asyncio
from typing import cast

import pytest

from raylog.client.cluster.connections import ConnectionPool
from raylog.rpc import Connection


class Opened:
    """A connection that was opened."""

    is_closed = False


async def test_a_cancellation_that_meets_the_opening_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """`asyncio.wait_for` of Python 3.11 returned the result instead, and a task that was to end went on."""
    pool, opening = ConnectionPool(b"secret"), asyncio.get_running_loop().create_future()
    monkeypatch.setattr(pool, "_connect", lambda *_: opening)
    getting = asyncio.create_task(pool.get(("there", 1), 5.0))
    await asyncio.sleep(0)
    opening.set_result(cast(Connection, Opened()))
    await asyncio.sleep(0)  # the shield has the result, and the task has not run yet
    getting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await getting
