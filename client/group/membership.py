"""One member of a consumer group as a pure state machine: its identity, when to join again, the effect of each error.

Kafka's classic protocol from the client's side. `group_session.py` sends the requests; every decision is here. The
machine builds the requests and applies the replies, without time or sockets. It also runs the assignor when this member
leads. Pure.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from raylog.client.group import early_protocol
from raylog.client.group.assignor import PartitionAssignor, RebalanceProtocol, Subscription
from raylog.client.group.assignors import RangeAssignor, assign, rebalance_protocol_of
from raylog.client.group.embedded_protocol import PROTOCOL_TYPE, encode_subscription
from raylog.client.group.exchange import assignment_for, is_early, read_assignment, read_subscription
from raylog.client.user_code import USER_ERRORS
from raylog.core.errors import (
    AssignorFailed,
    FencedInstanceId,
    IllegalGeneration,
    InconsistentGroupProtocol,
    MemberIdRequired,
    RaylogError,
    RebalanceInProgress,
    RequestTimedOut,
    UnknownMemberId,
)
from raylog.core.ids import TopicPartition
from raylog.protocol.groups import (
    HEARTBEAT,
    JOIN_GROUP,
    OFFSET_COMMIT,
    SYNC_GROUP,
    HeartbeatRequest,
    JoinGroupMember,
    JoinGroupProtocol,
    JoinGroupReply,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    SyncGroupAssignment,
    SyncGroupRequest,
)

logger = logging.getLogger(__name__)

NO_GENERATION: Final = -1


class Call(Enum):
    """The requests whose errors change a member's state; the values are the names of the methods."""

    JOIN = JOIN_GROUP.name
    SYNC = SYNC_GROUP.name
    HEARTBEAT = HEARTBEAT.name
    COMMIT = OFFSET_COMMIT.name


class Forget(Enum):
    """What a member drops after an error."""

    NOTHING = 0
    GENERATION = 1
    """The generation and its partitions; the member id stays."""
    MEMBER = 2
    """The member id too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """The effect of an error."""

    forget: Forget = Forget.NOTHING
    rejoin: bool = False
    retry: bool = False
    """Retry the same request, after looking the coordinator up again."""
    fatal: bool = False
    """Only the user can resolve the error: poll() raises it."""


_NOTHING: Final = Reaction()
_REJOIN: Final = Reaction(rejoin=True)
_LOST: Final = Reaction(rejoin=True, forget=Forget.GENERATION)
_UNKNOWN: Final = Reaction(rejoin=True, forget=Forget.MEMBER)
_FENCED: Final = Reaction(forget=Forget.MEMBER, fatal=True)
_RETRY: Final = Reaction(retry=True)
_FATAL: Final = Reaction(fatal=True)

REACTIONS: Final[Mapping[tuple[Call, type[RaylogError]], Reaction]] = {
    (Call.JOIN, MemberIdRequired): _REJOIN,  # with the id that came with it
    (Call.JOIN, RebalanceInProgress): _REJOIN,
    (Call.JOIN, UnknownMemberId): _UNKNOWN,
    (Call.JOIN, FencedInstanceId): _FENCED,
    (Call.SYNC, RebalanceInProgress): _REJOIN,
    (Call.SYNC, IllegalGeneration): _LOST,
    (Call.SYNC, UnknownMemberId): _UNKNOWN,
    (Call.SYNC, FencedInstanceId): _FENCED,
    # The leader's answer may be lost with its connection; a fresh join of the round is answered in every state.
    (Call.SYNC, RequestTimedOut): _REJOIN,
    (Call.HEARTBEAT, RebalanceInProgress): _REJOIN,
    (Call.HEARTBEAT, IllegalGeneration): _LOST,
    (Call.HEARTBEAT, UnknownMemberId): _UNKNOWN,
    (Call.HEARTBEAT, FencedInstanceId): _FENCED,
    (Call.COMMIT, RebalanceInProgress): _REJOIN,
    (Call.COMMIT, IllegalGeneration): _LOST,
    (Call.COMMIT, UnknownMemberId): _UNKNOWN,
    (Call.COMMIT, FencedInstanceId): _FENCED,
}


def reaction_to(call: Call, error: RaylogError) -> Reaction:
    """The table's row; an error without one is retried if its flags allow that, and fatal otherwise."""
    for kind in type(error).__mro__:
        found = REACTIONS.get((call, kind))
        if found is not None:
            return found
    return _RETRY if error.retriable else _FATAL


class Membership:
    """One member. A generation is *held* from a successful sync until it is lost or the next join.

    A cooperative member keeps its partitions through a join, and reads on.
    """

    def __init__(
        self,
        group: str,
        *,
        client_id: str,
        instance_id: str | None = None,
        assignors: Sequence[PartitionAssignor] = (RangeAssignor(),),
        session_timeout_ms: int = 45_000,
        rebalance_timeout_ms: int = 300_000,
    ) -> None:
        """Raises InvalidConfig for assignors that have no rebalance protocol in common."""
        self.group = group
        self.client_id = client_id
        self.instance_id = instance_id
        self.assignors = tuple(assignors)
        self.is_cooperative = rebalance_protocol_of(self.assignors) is RebalanceProtocol.COOPERATIVE
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.member_id = ""
        self.generation = NO_GENERATION
        self.protocol = ""
        self.is_leader = False
        self.is_stable = False
        """The assignment of `generation` is known and still valid."""
        self.rejoin_reason: str | None = "it is new"
        """The reason to join (again); None when there is none."""
        self.lost = False
        """The partitions held until now may already belong to others: nothing may be committed for them."""
        self.owned: tuple[TopicPartition, ...] = ()
        """The result of the last successful sync, in ``owned_generation``; sticky assignors read it."""
        self.owned_generation = NO_GENERATION
        self.is_joining = False
        """A join was sent, and the round's assignment has not come yet."""
        self._claimed: frozenset[TopicPartition] = frozenset()
        """What it claimed to own in its last join."""
        self._metadata: dict[str, bytes] = {}
        """What each member of the round has sent, where this one leads."""
        self.has_missed = False
        """A round ended without this member, though it still counts as one: what it holds may have been given away.

        A join that was sent twice can arrive again in a later round, which then ends without its sender. Of what it
        holds nothing may be committed or kept: others may have read on, and committed more.
        """
        self._seen_generation = NO_GENERATION
        """The last generation that it received."""
        self._awaits_return = False
        """It leads, and its assignment makes a member give partitions back: another round has to give them out."""
        self._writes_early = False
        """Its leader runs an earlier release, which reads no other form."""
        self.unassigned_rows: list[JoinGroupMember] = []
        """Rows of all members, where this one leads and the coordinator keeps the old assignment; else empty."""
        self.fenced: FencedInstanceId | None = None
        """Another process has this member's instance id: it must never join again (KIP-345)."""

    @property
    def has_joined(self) -> bool:
        """Whether it was ever a member."""
        return self._seen_generation > NO_GENERATION

    @property
    def commit_identity(self) -> tuple[int, str]:
        """Generation and member id for an offset commit, of the last assignment; generation -1: none is held."""
        return NO_GENERATION if self.has_missed else self.owned_generation, self.member_id

    # Joining

    def need_rejoin(self, reason: str) -> None:
        """Join again at the next poll; the first reason is kept."""
        if self.rejoin_reason is None:
            self.rejoin_reason = reason

    def join_request(self, topics: Sequence[str]) -> JoinGroupRequest:
        """The JoinGroup request. An eager member holds no generation from here until it has synced."""
        wanted = tuple(sorted(topics))
        self._claimed = frozenset(self.owned if self.is_cooperative else ())
        self._awaits_return = False
        self.is_stable = False
        self.is_joining = True
        return JoinGroupRequest(
            self.group,
            self.member_id,
            self.instance_id,
            self.client_id,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            PROTOCOL_TYPE,
            [JoinGroupProtocol(each.name, self._subscription(each, wanted)) for each in self.assignors],
        )

    def _subscription(self, assignor: PartitionAssignor, topics: tuple[str, ...]) -> bytes:
        if self._writes_early:
            return early_protocol.encode_subscription(
                Subscription(topics=topics, owned=self.owned, generation=self.owned_generation)
            )
        try:
            user_data = assignor.user_data(topics, self.owned, self.owned_generation)
        except USER_ERRORS as error:  # any error of the user's class
            raise AssignorFailed(
                f"user_data() of the assignor {assignor.name!r} raised ({type(error).__name__}: {error}); this member "
                "cannot join without it.",
                assignor=assignor.name,
            ) from error
        owned = tuple(sorted(self._claimed))
        return encode_subscription(
            Subscription(topics=topics, owned=owned, generation=self.owned_generation, user_data=user_data)
        )

    def joined(self, reply: JoinGroupReply) -> list[JoinGroupMember]:
        """Apply JoinGroup's answer; the rows of all members if this one leads and has to assign, else none.

        A static leader that returns need not assign, but has to watch the topics for all members (KIP-814): their rows
        are then in `unassigned_rows`.
        """
        if self.is_cooperative and self.owned and reply.generation_id > self._seen_generation + 1:
            self.has_missed = True
        self.generation = self._seen_generation = reply.generation_id
        self.protocol = reply.protocol_name or ""
        self.member_id = reply.member_id
        self.is_leader = reply.leader == reply.member_id
        self.rejoin_reason = None
        self.lost = False
        rows = list(reply.members) if self.is_leader else []
        self._metadata = {row.member_id: row.metadata for row in rows}
        self.unassigned_rows = rows if reply.skip_assignment else []
        return [] if reply.skip_assignment else rows

    def subscriptions(self, members: Sequence[JoinGroupMember]) -> dict[str, Subscription]:
        """The subscription of each member of the round, for the leader.

        A member whose metadata cannot be parsed (another client) gets no partitions; the group continues without it.
        """
        found: dict[str, Subscription] = {}
        for row in members:
            try:
                found[row.member_id] = read_subscription(row.metadata, row.group_instance_id)
            except ValueError as error:
                found[row.member_id] = Subscription(topics=(), instance_id=row.group_instance_id)
                logger.warning(
                    "Member %s of group %s gets no partitions, because its metadata cannot be read (%s): make it use "
                    "Kafka's consumer protocol, or another group.",
                    row.member_id,
                    self.group,
                    error,
                )
        return found

    def sync_request(
        self, subscriptions: Mapping[str, Subscription], partition_counts: Mapping[str, int]
    ) -> SyncGroupRequest:
        """The SyncGroup request, with the assignments of all members if this one leads.

        Raises InconsistentGroupProtocol when the group chose an assignor that is not known here, and AssignorFailed.
        """
        rows: list[SyncGroupAssignment] = []
        if subscriptions:
            result = assign(
                self.assignors, self.protocol, subscriptions, partition_counts, is_cooperative=self.is_cooperative
            )
            self._awaits_return = any(
                set(each.owned) - set(result[member_id]) for member_id, each in subscriptions.items()
            )
            rows = [
                SyncGroupAssignment(member_id, assignment_for(self._metadata.get(member_id, b""), result[member_id]))
                for member_id in sorted(result)
            ]
        return SyncGroupRequest(self.group, self.generation, self.member_id, self.instance_id, rows)

    def synced(self, assignment: bytes) -> tuple[TopicPartition, ...]:
        """Apply SyncGroup's answer: the partitions of this member. `taken_up` is called once it reads these.

        Raises InconsistentGroupProtocol for an assignment that cannot be parsed, of a leader of another kind.
        """
        try:
            self.owned = read_assignment(assignment)
        except ValueError as error:
            raise InconsistentGroupProtocol(
                f"The leader of group {self.group!r} gave an assignment that cannot be read ({error}): it is another "
                "kind of client, which does not use Kafka's consumer protocol; use another group."
            ) from error
        self.owned_generation = self.generation
        self.is_stable = True
        self.is_joining = False
        self._learn_form(assignment)
        for assignor in self.assignors:
            if assignor.name == self.protocol:
                _notify(assignor, self.owned, self.generation)
        return self.owned

    def _learn_form(self, assignment: bytes) -> None:
        if assignment and is_early(assignment) is not self._writes_early:
            self._writes_early = not self._writes_early
            if self._writes_early:
                self.need_rejoin("its leader runs an earlier release, and could not read what it subscribes to")

    def taken_up(self) -> None:
        """The last assignment is in force: what it took from this member was given back, so that others can get it.

        That takes another round. The leader joins for it as well as the members that gave partitions back: a static one
        of these may be replaced meanwhile by a process that knows of nothing to give back, and begins no round.
        """
        if self._claimed - frozenset(self.owned):
            self.need_rejoin("it gave partitions back, which the next round gives to others")
        elif self._awaits_return:
            self.need_rejoin("it leads, and partitions were given back, which the next round gives to others")
        self._claimed, self._awaits_return, self.has_missed = frozenset(), False, False

    def gave_back(self, partitions: Collection[TopicPartition]) -> None:
        """These partitions are not held any more, as their topics are not subscribed to."""
        self.owned = tuple(each for each in self.owned if each not in partitions)

    # Other events

    def heartbeat_request(self) -> HeartbeatRequest:
        """The Heartbeat request."""
        return HeartbeatRequest(self.group, self.generation, self.member_id, self.instance_id)

    def failed(self, call: Call, error: RaylogError, *, generation: int) -> Reaction:
        """Apply an error. `generation` is that of the request; answers to an older one change nothing."""
        reaction = reaction_to(call, error)
        if self.is_joining and call in (Call.HEARTBEAT, Call.COMMIT) and not reaction.fatal:
            return reaction if reaction.retry else _NOTHING  # the join's own answer says what this member still is
        if isinstance(error, FencedInstanceId) and generation in (self.generation, self.owned_generation):
            self.fenced = error
        if call in (Call.HEARTBEAT, Call.COMMIT) and generation != self.generation:
            return reaction if reaction.fatal else _NOTHING
        given = error.details.get("member_id")
        if isinstance(error, MemberIdRequired) and isinstance(given, str):
            self.member_id = given
        if reaction.forget is not Forget.NOTHING:
            self.lose(error.message, member_too=reaction.forget is Forget.MEMBER)
        elif reaction.rejoin:
            self.need_rejoin(error.message)
        return reaction

    def lose(self, reason: str, *, member_too: bool) -> None:
        """The generation is lost; others may own its partitions."""
        if self.is_stable or (self.is_cooperative and self.owned):
            self.lost = True
        self.generation = NO_GENERATION
        self.is_stable = self.is_joining = self.has_missed = False
        self.is_leader = False
        if member_too:
            self.member_id = ""
        self.owned = ()
        self.owned_generation = NO_GENERATION
        self.need_rejoin(reason)

    def leave_request(self) -> LeaveGroupRequest | None:
        """The LeaveGroup request; None when there is nothing to leave, or when a static member only pauses."""
        if self.member_id == "" or self.instance_id is not None:
            return None
        return LeaveGroupRequest(self.group, [LeavingMember(self.member_id, None)])


def _notify(assignor: PartitionAssignor, partitions: Sequence[TopicPartition], generation: int) -> None:
    try:
        assignor.on_assignment(partitions, generation)
    except USER_ERRORS:  # an error of the user's class does not undo what the group has agreed on
        logger.exception("The assignor %r raised in on_assignment().", assignor.name)
