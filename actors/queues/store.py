"""Reads and stores the states of queues: calls to the leader of ``__share_state``, repeated until it has answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from raylog.actors.naming import SHARE_STATE_TOPIC
from raylog.actors.roles.host import RoleHost
from raylog.base.errors import (
    FencedLeaderEpoch,
    FencedStateEpoch,
    LeaderNotAvailable,
    RaylogError,
    UnknownTopicOrPartition,
)
from raylog.core.coordinators.hashing import coordinator_partition
from raylog.core.queues.records import QueueChange
from raylog.protocol.admin import EnsureInternalTopicReply
from raylog.protocol.message import read
from raylog.protocol.method import Method, ReplyT, RequestT
from raylog.protocol.queues import (
    READ_SHARE_STATE,
    WRITE_SHARE_STATE,
    ReadShareStateRequest,
    WriteShareStateRequest,
)

CALL_TIMEOUT_S: Final = 6.0
PAUSE_S: Final = 0.03
PAUSE_MAX_S: Final = 1.0
FENCED: Final = (FencedStateEpoch, FencedLeaderEpoch)


@dataclass(frozen=True, slots=True)
class _Place:
    topic: str
    topic_id: str
    partition: int


class ShareStateClient:
    """Reads and stores the states of all queues of one partition, at the leader of ``__share_state``."""

    def __init__(self, host: RoleHost) -> None:
        self._host = host
        self._made: EnsureInternalTopicReply | None = None
        """The topic of states, as far as it is known."""

    async def read(self, group: str) -> tuple[int, QueueChange, bool]:
        """Return a queue's state epoch, its state, and whether its partition was added after the group began the topic.

        That increases the state epoch, which fences an earlier load of the queue. Raises FencedLeaderEpoch.
        """
        host = self._host
        row = (await host.metadata([host.partition.topic])).topics[0]
        if row.error_code or not row.partitions:
            raise LeaderNotAvailable(f"{host.partition.topic} is not known yet.")
        partitions = max(len(row.partitions), host.partition.partition + 1)

        def request(place: _Place, epoch: int) -> ReadShareStateRequest:
            return ReadShareStateRequest(
                place.topic_id,
                place.partition,
                epoch,
                group,
                host.partition.topic,
                host.topic_id,
                host.partition.partition,
                host.leader_epoch,
                partitions,
            )

        reply = await self._call(group, READ_SHARE_STATE, request)
        return reply.state_epoch, read(QueueChange, reply.state, "The state of a queue"), reply.is_later

    async def write(self, group: str, state_epoch: int, version: int, change: QueueChange) -> None:
        """Store a change; returns when it is committed. Raises FencedStateEpoch after another load of the queue."""
        host, wire = self._host, change.to_wire()

        def request(place: _Place, epoch: int) -> WriteShareStateRequest:
            return WriteShareStateRequest(
                place.topic_id,
                place.partition,
                epoch,
                group,
                host.topic_id,
                host.partition.partition,
                host.leader_epoch,
                state_epoch,
                version,
                wire,
            )

        await self._call(group, WRITE_SHARE_STATE, request)

    async def _call(
        self, group: str, method: Method[RequestT, ReplyT], request: Callable[[_Place, int], RequestT]
    ) -> ReplyT:
        """Call until there is an answer. A repeated change is ignored, because changes are numbered."""
        pause_s = PAUSE_S
        while True:
            try:
                made = self._made = self._made or await self._host.ensure_topic(SHARE_STATE_TOPIC)
                place = _Place(SHARE_STATE_TOPIC, made.topic_id, coordinator_partition(group, made.partitions))
                return await self._host.targets.call(place, method, partial(request, place), timeout_s=CALL_TIMEOUT_S)
            except (RaylogError, OSError) as trouble:
                if isinstance(trouble, FENCED) and trouble.is_remote:
                    raise
                if isinstance(trouble, UnknownTopicOrPartition):
                    self._made = None
                elif isinstance(trouble, RaylogError) and trouble.is_remote and not trouble.retriable:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(PAUSE_MAX_S, 2 * pause_s)
