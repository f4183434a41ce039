"""Commits what a stream has processed to the group that `kafka.group.id` names, so that tools can show its lag.

The query is not a member of the group and never reads these offsets: its own are in the checkpoint. A failed commit
only logs a warning. Everything here belongs to one event loop. May touch: the network. Used by planning.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from raylog.base.errors import RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.cluster.deadline import now_s
from raylog.client.consumer.committed_offsets import CommittedOffsets
from raylog.client.types import OffsetAndMetadata

logger = logging.getLogger(__name__)

COMMIT_TIMEOUT_S = 10.0
RETRY_S = 5.0
"""Pause between a failed commit and the next."""


class GroupLag:
    """Commits in the background, one commit at a time; of the offsets reported meanwhile only the newest are kept."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._wanted: Mapping[TopicPartition, int] = {}
        self._done: Mapping[TopicPartition, int] = {}
        self._work: asyncio.Task[None] | None = None
        self._failed_s: float | None = None
        """When the last commit failed; None after one that succeeded."""

    def report(self, client: ClusterClient, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit these offsets soon, unless they are what was committed last."""
        self._wanted = offsets
        if self._failed_s is not None and now_s() - self._failed_s < RETRY_S:
            return
        if offsets != self._done and (self._work is None or self._work.done()):
            self._work = asyncio.ensure_future(self._commit(client))

    async def settle(self, timeout_s: float) -> None:
        """Wait for the commit in flight, if there is one."""
        if self._work is not None:
            await asyncio.wait([self._work], timeout=timeout_s)

    async def close(self) -> None:
        """Cancel the commit in flight."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait([self._work], timeout=1)

    async def _commit(self, client: ClusterClient) -> None:
        committed = CommittedOffsets(client, self._group)
        while self._wanted != self._done:
            offsets = self._wanted
            try:
                rows = {place: OffsetAndMetadata(offset) for place, offset in offsets.items()}
                await committed.commit(rows, timeout_s=COMMIT_TIMEOUT_S)
            except RaylogError as error:
                if self._failed_s is None:  # once, not for each attempt
                    logger.warning(
                        "The offsets of this stream were not committed to group %r, which only shows its lag; the "
                        "query goes on: %s",
                        self._group,
                        error,
                    )
                self._failed_s = now_s()
                return
            self._failed_s = None
            self._done = offsets
