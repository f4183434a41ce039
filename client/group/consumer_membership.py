"""One member of a group of the consumer protocol (KIP-848) as a pure state machine.

The coordinator assigns; heartbeats carry subscription and partitions held up, and the assignment down. The member's
whole duty: give up what its assignment no longer lists, then say so; take what is new in it. `consumer_session.py`
sends the requests and calls the listener; the simulator runs this machine too. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from raylog.client.group.membership import Call, Forget, Reaction
from raylog.core.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    RaylogError,
    StaleMemberEpoch,
    UnknownMemberId,
    UnreleasedInstanceId,
)
from raylog.core.ids import TopicPartition
from raylog.protocol.groups import ConsumerGroupHeartbeatReply, ConsumerGroupHeartbeatRequest, TopicPartitions

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
PAUSE_EPOCH: Final = -2
"""Epoch in the last heartbeat of a static member: its place is kept until its session ends."""
NO_EPOCH: Final = -1

_LOST: Final = Reaction(forget=Forget.GENERATION, rejoin=True)
_FENCED: Final = Reaction(forget=Forget.MEMBER, fatal=True)
_AGAIN: Final = Reaction(retry=True)
_NOTHING: Final = Reaction()

CONSUMER_REACTIONS: Final[Mapping[tuple[Call, type[RaylogError]], Reaction]] = {
    (Call.HEARTBEAT, FencedMemberEpoch): _LOST,
    (Call.HEARTBEAT, UnknownMemberId): _LOST,
    (Call.HEARTBEAT, FencedInstanceId): _FENCED,
    (Call.HEARTBEAT, StaleMemberEpoch): _NOTHING,  # a newer heartbeat is on its way
    # A process that died without leaving is there until its session ends; after that it is a living one.
    (Call.HEARTBEAT, UnreleasedInstanceId): _AGAIN,
    (Call.COMMIT, UnknownMemberId): _LOST,
    (Call.COMMIT, FencedInstanceId): _FENCED,
    (Call.COMMIT, StaleMemberEpoch): _NOTHING,
}


def consumer_reaction(call: Call, error: RaylogError) -> Reaction:
    """The table's row; an error without one is retried if its flags allow that, and fatal otherwise."""
    for kind in type(error).__mro__:
        found = CONSUMER_REACTIONS.get((call, kind))
        if found is not None:
            return found
    return _AGAIN if error.retriable else Reaction(fatal=True)


@dataclass(frozen=True, slots=True)
class Change:
    """What a member is about to hold in place of what it holds."""

    partitions: Mapping[TopicPartition, str]
    """The topic id of each partition that it holds afterwards."""
    is_lost: bool
    """What goes belongs to others already, and is not committed."""
    announces: bool
    """The listener learns what has come, even if that is nothing."""


class ConsumerMembership:
    """One member, through as many joins as it takes.

    Its process takes time to change what it holds: it commits, and calls the listener. Whatever the coordinator answers
    meanwhile is for the next change.
    """

    is_cooperative = True
    """It keeps what it holds while the group rebalances."""
    is_joining = False
    """No round stops its commits."""

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
        """``member_id`` is unique; ``max_wait_ms``: how long the coordinator may hold an answer without news back."""
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
        """The topic id of each partition that it holds, or is giving up."""
        self.change: Change | None = None
        """The change that is under way, see :meth:`begin_change`."""
        self.assigned: dict[TopicPartition, str] | None = None
        """The same of what the coordinator assigned last; None = it has not."""
        self.lost = False
        """What it holds may belong to others: nothing may be committed for it."""
        self.fenced: RaylogError | None = None
        """Another process has this member's instance id: it must never join again."""
        self.rejoin_reason: str | None = "it is new"
        self._known_topics: tuple[str, ...] | None = None
        """The subscription that the coordinator knows; None = it may know none."""
        self._owes_report = False
        """The last assignment is to be confirmed, once it is in force."""
        self._is_whole = True
        """The next heartbeat says everything: an answer may have been lost."""
        self._says_topics: tuple[str, ...] | None = None
        """The subscription in the heartbeat that is under way."""
        self._says_report = False
        """The heartbeat that is under way confirms the last assignment."""
        self._answered = 0
        """The sequence of the last heartbeat that was answered."""

    # ------------------------------------------------------------ reading

    @property
    def is_stable(self) -> bool:
        """Whether it is a member, as far as it knows."""
        return self.epoch > JOIN_EPOCH

    @property
    def has_joined(self) -> bool:
        """Whether it was ever a member."""
        return self._answered > 0

    @property
    def commit_identity(self) -> tuple[int, str]:
        """Epoch and member id for an offset commit; epoch -1: it is no member."""
        return self.epoch if self.is_stable else NO_EPOCH, self.member_id

    @property
    def is_in_force(self) -> bool:
        """Whether it holds what it is assigned, and no change of that is under way."""
        return self.change is None and not self.lost and (self.assigned is None or self.owned == self.assigned)

    @property
    def _held(self) -> Mapping[TopicPartition, str]:
        """What it holds, and what it may hold already by the change that is under way."""
        return self.owned if self.change is None else {**self.owned, **self.change.partitions}

    def has_to_speak(self, topics: Collection[str]) -> bool:
        """Whether a heartbeat has to be sent now, whatever waits: to join, to confirm, or to change topics."""
        if self.lost or self.fenced is not None:
            return False  # first it gives up what it has lost
        wanted = tuple(sorted(topics))
        changed = self._known_topics is not None and wanted not in (self._known_topics, self._says_topics)
        reports = self._owes_report and self.is_in_force and not self._says_report
        return self.epoch == JOIN_EPOCH or changed or reports

    # ------------------------------------------------------------ heartbeats

    def heartbeat_request(self, topics: Iterable[str]) -> ConsumerGroupHeartbeatRequest:
        """The next heartbeat: whole at a join and after an error, else what is new."""
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
        """The last heartbeat, None when there is nothing to leave. A static member keeps its place for a while."""
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
        """Apply the answer to a heartbeat; one that a newer one has overtaken changes nothing."""
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
        """A heartbeat was given up, or failed: the next one says everything."""
        self._is_whole = True
        self._says_report, self._says_topics = False, None

    def failed(self, call: Call, error: RaylogError, *, generation: int) -> Reaction:
        """Apply an error. ``generation`` is the epoch of the request; errors of an older one lose nothing."""
        reaction = consumer_reaction(call, error)
        if call is Call.HEARTBEAT:
            self.unanswered()
        if isinstance(error, FencedInstanceId) and generation == self.epoch:
            self.fenced = error
        if reaction.forget is not Forget.NOTHING:
            if generation != self.epoch:
                return reaction if reaction.fatal else _NOTHING
            self.lose(error.message)
        return reaction

    def lose(self, reason: str) -> None:
        """It is no member any more: what it holds belongs to others. It joins again once that is given up."""
        self.lost = self.lost or bool(self._held)
        self.epoch = JOIN_EPOCH
        self.assigned = None
        self._known_topics = None
        self._owes_report = False
        self._is_whole = True
        self.rejoin_reason = self.rejoin_reason or reason

    # ------------------------------------------------------------ partitions

    def begin_change(self) -> Change:
        """Begin to hold what is assigned; :meth:`end_change` has to follow. Only if it is not in force.

        What was lost, and partitions of a topic that was made again, go before others come: they are not committed, or
        not under the id that the name has now.
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
        """The change is done: its partitions are held, and no others."""
        self.owned = {} if self.change is None else dict(self.change.partitions)
        self.change = None
        if not self.owned:
            self.lost = False

    def gave_all_back(self) -> None:
        """Nothing is held any more, whatever was under way."""
        self.change = None
        self.end_change()


def flat(rows: Iterable[TopicPartitions]) -> dict[TopicPartition, str]:
    """The topic id of each partition."""
    return {TopicPartition(row.topic, number): row.topic_id for row in rows for number in row.partitions}


def grouped(partitions: Mapping[TopicPartition, str]) -> list[TopicPartitions]:
    """The rows of a request, in order."""
    found: dict[tuple[str, str], list[int]] = {}
    for (topic, number), topic_id in sorted(partitions.items()):
        found.setdefault((topic_id, topic), []).append(number)
    return [TopicPartitions(*head, numbers) for head, numbers in found.items()]
