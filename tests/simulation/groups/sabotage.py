"""The patches behind the planted bugs of the group world; ``planted.py`` names the broken rule and the checker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from raylog.actors.request_table import RequestTable
from raylog.base.errors import (
    FencedInstanceId,
    IllegalGeneration,
    RaylogError,
    RebalanceInProgress,
    UnknownMemberId,
)
from raylog.client.group.embedded_protocol import decode_assignment
from raylog.core.coordinators.writing import RowQueue
from raylog.core.groups import rebalance
from raylog.core.groups.coordinator import GroupCoordinatorMachine
from raylog.core.groups.decision import GroupDecision
from raylog.core.groups.events import Effect
from raylog.core.groups.group import Group, Member
from raylog.core.groups.offsets import OffsetStore
from raylog.core.groups.records import GroupChanged, OffsetCommitted, OffsetKey
from raylog.core.groups.settings import GroupSettings
from raylog.core.groups.states import GroupState
from raylog.core.groups.use import GroupUse
from raylog.core.outbox import Outbox
from raylog.core.received import Received
from raylog.protocol.groups import (
    DeleteGroupRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    SyncGroupRequest,
)
from raylog.protocol.rows import Tombstone
from tests.simulation.groups.topic import OffsetsTopic, Row


def load_half_the_log(original: Callable[..., list[Row]]) -> Callable[..., list[Row]]:
    """The coordinator serves before it has read its log to the end."""

    def read(self: OffsetsTopic, end: int) -> list[Row]:
        rows = original(self, end)
        return rows[: len(rows) // 2]

    return read


def commits_of_any_generation(original: Callable[..., RaylogError | None]) -> Callable[..., RaylogError | None]:
    def commit_error(group: Group, message: OffsetCommitRequest) -> RaylogError | None:
        return original(
            group, structs.replace(message, generation_id=group.generation) if message.generation_id >= 0 else message
        )

    return commit_error


def commits_of_strangers(original: Callable[..., RaylogError | None]) -> Callable[..., RaylogError | None]:
    """A client that knows the generation may commit, member or not."""

    def commit_error(group: Group, message: OffsetCommitRequest) -> RaylogError | None:
        error = original(group, message)
        return None if message.generation_id == group.generation and group.state is GroupState.STABLE else error

    return commit_error


def commits_without_instance(original: Callable[..., RaylogError | None]) -> Callable[..., RaylogError | None]:
    """A commit does not carry its instance id."""

    def commit_error(group: Group, message: OffsetCommitRequest) -> RaylogError | None:
        return original(group, structs.replace(message, group_instance_id=None))

    return commit_error


def batches_of_any_size(original: Callable[..., list[Row]]) -> Callable[..., list[Row]]:
    """All pending rows go into one batch."""
    return lambda self, bytes_max: original(self, 10**9)


def answers_of_half_steps(original: Callable[..., None]) -> Callable[..., None]:
    """When a batch is stored, the other pending rows count as stored too."""

    def stored(self: RowQueue[Row]) -> None:
        original(self)
        self._stored = self._end

    return stored


def any_joined(self: Group) -> bool:
    """The round ends with the first join: others get partitions that their owners have not given up."""
    return any(member.join_request is not None for member in self.members.values())


def forget_generation(original: Callable[..., None]) -> Callable[..., None]:
    """The generation restarts from one after a failover."""

    def replay(self: Group, image: GroupChanged) -> None:
        original(self, image.replaced(generation=1))

    return replay


def generation_unwritten(original: Callable[..., None]) -> Callable[..., None]:
    """As in Kafka: a generation is written only with its assignments, and issued again after a failover."""

    def apply(self: GroupCoordinatorMachine, record: object) -> None:
        if isinstance(record, GroupChanged) and not self._loaded and record.state is GroupState.COMPLETING_REBALANCE:
            return
        original(self, record)

    return apply


def answer_at_once(original: Callable[..., Outbox[Effect]]) -> Callable[..., Outbox[Effect]]:
    """Answers do not wait for the records they depend on."""

    def finish(self: GroupDecision) -> Outbox[Effect]:
        out = original(self)
        out.now.extend(out.after_sync)
        out.after_sync.clear()
        return out

    return finish


def sessions_end_with_the_coordinator(original: Callable[..., None]) -> Callable[..., None]:
    """A new coordinator gives members no time to send a heartbeat."""

    def restore(self: Group, now_ms: int) -> None:
        original(self, now_ms)
        for member in self.members.values():
            member.session_deadline_ms = now_ms

    return restore


def assign_twice(original: Callable[..., bytes]) -> Callable[..., bytes]:
    """A member without an assignment gets the leader's."""

    def assignment(self: Group, member_id: str) -> bytes:
        given = original(self, member_id)
        return given if decode_assignment(given) else original(self, self.leader)

    return assignment


def offsets_of_the_lost(original: Callable[..., None]) -> Callable[..., None]:
    """An empty group loses its offsets with its last member."""

    def apply(self: GroupCoordinatorMachine, record: object) -> None:
        original(self, record)
        if isinstance(record, GroupChanged) and record.state is GroupState.EMPTY:
            self._offsets._by_group.pop(record.group, None)

    return apply


# ---------------------------------------------------------------- answers to members


def numbers_used_twice(original: Callable[..., GroupChanged]) -> Callable[..., GroupChanged]:
    """Every third round does not raise the generation."""

    def next_image(self: Group, **fields: Any) -> GroupChanged:
        if fields["state"] is GroupState.COMPLETING_REBALANCE and fields["generation"] % 3 == 0:
            fields["generation"] -= 1
        return original(self, **fields)

    return next_image


def fence_no_generation(original: Callable[..., RaylogError | None]) -> Callable[..., RaylogError | None]:
    return lambda self, member_id, instance_id, generation=None: original(self, member_id, instance_id)


def old_rather_than_unknown(original: Callable[..., RaylogError | None]) -> Callable[..., RaylogError | None]:
    def fence(self: Group, *args: Any) -> RaylogError | None:
        error = original(self, *args)
        return IllegalGeneration(generation=self.generation) if isinstance(error, UnknownMemberId) else error

    return fence


def every_heartbeat_succeeds(group: Group, event: Received[HeartbeatRequest], decision: GroupDecision) -> None:
    decision.reply(event.request, [])


def assignments_of_an_earlier_round(original: Callable[..., GroupChanged]) -> Callable[..., GroupChanged]:
    """Members of the previous generation keep their partitions despite the assignment from their leader."""
    kept: dict[Group, dict[str, bytes]] = {}

    def next_image(self: Group, **fields: Any) -> GroupChanged:
        if fields["state"] is GroupState.STABLE:
            before = {member: given for member, given in kept.get(self, {}).items() if member in self.members}
            fields["assignments"] = kept[self] = {**fields["assignments"], **before}
        return original(self, **fields)

    return next_image


def successors_join_no_round(original: Callable[..., None]) -> Callable[..., None]:
    """A returning static member takes its predecessor's slot even while assignments are being made."""

    def replace_static(group: Group, old_id: str, new_id: str, event: Received[JoinGroupRequest], *rest: Any) -> None:
        if group.state is not GroupState.COMPLETING_REBALANCE or group.image is None:
            original(group, old_id, new_id, event, *rest)
            return
        protocols, decision = rest
        rebalance._answer_parked(group.members[old_id], decision, FencedInstanceId())
        member = group.rename(old_id, new_id)
        rebalance._update(member, event, protocols)
        rows = tuple(group.renamed_rows(old_id, member))
        decision.write(group.image.replaced(leader=group.leader, members=rows, changed_ms=decision.wall_ms))
        member.sync_due = True
        member.restart_session(event.now_ms)
        decision.reply(event.request, rebalance._join_reply(group, member))

    return replace_static


def successors_keep_the_assignor(original: Callable[..., str]) -> Callable[..., str]:
    """A returning static member with other preferences does not begin a round."""
    return lambda self: self.protocol if self.state is GroupState.STABLE else original(self)


def successors_begin_a_round(original: Callable[..., str]) -> Callable[..., str]:
    """A returning static member begins a round in any case."""
    return lambda self: "" if self.state is GroupState.STABLE else original(self)


def predecessors_are_sent_to_join(original: Callable[..., None]) -> Callable[..., None]:
    """The parked request of a replaced process is refused like that of any member."""

    def answer_parked(member: Member, decision: GroupDecision, error: RaylogError) -> None:
        original(member, decision, RebalanceInProgress() if isinstance(error, FencedInstanceId) else error)

    return answer_parked


def late_members_have_a_place(original: Callable[..., bool]) -> Callable[..., bool]:
    """A member of the last generation is taken even when newcomers have filled the next one."""

    def is_full(group: Group, message: JoinGroupRequest, replaced: str | None, settings: GroupSettings) -> bool:
        return message.member_id not in group.members and original(group, message, replaced, settings)

    return is_full


def timeouts_of_the_predecessor(original: Callable[..., None]) -> Callable[..., None]:
    def update(member: Member, event: Received[JoinGroupRequest], *rest: Any) -> None:
        message = structs.replace(event.message, session_timeout_ms=member.session_timeout_ms)
        original(member, replace(event, message=message), *rest)

    return update


def leaders_assign_again(original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """A static leader that returns is sent to assign, though the group keeps its assignment."""
    return lambda group, member, **_: original(group, member)


def sessions_never_end(self: Member, now_ms: int) -> None:
    self.session_deadline_ms = now_ms + 10**9


def syncs_wait_for_nothing(original: Callable[..., None]) -> Callable[..., None]:
    def sync(group: Group, event: Received[SyncGroupRequest], decision: GroupDecision) -> None:
        message = event.message
        waits = group.state is GroupState.COMPLETING_REBALANCE and message.member_id != group.leader
        if waits and group.fence(message.member_id, message.group_instance_id, message.generation_id) is None:
            decision.reply(event.request, [b""])
        else:
            original(group, event, decision)

    return sync


def forget_syncs(original: Callable[..., None]) -> Callable[..., None]:
    def begin_round(group: Group, decision: GroupDecision) -> None:
        for member in group.members.values():
            member.sync_request = None
        original(group, decision)

    return begin_round


def leaders_alone(original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    def join_reply(group: Group, member: Member, **options: Any) -> list[Any]:
        reply = original(group, member, **options)
        reply[4] = [row for row in reply[4] if row[0] == member.member_id]
        return reply

    return join_reply


# ---------------------------------------------------------------- expiry and deletion


def expire_the_living(original: Callable[..., list[OffsetKey]]) -> Callable[..., list[OffsetKey]]:
    """Only the age of a commit counts."""

    def expired(store: OffsetStore, use: GroupUse, wall_ms: int, settings: GroupSettings) -> list[OffsetKey]:
        oldest_ms = wall_ms - settings.offsets_retention_ms
        return [record.key for record in store.of(use.group) if record.committed_ms <= oldest_ms]

    return expired


def expire_when_empty(original: Callable[..., list[OffsetKey]]) -> Callable[..., list[OffsetKey]]:
    """The age of a commit counts, and not how long its group has been empty."""

    def expired(store: OffsetStore, use: GroupUse, wall_ms: int, settings: GroupSettings) -> list[OffsetKey]:
        oldest_ms = wall_ms - settings.offsets_retention_ms
        return [record.key for record in store.of(use.group) if use.is_empty and record.committed_ms <= oldest_ms]

    return expired


def delete_the_group_alone(
    self: GroupCoordinatorMachine, event: Received[DeleteGroupRequest], decision: GroupDecision
) -> None:
    """The offsets of a deleted group are kept."""
    if self._named_group(event, decision) is not None:
        decision.write(Tombstone(GroupChanged, (event.message.group_id,)))
        decision.reply(event.request, [])


def delete_at_once(self: GroupCoordinatorMachine, event: Received[DeleteGroupRequest], decision: GroupDecision) -> None:
    """The group's members are ignored."""
    if self._named_group(event, decision) is not None:
        for committed in self._offsets.of(event.message.group_id):
            decision.write(Tombstone(OffsetCommitted, committed.key))
        decision.write(Tombstone(GroupChanged, (event.message.group_id,)))
        decision.reply(event.request, [])


def topics_of_one_name(original: Callable[..., OffsetCommitted | None]) -> Callable[..., OffsetCommitted | None]:
    """The offset of a deleted topic counts for one of the same name."""

    def get(self: OffsetStore, key: OffsetKey) -> OffsetCommitted | None:
        alike = (each for each in self.of(key.group) if each.key[2:] == key[2:])
        return original(self, key) or next(alike, None)

    return get


def notes_are_lost(original: Callable[..., None]) -> Callable[..., None]:
    """The notes beside offsets do not survive a failover."""

    def replay(self: GroupCoordinatorMachine, key: Sequence[object], value: Sequence[object] | None) -> None:
        original(
            self, key, [*value[:3], "", *value[4:]] if key[0] == OffsetCommitted.KIND and value is not None else value
        )

    return replay


def delete_all_offsets(
    store: OffsetStore, use: GroupUse, event: Received[OffsetDeleteRequest], decision: GroupDecision, **_: object
) -> None:
    """A deletion of some offsets deletes all of the group."""
    for committed in store.of(use.group):
        decision.write(Tombstone(OffsetCommitted, committed.key))
    decision.reply(event.request, [[row.topic, row.partition, 0] for row in event.message.partitions])


def keep_empty_groups(original: Callable[..., None]) -> Callable[..., None]:
    """A group without members and offsets is kept for good."""

    def write(self: GroupDecision, record: Row | Tombstone) -> None:
        if not (isinstance(record, Tombstone) and record.kind is GroupChanged and self.cause == "tick"):
            original(self, record)

    return write


# ---------------------------------------------------------------- the runner


def swap_rows(original: Callable[..., list[Row]]) -> Callable[..., list[Row]]:
    return lambda self, bytes_max: original(self, bytes_max)[::-1]


def lose_what_does_not_fit(original: Callable[..., list[Row]]) -> Callable[..., list[Row]]:
    def take(self: RowQueue[Row], bytes_max: int) -> list[Row]:
        batch = original(self, bytes_max)
        self._rows.clear()
        return batch

    return take


def pop_an_earlier_one(self: RequestTable[Any], number: int, default: None) -> Any:
    return dict.pop(self, min(self, default=number), default)
