"""Administration of the cluster: its brokers, leaders and feature level, and where replicas are.

A part of `AsyncAdmin`. May touch: the network through `ClusterClient`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from raylog.base.errors import NoReassignmentInProgress, RaylogError, RequestTimedOut, from_code
from raylog.base.ids import BrokerId, TopicPartition
from raylog.client.admin.balance import Move, plan_balance
from raylog.client.admin.descriptions import ClusterDescription, StoppedBroker, describe_cluster
from raylog.client.arguments import checked_partition
from raylog.client.checked import wholes
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.cluster.connections import call
from raylog.client.cluster.deadline import Deadline
from raylog.client.tasks import side_by_side
from raylog.protocol.admin import (
    ALTER_PARTITION_REASSIGNMENTS,
    DESCRIBE_CLUSTER,
    ELECT_LEADERS,
    LIST_PARTITION_REASSIGNMENTS,
    RAISE_FEATURE_LEVEL,
    RESUME_BROKER,
    STOP_BROKER,
    AlterPartitionReassignmentsRequest,
    DescribeClusterRequest,
    ElectedPartition,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
    RaiseFeatureLevelRequest,
    ReassignablePartition,
    ResumeBrokerRequest,
    StopBrokerRequest,
)
from raylog.protocol.replica import REPLICA_STATUS, ReplicaStatusRequest

__all__ = ["AsyncClusterAdmin", "Move", "PartitionReassignment"]

Wanted = Mapping[tuple[str, int], Sequence[int] | None]
"""For each (topic, partition) its target brokers, preferred leader first; None = cancel its reassignment."""

CALL_TIMEOUT_S = 2.0
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class FeatureDescription:
    """The feature level that the cluster uses, and the levels that its brokers support."""

    level: int
    """The cluster's feature level."""
    brokers: dict[int, tuple[int, int]]
    """The lowest and the highest level that each broker's release supports, by broker id."""


@dataclass(frozen=True, slots=True)
class PartitionReassignment:
    """One partition under reassignment. `replicas`: the target replicas, followed by those to remove (`removing`).

    `sizes`: the bytes that the leader and each replica in `adding` hold, by broker id, if they answered.
    """

    partition: TopicPartition
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    sizes: dict[int, int] = field(default_factory=dict)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment."""
        return tuple(broker for broker in self.replicas if broker not in self.removing)

    @property
    def progress(self) -> float | None:
        """The share of the leader's bytes that the slowest new replica has, from 0 to 1; None = not known."""
        waiting = [broker for broker in self.adding if broker not in self.isr]
        whole = self.sizes.get(self.leader)
        if not waiting:
            return 1.0
        if whole is None:
            return None
        return min(1.0, min(self.sizes.get(broker, 0) for broker in waiting) / whole) if whole else 1.0


class AsyncClusterAdmin:
    """Methods of `AsyncAdmin` for brokers, leaders, the feature level and reassignments."""

    cluster: ClusterClient

    async def elect_leaders(
        self,
        partitions: Iterable[TopicPartition | tuple[str, int]] | None = None,
        *,
        unclean: bool = False,
        timeout_s: float = 30.0,
    ) -> dict[TopicPartition, RaylogError | None]:
        """Make the preferred replica the leader of each partition; None = all partitions led by another replica.

        `unclean=True` instead elects a leader for partitions without one, even from outside the ISR: acknowledged
        records may be lost, so the partitions have to be named. Returns None for each partition with a new leader,
        otherwise the reason: ElectionNotNeeded, PreferredLeaderNotAvailable, EligibleLeadersNotAvailable. Raises
        UnknownTopicOrPartition, InvalidRequest.
        """
        named = None if partitions is None else [ElectedPartition(topic, number) for topic, number in partitions]
        request = ElectLeadersRequest(named, unclean)
        results = await self.cluster.call_broker(ELECT_LEADERS, request, timeout_s=timeout_s)
        return {
            TopicPartition(row.topic, row.partition): from_code(row.error_code, row.error_message)
            if row.error_code
            else None
            for row in results
        }

    async def stop_broker(self, broker: int, *, force: bool = False, timeout_s: float = 30.0) -> StoppedBroker:
        """Move a broker's leaderships to other replicas, and take it out of every ISR that has other members.

        Its processes keep running: `Cluster.stop_broker` and `raylog stop --broker` call this first and end them
        afterwards. Raises StopRefused when partitions would have no leader or refuse writes with `acks=all` (it names
        them; not with `force`), and when the metadata quorum would lose its majority; InvalidRequest for an unknown
        broker.
        """
        reply = await self.cluster.call_broker(STOP_BROKER, StopBrokerRequest(broker, force), timeout_s=timeout_s)
        return StoppedBroker(broker, reply.leaders_moved, tuple(reply.leaderless), tuple(reply.below_min_isr))

    async def resume_broker(self, broker: int, *, timeout_s: float = 30.0) -> None:
        """Readmit a broker that was stopped; `raylog start --broker` also starts its processes.

        Raises InvalidRequest for an unknown broker.
        """
        await self.cluster.call_broker(RESUME_BROKER, ResumeBrokerRequest(broker), timeout_s=timeout_s)

    async def describe_cluster(self, *, timeout_s: float = 30.0) -> ClusterDescription:
        """The cluster as its controller sees it."""
        request = DescribeClusterRequest()
        return describe_cluster(await self.cluster.call_broker(DESCRIBE_CLUSTER, request, timeout_s=timeout_s))

    async def alter_partition_reassignments(
        self, reassignments: Wanted, *, throttle: int | None = None, timeout_s: float = 30.0
    ) -> None:
        """Begin to move partitions to other brokers, or cancel moves (None): all of the changes, or none and an error.

        Returns when the moves have begun; `list_partition_reassignments` and `wait_for_reassignments` follow them.
        `throttle`: bytes per second that each broker may fetch for its new replicas; it is stored as the cluster's
        `follower.replication.throttled.rate`, and None leaves that as it is. A new target replaces an earlier one.
        Raises UnknownTopicOrPartition, InvalidReplicaAssignment (unknown or repeated brokers, none at all, fewer than
        `min.insync.replicas`), NoReassignmentInProgress for a cancellation.
        """
        changes = [ReassignablePartition(*at, brokers) for at, brokers in _checked(reassignments).items()]
        failures: list[RaylogError] = []
        try:
            await self.cluster.call_broker(
                ALTER_PARTITION_REASSIGNMENTS,
                AlterPartitionReassignmentsRequest(changes, throttle),
                timeout_s=timeout_s,
                failures=failures,
            )
        except NoReassignmentInProgress:
            if not failures:
                raise
            # Our own first attempt may have cancelled it before its answer was lost.

    async def list_partition_reassignments(
        self, *, sizes: bool = False, timeout_s: float = 30.0
    ) -> dict[TopicPartition, PartitionReassignment]:
        """The partitions under reassignment; `sizes` adds the bytes that their leaders and new replicas hold."""
        deadline = Deadline(timeout_s)
        request = ListPartitionReassignmentsRequest()
        rows = await self.cluster.call_broker(LIST_PARTITION_REASSIGNMENTS, request, timeout_s=timeout_s)
        found = {}
        for row in rows:
            partition = TopicPartition(row.topic, row.partition)
            found[partition] = PartitionReassignment(
                partition,
                tuple(row.replicas),
                tuple(row.adding_replicas),
                tuple(row.removing_replicas),
                tuple(row.isr),
                row.leader,
            )
        if sizes and found:
            await self.cluster.refresh({partition.topic for partition in found}, timeout_s=deadline.left_s)
            wanted = [
                (partition, broker) for partition, item in found.items() for broker in (item.leader, *item.adding)
            ]
            for (partition, broker), size in (await self._sizes(wanted)).items():
                found[partition].sizes[broker] = size
        return found

    async def wait_for_reassignments(
        self, partitions: Iterable[tuple[str, int]] | None = None, *, timeout_s: float = 600.0
    ) -> None:
        """Wait until none of these partitions (None = of all) is under reassignment. Raises RequestTimedOut."""
        deadline = Deadline(timeout_s)
        named = None if partitions is None else {TopicPartition(topic, number) for topic, number in partitions}
        while True:
            moving = set(await self.list_partition_reassignments(timeout_s=deadline.left_s))
            moving = moving if named is None else moving & named
            if not moving:
                return
            if deadline.is_over:
                raise RequestTimedOut(
                    f"{len(moving)} partitions are still on the move after {timeout_s:g} s, {min(moving)} among them; "
                    "they go on. Look with `raylog topic reassign --list`."
                )
            await asyncio.sleep(POLL_S)

    async def plan_balance(self, *, sizes: bool = True, timeout_s: float = 30.0) -> list[Move]:
        """Plan moves that spread replicas and leaders evenly over brokers and nodes; changes nothing.

        To carry the plan out, pass `{move.partition: move.after for move in plan}` to `alter_partition_reassignments`.
        A partition under reassignment is planned from its target replicas. Offline and stopped brokers keep their
        replicas and get no new ones. `sizes=False` saves the queries for the bytes of replicas.
        """
        deadline = Deadline(timeout_s)
        await self.cluster.refresh(None, timeout_s=timeout_s)
        metadata = self.cluster.metadata
        reply = await self.cluster.call_broker(DESCRIBE_CLUSTER, DescribeClusterRequest(), timeout_s=deadline.left_s)
        nodes = {
            BrokerId(broker.broker): broker.node_id for broker in reply.brokers if broker.online and not broker.stopped
        }
        moving = await self.list_partition_reassignments(timeout_s=deadline.left_s)
        layout: dict[TopicPartition, tuple[BrokerId, ...]] = {}
        leaders: list[tuple[TopicPartition, int]] = []
        for topic in metadata.topics.values():
            for info in topic.partitions:
                partition = TopicPartition(topic.name, info.partition)
                under_way = moving.get(partition)
                row = info.replicas if under_way is None else under_way.target
                layout[partition] = tuple(BrokerId(broker) for broker in row)
                leaders.append((partition, info.leader))
        known = await self._sizes(leaders) if sizes else {}
        return plan_balance(layout, nodes, {partition: size for (partition, _), size in known.items()})

    async def _sizes(self, wanted: Sequence[tuple[TopicPartition, int]]) -> dict[tuple[TopicPartition, int], int]:
        """The bytes of each (partition, broker); replicas that do not answer are left out."""
        limit = asyncio.Semaphore(32)

        async def bytes_at(partition: TopicPartition, broker: int) -> int | None:
            info = self.cluster.metadata.partition(partition.topic, partition.partition)
            places = () if info is None else info.places
            endpoint = next(((host, port) for number, host, port in places if number == broker and port), None)
            if endpoint is None:
                return None
            try:
                async with limit:
                    connection = await self.cluster.connection(endpoint, CALL_TIMEOUT_S)
                    status, _ = await call(connection, REPLICA_STATUS, ReplicaStatusRequest(), timeout_s=CALL_TIMEOUT_S)
            except (RaylogError, OSError):
                return None  # it is starting or stopping
            return status.size_bytes

        answers = await side_by_side(lambda each: bytes_at(*each), wanted)
        return {key: size for key, size in zip(wanted, answers, strict=True) if size is not None}

    async def describe_features(self, *, timeout_s: float = 30.0) -> FeatureDescription:
        """The cluster's feature level, and the levels that each broker's release supports.

        A controller whose release has no feature levels reports none; then all of them are 1.
        """
        reply = await self.cluster.call_broker(DESCRIBE_CLUSTER, DescribeClusterRequest(), timeout_s=timeout_s)
        known = {row.broker: (row.feature_levels[0], row.feature_levels[1]) for row in reply.brokers}
        return FeatureDescription(reply.feature_level, known)

    async def raise_feature_level(self, level: int | None = None, *, timeout_s: float = 30.0) -> tuple[int, int]:
        """Raise the feature level of the cluster; return the new level and the one before.

        None = the highest that every broker supports. It cannot be lowered again. Raises UnsupportedVersion, which
        names the brokers that do not support the level.
        """
        wanted = -1 if level is None else level
        request = RaiseFeatureLevelRequest(wanted)
        reply = await self.cluster.call_broker(RAISE_FEATURE_LEVEL, request, timeout_s=timeout_s)
        return reply.level, reply.previous_level


def _checked(reassignments: Wanted) -> dict[TopicPartition, list[int] | None]:
    """The brokers of each partition. Raises TypeError for anything but a mapping of partitions to brokers."""
    if not isinstance(reassignments, Mapping):
        raise TypeError(f"reassignments must map partitions to lists of brokers, not be {reassignments!r:.100}.")
    return {
        checked_partition(at): None if brokers is None else wholes(f"reassignments[{at}]", brokers)
        for at, brokers in reassignments.items()
    }
