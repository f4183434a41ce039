"""Which senders may commit and fetch offsets in a group of the consumer protocol (KIP-848, KIP-1251). Pure."""

from __future__ import annotations

from raylog.base.errors import RaylogError, StaleMemberEpoch, UnknownMemberId
from raylog.core.groups.consumer.group import AWAY_EPOCH, ConsumerGroup
from raylog.core.groups.consumer.heartbeats import member_error
from raylog.core.groups.consumer.records import Place
from raylog.protocol.groups import OffsetCommitRequest, OffsetFetchRequest, TxnOffsetCommitRequest


def commit_error(group: ConsumerGroup, message: OffsetCommitRequest | TxnOffsetCommitRequest) -> RaylogError | None:
    """Return the error for a commit of this sender at this time, or None when it may commit.

    A commit with an earlier member epoch counts for partitions that the member has held since then: its epoch may
    advance while the commit is on its way. No commit counts for a partition that another member holds.
    """
    if message.generation_id < 0 and not group.members:
        return None
    if message.generation_id < 0 and message.member_id == "" and message.group_instance_id is None:
        return UnknownMemberId(
            f"Group {group.name!r} has members: only they may commit. Use another group_id for consumers "
            "that assign partitions themselves."
        )
    error = member_error(group, message.member_id, message.group_instance_id)
    if error is not None:
        return error
    current = group.current(message.member_id)
    held = {**current.assigned, **current.revoking}
    for row in message.offsets:
        place = Place(row.topic_id, row.topic, row.partition)
        is_ours = group.owners.get(place, message.member_id) == message.member_id
        is_in_time = (
            message.generation_id == current.epoch
            or held.get(place, message.generation_id + 1) <= message.generation_id
        )
        if current.epoch != AWAY_EPOCH and is_ours and is_in_time and message.generation_id <= current.epoch:
            continue
        return StaleMemberEpoch(
            f"Member {message.member_id!r} of group {group.name!r} is in epoch {current.epoch}, and {row.topic}-"
            f"{row.partition} may belong to another member since epoch {message.generation_id}; its records are read "
            "again from the last commit.",
            epoch=current.epoch,
        )
    return None


def fetch_error(group: ConsumerGroup, message: OffsetFetchRequest) -> RaylogError | None:
    """Return the error for a member that fetches offsets in an epoch that is not its own, or None."""
    if message.member_epoch < 0:
        return None
    error = member_error(group, message.member_id, None)
    epoch = group.current(message.member_id).epoch
    if error is None and epoch != message.member_epoch:
        error = StaleMemberEpoch(
            f"Member {message.member_id!r} of group {group.name!r} is in epoch {epoch}, not {message.member_epoch}; "
            "try again after its next heartbeat.",
            epoch=epoch,
        )
    return error
