"""Waiting on conditions with a deadline, in threads and on event loops; and free ports."""

import asyncio
import socket
import time
from collections.abc import Callable


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = 60.0, pause_s: float = 0.02) -> None:
    """Wait until the condition holds; AssertionError after the deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"did not happen within {timeout_s} s: {what}"
        time.sleep(pause_s)


async def eventually(condition: Callable[[], bool], timeout_s: float = 15.0, what: str = "") -> None:
    """Wait until the condition holds; AssertionError after the deadline."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"did not happen within {timeout_s} s: {what}"
        await asyncio.sleep(0.005)


def free_port() -> int:
    """Return a port on loopback that nothing listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port
