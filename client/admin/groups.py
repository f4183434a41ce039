"""Administration of consumer groups: list, describe and delete them, delete and alter their offsets, query their lag.

A part of `AsyncAdmin`. May touch: the network through `ClusterClient`, the clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from raylog.base.errors import GroupSubscribedToTopic, RaylogError, from_code
from raylog.base.ids import LATEST, TopicPartition
from raylog.client.admin.descriptions import (
    GroupDescription,
    GroupListing,
    MemberDescription,
    OffsetOfDeletedTopic,
    PendingOffset,
)
from raylog.client.admin.lag import PartitionLag, partition_lags
from raylog.client.admin.topic_ids import current_topic_ids
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.cluster.deadline import Deadline
from raylog.client.consumer.committed_offsets import CommittedOffsets
from raylog.client.group.embedded_protocol import decode_assignment
from raylog.client.tasks import outcomes
from raylog.client.types import OffsetAndMetadata
from raylog.core.coordinators.hashing import coordinator_partition
from raylog.core.groups.states import named_states, named_types
from raylog.protocol.groups import (
    DELETE_GROUP,
    DESCRIBE_GROUP,
    LIST_GROUPS,
    OFFSET_DELETE,
    OFFSET_FETCH,
    DeleteGroupRequest,
    DescribedMember,
    DescribeGroupRequest,
    ListGroupsRequest,
    OffsetDeleteRequest,
    OffsetFetchPartition,
    OffsetFetchRequest,
    TopicPartitions,
)

OFFSETS_TOPIC = "__consumer_offsets"
AT_ONCE = 4
"""How many coordinators are queried at the same time: a query may have to start its coordinator."""


class AsyncGroups:
    """Group methods of `AsyncAdmin`."""

    cluster: ClusterClient

    async def list_groups(
        self,
        states: Iterable[str] | None = None,
        *,
        types: Iterable[str] | None = None,
        timeout_s: float = 30.0,
    ) -> list[GroupListing]:
        """All groups, sorted by name; only those in `states` (KIP-518) and of `types` (KIP-848), if given.

        Types are "classic" and "consumer". The states of all groups are "Empty" and "Stable"; classic groups also have
        "PreparingRebalance" and "CompletingRebalance", consumer groups "Assigning" and "Reconciling". Case does not
        matter. This queries every coordinator that ever had a group, and starts those that are asleep. Raises
        ValueError for an unknown type, or a state that these types do not have.
        """
        kinds = named_types(types or ())
        request = ListGroupsRequest(named_states(states or (), kinds), [each.value for each in kinds])
        deadline = Deadline(timeout_s)
        await self.cluster.refresh((OFFSETS_TOPIC,), timeout_s=deadline.left_s)
        topic = self.cluster.metadata.topic(OFFSETS_TOPIC)
        if topic is None:
            return []  # no group has committed or joined yet
        at_once = asyncio.Semaphore(AT_ONCE)
        found: set[tuple[str, str, str, str]] = set()

        async def add(partition: int, key: str) -> None:
            if not await self._had_groups(partition, deadline):
                return
            async with at_once:
                rows = await self.cluster.call_coordinator(
                    key, LIST_GROUPS, msgspec.structs.replace(request, coordinator=partition), timeout_s=deadline.left_s
                )
            found.update((row.group_id, row.protocol_type, row.state, row.group_type) for row in rows)

        keys = keys_of_each_coordinator(len(topic.partitions))
        answers = await outcomes(lambda each: add(*each), enumerate(keys))
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [GroupListing(*row) for row in sorted(found)]

    async def _had_groups(self, partition: int, deadline: Deadline) -> bool:
        """Whether a partition of the offsets topic was ever written to; True if that cannot be found out.

        The query wakes no partition. A coordinator appends to its partition before it admits its first member.
        """
        try:
            limit_s = deadline.left_s / 2
            end = await self.cluster.list_offset((OFFSETS_TOPIC, partition), LATEST, timeout_s=limit_s)
        except RaylogError:
            return True  # the query to its coordinator succeeds, or raises the reason
        return end.offset > 0

    async def describe_group(self, group_id: str, *, timeout_s: float = 30.0) -> GroupDescription:
        """One group with its members and committed offsets. Raises GroupIdNotFound.

        An offset was committed for a topic id, not for a name: offsets of deleted topics are in `deleted_offsets`, even
        if a topic of that name exists again.
        """
        request = DescribeGroupRequest(group_id)
        deadline = Deadline(timeout_s)
        found = await self.cluster.call_coordinator(group_id, DESCRIBE_GROUP, request, timeout_s=timeout_s)
        host, port = await self.cluster.coordinator(group_id, timeout_s=deadline.left_s)
        committed = [row for row in found.offsets if row.committed_offset >= 0]
        current = await current_topic_ids(self.cluster, {row.topic for row in committed}, deadline)
        return GroupDescription(
            found.group,
            found.state,
            found.protocol_type,
            found.protocol,
            found.generation,
            found.leader,
            tuple(_member(row) for row in found.members),
            {
                TopicPartition(row.topic, row.partition): row.committed_offset
                for row in committed
                if current.get(row.topic) == row.topic_id
            },
            tuple(
                PendingOffset(
                    TopicPartition(row.topic, row.partition),
                    row.committed_offset,
                    row.producer_id,
                    row.producer_epoch,
                )
                for row in found.pending_offsets
            ),
            f"{host}:{port}",
            found.group_type,
            found.target_epoch,
            tuple(
                OffsetOfDeletedTopic(TopicPartition(row.topic, row.partition), row.topic_id, row.committed_offset)
                for row in committed
                if current.get(row.topic) != row.topic_id
            ),
        )

    async def delete_group(self, group_id: str, timeout_s: float = 30.0) -> None:
        """Delete a group without members, and its offsets. Raises GroupIdNotFound, NonEmptyGroup."""
        await self.cluster.call_coordinator(group_id, DELETE_GROUP, DeleteGroupRequest(group_id), timeout_s=timeout_s)

    async def delete_offsets(
        self, group_id: str, partitions: Iterable[tuple[str, int]], *, timeout_s: float = 30.0
    ) -> None:
        """Delete a group's committed offsets of these (topic, partition).

        This includes offsets of deleted topics with these names. Raises GroupIdNotFound; NonEmptyGroup for a group with
        members that are not consumers. The next two are raised after all other offsets were deleted:
        GroupSubscribedToTopic for a topic that members subscribe to (KIP-496), UnstableOffsetCommit for an offset that
        is pending in an open transaction.
        """
        deadline = Deadline(timeout_s)
        named = set(partitions)
        wanted = OffsetFetchRequest(group_id, None)
        held = await self.cluster.call_coordinator(group_id, OFFSET_FETCH, wanted, timeout_s=deadline.left_s)
        rows = [
            OffsetFetchPartition(row.topic_id, row.topic, row.partition)
            for row in held
            if (row.topic, row.partition) in named
        ]
        request = OffsetDeleteRequest(group_id, rows)
        results = await self.cluster.call_coordinator(group_id, OFFSET_DELETE, request, timeout_s=deadline.left_s)
        for row in results:
            if row.error_code:
                where = f"The offset of {row.topic}-{row.partition} was not deleted in group {group_id!r}"
                if row.error_code == GroupSubscribedToTopic.code:
                    why = "members of it subscribe to the topic; stop them, or have them subscribe to others."
                else:
                    why = f"`raylog group describe {group_id}` shows whether it is pending (error {row.error_code})."
                raise from_code(row.error_code, f"{where}: {why}")

    async def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], *, timeout_s: float = 30.0
    ) -> None:
        """Commit these offsets for a group without members, which resumes from them.

        They replace offsets of these partitions that open transactions have pending. Raises UnknownMemberId when the
        group has members.
        """
        wanted = {
            TopicPartition(*place): each if isinstance(each, OffsetAndMetadata) else OffsetAndMetadata(each)
            for place, each in offsets.items()
        }
        await CommittedOffsets(self.cluster, group_id).commit(wanted, timeout_s=timeout_s)

    async def group_lag(
        self, group: str | GroupDescription, *, timeout_s: float = 30.0
    ) -> dict[TopicPartition, PartitionLag]:
        """The lag of a group, in records and in seconds, in each partition with a committed offset or a member.

        Records that retention or `delete_records` has removed do not count, nor do deleted topics. For a partition
        whose leader cannot be reached, `PartitionLag.error` is set. Raises GroupIdNotFound.
        """
        deadline = Deadline(timeout_s)
        found = await self.describe_group(group, timeout_s=timeout_s) if isinstance(group, str) else group
        if not isinstance(found, GroupDescription):
            raise TypeError(f"The group must be its id, or what describe_group() returns, not {group!r:.100}.")
        committed: dict[TopicPartition, int | None] = dict.fromkeys(
            each for member in found.members for each in member.assignment
        )
        committed.update(found.offsets)
        return await partition_lags(self.cluster, committed, now_ms=int(time.time() * 1000), timeout_s=deadline.left_s)


def keys_of_each_coordinator(partitions: int, prefix: str = "") -> list[str]:
    """For each of so many coordinator partitions a key that brokers hash to it; each key begins with `prefix`."""
    keys: dict[int, str] = {}
    number = 0
    while len(keys) < partitions:
        key = f"{prefix}{number}"
        keys.setdefault(coordinator_partition(key, partitions), key)
        number += 1
    return [keys[index] for index in range(partitions)]


def _member(row: DescribedMember) -> MemberDescription:
    try:
        assigned = decode_assignment(row.assignment)
    except ValueError:
        assigned = ()  # another kind of client: only its members can read the assignment
    return MemberDescription(
        row.member_id,
        row.instance_id,
        row.client_id,
        _flat(row.assigned) if row.member_epoch != -1 else assigned,
        row.client_host,
        row.member_epoch,
        row.member_state,
        tuple(row.topics),
        _flat(row.revoking),
        _flat(row.target),
    )


def _flat(rows: Sequence[TopicPartitions]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(row.topic, number) for row in rows for number in row.partitions)
