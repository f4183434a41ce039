"""One member of a group of the consumer protocol (KIP-848) as a pure state machine.

The coordinator assigns. A heartbeat carries the member's subscription and its owned partitions; the answer carries the
assignment. The member gives up partitions that are no longer assigned, confirms that with a heartbeat, and takes new
ones. `consumer_session.py` sends the requests and calls the listener; the simulator runs this machine too. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from raylog.base.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    IllegalGeneration,
    RaylogError,
    StaleMemberEpoch,
    UnknownMemberId,
    UnreleasedInstanceId,
)
from raylog.base.ids import TopicPartition
from raylog.client.group.membership import Forget, GroupRequest, Reaction
from raylog.protocol.groups import ConsumerGroupHeartbeatReply, ConsumerGroupHeartbeatRequest, TopicPartitions

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
PAUSE_EPOCH: Final = -2
"""Member epoch in the last heartbeat of a static member: its assignment is kept until the session timeout."""
NO_EPOCH: Final = -1

_LOST: Final = Reaction(forget=Forget.GENERATION, rejoin=True)
_FENCED: Final = Reaction(forget=Forget.MEMBER, fatal=True)
_AGAIN: Final = Reaction(retry=True)
_NOTHING: Final = Reaction()

CONSUMER_REACTIONS: Final[Mapping[tuple[GroupRequest, type[RaylogError]], Reaction]] = {
    (GroupRequest.HEARTBEAT, FencedMemberEpoch): _LOST,
    (GroupRequest.HEARTBEAT, UnknownMemberId): _LOST,
    (GroupRequest.HEARTBEAT, FencedInstanceId): _FENCED,
    (GroupRequest.HEARTBEAT, StaleMemberEpoch): _NOTHING,  # a newer heartbeat is in flight
    # A dead process keeps its instance id until its session times out. `ConsumerSession` raises the error after that
    # time: then a living process has the id.
    (GroupRequest.HEARTBEAT, UnreleasedInstanceId): _AGAIN,
    (GroupRequest.COMMIT, UnknownMemberId): _LOST,
    # The group has expired with its last member, or is a classic one since.
    (GroupRequest.COMMIT, IllegalGeneration): _LOST,
    (GroupRequest.COMMIT, FencedInstanceId): _FENCED,
    (GroupRequest.COMMIT, StaleMemberEpoch): _NOTHING,
}


def consumer_reaction(call: GroupRequest, error: RaylogError) -> Reaction:
    """The reaction from the table; an error without a row is retried if its flags allow it, and fatal otherwise."""
    for kind in type(error).__mro__:
        found = CONSUMER_REACTIONS.get((call, kind))
        if found is not None:
            return found
    return _AGAIN if error.retriable else Reaction(fatal=True)


@dataclass(frozen=True, slots=True)
class Change:
    """One step of a member from the partitions that it has to those that it is assigned."""

    partitions: Mapping[TopicPartition, str]
    """The partitions that it has afterwards, with their topic ids."""
    is_lost: bool
    """Whether others may already have the partitions given up: their offsets are not committed."""
    announces: bool
    """Whether the listener is called for the new partitions, even if there are none."""


class ConsumerMembership:
    """One member of the consumer protocol; it joins again after it was fenced or removed.

    A change of its partitions takes time, because the process commits offsets and calls the listener. An assignment
    that arrives meanwhile waits for the next change.
    """

    is_cooperative = True
    """It keeps its partitions while the group rebalances."""
    is_joining = False
    """As in `Membership`; here no rebalance ever stops its commits."""

    def __init__(
        self,
        group: str,
        *,
        member_id: str,
        client_id: str,
        instance_id: str | None = None,
        assignor: str = "",
        session_timeout_ms: int = 45_000,
        rebalance_timeout_ms: int = 300_000,
        max_wait_ms: int = 3_000,
    ) -> None:
        """``member_id`` is unique; ``max_wait_ms``: how long the coordinator may wait for news before it answers."""
        self.group = group
        self.member_id = member_id
        self.client_id = client_id
        self.instance_id = instance_id
        self.assignor = assignor
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.max_wait_ms = max_wait_ms
        self.epoch = JOIN_EPOCH
        self.sequence = 0
        self.owned: dict[TopicPartition, str] = {}
        """The partitions that it has or is giving up, with their topic ids."""
        self.change: Change | None = None
        """The change under way, from `begin_change` to `end_change`; None = none."""
        self.assigned: dict[TopicPartition, str] | None = None
        """The partitions that the coordinator assigned last, with their topic ids; None = no assignment yet."""
        self.lost = False
        """Whether others may already have its `owned` partitions: nothing may be committed for them."""
        self.fenced: RaylogError | None = None
        """The error that says that another process has this instance id: this member must never join again."""
        self.rejoin_reason: str | None = "it is new"
        self._known_topics: tuple[str, ...] | None = None
        """The subscription that the coordinator has confirmed; None = perhaps none."""
        self._owes_report = False
        """Whether the last assignment has to be confirmed as soon as it is in force."""
        self._is_whole = True
        """Whether the next heartbeat has to be a full one, because an answer may have been lost."""
        self._says_topics: tuple[str, ...] | None = None
        """The subscription in the heartbeat in flight; None = it has none."""
        self._says_report = False
        """Whether the heartbeat in flight confirms the last assignment."""
        self._answered = 0
        """The sequence of the last heartbeat that was answered."""

    # ------------------------------------------------------------ reading

    @property
    def is_stable(self) -> bool:
        """Whether it is a member of the group, as far as it knows."""
        return self.epoch > JOIN_EPOCH

    @property
    def has_joined(self) -> bool:
        """Whether it was ever a member."""
        return self._answered > 0

    @property
    def commit_identity(self) -> tuple[int, str]:
        """Member epoch and member id for an offset commit; epoch -1 = not a member."""
        return self.epoch if self.is_stable else NO_EPOCH, self.member_id

    @property
    def is_in_force(self) -> bool:
        """Whether it has exactly the partitions that it is assigned, and no change is under way."""
        return self.change is None and not self.lost and (self.assigned is None or self.owned == self.assigned)

    @property
    def _held(self) -> Mapping[TopicPartition, str]:
        """The partitions that it has, and those that the change under way may have added already."""
        return self.owned if self.change is None else {**self.owned, **self.change.partitions}

    def has_to_speak(self, topics: Collection[str]) -> bool:
        """Whether a heartbeat has to be sent although one is in flight: to join, to confirm, or to change topics."""
        if self.lost or self.fenced is not None:
            return False  # it has to give up lost partitions first, or may not send anything again
        wanted = tuple(sorted(topics))
        changed = self._known_topics is not None and wanted not in (self._known_topics, self._says_topics)
        reports = self._owes_report and self.is_in_force and not self._says_report
        return self.epoch == JOIN_EPOCH or changed or reports

    # ------------------------------------------------------------ heartbeats

    def heartbeat_request(self, topics: Iterable[str]) -> ConsumerGroupHeartbeatRequest:
        """The next heartbeat: full at a join and after an error, otherwise with changes only."""
        wanted = tuple(sorted(topics))
        is_join = self.epoch == JOIN_EPOCH
        says_all = is_join or self._is_whole
        reports = says_all or (self._owes_report and self.is_in_force)
        says_topics = says_all or wanted != self._known_topics
        self._says_report, self._says_topics = reports and self.is_in_force, wanted if says_topics else None
        return self._request(
            self.epoch,
            topics=wanted if says_topics else None,
            assignor=self.assignor if says_all else None,
            owned=grouped({} if is_join else self._held) if reports else None,
        )

    def leave_request(self, *, for_good: bool = False) -> ConsumerGroupHeartbeatRequest | None:
        """The last heartbeat; None if it is not a member. A static member keeps its assignment unless ``for_good``."""
        if not self.is_stable:
            return None
        epoch = LEAVE_EPOCH if for_good or self.instance_id is None else PAUSE_EPOCH
        return self._request(epoch, topics=None, assignor=None, owned=None)

    def _request(
        self,
        epoch: int,
        *,
        topics: Sequence[str] | None,
        assignor: str | None,
        owned: Sequence[TopicPartitions] | None,
    ) -> ConsumerGroupHeartbeatRequest:
        self.sequence += 1
        return ConsumerGroupHeartbeatRequest(
            self.group,
            self.member_id,
            epoch,
            self.instance_id,
            self.sequence,
            self.client_id,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            self.max_wait_ms if epoch > JOIN_EPOCH else 0,
            topics,
            assignor,
            owned,
        )

    def answered(self, sent: ConsumerGroupHeartbeatRequest, reply: ConsumerGroupHeartbeatReply) -> None:
        """Apply the answer to a heartbeat; it changes nothing if a newer heartbeat was answered before."""
        if sent.sequence <= self._answered or (sent.member_epoch == JOIN_EPOCH) != (self.epoch == JOIN_EPOCH):
            return
        self._answered = sent.sequence
        self.epoch = reply.member_epoch
        self.rejoin_reason = None
        self._is_whole = False
        if sent.subscribed_topics is not None:
            self._known_topics = tuple(sent.subscribed_topics)
        if sent.owned is not None and self.assigned is not None and flat(sent.owned) == self.assigned:
            self._owes_report = False
        self._says_report, self._says_topics = False, None
        if reply.assignment is not None:
            assigned = flat(reply.assignment)
            if assigned != self.assigned or assigned != self.owned:
                self._owes_report = True
            self.assigned = assigned

    def unanswered(self) -> None:
        """A heartbeat was abandoned or failed: the next one has to be full."""
        self._is_whole = True
        self._says_report, self._says_topics = False, None

    def failed(self, call: GroupRequest, error: RaylogError, *, generation: int) -> Reaction:
        """Apply an error. ``generation``: the member epoch of the request; errors for an older one lose nothing."""
        reaction = consumer_reaction(call, error)
        if call is GroupRequest.HEARTBEAT:
            self.unanswered()
        if isinstance(error, FencedInstanceId) and generation == self.epoch:
            self.fenced = error
        if reaction.forget is not Forget.NOTHING:
            if generation != self.epoch:
                return reaction if reaction.fatal else _NOTHING
            self.lose(error.message)
        return reaction

    def lose(self, reason: str) -> None:
        """It is no longer a member, and others may get its partitions. It joins again once it has given them up."""
        self.lost = self.lost or bool(self._held)
        self.epoch = JOIN_EPOCH
        self.assigned = None
        self._known_topics = None
        self._owes_report = False
        self._is_whole = True
        self.rejoin_reason = self.rejoin_reason or reason

    # ------------------------------------------------------------ partitions

    def begin_change(self) -> Change:
        """Begin the next step towards the assignment. Call it only while not `is_in_force`, then call `end_change`.

        Lost partitions, and those of a topic that was created again, are given up first, in a step without new ones:
        the offsets of lost partitions must not be committed, and the others' not under the topic's new id.
        """
        assigned = self.assigned or {}
        if self.lost or any(assigned.get(each, topic_id) != topic_id for each, topic_id in self.owned.items()):
            kept = {} if self.lost else assigned
            partitions = {each: topic_id for each, topic_id in self.owned.items() if kept.get(each) == topic_id}
            self.change = Change(partitions, is_lost=self.lost, announces=False)
        else:
            announces = not assigned.keys() <= self.owned.keys()
            self.change = Change(dict(sorted(assigned.items())), is_lost=False, announces=announces)
        return self.change

    def end_change(self) -> None:
        """Record that the change is done: the member has its partitions, and no others."""
        self.owned = {} if self.change is None else dict(self.change.partitions)
        self.change = None
        if not self.owned:
            self.lost = False

    def gave_all_back(self) -> None:
        """Record that the member has given up all partitions; ends a change under way."""
        self.change = None
        self.end_change()


def flat(rows: Iterable[TopicPartitions]) -> dict[TopicPartition, str]:
    """The partitions of a message's rows, with their topic ids."""
    return {TopicPartition(row.topic, number): row.topic_id for row in rows for number in row.partitions}


def grouped(partitions: Mapping[TopicPartition, str]) -> list[TopicPartitions]:
    """The rows of a message for these partitions, sorted."""
    found: dict[tuple[str, str], list[int]] = {}
    for (topic, number), topic_id in sorted(partitions.items()):
        found.setdefault((topic_id, topic), []).append(number)
    return [TopicPartitions(*head, numbers) for head, numbers in found.items()]
