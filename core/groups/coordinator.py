"""The group coordinator as a state machine: all groups of one ``__consumer_offsets`` partition.

Decide, then apply: a handler decides records and replies; records are applied at once through ``_apply`` (which replay
uses too), and replies wait in ``after_sync`` until the records are committed. Run by the ``GroupCoordinator`` actor and
by the simulator: first ``replay`` of the last record of each key, or of all in order, then ``loaded``, then ``step``
for each event; when an append fails, a new machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, assert_never

from raylog.base.errors import (
    CoordinatorLoadInProgress,
    GroupIdNotFound,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidGroupId,
    InvalidRequest,
    InvalidSessionTimeout,
    LimitReached,
    NonEmptyGroup,
    NotCoordinator,
    RaylogError,
    UnknownMemberId,
    UnstableOffsetCommit,
)
from raylog.base.invariants import require
from raylog.core.coordinators.idleness import Idleness
from raylog.core.coordinators.share import CoordinatorKeys
from raylog.core.decision import Story
from raylog.core.groups import heartbeats, offsets, pending, rebalance, resets, views
from raylog.core.groups.consumer_group import ConsumerGroup
from raylog.core.groups.consumer_groups import ConsumerGroups, description
from raylog.core.groups.consumer_records import CurrentChanged, EpochsChanged, MemberChanged, TargetChanged
from raylog.core.groups.decision import GroupDecision
from raylog.core.groups.events import (
    Effect,
    Event,
    GroupMessage,
    RequestDropped,
    SleepRefused,
    SleepRequested,
    Tick,
    TopicsSeen,
)
from raylog.core.groups.figures import GroupFigures
from raylog.core.groups.group import Group
from raylog.core.groups.offsets import OffsetStore
from raylog.core.groups.pending import PendingStore
from raylog.core.groups.records import GROUP_ROWS, GroupChanged, OffsetCommitted, TxnOffsets
from raylog.core.groups.settings import GroupSettings
from raylog.core.groups.states import GroupState
from raylog.core.groups.use import use_of
from raylog.core.outbox import Outbox
from raylog.core.received import Received
from raylog.protocol.groups import (
    ConsumerGroupHeartbeatRequest,
    DeleteGroupRequest,
    DescribeGroupRequest,
    EndTxnOffsetsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetResetRequest,
    SyncGroupRequest,
    TxnOffsetCommitRequest,
)
from raylog.protocol.rows import Row, Tombstone

GROUP_CHARACTERS_MAX: Final = 1_024
"""Longest name of a new group."""
EXPIRED_RECORDS_MAX: Final = 1_000
"""Most tombstones that one tick writes; the rest follows with the next ticks."""

_MakesGroup = (
    JoinGroupRequest | ConsumerGroupHeartbeatRequest | OffsetCommitRequest | TxnOffsetCommitRequest | OffsetResetRequest
)

__all__ = ["GroupCoordinatorMachine", "GroupSettings"]


class GroupCoordinatorMachine:
    """All groups whose names hash to one partition of ``__consumer_offsets``."""

    def __init__(self, *, settings: GroupSettings, share: CoordinatorKeys, new_member_id: Callable[[str], str]) -> None:
        """Start before replay. ``new_member_id`` makes a fresh unique member id from a client id.

        ``share``: the groups that this coordinator serves; requests for others are refused.
        """
        self._settings = settings
        self._share = share
        self._new_member_id = new_member_id
        self._groups: dict[str, Group] = {}
        """The groups of the classic protocol, and those that only have offsets."""
        self._consumers = ConsumerGroups(settings)
        self._offsets = OffsetStore()
        self._pending = PendingStore()
        self._idleness = Idleness(settings.sleep_after_ms)
        self._loaded = False
        self._next_expiry_ms = 0
        self._wall_ahead_ms: int | None = None
        """How far the time of day is ahead of ``now_ms``."""
        self.story = Story()
        """The last steps, ticks aside: (now_ms, cause)."""

    def reconfigure(self, settings: GroupSettings) -> None:
        """Use these settings from the next step on."""
        sooner_ms = self._settings.offsets_retention_check_ms - settings.offsets_retention_check_ms
        self._next_expiry_ms -= max(0, sooner_ms)
        self._settings = settings
        self._consumers.reconfigure(settings)
        self._idleness.reconfigure(settings.sleep_after_ms)

    def set_clock(self, now_ms: int, wall_ms: int) -> None:
        """Take note of the time of day, in milliseconds since 1970, at this time."""
        self._wall_ahead_ms = wall_ms - now_ms

    # ------------------------------------------------------------ the log

    def replay(self, key: Sequence[object], value: Sequence[object] | None) -> None:
        """Apply one record of the log before :meth:`loaded`, after those with its key; a value of None is a tombstone.

        Raises :class:`UnreadableRow` for a record that this release cannot read.
        """
        require(not self._loaded, "records are replayed before the coordinator serves")
        self._apply(GROUP_ROWS.read(key, value))

    def loaded(self, now_ms: int, *, wall_ms: int | None = None) -> Outbox[Effect]:
        """Start serving, once the log is read to its end. Members of loaded groups get a fresh session timeout.

        ``now_ms`` (of every event too) may come from any clock that does not go back. ``wall_ms`` is the time of day in
        milliseconds since 1970 at the same moment: stamps in records are made from it, because they outlive this
        process. Without it (here or in a :class:`Tick`) stamps are -1 and no offset ever expires.
        """
        if wall_ms is not None:
            self.set_clock(now_ms, wall_ms)
        require(not self._loaded, "the log is loaded once")
        self._loaded = True
        self._idleness.used(now_ms)
        self._next_expiry_ms = now_ms + self._settings.offsets_retention_check_ms
        self._consumers.loaded(now_ms)
        for name in (*self._offsets.groups(), *self._pending.open_groups()):
            if name not in self._consumers:
                self._groups.setdefault(name, Group(name))
        for name in list(self._groups):
            self._groups[name].restore(now_ms)
            self._drop_if_blank(name)
        return Outbox()

    def census(self) -> list[GroupFigures]:
        """Return the figures of each group, by name."""
        rows = [(name, group.state.value, len(group.members)) for name, group in self._groups.items()]
        rows += [(each.name, each.state, len(each.members)) for each in self._consumers]
        return [
            GroupFigures(
                *row, self._offsets.figures(row[0]), sum(len(each.offsets) for each in self._pending.open_of(row[0]))
            )
            for row in sorted(rows)
        ]

    def _apply(self, record: Row | Tombstone) -> None:
        """Apply a record: the only mutator of hard state, for live traffic and replay alike."""
        match record:
            case OffsetCommitted():
                self._offsets.apply(record)
            case TxnOffsets():
                self._pending.apply(record)
            case GroupChanged():
                group = self._groups.setdefault(record.group, Group(record.group))
                if self._loaded:
                    group.adopt(record)
                else:
                    group.replay(record)
            case EpochsChanged() | MemberChanged() | TargetChanged() | CurrentChanged():
                self._consumers.apply(record)
            case Tombstone():
                self._apply_tombstone(record)

    def _apply_tombstone(self, record: Tombstone) -> None:
        if record.kind is OffsetCommitted:
            self._offsets.apply(record)
        elif record.kind is TxnOffsets:
            self._pending.apply(record)
        elif record.kind is GroupChanged:
            deleted = self._groups.pop(str(record.key[0]), None)
            if deleted is not None:
                deleted.move(GroupState.DEAD)
        else:
            self._consumers.apply(record)

    # ------------------------------------------------------------ step

    def step(self, event: Event) -> Outbox[Effect]:
        """Handle one event and return its effects."""
        if isinstance(event, Tick) and event.wall_ms is not None:
            self.set_clock(event.now_ms, event.wall_ms)
        wall_ms = self._wall_ms(event.now_ms)
        decision = GroupDecision(
            event.cause,
            event.now_ms,
            apply=self._apply,
            settings=self._settings,
            wall_ms=wall_ms,
            story=self.story,
        )
        if not isinstance(event, Tick):
            self.story.append((event.now_ms, event.cause))
        error = self._door_error(event)
        if error is None:
            if isinstance(event, Received) and not isinstance(event.message, ListGroupsRequest):
                self._idleness.used(event.now_ms)
            self._handle(event, decision)
        elif isinstance(event, Received):
            decision.refuse_at_once(event.request, error)
        return decision.finish()

    def _door_error(self, event: Event) -> RaylogError | None:
        """Return the error of an event that is invalid in every group state."""
        if not self._loaded:
            return CoordinatorLoadInProgress("The coordinator still reads its log; try again.")
        if self._idleness.is_closed and not isinstance(event, SleepRefused):
            return NotCoordinator("The coordinator ends, because its groups were not used; find it again.")
        if not isinstance(event, Received):
            return None
        message = event.message
        if isinstance(message, ListGroupsRequest):
            return self._share.list_refusal(message.coordinator)
        if message.group_id == "":
            return InvalidGroupId("A group id may not be empty; set group_id.")
        refusal = self._share.refusal(message.group_id)
        if refusal is None and isinstance(message, JoinGroupRequest | ConsumerGroupHeartbeatRequest):
            return _member_error(message, self._settings)
        return refusal

    def _room_refusal(self, message: _MakesGroup) -> RaylogError | None:
        """Return why there may be no new group, if the request would make one; else None."""
        if message.group_id in self._groups or message.group_id in self._consumers:
            return None
        return _group_error(message.group_id, len(self._groups) + len(self._consumers), self._settings)

    def _handle(self, event: Event, decision: GroupDecision) -> None:
        match event:
            case Received():
                self._handle_request(event, decision)
            case TopicsSeen():
                self._consumers.seen(event, decision)
            case RequestDropped():
                if not self._consumers.drop_request(event.request):
                    for group in self._groups.values():
                        if rebalance.drop_request(group, event.request, event.now_ms):
                            break
            case Tick():
                self._tick(decision)
                self._sleep_if_idle(decision)
            case SleepRequested():
                self._idleness.request_sleep()
            case SleepRefused():
                self._idleness.refused(event.now_ms)
            case _:
                assert_never(event)

    def _handle_request(self, event: Received[Any], decision: GroupDecision) -> None:
        message: GroupMessage = event.message
        if isinstance(message, _MakesGroup) and (full := self._room_refusal(message)) is not None:
            decision.refuse(event.request, full)
            return
        match message:
            case ConsumerGroupHeartbeatRequest():
                self._member_heartbeat(event, decision)
            case JoinGroupRequest():
                self._join(event, decision)
            case SyncGroupRequest():
                if (group := self._member_group(event, decision)) is not None:
                    rebalance.sync(group, event, decision)
            case HeartbeatRequest():
                if (group := self._member_group(event, decision)) is not None:
                    rebalance.heartbeat(group, event, decision)
            case LeaveGroupRequest() if (consumers := self._consumers.get(message.group_id)) is not None:
                decision.reply_rows(event.request, self._consumers.leave(consumers, message.members, decision))
            case LeaveGroupRequest():
                if (group := self._member_group(event, decision)) is not None:
                    decision.reply_rows(event.request, rebalance.leave(group, message.members, decision))
                    self._drop_if_blank(message.group_id)
            case OffsetCommitRequest() | TxnOffsetCommitRequest():
                self._commit(event, decision)
            case EndTxnOffsetsRequest():
                pending.end(self._pending, event, decision)
                self._drop_if_blank(message.group_id)
            case OffsetFetchRequest():
                self._fetch(event, decision)
            case OffsetResetRequest():
                self._reset(event, decision)
            case OffsetDeleteRequest():
                if (named := self._named_group(event, decision)) is not None:
                    unstable = self._pending.pending_keys(message.group_id)
                    offsets.delete(self._offsets, use_of(named), event, decision, pending=unstable)
                    self._drop_if_blank(message.group_id)
            case ListGroupsRequest():
                groups = views.listed(
                    self._groups.values(), self._consumers, states=message.states, types=message.types
                )
                decision.reply_proved(event.request, groups)
            case DescribeGroupRequest():
                if (named := self._named_group(event, decision)) is not None:
                    decision.reply_proved(event.request, self._description(named, event))
            case DeleteGroupRequest():
                self._delete(event, decision)
            case _:
                assert_never(message)

    def _member_group(
        self, event: Received[SyncGroupRequest | HeartbeatRequest | LeaveGroupRequest], decision: GroupDecision
    ) -> Group | None:
        group = self._groups.get(event.message.group_id)
        if group is None:
            decision.refuse(
                event.request, UnknownMemberId(f"There is no group {event.message.group_id!r}; join again.")
            )
        return group

    def _named_group(
        self, event: Received[OffsetDeleteRequest | DescribeGroupRequest | DeleteGroupRequest], decision: GroupDecision
    ) -> Group | ConsumerGroup | None:
        message = event.message
        group = self._groups.get(message.group_id) or self._consumers.get(message.group_id)
        if group is None:
            decision.refuse(
                event.request,
                GroupIdNotFound(f"There is no group {message.group_id!r}; list_groups() names those there are."),
            )
        return group

    # ------------------------------------------------------------ handlers that touch several groups' facts

    def _member_heartbeat(self, event: Received[ConsumerGroupHeartbeatRequest], decision: GroupDecision) -> None:
        message = event.message
        classic = self._groups.get(message.group_id)
        error = self._consumers.refusal(event, decision)
        if error is None and classic is not None and (classic.members or classic.pending):
            error = views.mixed(message.group_id, theirs="classic")
        if error is not None:
            decision.refuse(event.request, error)
            return
        if classic is not None:  # it has no members: it becomes a group of the consumer protocol, and keeps its offsets
            if classic.image is not None:
                decision.write(Tombstone(GroupChanged, (message.group_id,)))
            self._groups.pop(message.group_id, None)
        self._consumers.heartbeat(event, decision)

    def _join(self, event: Received[JoinGroupRequest], decision: GroupDecision) -> None:
        message = event.message
        consumers = self._consumers.get(message.group_id)
        if consumers is not None:
            if consumers.members:
                decision.refuse(event.request, views.mixed(message.group_id, theirs="consumer"))
                return
            self._consumers.delete(message.group_id, decision)
            decision.write(views.classic_image(consumers))
        group = self._groups.get(message.group_id)
        if group is None:
            if message.member_id != "":
                decision.refuse(event.request, UnknownMemberId(f"There is no group {message.group_id!r}; join again."))
                return
            group = self._groups[message.group_id] = Group(message.group_id)
        rebalance.join(group, event, decision, self._new_member_id)
        self._drop_if_blank(message.group_id)

    def _commit(self, event: Received[Any], decision: GroupDecision) -> None:
        message: OffsetCommitRequest | TxnOffsetCommitRequest = event.message
        group = self._groups.get(message.group_id) or self._consumers.get(message.group_id)
        if group is None:
            if message.generation_id >= 0:
                decision.refuse(
                    event.request,
                    IllegalGeneration(f"There is no group {message.group_id!r}; join again.", generation=0),
                )
                return
            group = self._groups[message.group_id] = Group(message.group_id)
        if isinstance(group, ConsumerGroup):
            error = heartbeats.commit_error(group, message)
        else:
            error = offsets.commit_error(group, message)
        if error is not None:
            decision.refuse(event.request, error)
        elif isinstance(message, TxnOffsetCommitRequest):
            pending.txn_commit(self._pending, self._offsets, event, decision)
        else:
            if isinstance(group, Group) and message.member_id in group.members:
                group.members[message.member_id].restart_session(event.now_ms)
            committed = offsets.commit(self._offsets, event, decision)
            pending.supersede(self._pending, message.group_id, committed, decision)
        self._drop_if_blank(message.group_id)

    def _reset(self, event: Received[OffsetResetRequest], decision: GroupDecision) -> None:
        name = event.message.group_id
        group = self._consumers.get(name) or self._groups.setdefault(name, Group(name))
        resets.reset(self._offsets, use_of(group), event, decision, pending=self._pending.pending_keys(name))
        self._drop_if_blank(name)

    def _fetch(self, event: Received[OffsetFetchRequest], decision: GroupDecision) -> None:
        message = event.message
        consumers = self._consumers.get(message.group_id)
        error = None if consumers is None else heartbeats.fetch_error(consumers, message)
        if error is not None:
            decision.refuse(event.request, error)
        elif message.require_stable and pending.is_unstable(self._pending, message.group_id, message.partitions):
            decision.refuse(
                event.request,
                UnstableOffsetCommit(
                    f"A transaction is about to commit offsets of group {message.group_id!r}; try again."
                ),
            )
        else:
            decision.reply_proved(event.request, offsets.fetch(self._offsets, message.group_id, message.partitions))

    def _delete(self, event: Received[DeleteGroupRequest], decision: GroupDecision) -> None:
        group = self._named_group(event, decision)
        if group is None:
            return
        if (active := use_of(group).active_error()) is not None:
            decision.refuse(event.request, active)
            return
        if self._pending.is_open(group.name):
            decision.refuse(
                event.request,
                NonEmptyGroup(
                    f"A transaction is about to commit offsets of group {group.name!r}; wait for its end, or abort it."
                ),
            )
            return
        for committed in self._offsets.of(group.name):
            decision.write(Tombstone(OffsetCommitted, committed.key))
        if isinstance(group, ConsumerGroup):
            self._consumers.delete(group.name, decision)
        else:
            decision.write(Tombstone(GroupChanged, (group.name,)))
        decision.reply(event.request, [])

    def _description(self, group: Group | ConsumerGroup, event: Received[DescribeGroupRequest]) -> dict[str, object]:
        described = description(group) if isinstance(group, ConsumerGroup) else views.description(group)
        described["offsets"] = offsets.fetch(self._offsets, group.name, None, sees=event.sender.sees_offset)
        described["pending_offsets"] = pending.described(self._pending, group.name, sees=event.sender.sees_offset)
        return described

    def next_due_ms(self) -> int | None:
        """Return when a tick has something to do, as things are now; None = never.

        It goes through all members: call it after ticks, and tick soon after each other event.
        """
        if not self._loaded or self._idleness.is_closed:
            return None
        found = [self._next_expiry_ms, *self._consumers.deadlines()]
        for group in self._groups.values():
            if group.has_deadlines:
                found += group.deadlines()
        idle_ms = None if self._is_in_use() else self._idleness.due_ms()
        return min(found if idle_ms is None else [*found, idle_ms])

    def _tick(self, decision: GroupDecision) -> None:
        # A group without members and without pending member ids has no deadlines: the usual case in a quiet cluster.
        for group in list(self._groups.values()):
            if group.has_deadlines:
                rebalance.tick(group, decision)
                self._drop_if_blank(group.name)
        self._consumers.tick(decision)
        if decision.now_ms >= self._next_expiry_ms:
            self._expire(decision)

    def _expire(self, decision: GroupDecision) -> None:
        self._next_expiry_ms = decision.now_ms + self._settings.offsets_retention_check_ms
        for name in sorted([*self._groups, *self._consumers.names()]):
            group = self._groups.get(name) or self._consumers.group(name)
            # Most groups have young offsets only: then the subscriptions of their members need not be read.
            is_due = self._offsets.has_older(name, decision.wall_ms - self._settings.offsets_retention_ms)
            unstable = self._pending.pending_keys(name) if is_due else set()
            expired = offsets.expired(self._offsets, use_of(group), decision.wall_ms, self._settings) if is_due else []
            for key in [key for key in expired if key not in unstable]:
                if len(decision.records) >= EXPIRED_RECORDS_MAX:
                    self._next_expiry_ms = decision.now_ms
                    return
                decision.write(Tombstone(OffsetCommitted, key))
            if self._has_offsets(name) or not use_of(group).is_empty:
                continue
            if isinstance(group, ConsumerGroup):
                self._consumers.delete(name, decision)
            elif not group.pending:
                decision.write(Tombstone(GroupChanged, (name,)))
        for name in self._pending.groups():
            for forgotten in pending.expired(self._pending, name, decision.wall_ms, self._settings):
                if len(decision.records) >= EXPIRED_RECORDS_MAX:
                    self._next_expiry_ms = decision.now_ms
                    return
                decision.write(Tombstone(TxnOffsets, forgotten))

    def _sleep_if_idle(self, decision: GroupDecision) -> None:
        """Propose to end if nothing is left to do. What has expired is deleted first; the next coordinator goes on."""
        if not self._idleness.is_due(decision.now_ms) or self._is_in_use():
            return
        self._expire(decision)
        if self._next_expiry_ms > decision.now_ms:  # else more has expired than one tick deletes
            self._idleness.propose()
            decision.propose_sleep()

    def _is_in_use(self) -> bool:
        return self._consumers.has_members or any(group.has_deadlines for group in self._groups.values())

    def _wall_ms(self, now_ms: int) -> int:
        return -1 if self._wall_ahead_ms is None else now_ms + self._wall_ahead_ms

    def _drop_if_blank(self, name: str) -> None:
        """Drop a group that has neither records in the log nor members or pending member ids."""
        group = self._groups.get(name)
        if group is not None and group.blank and not self._has_offsets(name):
            del self._groups[name]

    def _has_offsets(self, name: str) -> bool:
        """Return whether the group has committed or pending offsets."""
        return self._offsets.has(name) or self._pending.is_open(name)

    # ------------------------------------------------------------ checks

    def hard_state(self) -> list[object]:
        """Return the state of the log as comparable values: equal for a machine that replayed this one's records."""
        images = [self._groups[name].image for name in sorted(self._groups)]
        groups = [*(image for image in images if image is not None), *self._consumers.hard_state()]
        return [groups, self._offsets.to_wire(), *self._pending.to_wire()]

    def parked_requests(self) -> list[int]:
        """Return the requests that wait for other members, in order of their numbers."""
        members = [member for group in self._groups.values() for member in group.members.values()]
        parked = [request for member in members for request in (member.join_request, member.sync_request)]
        return sorted([request for request in parked if request is not None] + self._consumers.parked())

    def validate(self) -> None:
        """Check every group and every cross-reference; raises InvariantBroken with the last steps."""
        for name, group in self._groups.items():
            if group.name != name or (group.blank and not self._has_offsets(name)):
                require(False, f"group {name!r} is filed under its name, and more than that", self.story)
            group.validate()
        self._consumers.validate()
        for name in (*self._offsets.groups(), *self._pending.open_groups()):
            require((name in self._groups) != (name in self._consumers), "a group that has offsets exists", self.story)
        parked = self.parked_requests()
        require(len(parked) == len(set(parked)), "a request is parked once", self.story)


def _group_error(group: str, groups: int, settings: GroupSettings) -> RaylogError | None:
    """Return the error for a new group when the coordinator has ``groups`` already, or None."""
    if len(group) > GROUP_CHARACTERS_MAX:
        return InvalidGroupId(
            f"The group id has {len(group)} characters, and may have {GROUP_CHARACTERS_MAX} at most; use a shorter one."
        )
    if groups >= settings.groups_max:
        return LimitReached(
            f"There are {groups} groups, the most that a coordinator keeps (group.max.groups): delete some that are "
            "not used any more (`raylog group delete`), wait until their offsets expire, or raise that."
        )
    return None


def _member_error(
    message: JoinGroupRequest | ConsumerGroupHeartbeatRequest, settings: GroupSettings
) -> RaylogError | None:
    """Return the error for the fields of a join, in either protocol, or None."""
    if message.group_instance_id == "":
        return InvalidRequest("A group.instance.id may not be empty; a member without one sends none.")
    if isinstance(message, ConsumerGroupHeartbeatRequest):
        return None  # its other fields only count in some heartbeats, and are checked there
    least, most = settings.min_session_timeout_ms, settings.max_session_timeout_ms
    if not least <= message.session_timeout_ms <= most:
        return InvalidSessionTimeout(
            f"session_timeout_ms is {message.session_timeout_ms}; it has to be within {least} and {most}."
        )
    if message.protocol_type == "" or not message.protocols:
        return InconsistentGroupProtocol("A member has to support at least one assignor.")
    return None
