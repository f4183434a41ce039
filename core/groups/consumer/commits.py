"""Which senders may commit and fetch offsets in a group of the consumer protocol (KIP-848, KIP-1251). Pure."""

from __future__ import annotations

from raylog.base.errors import RaylogError, StaleMemberEpoch, UnknownMemberId
from raylog.core.groups.consumer.group import AWAY_EPOCH, ConsumerGroup
from raylog.core.groups.consumer.heartbeats import member_error
from raylog.core.groups.consumer.records import Place
from raylog.core.groups.events import OffsetCommitReceived, OffsetFetchReceived, TxnOffsetCommitReceived


def commit_error(group: ConsumerGroup, event: OffsetCommitReceived | TxnOffsetCommitReceived) -> RaylogError | None:
    """Return the error for a commit of this sender at this time, or None when it may commit.

    A commit with an earlier member epoch counts for partitions that the member has held since then: its epoch may
    advance while the commit is on its way. No commit counts for a partition that another member holds.
    """
    if event.generation < 0 and not group.members:
        return None
    if event.generation < 0 and event.member_id == "" and event.instance_id is None:
        return UnknownMemberId(
            f"Group {group.name!r} has members: only they may commit. Use another group_id for consumers "
            "that assign partitions themselves."
        )
    error = member_error(group, event.member_id, event.instance_id)
    if error is not None:
        return error
    current = group.current(event.member_id)
    held = {**current.assigned, **current.revoking}
    for topic_id, topic, partition, *_ in event.offsets:
        place = Place(topic_id, topic, partition)
        is_ours = group.owners.get(place, event.member_id) == event.member_id
        is_in_time = event.generation == current.epoch or held.get(place, event.generation + 1) <= event.generation
        if current.epoch != AWAY_EPOCH and is_ours and is_in_time and event.generation <= current.epoch:
            continue
        return StaleMemberEpoch(
            f"Member {event.member_id!r} of group {group.name!r} is in epoch {current.epoch}, and {topic}-{partition} "
            f"may belong to another member since epoch {event.generation}; its records are read again from the last "
            "commit.",
            epoch=current.epoch,
        )
    return None


def fetch_error(group: ConsumerGroup, event: OffsetFetchReceived) -> RaylogError | None:
    """Return the error for a member that fetches offsets in an epoch that is not its own, or None."""
    if event.member_epoch < 0:
        return None
    error = member_error(group, event.member_id, None)
    epoch = group.current(event.member_id).epoch
    if error is None and epoch != event.member_epoch:
        error = StaleMemberEpoch(
            f"Member {event.member_id!r} of group {group.name!r} is in epoch {epoch}, not {event.member_epoch}; "
            "try again after its next heartbeat.",
            epoch=epoch,
        )
    return error
