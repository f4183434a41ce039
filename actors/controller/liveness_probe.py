"""Detects early, after a controller's start, which replicas will not come back. Owned by the controller's shell.

A new controller waits for the replicas that its predecessor knew, because most of them only have to reconnect. A
replica without a process cannot reconnect: its address refuses connections, or its node is dead. Giving it up too early
does no more harm than a broken connection: the leader epoch fences its writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Final

logger = logging.getLogger(__name__)

PROBE_S: Final = 0.25
CONNECT_TIMEOUT_S: Final = 0.5
AT_ONCE: Final = 64
GIVEN_UP_AFTER_S: Final = 1.0
"""How long an address has to refuse connections: most killed processes restart sooner, and may then continue."""

Endpoint = tuple[str, int]
NodesAlive = Callable[[], Awaitable[Collection[str]]]
"""Returns the ids of the nodes that are alive."""


class LivenessProbe:
    """Probes endpoints of replicas that have not re-registered."""

    def __init__(
        self,
        awaited: Callable[[], Mapping[Endpoint, str] | None],
        on_dead: Callable[[frozenset[Endpoint]], None],
        *,
        nodes_alive: NodesAlive | None = None,
    ) -> None:
        """``awaited`` returns the endpoints with their Ray node ids; None: no replica is awaited any more."""
        self._awaited = awaited
        self._on_dead = on_dead
        self._nodes_alive = nodes_alive
        self._refused_since: dict[Endpoint, float] = {}
        self._doors = asyncio.Semaphore(AT_ONCE)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin; returns at once."""
        self._task = asyncio.create_task(self._run(), name="grace probe")

    async def stop(self) -> None:
        """Stop probing."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while (awaited := self._awaited()) is not None:
            alive = await self._alive()
            answers = await asyncio.gather(*(self._closed(place, awaited[place], alive) for place in awaited))
            now = asyncio.get_running_loop().time()
            closed = {place for place, is_closed in zip(awaited, answers, strict=True) if is_closed}
            self._refused_since = {item: self._refused_since.get(item, now) for item in closed}
            dead = frozenset(item for item, since in self._refused_since.items() if now - since >= GIVEN_UP_AFTER_S)
            if dead and self._awaited() is not None:
                self._on_dead(dead)
            await asyncio.sleep(PROBE_S)

    async def _alive(self) -> Collection[str] | None:
        if self._nodes_alive is None:
            return None
        try:
            return await self._nodes_alive()
        except Exception as error:  # any error: probing the addresses gives the same result, only later
            logger.warning("the nodes that are alive cannot be listed: %r", error)
            return None

    async def _closed(self, endpoint: Endpoint, node_id: str, alive: Collection[str] | None) -> bool:
        """Return whether certainly no process serves an endpoint; a timeout proves nothing."""
        if alive is not None and node_id and node_id not in alive:
            return True
        async with self._doors:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    _, writer = await asyncio.open_connection(*endpoint)
            except ConnectionRefusedError:
                return True
            except (OSError, TimeoutError):
                return False
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            return False
