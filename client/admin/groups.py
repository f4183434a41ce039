"""Administration of consumer groups: list, describe and delete them, delete and alter their offsets, query their lag.

A part of `AsyncAdmin`. May touch: the network through `ClusterClient`, the clock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from raylog.base.errors import (
    GroupIdNotFound,
    GroupSubscribedToTopic,
    NoOffsetForPartition,
    RaylogError,
    UnknownTopicOrPartition,
    from_code,
)
from raylog.base.ids import EARLIEST, LATEST, TopicPartition
from raylog.client.admin.descriptions import (
    GroupDescription,
    GroupListing,
    MemberDescription,
    OffsetOfDeletedTopic,
    PendingOffset,
)
from raylog.client.admin.lag import PartitionLag, partition_lags
from raylog.client.admin.reset_plan import End, PlannedOffset, ResetPlan, Target, named_partitions, planned
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
    LEAVE_GROUP,
    LIST_GROUPS,
    OFFSET_DELETE,
    OFFSET_FETCH,
    OFFSET_RESET,
    DeleteGroupRequest,
    DescribedMember,
    DescribeGroupReply,
    DescribeGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    ListGroupsRequest,
    OffsetDeleteRequest,
    OffsetFetchPartition,
    OffsetFetchRequest,
    OffsetResetPartition,
    OffsetResetRequest,
    TopicPartitions,
)

OFFSETS_TOPIC = "__consumer_offsets"
COORDINATORS_AT_ONCE = 4
"""How many coordinators are queried at the same time: a query may have to start its coordinator."""


LEADERS_AT_ONCE: Final = 64
"""How many partition leaders are queried at the same time."""


NAMED_MAX: Final = 5


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
        at_once = asyncio.Semaphore(COORDINATORS_AT_ONCE)
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

    async def reset_offsets(
        self,
        group_id: str,
        *,
        to: End | int | None = None,
        time: datetime | int | None = None,
        by: int | None = None,
        partitions: Iterable[str | tuple[str, int]] | None = None,
        dry_run: bool = False,
        timeout_s: float = 30.0,
    ) -> ResetPlan:
        """Move the committed offsets of a group without members: all of them, or none.

        Give exactly one of `to` ("earliest", "latest" or an offset), `time` (a datetime with a zone, or milliseconds
        since 1970: the first record that is not older) and `by` (records to shift, negative = back). An offset outside
        a partition's log is clamped to it, and the plan says so. `partitions` are topics, "topic:0,2" or (topic,
        number); None = all with a committed offset. `dry_run` only makes the plan, for a group with members too.

        Raises NonEmptyGroup with the names of the members; ResetOutdated when the group was used after the plan was
        made; GroupIdNotFound for a group that does not exist, unless partitions are named; UnknownTopicOrPartition;
        NoOffsetForPartition for a shift of a partition without a committed offset.
        """
        deadline = Deadline(timeout_s)
        target = Target.of(to, time, by)
        named = None if partitions is None else named_partitions(partitions)
        found = await self._group_or_none(group_id, deadline)
        if found is None and named is None:
            raise GroupIdNotFound(f"There is no group {group_id!r}; list_groups() names those there are.")
        committed = {} if found is None else _committed(found)
        ids, left_out = await self._partitions_to_reset(named, committed, deadline)
        offsets = await self._planned(group_id, ids, committed, target, deadline)
        members = () if found is None else tuple(_named(member) for member in found.members)
        if dry_run or not offsets:
            return ResetPlan(group_id, offsets, is_done=False, members=members, left_out=left_out)
        rows = [
            OffsetResetPartition(ids[each.partition], *each.partition, each.after, _planned_from(each.before))
            for each in offsets
        ]
        request = OffsetResetRequest(group_id, 0 if found is None else found.generation, rows)
        await self.cluster.call_coordinator(group_id, OFFSET_RESET, request, timeout_s=deadline.left_s)
        return ResetPlan(group_id, offsets, is_done=True, left_out=left_out)

    async def remove_members(
        self,
        group_id: str,
        members: Iterable[str] = (),
        *,
        instances: Iterable[str] = (),
        all_members: bool = False,
        timeout_s: float = 30.0,
    ) -> dict[str, RaylogError | None]:
        """Remove members from a group: by member id, static ones by their `group_instance_id`, or all of them.

        Their partitions go to the other members at once, without waiting for a session timeout (KIP-345, KIP-571). A
        consumer that still runs joins again at its next poll: use this for members of dead processes. Returns by id or
        instance None, or why it was not removed, such as UnknownMemberId. Raises GroupIdNotFound.
        """
        deadline = Deadline(timeout_s)
        leaving = {each: LeavingMember(each, None) for each in members}
        leaving |= {each: LeavingMember("", each) for each in instances}
        if all_members == bool(leaving):
            raise TypeError("Name members or instances, or give all_members=True; not both.")
        found = await self._described(group_id, deadline)
        if all_members:
            leaving = {
                row.instance_id or row.member_id: LeavingMember(row.member_id, row.instance_id) for row in found.members
            }
        if not leaving:
            return {}
        request = LeaveGroupRequest(group_id, list(leaving.values()))
        results = await self.cluster.call_coordinator(group_id, LEAVE_GROUP, request, timeout_s=deadline.left_s)
        return {
            name: from_code(row.error_code, f"{name!r} is no member of group {group_id!r} now.")
            if row.error_code
            else None
            for name, row in zip(leaving, results, strict=True)
        }

    async def _described(self, group_id: str, deadline: Deadline) -> DescribeGroupReply:
        request = DescribeGroupRequest(group_id)
        return await self.cluster.call_coordinator(group_id, DESCRIBE_GROUP, request, timeout_s=deadline.left_s)

    async def _group_or_none(self, group_id: str, deadline: Deadline) -> DescribeGroupReply | None:
        try:
            return await self._described(group_id, deadline)
        except GroupIdNotFound:
            return None

    async def _partitions_to_reset(
        self,
        named: list[tuple[str, int | None]] | None,
        committed: Mapping[tuple[str, TopicPartition], int],
        deadline: Deadline,
    ) -> tuple[dict[TopicPartition, str], tuple[TopicPartition, ...]]:
        """The partitions to reset with the ids of their topics; and the partitions whose topic no longer exists."""
        topics = {topic for topic, _ in named} if named is not None else {place.topic for _, place in committed}
        if named is not None:
            await self.cluster.refresh(topics, timeout_s=deadline.left_s)  # a topic may have been created again
            return await self._named_partitions(named, deadline), ()
        current = await current_topic_ids(self.cluster, topics, deadline)
        ids = {place: topic_id for topic_id, place in sorted(committed) if current.get(place.topic) == topic_id}
        deleted = sorted(place for topic_id, place in committed if current.get(place.topic) != topic_id)
        return ids, tuple(deleted)

    async def _named_partitions(
        self, named: list[tuple[str, int | None]], deadline: Deadline
    ) -> dict[TopicPartition, str]:
        ids: dict[TopicPartition, str] = {}
        for topic, number in named:
            info = await self.cluster.topic(topic, timeout_s=deadline.left_s, may_create=False)
            count = len(info.partitions)
            if number is not None and not 0 <= number < count:
                raise UnknownTopicOrPartition(
                    f"Topic {topic!r} has no partition {number}, only 0 to {count - 1}.", topic=topic, partition=number
                )
            numbers = range(count) if number is None else (number,)
            ids |= {TopicPartition(topic, each): info.topic_id for each in numbers}
        return dict(sorted(ids.items()))

    async def _planned(
        self,
        group_id: str,
        ids: Mapping[TopicPartition, str],
        committed: Mapping[tuple[str, TopicPartition], int],
        target: Target,
        deadline: Deadline,
    ) -> tuple[PlannedOffset, ...]:
        before = {place: committed.get((topic_id, place)) for place, topic_id in ids.items()}
        if target.by is not None and (never := [str(place) for place, offset in before.items() if offset is None]):
            raise NoOffsetForPartition(
                f"Group {group_id!r} has committed no offset of {', '.join(never[:NAMED_MAX])} to shift; move these to "
                "the earliest or latest offset, or leave them out."
            )
        gate = asyncio.Semaphore(LEADERS_AT_ONCE)

        async def at(place: TopicPartition, time_ms: int) -> int | None:
            async with gate:
                found = await self.cluster.list_offset(place, time_ms, timeout_s=deadline.left_s)
            return found.offset if found.offset >= 0 else None

        async def plan(place: TopicPartition) -> PlannedOffset:
            start, end = await at(place, EARLIEST) or 0, await at(place, LATEST) or 0
            at_time = None if target.time_ms is None else await at(place, target.time_ms)
            return planned(place, target, before=before[place], start=start, end=end, at_time=at_time)

        answers = await outcomes(plan, ids)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return tuple(answer for answer in answers if isinstance(answer, PlannedOffset))


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


async def current_topic_ids(cluster: ClusterClient, topics: Iterable[str], deadline: Deadline) -> dict[str, str]:
    """The id of each of these topics, from fresh metadata; topics that do not exist are left out."""
    names = sorted(set(topics))
    if not names:
        return {}
    await cluster.refresh(names, timeout_s=deadline.left_s)  # a topic may have been created again
    current: dict[str, str] = {}
    for name in names:
        try:
            info = await cluster.topic(name, timeout_s=deadline.left_s, may_create=False)
        except UnknownTopicOrPartition:
            continue
        current[name] = info.topic_id
    return current


def _committed(found: DescribeGroupReply) -> dict[tuple[str, TopicPartition], int]:
    return {
        (row.topic_id, TopicPartition(row.topic, row.partition)): row.committed_offset
        for row in found.offsets
        if row.committed_offset >= 0
    }


def _named(member: DescribedMember) -> str:
    return f"{member.client_id} ({member.instance_id or member.member_id})"


def _planned_from(before: int | None) -> int:
    return -1 if before is None else before
