"""One group of the consumer protocol: its state in the log, and its members' sessions.

Hard state (epochs, members, targets, current assignments) changes only through :meth:`ConsumerGroup.apply`, for live
traffic and replay alike. Soft state (sessions, parked heartbeats, deadlines) is lost with the coordinator, and rebuilt
by the next one: members go on in their epochs, so that a failover causes no rebalance.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from raylog.base.invariants import require
from raylog.core.decision import RequestId
from raylog.core.groups.assignors import DEFAULT_ASSIGNOR, Reader
from raylog.core.groups.consumer_records import (
    ConsumerRow,
    Current,
    CurrentChanged,
    EpochsChanged,
    MemberChanged,
    MemberState,
    Place,
    TargetChanged,
    TopicFacts,
    places_in,
)
from raylog.core.groups.states import AWAY_EPOCH, ConsumerGroupState
from raylog.protocol.rows import Tombstone

LEAVE_EPOCH = -1
"""Epoch in the last heartbeat of a member that leaves."""


@dataclass(slots=True)
class Session:
    """The soft state of a member."""

    deadline_ms: int
    """When the member is removed, unless a heartbeat comes before or one is parked."""
    sequence: int = -1
    """Sequence of its last heartbeat: an older one that arrives late is refused."""
    parked: RequestId | None = None
    parked_until_ms: int = 0
    knows_epoch: int = -1
    """The member epoch in its last heartbeat."""
    sent: frozenset[Place] | None = None
    """The last assignment that an answer carried; None = not known."""
    revoke_deadline_ms: int | None = None
    """When the member is removed, unless it has given up its revoked partitions before; None = it has none."""


@dataclass(slots=True)
class ConsumerGroup:
    """The state of one group and its invariants."""

    name: str
    image: EpochsChanged | None = None
    topics: Mapping[str, TopicFacts] = field(default_factory=dict)
    """The facts of the topics from which the last target was made."""
    members: dict[str, MemberChanged] = field(default_factory=dict)
    targets: dict[str, frozenset[Place]] = field(default_factory=dict)
    currents: dict[str, Current] = field(default_factory=dict)
    owners: dict[Place, str] = field(default_factory=dict)
    """The member that has each partition, including one that has to give it up and has not confirmed that."""
    static: dict[str, str] = field(default_factory=dict)
    """Member id by instance id."""
    sessions: dict[str, Session] = field(default_factory=dict)
    assign_due: bool = False
    """Whether the next target has to be computed: the last one is behind the group's epoch, or a change is pending."""
    assign_at_ms: int = 0
    """The next target is not computed before this time: changes that come together cause one rebalance."""

    # ------------------------------------------------------------ reading

    @property
    def epoch(self) -> int:
        """Return the group's epoch, 0 before the first member."""
        return 0 if self.image is None else self.image.epoch

    @property
    def target_epoch(self) -> int:
        """Return the epoch of the target assignment."""
        return 0 if self.image is None else self.image.target_epoch

    @property
    def is_blank(self) -> bool:
        """Return whether the log has neither epochs nor members of the group."""
        return self.image is None and not self.members

    @property
    def state(self) -> str:
        """Return the state, in Kafka's spelling."""
        if not self.members:
            return ConsumerGroupState.EMPTY.value
        if self.assign_due or self.target_epoch < self.epoch:
            return ConsumerGroupState.ASSIGNING.value
        here = [self.current(member_id) for member_id in self.members]
        if all(_has_arrived(each, self.target_epoch) for each in here):
            return ConsumerGroupState.STABLE.value
        return ConsumerGroupState.RECONCILING.value

    def current(self, member_id: str) -> Current:
        """Return a member's current assignment; before its first one it has nothing, in epoch 0."""
        found = self.currents.get(member_id)
        if found is not None:
            return found
        return Current(member_id=member_id, assigned={}, revoking={})

    def target(self, member_id: str) -> frozenset[Place]:
        """Return a member's target assignment."""
        return self.targets.get(member_id, frozenset())

    def subscribed(self) -> set[str]:
        """Return the topics that any member subscribes to."""
        return {topic for topics in self.subscriptions() for topic in topics}

    def subscriptions(self) -> list[tuple[str, ...]]:
        """Return the distinct lists of topics that members subscribe to: mostly one, which all members share."""
        return list({id(member.topics): member.topics for member in self.members.values()}.values())

    def readers(self) -> list[Reader]:
        """Return the members for an assignor."""
        return [
            Reader(each.member_id, each.instance_id, frozenset(each.topics), self.target(each.member_id))
            for each in self.members.values()
        ]

    def assignor(self) -> str:
        """Return the assignor that most members prefer; on a tie, or without preferences, the default one."""
        wishes = sorted(member.assignor for member in self.members.values() if member.assignor)
        return max([DEFAULT_ASSIGNOR, *wishes], key=wishes.count) if wishes else DEFAULT_ASSIGNOR

    def deadlines(self) -> Iterator[int]:
        """Yield the times, in ms, at which members are removed or answered, or the next target is computed."""
        for session in self.sessions.values():
            yield session.deadline_ms if session.parked is None else session.parked_until_ms
            if session.revoke_deadline_ms is not None:
                yield session.revoke_deadline_ms
        if self.assign_due:
            yield self.assign_at_ms

    def is_torn(self) -> bool:
        """Return whether a crash cut a step's records short: the targets do not have every partition exactly once."""
        if not self.members:
            return bool(self.targets or self.currents)
        if self.target_epoch < self.epoch or set(self.targets) != set(self.members):
            return True
        placed = [place for target in self.targets.values() for place in target]
        wanted = self.subscribed()
        full = {
            Place(facts.topic_id, topic, number)
            for topic, facts in self.topics.items()
            if topic in wanted
            for number in range(facts.partitions)
        }
        return len(placed) != len(set(placed)) or set(placed) != full

    # ------------------------------------------------------------ hard state

    def apply(self, record: ConsumerRow | Tombstone) -> None:
        """Apply one record: the only mutator of hard state."""
        match record:
            case EpochsChanged():
                self.image = record
                self.topics = {row.topic: TopicFacts(row.topic_id, row.partitions) for row in record.topics}
            case MemberChanged():
                self.members[record.member_id] = self._with_shared_topics(record)
                if record.instance_id is not None:
                    self.static[record.instance_id] = record.member_id
            case TargetChanged():
                self.targets[record.member_id] = frozenset(places_in(record.partitions))
            case CurrentChanged():
                self._release(record.member_id)
                current = self.currents[record.member_id] = Current.of(record)
                self._claim(record.member_id, (*current.assigned, *current.revoking))
            case Tombstone():
                self._remove(record)

    def _with_shared_topics(self, member: MemberChanged) -> MemberChanged:
        """Return the member with the same list object as a member with equal topics, so that memory has it once."""
        topics = next((held for held in self.subscriptions() if held == member.topics), member.topics)
        return member if topics is member.topics else member.replaced(topics=topics)

    def _remove(self, record: Tombstone) -> None:
        if record.kind is EpochsChanged:
            self.image, self.topics = None, {}
            return
        member_id = str(record.key[1])
        if record.kind is MemberChanged:
            member = self.members.pop(member_id, None)
            if member is not None and member.instance_id is not None and self.static[member.instance_id] == member_id:
                del self.static[member.instance_id]
        elif record.kind is TargetChanged:
            self.targets.pop(member_id, None)
        elif record.kind is CurrentChanged:
            self._release(member_id)
            self.currents.pop(member_id, None)

    def _release(self, member_id: str) -> None:
        held = self.currents.get(member_id)
        if held is not None:
            for place in (*held.assigned, *held.revoking):
                if self.owners.get(place) == member_id:
                    del self.owners[place]

    def _claim(self, member_id: str, places: Iterable[Place]) -> None:
        for place in places:
            self.owners[place] = member_id

    def restore(self, now_ms: int) -> None:
        """Begin to serve after a replay: every member gets a fresh session, and time to give up revoked partitions."""
        for member_id, member in self.members.items():
            session = self.sessions[member_id] = Session(now_ms + member.session_timeout_ms)
            if self.current(member_id).state is MemberState.UNREVOKED_PARTITIONS:
                session.revoke_deadline_ms = now_ms + member.rebalance_timeout_ms
        self.assign_due = self.is_torn()

    # ------------------------------------------------------------ checks

    def hard_state(self) -> list[object]:
        """Return the state of the log as comparable values."""
        return [
            self.name,
            None if self.image is None else self.image.to_wire(),
            [self.members[member_id].to_wire() for member_id in sorted(self.members)],
            [[member_id, sorted(self.targets[member_id])] for member_id in sorted(self.targets)],
            [self.currents[member_id].row(self.name).to_wire() for member_id in sorted(self.currents)],
        ]

    def validate(self) -> None:
        """Check the invariants between the fields; raises InvariantBroken."""
        name = self.name
        owners: dict[Place, str] = {}
        for member_id, current in self.currents.items():
            for place in (*current.assigned, *current.revoking):
                require(place not in owners, f"{place} of group {name!r} has one owner")
                owners[place] = member_id
            require(not set(current.assigned) & set(current.revoking), "what is given up is not assigned")
            require(current.epoch <= self.epoch, f"no member of group {name!r} is ahead of its epoch")
            is_unrevoked = current.state is MemberState.UNREVOKED_PARTITIONS
            require(bool(current.revoking) == is_unrevoked, "a member that gives partitions up is unrevoked")
        require(owners == self.owners, f"the owners of group {name!r} are those of its members' assignments")
        require(set(self.currents) <= set(self.members), f"those with an assignment are members of group {name!r}")
        require(set(self.sessions) == set(self.members), f"every member of group {name!r} has a session")
        require(self.target_epoch <= self.epoch, f"the target of group {name!r} is not ahead of its epoch")
        for member_id, session in self.sessions.items():
            unrevoked = self.current(member_id).state is MemberState.UNREVOKED_PARTITIONS
            require((session.revoke_deadline_ms is not None) == unrevoked, "giving up partitions has a deadline")
        instances = {each.instance_id: each.member_id for each in self.members.values() if each.instance_id is not None}
        require(instances == self.static, f"every instance of group {name!r} is a member")
        if not self.assign_due and self.members:
            require(not self.is_torn(), f"every partition of group {name!r} has one target")


def _has_arrived(current: Current, target_epoch: int) -> bool:
    return current.state is MemberState.STABLE and current.epoch in (target_epoch, AWAY_EPOCH)
