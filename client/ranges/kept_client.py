"""The client of a process's last plan, kept for its next one: connecting is most of what a plan takes.

Spark plans all queries of a session in processes that it uses again. Everything here belongs to one event loop. Used by
planning.py. May touch: the network, the event loop's clock.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field

from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.ranges.cutting import RecordSizes

KEPT_S = 60.0
"""A client that no plan has used for so long is closed."""


@dataclass(frozen=True, slots=True)
class Connected:
    """A started client, and what plans have learned with it."""

    client: ClusterClient
    sizes: RecordSizes = field(default_factory=RecordSizes)


class KeptClient:
    """At most one client that no plan uses now."""

    def __init__(self) -> None:
        self._kept: tuple[object, Connected] | None = None
        """Which cluster and settings it is for, and the client."""
        self._ending: asyncio.Task[None] | None = None

    def take(self, purpose: object) -> Connected | None:
        """The client that was kept for an equal purpose, which is the caller's now; None: there is none."""
        if self._kept is None or self._kept[0] != purpose:
            return None
        _, found = self._kept
        self._kept = None
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        return found

    async def keep(self, purpose: object, connected: Connected) -> None:
        """Keep this client, and close the one that was kept before."""
        before, self._kept = self._kept, (purpose, connected)
        if self._ending is not None:
            self._ending.cancel()
        self._ending = asyncio.ensure_future(self._end(connected))
        if before is not None:
            await before[1].client.close()

    async def _end(self, connected: Connected) -> None:
        await asyncio.sleep(KEPT_S)
        self._kept = self._ending = None
        await connected.client.close()

    def forget(self) -> None:
        """Drop what a fork has copied: the connections are the parent's."""
        self._kept = self._ending = None


KEPT = KeptClient()
"""That of this process."""

os.register_at_fork(after_in_child=KEPT.forget)
