"""A queue consumer as a member of its group: joins, heartbeats, assignments. Owned by the engine.

The group uses the classic protocol with the protocol type "share". The coordinator knows which members are alive, and
the leader, a member, assigns the partitions (`spread`). A rebalance interrupts nothing: each record is locked by
the member that has it, so all members go on meanwhile. May touch: the network, the loop's clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from raylog.base.errors import (
    IllegalGeneration,
    InconsistentGroupProtocol,
    MemberIdRequired,
    RaylogError,
    RebalanceInProgress,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from raylog.base.ids import TopicPartition
from raylog.client.cluster.backoff import Backoff
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.config import QueueConsumerConfig
from raylog.client.tasks import LastingTask
from raylog.core.queues.origins import retry_topic
from raylog.protocol.groups import (
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    SYNC_GROUP,
    HeartbeatRequest,
    JoinGroupMember,
    JoinGroupProtocol,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    SyncGroupAssignment,
    SyncGroupRequest,
)

logger = logging.getLogger(__name__)

PROTOCOL_TYPE: Final = "share"
"""Differs from that of consumers, so that the coordinator refuses a queue's member in a consumer group of the name."""
PROTOCOL: Final = "spread"
"""The name of the only assignor."""
REBALANCE_TIMEOUT_MS: Final = 10_000
JOIN_EXTRA_S: Final = 5.0
LEAVE_TIMEOUT_S: Final = 2.0
RETRY_TOPIC_LOOKS: Final = 10
"""For how many heartbeats after a late retry its topic is looked for; after that the normal refresh finds it."""

_pack = msgspec.msgpack.encode
_unpack = msgspec.msgpack.decode


class QueueMembership:
    """Joins the group, sends heartbeats, and joins again after each rebalance, until `leave`."""

    def __init__(
        self,
        cluster: ClusterClient,
        config: QueueConsumerConfig,
        topics: Sequence[str],
        *,
        on_partitions: Callable[[Sequence[TopicPartition]], None],
        on_error: Callable[[RaylogError], None],
    ) -> None:
        """`on_partitions` gets each assignment of this member; `on_error` an error that only the user can resolve."""
        self._cluster = cluster
        self._config = config
        self._group = config.group_id or ""
        self._topics = tuple(topics)
        self._retry_topics = tuple(retry_topic(self._group, topic) for topic in topics)
        self._known_retry_topics: tuple[str, ...] = ()
        """The retry topics that existed when this member joined."""
        self._looks = 0
        """With how many more heartbeats new retry topics are looked for."""
        self._on_partitions = on_partitions
        self._on_error = on_error
        self._task: LastingTask | None = None
        self._counts: dict[str, int] = {}
        self._awaited = self._topics
        """The topics of this member, or as the leader of all members: one that was deleted may be created again."""
        self._is_leader = False
        self._grown = asyncio.Event()
        """Set when partitions were added or removed, so that the group has to rebalance."""
        self.member_id = ""
        self.generation = -1
        cluster.watch(self._retry_topics)
        cluster.on_topics_changed(self._topics_changed)

    def start(self) -> None:
        """Start the task that joins and sends heartbeats."""
        self._task = LastingTask(self._live, "raylog-queue-membership")

    def expects_retry_topic(self) -> None:
        """Look for new retry topics with the next `RETRY_TOPIC_LOOKS` heartbeats."""
        self._looks = RETRY_TOPIC_LOOKS

    async def leave(self) -> None:
        """Leave the group. If the coordinator is not reached, it removes the member after the session timeout."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task.task])
        if self.member_id:
            request = LeaveGroupRequest(self._group, [LeavingMember(self.member_id, None)])
            try:
                await self._cluster.call_coordinator(self._group, LEAVE_GROUP, request, timeout_s=LEAVE_TIMEOUT_S)
            except RaylogError as error:
                logger.debug("Group %s was not left: %s", self._group, error)
            self.member_id = ""

    async def _live(self) -> None:
        backoff = Backoff(self._config.retry_backoff_ms, self._config.retry_backoff_max_ms)
        while True:
            try:
                await self._join()
                backoff.reset()
                await self._beat()
            except (MemberIdRequired, RebalanceInProgress):
                continue
            except (UnknownMemberId, IllegalGeneration) as lost:
                logger.info("Group %s is joined again: %s", self._group, lost)
                if isinstance(lost, UnknownMemberId):
                    self.member_id = ""
            except InconsistentGroupProtocol as error:
                self._on_error(
                    InconsistentGroupProtocol(
                        f"{self._group!r} is the name of a consumer group; give the queue another one ({error.message})"
                    )
                )
                return
            except RaylogError as error:
                if not error.retriable and not isinstance(error, UnknownTopicOrPartition):
                    self._on_error(error)
                    return
            await asyncio.sleep(backoff.next_s())

    async def _join(self) -> None:
        config = self._config
        if self.generation < 0:
            # Before the topics: if a token does not cover the group, the error has to say so.
            await self._cluster.coordinator(self._group, timeout_s=REBALANCE_TIMEOUT_MS / 1000)
            await self._cluster.refresh(self._retry_topics)
        self._known_retry_topics = self._existing_retry_topics()
        request = JoinGroupRequest(
            self._group,
            self.member_id,
            None,
            config.client_id,
            config.session_timeout_ms,
            REBALANCE_TIMEOUT_MS,
            PROTOCOL_TYPE,
            [JoinGroupProtocol(PROTOCOL, _pack([*self._topics, *self._known_retry_topics]))],
        )
        timeout_s = REBALANCE_TIMEOUT_MS / 1000 + JOIN_EXTRA_S
        try:
            joined = await self._cluster.call_coordinator(self._group, JOIN_GROUP, request, timeout_s=timeout_s)
        except MemberIdRequired as required:
            self.member_id = str(required.details.get("member_id", ""))
            raise
        self.member_id, self.generation = joined.member_id, joined.generation_id
        self._is_leader = joined.leader == joined.member_id
        self._awaited = self._topics
        rows = await self._assignments(joined.members) if self._is_leader else []
        synced = await self._cluster.call_coordinator(
            self._group,
            SYNC_GROUP,
            SyncGroupRequest(self._group, self.generation, self.member_id, None, rows),
            timeout_s=timeout_s,
        )
        given = _unpack(synced.assignment) if synced.assignment else []
        self._on_partitions([TopicPartition(str(topic), int(number)) for topic, number in given])

    async def _assignments(self, members: Sequence[JoinGroupMember]) -> list[SyncGroupAssignment]:
        topics_of: dict[str, list[str]] = {}
        awaited: set[str] = set()
        for member in members:
            wanted: Any = _unpack(member.metadata)
            own = [str(topic) for topic in wanted]
            again = {topic: retry_topic(self._group, topic) for topic in own}
            sources = again.keys() - again.values()  # not the retry topics themselves: they retry into themselves
            topics_of[member.member_id] = sorted({*own, *(again[topic] for topic in sources)})
            awaited |= again.keys() - again.values()
        topics = sorted({topic for wanted in topics_of.values() for topic in wanted})
        self._cluster.watch(topics)
        await self._cluster.refresh(topics)
        self._counts = {topic: self._partitions_of(topic) for topic in topics}
        self._grown.clear()
        self._awaited = tuple(sorted(awaited))
        found = spread(topics_of, self._counts)
        return [SyncGroupAssignment(member, _pack([list(each) for each in found[member]])) for member in sorted(found)]

    def _partitions_of(self, topic: str) -> int:
        info = self._cluster.metadata.topic(topic)
        return 0 if info is None else len(info.partitions)

    async def _beat(self) -> None:
        """Send heartbeats until one is refused or the topics have changed. Also looks for topics that do not exist."""
        request = HeartbeatRequest(self._group, self.generation, self.member_id, None)
        timeout_s = max(1.0, self._config.session_timeout_ms / 3000)
        while True:
            try:
                async with asyncio.timeout(self._config.heartbeat_interval_ms / 1000):
                    await self._grown.wait()
            except TimeoutError:
                await self._cluster.call_coordinator(self._group, HEARTBEAT, request, timeout_s=timeout_s)
                wanted = [topic for topic in self._awaited if not self._partitions_of(topic)]
                if self._looks:
                    self._looks -= 1
                    wanted += self._retry_topics
                if wanted:
                    await self._cluster.refresh(wanted)
            else:
                self._grown.clear()
                return

    def _existing_retry_topics(self) -> tuple[str, ...]:
        return tuple(topic for topic in self._retry_topics if self._partitions_of(topic))

    def _topics_changed(self, changed: set[str]) -> None:
        if self._existing_retry_topics() != self._known_retry_topics or (
            self._is_leader
            and any(self._partitions_of(topic) != self._counts[topic] for topic in changed & self._counts.keys())
        ):
            self._grown.set()


def spread(
    topics_of: Mapping[str, Sequence[str]], partition_counts: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Assign to each member partitions of its topics (`topics_of`, by member id).

    Invariants: every partition of such a topic has a member; every member has a partition of each of its topics that
    exists; within a topic, members differ by one partition at most, and partitions by one member at most.
    """
    result: dict[str, list[TopicPartition]] = {member: [] for member in topics_of}
    for topic in sorted({topic for topics in topics_of.values() for topic in topics}):
        count = partition_counts.get(topic, 0)
        members = sorted(member for member, topics in topics_of.items() if topic in topics)
        if not count or not members:
            continue
        if len(members) >= count:
            for place, member in enumerate(members):
                result[member].append(TopicPartition(topic, place % count))
        else:
            # Begin with the members that have the fewest partitions of other topics, to level the totals too.
            members.sort(key=lambda member: (len(result[member]), member))
            for number in range(count):
                result[members[number % len(members)]].append(TopicPartition(topic, number))
    return {member: sorted(partitions) for member, partitions in result.items()}
