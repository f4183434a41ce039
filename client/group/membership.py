"""One member of a group of Kafka's classic protocol as a pure state machine.

It keeps the member's identity, and decides when to join again and what each error means. It builds the requests and
applies the replies, without clock or sockets; `group_session.py` sends them. It also runs the assignor when this member
is the leader. Pure.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from raylog.base.errors import (
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
from raylog.base.ids import TopicPartition
from raylog.client.assignor import PartitionAssignor, RebalanceProtocol, Subscription
from raylog.client.group.assignors import RangeAssignor, assign, rebalance_protocol_of
from raylog.client.group.embedded_protocol import (
    PROTOCOL_TYPE,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from raylog.client.user_code import USER_ERRORS
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


class GroupRequest(Enum):
    """The requests whose errors change a member's state; the values are the names of the methods."""

    JOIN = JOIN_GROUP.name
    SYNC = SYNC_GROUP.name
    HEARTBEAT = HEARTBEAT.name
    COMMIT = OFFSET_COMMIT.name


class Forget(Enum):
    """What a member drops after an error."""

    NOTHING = 0
    GENERATION = 1
    """The generation and its partitions, not the member id."""
    MEMBER = 2
    """The member id as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """How a member reacts to an error."""

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

REACTIONS: Final[Mapping[tuple[GroupRequest, type[RaylogError]], Reaction]] = {
    (GroupRequest.JOIN, MemberIdRequired): _REJOIN,  # with the member id in the error
    (GroupRequest.JOIN, RebalanceInProgress): _REJOIN,
    (GroupRequest.JOIN, UnknownMemberId): _UNKNOWN,
    (GroupRequest.JOIN, FencedInstanceId): _FENCED,
    (GroupRequest.SYNC, RebalanceInProgress): _REJOIN,
    (GroupRequest.SYNC, IllegalGeneration): _LOST,
    (GroupRequest.SYNC, UnknownMemberId): _UNKNOWN,
    (GroupRequest.SYNC, FencedInstanceId): _FENCED,
    # The answer may be lost with its connection. A new join is answered in every state of the group.
    (GroupRequest.SYNC, RequestTimedOut): _REJOIN,
    (GroupRequest.HEARTBEAT, RebalanceInProgress): _REJOIN,
    (GroupRequest.HEARTBEAT, IllegalGeneration): _LOST,
    (GroupRequest.HEARTBEAT, UnknownMemberId): _UNKNOWN,
    (GroupRequest.HEARTBEAT, FencedInstanceId): _FENCED,
    (GroupRequest.COMMIT, RebalanceInProgress): _REJOIN,
    (GroupRequest.COMMIT, IllegalGeneration): _LOST,
    (GroupRequest.COMMIT, UnknownMemberId): _UNKNOWN,
    (GroupRequest.COMMIT, FencedInstanceId): _FENCED,
}


def reaction_to(call: GroupRequest, error: RaylogError) -> Reaction:
    """The reaction from the table; an error without a row is retried if its flags allow it, and fatal otherwise."""
    for kind in type(error).__mro__:
        found = REACTIONS.get((call, kind))
        if found is not None:
            return found
    return _RETRY if error.retriable else _FATAL


class Membership:
    """One member of the classic protocol. It *holds* a generation from a successful sync to its loss or the next join.

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
        """Whether the assignment of `generation` is known and still valid."""
        self.rejoin_reason: str | None = "it is new"
        """Why it has to join (again); None = it has not."""
        self.lost = False
        """Whether others may already have its partitions: nothing may be committed for them."""
        self.owned: tuple[TopicPartition, ...] = ()
        """The assignment of the last successful sync, in ``owned_generation``; sticky assignors use it."""
        self.owned_generation = NO_GENERATION
        self.is_joining = False
        """Whether a join was sent, and the assignment of that rebalance was not received yet."""
        self._claimed: frozenset[TopicPartition] = frozenset()
        """The owned partitions in its last join."""
        self.has_missed = False
        """Whether a rebalance ended without this member, though it still counts as one: others may have its partitions.

        A join that was sent twice can arrive again in a later rebalance, which then ends without its sender. Nothing
        may be committed for its partitions, and none may be kept: others may have read on, and committed more.
        """
        self._seen_generation = NO_GENERATION
        """The last generation that it received."""
        self._awaits_return = False
        """As the leader: whether its assignment revokes partitions, which another rebalance has to assign again."""
        self.unassigned_rows: list[JoinGroupMember] = []
        """As the leader: all members' rows, while the coordinator keeps the old assignment (KIP-814); else empty."""
        self.fenced: FencedInstanceId | None = None
        """The error that another process has this instance id: this member must never join again (KIP-345)."""

    @property
    def has_joined(self) -> bool:
        """Whether it was ever a member."""
        return self._seen_generation > NO_GENERATION

    @property
    def commit_identity(self) -> tuple[int, str]:
        """Generation of the last assignment and member id, for an offset commit; generation -1 = none."""
        return NO_GENERATION if self.has_missed else self.owned_generation, self.member_id

    # Joining

    def need_rejoin(self, reason: str) -> None:
        """Have it join again at the next poll; of several reasons the first is kept."""
        if self.rejoin_reason is None:
            self.rejoin_reason = reason

    def join_request(self, topics: Sequence[str]) -> JoinGroupRequest:
        """The JoinGroup request. From here until the sync an eager member holds no generation."""
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
        try:
            user_data = assignor.user_data(topics, self.owned, self.owned_generation)
        except USER_ERRORS as error:  # the user's class may raise anything
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
        """Apply JoinGroup's answer. Returns the rows of all members if this one is the leader and has to assign.

        A static leader that returns need not assign, but has to watch the topics of all members (KIP-814): for this
        their rows are in `unassigned_rows`.
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
        self.unassigned_rows = rows if reply.skip_assignment else []
        return [] if reply.skip_assignment else rows

    def subscriptions(self, members: Sequence[JoinGroupMember]) -> dict[str, Subscription]:
        """As the leader: the subscription of each member.

        A member whose metadata cannot be parsed (another kind of client) gets no partitions; the group goes on.
        """
        found: dict[str, Subscription] = {}
        for row in members:
            try:
                found[row.member_id] = decode_subscription(row.metadata, row.group_instance_id)
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
        """The SyncGroup request, with the assignments of all members if this one is the leader.

        Raises InconsistentGroupProtocol if the group chose an assignor that this member does not have; AssignorFailed.
        """
        rows: list[SyncGroupAssignment] = []
        if subscriptions:
            result = assign(
                self.assignors, self.protocol, subscriptions, partition_counts, is_cooperative=self.is_cooperative
            )
            self._awaits_return = any(
                set(each.owned) - set(result[member_id]) for member_id, each in subscriptions.items()
            )
            rows = [SyncGroupAssignment(member, encode_assignment(result[member])) for member in sorted(result)]
        return SyncGroupRequest(self.group, self.generation, self.member_id, self.instance_id, rows)

    def synced(self, assignment: bytes) -> tuple[TopicPartition, ...]:
        """Apply SyncGroup's answer, and return this member's partitions. Call `taken_up` once they are in force.

        Raises InconsistentGroupProtocol for an assignment that cannot be parsed: the leader is another kind of client.
        """
        try:
            self.owned = decode_assignment(assignment)
        except ValueError as error:
            raise InconsistentGroupProtocol(
                f"The leader of group {self.group!r} gave an assignment that cannot be read ({error}): it is another "
                "kind of client, which does not use Kafka's consumer protocol; use another group."
            ) from error
        self.owned_generation = self.generation
        self.is_stable = True
        self.is_joining = False
        for assignor in self.assignors:
            if assignor.name == self.protocol:
                _notify(assignor, self.owned, self.generation)
        return self.owned

    def taken_up(self) -> None:
        """The last assignment is in force: this member has given up the partitions that it revoked.

        Another rebalance has to assign them. The members that gave up partitions join for it, and so does the leader: a
        static member may have been replaced meanwhile by a process that gave up nothing, and would not join.
        """
        if self._claimed - frozenset(self.owned):
            self.need_rejoin("it gave partitions back, which the next round gives to others")
        elif self._awaits_return:
            self.need_rejoin("it leads, and partitions were given back, which the next round gives to others")
        self._claimed, self._awaits_return, self.has_missed = frozenset(), False, False

    def gave_back(self, partitions: Collection[TopicPartition]) -> None:
        """These partitions were given up, because their topics are no longer subscribed to."""
        self.owned = tuple(each for each in self.owned if each not in partitions)

    # Other events

    def heartbeat_request(self) -> HeartbeatRequest:
        """The Heartbeat request."""
        return HeartbeatRequest(self.group, self.generation, self.member_id, self.instance_id)

    def failed(self, call: GroupRequest, error: RaylogError, *, generation: int) -> Reaction:
        """Apply an error. `generation` is that of the request; an answer for an older one changes nothing."""
        reaction = reaction_to(call, error)
        if self.is_joining and call in (GroupRequest.HEARTBEAT, GroupRequest.COMMIT) and not reaction.fatal:
            return reaction if reaction.retry else _NOTHING  # the join's answer shows whether it is still a member
        if isinstance(error, FencedInstanceId) and generation in (self.generation, self.owned_generation):
            self.fenced = error
        if call in (GroupRequest.HEARTBEAT, GroupRequest.COMMIT) and generation != self.generation:
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
        """Drop the generation, because others may own its partitions; `member_too`: the member id as well."""
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
        """The LeaveGroup request; None if it is not a member, or a static one, which leaves only by its timeout."""
        if self.member_id == "" or self.instance_id is not None:
            return None
        return LeaveGroupRequest(self.group, [LeavingMember(self.member_id, None)])


def _notify(assignor: PartitionAssignor, partitions: Sequence[TopicPartition], generation: int) -> None:
    try:
        assignor.on_assignment(partitions, generation)
    except USER_ERRORS:  # an error of the user's class must not undo the assignment
        logger.exception("The assignor %r raised in on_assignment().", assignor.name)
