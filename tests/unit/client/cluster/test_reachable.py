"""An address where nothing listens is reported soon, with what to check; a broker that restarts is waited for."""

from __future__ import annotations

import asyncio

import pytest

from raylog.client.cluster.reachable import require_an_answer
from raylog.core.errors import ConnectionFailed
from tests.waiting import free_port


def test_a_wrong_address_is_one_sentence() -> None:
    port = free_port()
    with pytest.raises(ConnectionFailed, match=rf"No broker answers at 127.0.0.1:{port}, for 0 seconds: check the add"):
        asyncio.run(require_an_answer([("127.0.0.1", port)], timeout_s=0.1))


def test_one_broker_of_several_is_enough_and_may_come_late() -> None:
    async def late() -> None:
        dead, port = free_port(), free_port()
        waiting = asyncio.create_task(require_an_answer([("127.0.0.1", dead), ("127.0.0.1", port)], timeout_s=20))
        await asyncio.sleep(0)
        async with await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", port):
            await waiting

    asyncio.run(late())
