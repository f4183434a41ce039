"""Administration of groups whose consumers are stopped or lost: reset offsets, and remove members.

A part of `AsyncAdmin`. May touch: the network through `ClusterClient`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

from raylog.base.errors import (
    GroupIdNotFound,
    NoOffsetForPartition,
    RaylogError,
    UnknownTopicOrPartition,
    from_code,
)
from raylog.base.ids import EARLIEST, LATEST, TopicPartition
from raylog.client.admin.reset_plan import End, PlannedOffset, ResetPlan, Target, named_partitions, planned
from raylog.client.admin.topic_ids import current_topic_ids
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.cluster.deadline import Deadline
from raylog.client.tasks import outcomes
from raylog.protocol.groups import (
    DESCRIBE_GROUP,
    LEAVE_GROUP,
    OFFSET_RESET,
    DescribedMember,
    DescribeGroupReply,
    DescribeGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    OffsetResetPartition,
    OffsetResetRequest,
)

AT_ONCE: Final = 64
"""How many partition leaders are queried at the same time."""
NAMED_MAX: Final = 5


class AsyncResets:
    """Methods of `AsyncAdmin` to reset the offsets of stopped consumers, and to remove members of dead processes."""

    cluster: ClusterClient

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
        gate = asyncio.Semaphore(AT_ONCE)

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
