"""All consumer-protocol groups of one coordinator, and the topics that they read. Owned by ``coordinator.py``.

Every event that changes a group ends here in the same way. If members, subscriptions or topics changed, the group's
epoch advances and its target is computed, at once or after the pause between two targets. Then members whose heartbeats
are parked take their next step towards it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from raylog.base.errors import (
    GroupMaxSizeReached,
    InvalidRequest,
    InvalidSessionTimeout,
    RaylogError,
    RecordTooLarge,
    StaleMemberEpoch,
    UnknownMemberId,
    UnsupportedAssignor,
)
from raylog.base.invariants import require
from raylog.core.coordinators.sizes import wire_bytes
from raylog.core.decision import RequestId
from raylog.core.groups import heartbeats
from raylog.core.groups.assignors import ASSIGNORS
from raylog.core.groups.consumer_group import LEAVE_EPOCH, ConsumerGroup
from raylog.core.groups.consumer_records import (
    ConsumerRow,
    EpochsChanged,
    MemberState,
    TopicFacts,
    grouped,
    places_of,
)
from raylog.core.groups.decision import GroupDecision
from raylog.core.groups.events import LookUpTopics, TopicsSeen
from raylog.core.groups.settings import GroupSettings
from raylog.core.groups.states import AWAY_EPOCH
from raylog.core.received import Received
from raylog.protocol.groups import ConsumerGroupHeartbeatRequest, LeavingMember
from raylog.protocol.rows import Tombstone

NAMES_BYTES_MAX: Final = 4 * 1024
"""Most bytes of a member's ids, its group's name and its host, together."""
_FIELDS_BYTES: Final = 500
"""Most bytes of a record's other fields."""
_PLACE_BYTES: Final = 14
"""Most bytes of a partition in a member's record, without its topic's name."""


class ConsumerGroups:
    """The groups by name."""

    def __init__(self, settings: GroupSettings) -> None:
        """Start before replay."""
        self._settings = settings
        self._groups: dict[str, ConsumerGroup] = {}
        self._known: dict[str, TopicFacts] = {}
        """Facts by topic name, of topics that are known to exist."""
        self._requested: set[str] = set()
        """The topics that were looked up, or are being looked up."""
        self._next_check_ms = 0

    def reconfigure(self, settings: GroupSettings) -> None:
        """Use these settings from now on."""
        self._settings = settings

    # ------------------------------------------------------------ the log

    def apply(self, record: ConsumerRow | Tombstone) -> None:
        """Apply one record: the only mutator of hard state."""
        name = str(record.key[0])
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = ConsumerGroup(name)
        group.apply(record)
        if isinstance(record, Tombstone) and record.kind is EpochsChanged:
            del self._groups[name]

    def loaded(self, now_ms: int) -> None:
        """Begin to serve: members go on with fresh sessions, and the facts of topics are those in the log at first."""
        for name in list(self._groups):
            group = self._groups[name]
            if group.is_blank and not group.targets and not group.currents:
                del self._groups[name]
                continue
            group.restore(now_ms)
            self._known.update(group.topics)
        self._next_check_ms = now_ms

    # ------------------------------------------------------------ reading

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, name: str) -> bool:
        """Return whether there is a group of that name."""
        return name in self._groups

    def get(self, name: str) -> ConsumerGroup | None:
        """Return a group, or None."""
        return self._groups.get(name)

    def __iter__(self) -> Iterator[ConsumerGroup]:
        """Iterate over the groups."""
        return iter(list(self._groups.values()))

    def names(self) -> list[str]:
        """Return the names of the groups, in order."""
        return sorted(self._groups)

    def group(self, name: str) -> ConsumerGroup:
        """Return a group that exists."""
        return self._groups[name]

    def parked(self) -> list[RequestId]:
        """Return the requests of parked heartbeats."""
        sessions = [session for group in self._groups.values() for session in group.sessions.values()]
        return [session.parked for session in sessions if session.parked is not None]

    @property
    def has_members(self) -> bool:
        """Return whether a group has members or a target to compute: time can change such a group."""
        return any(group.members or group.assign_due for group in self._groups.values())

    def hard_state(self) -> list[object]:
        """Return the state of the log as comparable values."""
        return [self._groups[name].hard_state() for name in self.names()]

    def validate(self) -> None:
        """Check every group."""
        for name, group in self._groups.items():
            require(group.name == name and not group.is_blank, "a group is filed under its name, and has records")
            group.validate()

    # ------------------------------------------------------------ heartbeats

    def refusal(self, event: Received[ConsumerGroupHeartbeatRequest], decision: GroupDecision) -> RaylogError | None:
        """Return the error for a heartbeat that the group does not take, or None."""
        return self._error(self._groups.get(event.message.group_id), event)

    def heartbeat(self, event: Received[ConsumerGroupHeartbeatRequest], decision: GroupDecision) -> None:
        """Handle a ConsumerGroupHeartbeat without a :meth:`refusal`; see ``heartbeats.answer`` for the answer."""
        message = event.message
        group = self._groups.get(message.group_id)
        is_join = message.member_epoch == 0
        if group is None:
            group = self._groups[message.group_id] = ConsumerGroup(message.group_id)
        if message.member_epoch < 0:
            if heartbeats.leave(group, event, decision):
                self._changed(group, decision)
            return
        if heartbeats.take_in(group, event, decision):
            self._changed(group, decision)
            self._look_up(group.subscribed() - self._requested, decision)
        elif group.assign_due and decision.now_ms >= group.assign_at_ms:
            heartbeats.assign(group, self._facts(group), decision)
        owned = None if is_join else places_of(message.owned)
        if group.current(message.member_id).epoch == AWAY_EPOCH:
            owned = frozenset()  # when it left for a while, it confirmed that it holds nothing
        if heartbeats.step_to_target(group, message.member_id, owned, decision):
            heartbeats.step_parked(group, decision)
        heartbeats.answer_or_park(group, event, decision)

    def _error(self, group: ConsumerGroup | None, event: Received[ConsumerGroupHeartbeatRequest]) -> RaylogError | None:
        message = event.message
        if message.member_epoch > 0 or message.member_epoch in (LEAVE_EPOCH, AWAY_EPOCH):
            return self._member_error(group, message) or (
                self._request_error(group, event) if message.member_epoch > 0 else None
            )
        if message.member_epoch != 0 or message.subscribed_topics is None or message.member_id == "":
            return InvalidRequest("A member joins with epoch 0, an id that it has made, and the topics that it reads.")
        error = self._request_error(group, event)
        if error is not None or group is None:
            return error
        session = group.sessions.get(message.member_id)
        if session is not None and message.sequence <= session.sequence:
            return StaleMemberEpoch("A newer heartbeat of this member has come.")
        is_new = message.member_id not in group.members and message.group_instance_id not in group.static
        if is_new and len(group.members) >= self._settings.group_max_size:
            return GroupMaxSizeReached(
                f"Group {group.name!r} has its maximum of {self._settings.group_max_size} members; use another group "
                "or raise group.max.size."
            )
        return heartbeats.join_error(group, message)

    def _member_error(self, group: ConsumerGroup | None, message: ConsumerGroupHeartbeatRequest) -> RaylogError | None:
        if group is None:
            return UnknownMemberId(f"There is no group {message.group_id!r}; join again.")
        error = heartbeats.member_error(group, message.member_id, message.group_instance_id)
        if error is None and message.sequence <= group.sessions[message.member_id].sequence:
            return StaleMemberEpoch("A newer heartbeat of this member has come.")
        if error is None and message.member_epoch > 0:
            error = heartbeats.epoch_error(group, message)
        return error

    def _request_error(
        self, group: ConsumerGroup | None, event: Received[ConsumerGroupHeartbeatRequest]
    ) -> RaylogError | None:
        message = event.message
        least, most = self._settings.min_session_timeout_ms, self._settings.max_session_timeout_ms
        if not least <= message.session_timeout_ms <= most:
            return InvalidSessionTimeout(
                f"session_timeout_ms is {message.session_timeout_ms}; it has to be within {least} and {most}."
            )
        names = [
            message.group_id,
            message.member_id,
            message.group_instance_id,
            message.client_id,
            event.sender.host,
        ]
        if wire_bytes(names) > self._names_bytes_max:
            return InvalidRequest(
                f"The group's name, and the member's ids, have more than {self._names_bytes_max} bytes together; use "
                "shorter ones."
            )
        if message.server_assignor and message.server_assignor not in ASSIGNORS:
            return UnsupportedAssignor(
                f"The coordinator has no assignor {message.server_assignor!r}; set group_remote_assignor to one "
                f"of {', '.join(ASSIGNORS)}, or leave it empty."
            )
        if message.subscribed_topics is not None:
            held = [] if group is None else group.subscriptions()
            topics = tuple(sorted(set(message.subscribed_topics)))
            if topics not in held and len(topics) + sum(map(len, held)) > self._settings.subscribed_names_max:
                return InvalidRequest(
                    f"The members of group {message.group_id!r} subscribe to different lists with more than "
                    f"{self._settings.subscribed_names_max} names in all; give them the same topics, or use several "
                    "groups."
                )
            wanted = set(message.subscribed_topics) | (set() if group is None else group.subscribed())
            is_listed = wire_bytes(topics) + self._head_bytes <= self._settings.record_bytes_max
            if not (is_listed and self._fits(wanted, self._known)):
                return RecordTooLarge(
                    f"Group {message.group_id!r} would read more partitions than a record of __consumer_offsets "
                    "takes; subscribe to fewer topics, or raise max.message.bytes of __consumer_offsets."
                )
        return None

    @property
    def _names_bytes_max(self) -> int:
        return min(NAMES_BYTES_MAX, self._settings.record_bytes_max // 4)

    @property
    def _head_bytes(self) -> int:
        """Most bytes of a member's record, or of a group's, without topics and their partitions."""
        return self._names_bytes_max + _FIELDS_BYTES

    def _fits(self, topics: set[str], known: Mapping[str, TopicFacts]) -> bool:
        """Return whether the log takes a record that has all partitions of these topics."""
        facts = [(name, known[name]) for name in topics if name in known]
        size = self._head_bytes + sum(
            _PLACE_BYTES * each.partitions + 2 * wire_bytes([name, each.topic_id]) + 64 for name, each in facts
        )
        return size <= self._settings.record_bytes_max

    def _facts(self, group: ConsumerGroup) -> Mapping[str, TopicFacts]:
        """Return the facts for a group's next target: the present ones, or the last if those do not fit a record."""
        return self._known if self._fits(group.subscribed(), self._known) else group.topics

    def _changed(self, group: ConsumerGroup, decision: GroupDecision) -> None:
        """Advance the group's epoch; its target is computed now, or after the pause between two targets."""
        if decision.now_ms >= group.assign_at_ms:
            heartbeats.assign(group, self._facts(group), decision)
        else:
            heartbeats.bump(group, decision)
            heartbeats.step_parked(group, decision)

    # ------------------------------------------------------------ other events

    def leave(
        self, group: ConsumerGroup, members: Sequence[LeavingMember], decision: GroupDecision
    ) -> list[list[object]]:
        """Remove members for an administrator; return [[member id, instance id, error code]...]."""
        result: list[list[object]] = []
        removed = False
        for member in members:
            member_id, instance_id = member.member_id, member.group_instance_id
            found = group.static.get(instance_id, "") if instance_id is not None and member_id == "" else member_id
            error = heartbeats.member_error(group, found, instance_id)
            if error is None:
                heartbeats.remove(group, found, decision)
                removed = True
            result.append([member_id, instance_id, 0 if error is None else error.code])
        if removed:
            self._changed(group, decision)
        return result

    def seen(self, event: TopicsSeen, decision: GroupDecision) -> None:
        """Take topics that were looked up: groups that read a changed one get a new epoch."""
        for topic in event.requested:
            if topic in event.topics:
                self._known[topic] = TopicFacts(*event.topics[topic])
            else:
                self._known.pop(topic, None)
        requested = set(event.requested)
        for group in self._groups.values():
            wanted = group.subscribed()
            now = {topic: self._known.get(topic) for topic in wanted & requested}
            fits = self._fits(wanted, self._known)
            if fits and group.members and any(group.topics.get(topic) != facts for topic, facts in now.items()):
                self._changed(group, decision)

    def tick(self, decision: GroupDecision) -> None:
        """Remove members past their deadlines, compute targets that are due, answer heartbeats whose wait is over."""
        now_ms = decision.now_ms
        for group in self._groups.values():
            if not group.members and not group.assign_due:
                continue
            overdue = [
                member_id
                for member_id, session in group.sessions.items()
                if (session.parked is None and session.deadline_ms <= now_ms)
                or (session.revoke_deadline_ms is not None and session.revoke_deadline_ms <= now_ms)
            ]
            for member_id in overdue:
                heartbeats.remove(group, member_id, decision)
            if overdue:
                self._changed(group, decision)
            elif group.assign_due and now_ms >= group.assign_at_ms:
                heartbeats.assign(group, self._facts(group), decision)
            for member_id, session in group.sessions.items():
                if session.parked is not None and session.parked_until_ms <= now_ms:
                    heartbeats.answer(group, member_id, decision)
        if now_ms >= self._next_check_ms:
            self._next_check_ms = now_ms + self._settings.topics_check_ms
            self._requested = set().union(*(group.subscribed() for group in self._groups.values()))
            read = self._requested.union(*(group.topics for group in self._groups.values()))
            self._known = {topic: facts for topic, facts in self._known.items() if topic in read}
            self._look_up(self._requested, decision)

    def deadlines(self) -> Iterator[int]:
        """Yield the times, in ms, at which :meth:`tick` has something to do."""
        for group in self._groups.values():
            yield from group.deadlines()
        if self._groups:
            yield self._next_check_ms

    def drop_request(self, request: RequestId) -> bool:
        """Forget a heartbeat whose connection is closed; return whether it waited here."""
        for group in self._groups.values():
            for session in group.sessions.values():
                if session.parked == request:
                    session.parked = None
                    return True
        return False

    def delete(self, name: str, decision: GroupDecision) -> None:
        """Write the tombstone of a group without members."""
        decision.write(Tombstone(EpochsChanged, (name,)))

    def _look_up(self, topics: set[str], decision: GroupDecision) -> None:
        if topics:
            self._requested |= topics
            decision.now.append(LookUpTopics(cause=decision.cause, topics=tuple(sorted(topics))))


def description(group: ConsumerGroup) -> dict[str, object]:
    """Return what DescribeGroup answers, offsets aside."""
    return {
        "group": group.name,
        "state": group.state,
        "protocol_type": "consumer",
        "protocol": "" if group.image is None else group.image.assignor,
        "generation": group.epoch,
        "leader": "",
        "members": [_described(group, member_id) for member_id in group.members],
        "group_type": "consumer",
        "target_epoch": group.target_epoch,
    }


def _described(group: ConsumerGroup, member_id: str) -> Mapping[str, object]:
    member, current = group.members[member_id], group.current(member_id)
    held = current.revoking if current.state is MemberState.UNREVOKED_PARTITIONS else {}
    return {
        "member_id": member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "session_timeout_ms": member.session_timeout_ms,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "metadata": b"",
        "assignment": b"",
        "member_epoch": current.epoch,
        "member_state": current.state.value,
        "topics": list(member.topics),
        "assigned": [list(row) for row in grouped(current.assigned)],
        "revoking": [list(row) for row in grouped(held)],
        "target": [list(row) for row in grouped(group.target(member_id))],
    }
