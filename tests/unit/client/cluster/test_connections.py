"""The connections of a client."""

import asyncio
import contextlib
import socket
from typing import cast

import pytest

from raylog.base.errors import RaylogError, RequestTimedOut
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


async def test_a_caller_with_less_time_than_the_opening_is_named_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as waiting:
        for _ in range(3):  # more than the system keeps for it
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        pool, endpoint = ConnectionPool(b"a secret of the tests"), full.getsockname()
        patient = asyncio.create_task(pool.get(endpoint, 5.0))
        await asyncio.sleep(0)
        with pytest.raises(RequestTimedOut, match=rf"No connection with 127.0.0.1:{endpoint[1]} yet"):
            await pool.get(endpoint, 0.1)
        await pool.close()
        with pytest.raises(RaylogError):
            await patient
