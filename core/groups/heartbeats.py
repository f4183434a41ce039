"""What a member's heartbeat does to its group: join, follow the target, leave (KIP-848); which member may commit.

Each function takes the group and the step's decision. The target is computed here as well (``assign``). While there is
no news for its member a heartbeat is parked, at most until its wait is over: so an assignment reaches a member at once,
whatever its heartbeat interval. Called by ``consumer_groups.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from raylog.base.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    RaylogError,
    StaleMemberEpoch,
    UnknownMemberId,
    UnreleasedInstanceId,
)
from raylog.core.coordinators.sizes import row_bytes
from raylog.core.groups.assignors import ASSIGNORS
from raylog.core.groups.consumer_group import LEAVE_EPOCH, ConsumerGroup, Session
from raylog.core.groups.consumer_records import (
    Current,
    CurrentChanged,
    EpochsChanged,
    MemberChanged,
    MemberState,
    Place,
    ReadTopic,
    TargetChanged,
    TopicFacts,
    grouped,
    places_of,
    target_row,
)
from raylog.core.groups.decision import GroupDecision
from raylog.core.groups.states import AWAY_EPOCH
from raylog.core.received import Received
from raylog.protocol.groups import (
    ConsumerGroupHeartbeatRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
)
from raylog.protocol.rows import Row, Tombstone

Known = Mapping[str, TopicFacts]
"""The topics that are known to exist."""

# ---------------------------------------------------------------- which sender may speak


def join_error(group: ConsumerGroup, message: ConsumerGroupHeartbeatRequest) -> RaylogError | None:
    """Return the error for a member that joins under an instance id that another process uses, or None."""
    holder = None if message.group_instance_id is None else group.static.get(message.group_instance_id)
    if holder is None or holder == message.member_id or group.current(holder).epoch == AWAY_EPOCH:
        return None
    return UnreleasedInstanceId(
        f"Another process is in group {group.name!r} as {message.group_instance_id!r}; end it, or wait until its "
        "session ends, or give this consumer its own group_instance_id.",
        group=group.name,
        instance_id=message.group_instance_id,
    )


def member_error(group: ConsumerGroup, member_id: str, instance_id: str | None) -> RaylogError | None:
    """Return the error for a sender that is not that member, or None."""
    if instance_id is not None:
        holder = group.static.get(instance_id)
        if holder is None:
            return UnknownMemberId(f"Group {group.name!r} has no static member {instance_id!r}; join again.")
        if holder != member_id:
            return FencedInstanceId(
                f"Another process joined group {group.name!r} as {instance_id!r}; give every running consumer its own "
                "group_instance_id.",
                group=group.name,
                instance_id=instance_id,
            )
    if member_id not in group.members:
        return UnknownMemberId(f"Group {group.name!r} does not know member {member_id!r}; join again.")
    return None


def epoch_error(group: ConsumerGroup, message: ConsumerGroupHeartbeatRequest) -> RaylogError | None:
    """Return the error for a heartbeat in another epoch than the member's, or None.

    The previous epoch is accepted if the member holds no more than its current assignment: the answer with the new
    epoch may have been lost.
    """
    current = group.current(message.member_id)
    if message.member_epoch == current.epoch:
        return None
    held = places_of(message.owned)
    lost_answer = (
        message.member_epoch == current.previous_epoch
        and held is not None
        and held <= {*current.assigned, *current.revoking}
    )
    if lost_answer and current.epoch != AWAY_EPOCH:
        return None
    return FencedMemberEpoch(
        f"Member {message.member_id!r} of group {group.name!r} is in epoch {current.epoch}, not "
        f"{message.member_epoch}; join again.",
        epoch=current.epoch,
    )


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


# ---------------------------------------------------------------- a heartbeat


def take_in(group: ConsumerGroup, event: Received[ConsumerGroupHeartbeatRequest], decision: GroupDecision) -> bool:
    """Note what a valid heartbeat states about its member; return whether the group's target has to change."""
    message = event.message
    holder = None if message.group_instance_id is None else group.static.get(message.group_instance_id)
    if message.member_epoch == 0 and holder is not None and holder != message.member_id:
        _replace_static(group, holder, message, decision)
    known = group.members.get(message.member_id)
    topics = known.topics if known else ()
    if message.subscribed_topics is not None:
        topics = tuple(sorted(set(message.subscribed_topics)))
    assignor = message.server_assignor if message.server_assignor is not None else known.assignor if known else ""
    member = MemberChanged(
        group=group.name,
        member_id=message.member_id,
        instance_id=known.instance_id if known else message.group_instance_id,
        client_id=message.client_id,
        session_timeout_ms=message.session_timeout_ms,
        rebalance_timeout_ms=message.rebalance_timeout_ms,
        topics=topics,
        assignor=assignor,
        client_host=event.sender.host or (known.client_host if known else ""),
    )
    if known != member:
        decision.write(member)
    session = group.sessions.get(message.member_id)
    if session is None:
        session = group.sessions[message.member_id] = Session(0)
    session.sequence, session.knows_epoch = message.sequence, message.member_epoch
    session.deadline_ms = event.now_ms + message.session_timeout_ms
    unpark(session, decision)
    return known is None or (known.topics, known.assignor) != (topics, assignor)


def _replace_static(
    group: ConsumerGroup, old_id: str, message: ConsumerGroupHeartbeatRequest, decision: GroupDecision
) -> None:
    """Give the place of a static member to its new process, before its partitions can be reassigned.

    The old member's rows are deleted first: a crash in between may leave partitions without an owner, never with two.
    """
    old, target, current = group.members[old_id], group.target(old_id), group.current(old_id)
    remove(group, old_id, decision)
    decision.write(old.replaced(member_id=message.member_id))
    decision.write(target_row(group.name, message.member_id, target))
    current = replace(current, member_id=message.member_id, revoking={}, state=MemberState.UNRELEASED_PARTITIONS)
    decision.write(current.row(group.name))


def step_to_target(
    group: ConsumerGroup, member_id: str, owned: frozenset[Place] | None, decision: GroupDecision
) -> bool:
    """Take a member's next step towards its target; return whether it released partitions."""
    current, session = group.current(member_id), group.sessions[member_id]
    following = next_current(
        current,
        group.target(member_id),
        group.target_epoch,
        owned=owned,
        owners=group.owners,
        shown_epoch=session.knows_epoch,
    )
    if following is current:
        return False
    if row_bytes(*following.row(group.name).to_wire()) > decision.settings.record_bytes_max:
        # A row has an entry for each topic and epoch: with one epoch it fits. Commits with earlier epochs are refused
        # then, and repeated.
        following = replace(
            following,
            assigned=dict.fromkeys(following.assigned, following.epoch),
            revoking=dict.fromkeys(following.revoking, following.epoch),
        )
    decision.write(following.row(group.name))
    if following.state is not MemberState.UNREVOKED_PARTITIONS:
        session.revoke_deadline_ms = None
    elif session.revoke_deadline_ms is None or following.revoking.keys() - current.revoking.keys():
        session.revoke_deadline_ms = decision.now_ms + group.members[member_id].rebalance_timeout_ms
    held = {*current.assigned, *current.revoking}
    return not held <= {*following.assigned, *following.revoking}


def answer_or_park(
    group: ConsumerGroup, event: Received[ConsumerGroupHeartbeatRequest], decision: GroupDecision
) -> None:
    """Answer a heartbeat if there is news for its member or it does not wait; park it otherwise."""
    message = event.message
    current, session = group.current(message.member_id), group.sessions[message.member_id]
    assigned = frozenset(current.assigned)
    owned = places_of(message.owned)
    differs = owned is not None and owned != assigned
    session.parked = event.request
    session.parked_until_ms = event.now_ms + min(message.max_wait_ms, message.session_timeout_ms)
    if differs or message.max_wait_ms <= 0 or has_news(group, message.member_id):
        answer(group, message.member_id, decision, whole=differs or message.member_epoch == 0)


def has_news(group: ConsumerGroup, member_id: str) -> bool:
    """Return whether the member does not know its present epoch or assignment."""
    current, session = group.current(member_id), group.sessions[member_id]
    return current.epoch != session.knows_epoch or session.sent != frozenset(current.assigned)


def answer(group: ConsumerGroup, member_id: str, decision: GroupDecision, *, whole: bool = False) -> None:
    """Answer a member's parked heartbeat: [member id, epoch, [[topic id, topic, [partitions]]...] or None].

    The assignment is left out (None) if the member was sent it before, unless ``whole``.
    """
    current, session = group.current(member_id), group.sessions[member_id]
    request, session.parked = session.parked, None
    if request is None:
        return
    assigned = frozenset(current.assigned)
    rows = [list(row) for row in grouped(assigned)] if whole or session.sent != assigned else None
    session.sent = assigned
    session.deadline_ms = decision.now_ms + group.members[member_id].session_timeout_ms
    decision.reply(request, [member_id, current.epoch, rows])


def unpark(session: Session, decision: GroupDecision) -> None:
    """Refuse a member's parked heartbeat, if any: a newer one has come."""
    request, session.parked = session.parked, None
    if request is not None:
        decision.refuse_at_once(request, StaleMemberEpoch("A newer heartbeat of this member has come."))


# ---------------------------------------------------------------- a member's way to its target
#
# One step for each heartbeat, and for a parked one when the target or an owner changes. The one rule: a partition goes
# to its new owner only when no member has it, and the former owner has it until its own heartbeat no longer lists it. A
# member that has to give up partitions stays in its epoch until it has; all others advance. All of them keep reading
# the partitions that they keep.


def next_current(
    current: Current,
    target: Collection[Place],
    target_epoch: int,
    *,
    owned: Collection[Place] | None,
    owners: Mapping[Place, str],
    shown_epoch: int,
) -> Current:
    """Return the member's next current assignment; the same object if nothing changes.

    ``owned``: the partitions that its heartbeat lists; None = it lists none, which confirms no revocation. ``owners``:
    the member that has each partition, including one that has not confirmed that it gave it up. ``shown_epoch``: the
    epoch in the member's last heartbeat, which it may send again until it has the answer with the new one.
    """
    if current.state is MemberState.STABLE and current.epoch == target_epoch:
        return current
    if current.state is MemberState.UNREVOKED_PARTITIONS and _still_holds(current.revoking, owned):
        return current
    kept = {place: since for place, since in current.assigned.items() if place in target}
    given_up = {place: since for place, since in current.assigned.items() if place not in target}
    if given_up and _still_holds(given_up, owned):
        return replace(current, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=given_up)
    missing = [place for place in target if place not in kept]
    free = [place for place in missing if owners.get(place, current.member_id) == current.member_id]
    state = MemberState.STABLE if len(free) == len(missing) else MemberState.UNRELEASED_PARTITIONS
    following = Current(
        member_id=current.member_id,
        epoch=target_epoch,
        previous_epoch=current.previous_epoch if current.epoch == target_epoch else shown_epoch,
        state=state,
        assigned=kept | dict.fromkeys(free, target_epoch),
        revoking={},
    )
    return current if following == current else following


def _still_holds(partitions: Collection[Place], owned: Collection[Place] | None) -> bool:
    return owned is None or any(place in owned for place in partitions)


# ---------------------------------------------------------------- leaving


def leave(group: ConsumerGroup, event: Received[ConsumerGroupHeartbeatRequest], decision: GroupDecision) -> bool:
    """Take a member's last heartbeat; return whether the group's target has to change."""
    message = event.message
    member_id = message.member_id
    decision.reply(event.request, [member_id, message.member_epoch, None])
    if message.member_epoch == LEAVE_EPOCH or group.members[member_id].instance_id is None:
        remove(group, member_id, decision)
        return True
    current = group.current(member_id)
    session = group.sessions[member_id]
    unpark(session, decision)
    session.revoke_deadline_ms = None
    away = replace(current, epoch=AWAY_EPOCH, previous_epoch=current.epoch, state=MemberState.STABLE, revoking={})
    decision.write(away.row(group.name))
    return False


def remove(group: ConsumerGroup, member_id: str, decision: GroupDecision) -> None:
    """Remove a member: its partitions are free, and it is fenced from now on."""
    session = group.sessions.pop(member_id)
    if session.parked is not None:
        decision.refuse(session.parked, UnknownMemberId(f"Member {member_id!r} was removed; join again."))
    rows: tuple[tuple[type[Row], Mapping[str, object]], ...] = (
        (TargetChanged, group.targets),
        (CurrentChanged, group.currents),
        (MemberChanged, group.members),
    )
    for kind, held in rows:
        if member_id in held:
            decision.write(Tombstone(kind, (group.name, member_id)))


# ---------------------------------------------------------------- the target


def bump(group: ConsumerGroup, decision: GroupDecision) -> None:
    """Advance the group's epoch, unless its target is behind it already: the next target will have all changes."""
    group.assign_due = True
    if group.target_epoch == group.epoch:
        _write_epochs(group, decision, epoch=group.epoch + 1, target_epoch=group.target_epoch, topics=group.topics)


def assign(group: ConsumerGroup, known: Known, decision: GroupDecision) -> None:
    """Compute the target of the group's epoch; members with parked heartbeats take their next step towards it."""
    bump(group, decision)
    topics = {topic: known[topic] for topic in sorted(group.subscribed()) if topic in known}
    assignor = group.assignor()
    for member_id, target in ASSIGNORS[assignor](group.readers(), topics).items():
        if group.targets.get(member_id) != target:
            decision.write(target_row(group.name, member_id, target))
    for member_id in sorted(group.targets.keys() - group.members.keys()):
        decision.write(Tombstone(TargetChanged, (group.name, member_id)))
    _write_epochs(group, decision, epoch=group.epoch, target_epoch=group.epoch, topics=topics, assignor=assignor)
    group.assign_due = False
    group.assign_at_ms = decision.now_ms + decision.settings.assignment_interval_ms
    step_parked(group, decision)


def step_parked(group: ConsumerGroup, decision: GroupDecision) -> None:
    """Take the next step of each member with a parked heartbeat, and answer those for which that is news."""
    for member_id, session in group.sessions.items():
        if session.parked is not None:
            step_to_target(group, member_id, None, decision)
            if has_news(group, member_id):
                answer(group, member_id, decision)


def _write_epochs(
    group: ConsumerGroup,
    decision: GroupDecision,
    *,
    epoch: int,
    target_epoch: int,
    topics: Known,
    assignor: str | None = None,
) -> None:
    if assignor is None:
        assignor = group.assignor() if group.image is None else group.image.assignor
    decision.write(
        EpochsChanged(
            group=group.name,
            epoch=epoch,
            target_epoch=target_epoch,
            assignor=assignor,
            topics=tuple(ReadTopic(topic, *facts) for topic, facts in sorted(topics.items())),
            changed_ms=decision.wall_ms,
        )
    )
