"""The rounds of a group: join, sync, heartbeat, leave, and timeouts (Kafka's classic protocol).

Each function takes the group and the step's :class:`GroupDecision`. A round: members join and are parked
(PreparingRebalance); when all have joined or the time is up, the generation is written and sent to every member, to the
leader with all metadata (CompletingRebalance); members send SyncGroup and are parked until the leader's SyncGroup
carries the assignments, which are written before members receive them (Stable). Called by ``coordinator.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raylog.base.errors import (
    FencedInstanceId,
    GroupMaxSizeReached,
    InconsistentGroupProtocol,
    MemberIdRequired,
    RaylogError,
    RebalanceInProgress,
    RecordTooLarge,
    UnknownMemberId,
)
from raylog.core.coordinators.sizes import row_bytes
from raylog.core.decision import RequestId
from raylog.core.groups.decision import GroupDecision
from raylog.core.groups.group import Group, Member
from raylog.core.groups.records import GroupChanged, Protocols
from raylog.core.groups.settings import GroupSettings
from raylog.core.groups.states import GroupState
from raylog.core.received import Received
from raylog.protocol.groups import HeartbeatRequest, JoinGroupRequest, LeavingMember, SyncGroupRequest

NewMemberId = Callable[[str], str]
"""Makes a unique member id from a client id. Injected, because the core has no randomness."""
_ID_SUFFIX = "-" + 36 * "0"
"""Upper bound of the suffix that a shell adds to a client id."""

# ---------------------------------------------------------------- join


def join(group: Group, event: Received[JoinGroupRequest], decision: GroupDecision, new_member_id: NewMemberId) -> None:
    """Handle JoinGroup.

    Replies [generation, protocol, leader id, member id, [[member id, instance id, metadata]...] (leader only), skip].
    """
    message = event.message
    settings = decision.settings
    protocols = tuple(message.protocols)
    replaced = group.static.get(message.group_instance_id) if message.group_instance_id is not None else None
    if _is_full(group, message, replaced, settings):
        decision.refuse(
            event.request,
            GroupMaxSizeReached(
                f"Group {group.name!r} has its maximum of {settings.group_max_size} members; use another group "
                "or raise group.max.size."
            ),
        )
    elif not group.supports(message.protocol_type, protocols, besides=message.member_id or replaced):
        decision.refuse(
            event.request,
            InconsistentGroupProtocol(
                _disagreement(group, message.protocol_type),
                group=group.name,
                protocol_type=group.protocol_type,
                assignors=sorted(group.common_protocols(besides=message.member_id or replaced)),
            ),
        )
    elif (error := _size_error(group, event, protocols, replaced, settings)) is not None:
        decision.refuse(event.request, error)
    elif message.member_id != "":
        _join_known(group, event, protocols, decision)
    elif message.group_instance_id is None:
        member_id = new_member_id(message.client_id)
        group.pending[member_id] = event.now_ms + message.session_timeout_ms
        error = MemberIdRequired("Join again with the given member id.", member_id=member_id)
        decision.refuse_at_once(event.request, error)  # another coordinator would refuse that id, and the member joins
    elif replaced is None:
        _add_and_rebalance(group, new_member_id(message.client_id), event, protocols, decision)
    else:
        _replace_static(group, replaced, new_member_id(message.client_id), event, protocols, decision)


def _disagreement(group: Group, protocol_type: str) -> str:
    if group.protocol_type and group.protocol_type != protocol_type:
        return (
            f"The members of group {group.name!r} are of the type {group.protocol_type!r} (share: a queue's), this one "
            f"is of the type {protocol_type!r}; use another group_id."
        )
    return (
        f"The members of group {group.name!r} have no assignor in common with this one; give all of them "
        "the same partition_assignment_strategy."
    )


def _is_full(group: Group, message: JoinGroupRequest, replaced: str | None, settings: GroupSettings) -> bool:
    if message.member_id == "" and message.group_instance_id is None and len(group.pending) >= settings.group_max_size:
        return True
    member = group.members.get(message.member_id if replaced is None else replaced)
    if group.state is GroupState.PREPARING_REBALANCE:
        # Dynamic members that have not rejoined may be leaving, and hold no place: a newcomer that is faster gets it.
        if member is not None and _has_place(member):
            return False
        return sum(1 for each in group.members.values() if _has_place(each)) >= settings.group_max_size
    return member is None and group.state is not GroupState.EMPTY and len(group.members) >= settings.group_max_size


def _has_place(member: Member) -> bool:
    """Return whether a member is in the next generation: it has joined, or is static."""
    return member.join_request is not None or member.instance_id is not None


def _size_error(
    group: Group, event: Received[JoinGroupRequest], protocols: Protocols, replaced: str | None, settings: GroupSettings
) -> RaylogError | None:
    """Return the error if the group with this member does not fit into a record of the log, or None.

    A generation is one record: a member that would make it too large is refused before it affects the others.
    """
    message = event.message
    member = _new_member(message.member_id or message.client_id + _ID_SUFFIX, event, protocols)
    size = group.bytes_with(member, message.protocol_type, besides=message.member_id or replaced)
    if replaced is not None and message.member_id == "" and group.image is not None:
        size += sum(len(row.assignment) for row in group.image.members)  # it takes a place in an assigned generation
    return _too_large(group, size, settings)


def _too_large(group: Group, size: int, settings: GroupSettings) -> RaylogError | None:
    if size <= settings.record_bytes_max:
        return None
    return RecordTooLarge(
        f"Group {group.name!r} would take {size} bytes in __consumer_offsets, where a record has at most "
        f"{settings.record_bytes_max}; subscribe to fewer topics, spread the members over several groups, or raise "
        "max.message.bytes of __consumer_offsets."
    )


def _join_known(group: Group, event: Received[JoinGroupRequest], protocols: Protocols, decision: GroupDecision) -> None:
    message = event.message
    if message.member_id in group.pending and message.group_instance_id is None:
        del group.pending[message.member_id]
        _add_and_rebalance(group, message.member_id, event, protocols, decision)
        return
    error = group.fence(message.member_id, message.group_instance_id)
    if error is not None:
        decision.refuse(event.request, error)
        return
    member = group.members[message.member_id]
    same = member.protocols == protocols
    is_leader = group.leader == message.member_id
    if group.state is GroupState.COMPLETING_REBALANCE and same:
        # The member did not get the answer to its join: it gets it again, and the round continues.
        member.restart_session(event.now_ms)
        decision.reply(event.request, _join_reply(group, member))
    elif group.state is GroupState.STABLE and same and not is_leader:
        member.restart_session(event.now_ms)
        decision.reply(event.request, _join_reply(group, member))
    else:
        # A leader that rejoins a stable group has seen its topics change: it has to assign again.
        _park_join(member, event, protocols, decision)
        _rebalance_or_complete(group, decision)


def _add_and_rebalance(
    group: Group,
    member_id: str,
    event: Received[JoinGroupRequest],
    protocols: Protocols,
    decision: GroupDecision,
) -> None:
    group.add(_new_member(member_id, event, protocols), event.message.protocol_type)
    group.newcomers = True
    _rebalance_or_complete(group, decision)


def _new_member(member_id: str, event: Received[JoinGroupRequest], protocols: Protocols) -> Member:
    message = event.message
    return Member(
        member_id=member_id,
        instance_id=message.group_instance_id,
        client_id=message.client_id,
        client_host=event.sender.host,
        session_timeout_ms=message.session_timeout_ms,
        rebalance_timeout_ms=_rebalance_timeout_ms(message),
        protocols=protocols,
        session_deadline_ms=event.now_ms + message.session_timeout_ms,
        join_request=event.request,
    )


def _rebalance_timeout_ms(message: JoinGroupRequest) -> int:
    """Return the rebalance timeout; if it is not set the session timeout, as in the first version of Kafka's join."""
    return message.rebalance_timeout_ms if message.rebalance_timeout_ms > 0 else message.session_timeout_ms


def _replace_static(
    group: Group,
    old_id: str,
    new_id: str,
    event: Received[JoinGroupRequest],
    protocols: Protocols,
    decision: GroupDecision,
) -> None:
    """Give a static member that returned under its instance id its former place and assignment."""
    instance_id = event.message.group_instance_id
    _answer_parked(group.members[old_id], decision, FencedInstanceId(f"A new process joined as {instance_id!r}."))
    member = group.rename(old_id, new_id)
    if group.state is not GroupState.STABLE:
        _park_join(member, event, protocols, decision)
        _rebalance_or_complete(group, decision)
        return
    _update(member, event, protocols)
    image = group.image
    if image is None or group.select_protocol() != group.protocol:
        member.join_request = event.request
        _rebalance_or_complete(group, decision)
        return
    leader = group.leader
    members = tuple(group.renamed_rows(old_id, member))
    decision.write(image.replaced(leader=leader, members=members, changed_ms=decision.wall_ms))
    member.restart_session(event.now_ms)
    decision.reply(event.request, _join_reply(group, member, skip_assignment=leader == new_id))


def _park_join(
    member: Member, event: Received[JoinGroupRequest], protocols: Protocols, decision: GroupDecision
) -> None:
    if member.join_request is not None:
        decision.refuse(member.join_request, RebalanceInProgress("A newer join of this member is waiting."))
    _update(member, event, protocols)
    member.join_request = event.request


def _update(member: Member, event: Received[JoinGroupRequest], protocols: Protocols) -> None:
    message = event.message
    member.client_id = message.client_id
    member.client_host = event.sender.host
    member.session_timeout_ms = message.session_timeout_ms
    member.rebalance_timeout_ms = _rebalance_timeout_ms(message)
    member.protocols = protocols
    member.measure()


def _join_reply(group: Group, member: Member, *, skip_assignment: bool = False) -> list[object]:
    rows: list[object] = []
    if member.member_id == group.leader:
        rows = [[each.member_id, each.instance_id, each.metadata(group.protocol)] for each in group.members.values()]
    return [group.generation, group.protocol, group.leader, member.member_id, rows, skip_assignment]


# ---------------------------------------------------------------- rounds


def _rebalance_or_complete(group: Group, decision: GroupDecision) -> None:
    """Start a round when none is running; end the running one when all members have joined."""
    if group.state is not GroupState.PREPARING_REBALANCE:
        _begin_round(group, decision)
    if not group.first_round and group.all_joined:
        _end_round(group, decision)


def _begin_round(group: Group, decision: GroupDecision) -> None:
    for member in group.members.values():
        member.sync_due = False
        if member.sync_request is not None:
            decision.refuse(member.sync_request, _rebalancing(group))
            member.sync_request = None
            member.restart_session(decision.now_ms)
    group.sync_deadline_ms = None
    longest = group.rebalance_timeout_ms()
    was_empty = group.state is GroupState.EMPTY
    group.move(GroupState.PREPARING_REBALANCE)
    if was_empty and decision.settings.initial_rebalance_delay_ms > 0:
        delay = min(decision.settings.initial_rebalance_delay_ms, longest)
        group.first_round = True
        group.first_round_left_ms = longest - delay
        group.newcomers = False
        group.join_deadline_ms = decision.now_ms + delay
    else:
        group.join_deadline_ms = decision.now_ms + longest


def _end_round(group: Group, decision: GroupDecision) -> None:
    """Fix the next generation from the joined members; static members keep their place while they are away."""
    now_ms = decision.now_ms
    for member in list(group.members.values()):
        if member.join_request is None and member.instance_id is None:
            group.forget(member.member_id)
    joined = [member for member in group.members.values() if member.join_request is not None]
    if group.members and not joined:
        # All members are static and away, and one has to be the leader: the round waits until one returns or their
        # sessions expire.
        group.first_round = False
        group.join_deadline_ms = now_ms + group.rebalance_timeout_ms()
        return
    generation = group.generation + 1
    if not group.members:
        decision.write(
            group.next_image(
                wall_ms=decision.wall_ms, generation=generation, state=GroupState.EMPTY, protocol="", assignments={}
            )
        )
        return
    if group.leader not in {member.member_id for member in joined}:
        group.leader = joined[0].member_id
    decision.write(
        group.next_image(
            wall_ms=decision.wall_ms,
            generation=generation,
            state=GroupState.COMPLETING_REBALANCE,
            protocol=group.select_protocol(),
            assignments={},
        )
    )
    group.sync_deadline_ms = now_ms + group.rebalance_timeout_ms()
    for member in joined:
        if member.join_request is not None:
            decision.reply(member.join_request, _join_reply(group, member))
        member.join_request = None
        member.sync_due = True
        member.restart_session(now_ms)


# ---------------------------------------------------------------- sync, heartbeat, leave


def sync(group: Group, event: Received[SyncGroupRequest], decision: GroupDecision) -> None:
    """Handle SyncGroup. Replies [assignment bytes]."""
    message = event.message
    error = group.fence(message.member_id, message.group_instance_id, message.generation_id)
    if error is None and group.state is GroupState.PREPARING_REBALANCE:
        error = _rebalancing(group)
    if error is not None:
        decision.refuse(event.request, error)
        return
    member = group.members[message.member_id]
    if group.state is GroupState.STABLE:
        member.sync_due = False
        member.restart_session(event.now_ms)
        decision.reply(event.request, [group.assignment(message.member_id)])
        return
    assigned: GroupChanged | None = None
    if message.member_id == group.leader:
        assigned = group.next_image(
            wall_ms=decision.wall_ms,
            generation=group.generation,
            state=GroupState.STABLE,
            protocol=group.protocol,
            assignments={row.member_id: row.assignment for row in message.assignments},
        )
        error = _too_large(group, row_bytes(*assigned.to_wire()), decision.settings)
        if error is not None:
            decision.refuse(event.request, error)
            return
    member.sync_due = False
    if member.sync_request is not None:
        decision.refuse(member.sync_request, RebalanceInProgress("A newer sync of this member is waiting."))
    member.sync_request = event.request
    if assigned is not None:
        decision.write(assigned)
        for waiting in group.members.values():
            if waiting.sync_request is not None:
                decision.reply(waiting.sync_request, [group.assignment(waiting.member_id)])
                waiting.sync_request = None
                waiting.restart_session(event.now_ms)


def heartbeat(group: Group, event: Received[HeartbeatRequest], decision: GroupDecision) -> None:
    """Handle Heartbeat. Replies []; amid a rebalance it is refused, but still restarts the member's session."""
    message = event.message
    error = group.fence(message.member_id, message.group_instance_id, message.generation_id)
    if error is None:
        group.members[message.member_id].restart_session(event.now_ms)
        if group.state is GroupState.PREPARING_REBALANCE:
            error = _rebalancing(group)
    if error is not None:
        decision.refuse(event.request, error)
    else:
        decision.reply(event.request, [])


def leave(
    group: Group,
    members: Sequence[LeavingMember],
    decision: GroupDecision,
) -> list[list[object]]:
    """Handle LeaveGroup; return [[member id, instance id, error code]...], where 0 = it has left."""
    rows: list[list[object]] = []
    removed: list[str] = []
    for member in members:
        member_id, instance_id = member.member_id, member.group_instance_id
        code = 0
        if member_id in group.pending and instance_id is None:
            del group.pending[member_id]
        else:
            # An administrator removes a static member by its instance alone.
            holder = group.static.get(instance_id, "") if instance_id is not None and member_id == "" else member_id
            error = group.fence(holder, instance_id)
            if error is not None:
                code = error.code
            else:
                removed.append(holder)
                _answer_parked(group.forget(holder), decision, _unknown(group, holder))
        rows.append([member_id, instance_id, code])
    after_removal(group, decision, removed=bool(removed))
    return rows


def after_removal(group: Group, decision: GroupDecision, *, removed: bool) -> None:
    """Start a round when members left; end the running one when no member is missing any more."""
    if group.state is GroupState.PREPARING_REBALANCE or removed:
        _rebalance_or_complete(group, decision)


def drop_request(group: Group, request: RequestId, now_ms: int) -> bool:
    """Drop a parked request whose connection is closed, if it is this group's; return whether it is.

    Its member has a session timeout to come back.
    """
    for member in group.members.values():
        if member.join_request == request:
            member.join_request = None
            member.restart_session(now_ms)
            return True
        if member.sync_request == request:
            member.sync_request = None
            member.sync_due = True
            member.restart_session(now_ms)
            return True
    return False


# ---------------------------------------------------------------- time


def tick(group: Group, decision: GroupDecision) -> None:
    """Handle every deadline that has passed: pending member ids, sessions, the round, missing syncs."""
    now_ms = decision.now_ms
    overdue = [member_id for member_id, deadline_ms in group.pending.items() if deadline_ms <= now_ms]
    for member_id in overdue:
        del group.pending[member_id]
    sync_ended = group.sync_deadline_ms is not None and group.sync_deadline_ms <= now_ms
    lost = [
        member.member_id
        for member in group.members.values()
        if (not member.parked and member.session_deadline_ms <= now_ms) or (sync_ended and member.sync_due)
    ]
    for member_id in lost:
        group.forget(member_id)
    if sync_ended:
        group.sync_deadline_ms = None
    if lost or overdue:
        after_removal(group, decision, removed=bool(lost))
    if group.join_deadline_ms is not None and group.join_deadline_ms <= now_ms:
        if group.first_round and group.newcomers and group.first_round_left_ms > 0:
            delay = min(decision.settings.initial_rebalance_delay_ms, group.first_round_left_ms)
            group.first_round_left_ms -= delay
            group.newcomers = False
            group.join_deadline_ms = now_ms + delay
        else:
            _end_round(group, decision)


def _answer_parked(member: Member, decision: GroupDecision, error: RaylogError) -> None:
    for request in (member.join_request, member.sync_request):
        if request is not None:
            decision.refuse(request, error)
    member.join_request = None
    member.sync_request = None


def _rebalancing(group: Group) -> RebalanceInProgress:
    return RebalanceInProgress(f"Group {group.name!r} is rebalancing; join again.")


def _unknown(group: Group, member_id: str) -> UnknownMemberId:
    return UnknownMemberId(f"Member {member_id!r} left group {group.name!r}; join again.")
