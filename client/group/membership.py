"""One member of a consumer group as a pure state machine: its identity, when to join again, the effect of each error.

Kafka's classic protocol from the client's side. `group_session.py` sends the requests; every decision is here. The
machine builds the requests and applies the replies, without time, sockets or bytes. It also runs the assignor when this
member leads. Pure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from raylog.client.group.assignors import Subscription, assign
from raylog.client.group.embedded_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from raylog.core.errors import (
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

PROTOCOL_TYPE: Final = "consumer"
NO_GENERATION: Final = -1

Pack = Callable[[object], bytes]
Unpack = Callable[[bytes], Any]


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
    """One member. A generation is *held* from a successful sync until it is lost or the next join."""

    def __init__(
        self,
        group: str,
        *,
        client_id: str,
        instance_id: str | None = None,
        assignors: Sequence[str] = ("range",),
        session_timeout_ms: int = 45_000,
        rebalance_timeout_ms: int = 300_000,
    ) -> None:
        self.group = group
        self.client_id = client_id
        self.instance_id = instance_id
        self.assignors = tuple(assignors)
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
        self.unassigned_rows: list[JoinGroupMember] = []
        """Rows of all members, where this one leads and the coordinator keeps the old assignment; else empty."""
        self.fenced: FencedInstanceId | None = None
        """Another process has this member's instance id: it must never join again (KIP-345)."""

    @property
    def commit_identity(self) -> tuple[int, str]:
        """Generation and member id for an offset commit, of the last assignment; generation -1: none is held."""
        return self.owned_generation, self.member_id

    # Joining

    def need_rejoin(self, reason: str) -> None:
        """Join again at the next poll; the first reason is kept."""
        if self.rejoin_reason is None:
            self.rejoin_reason = reason

    def join_request(self, topics: Sequence[str], pack: Pack) -> JoinGroupRequest:
        """The JoinGroup request. The member holds no generation from here until it has synced."""
        subscription = Subscription(topics=tuple(sorted(topics)), owned=self.owned, generation=self.owned_generation)
        wire = pack(encode_subscription(subscription))
        self.is_stable = False
        return JoinGroupRequest(
            self.group,
            self.member_id,
            self.instance_id,
            self.client_id,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            PROTOCOL_TYPE,
            [JoinGroupProtocol(name, wire) for name in self.assignors],
        )

    def joined(self, reply: JoinGroupReply) -> list[JoinGroupMember]:
        """Apply JoinGroup's answer; the rows of all members if this one leads and has to assign, else none.

        A static leader that returns need not assign, but has to watch the topics for all members (KIP-814): their rows
        are then in `unassigned_rows`.
        """
        self.generation = reply.generation_id
        self.protocol = reply.protocol_name or ""
        self.member_id = reply.member_id
        self.is_leader = reply.leader == reply.member_id
        self.rejoin_reason = None
        self.lost = False
        rows = list(reply.members) if self.is_leader else []
        self.unassigned_rows = rows if reply.skip_assignment else []
        return [] if reply.skip_assignment else rows

    def subscriptions(self, members: Sequence[JoinGroupMember], unpack: Unpack) -> dict[str, Subscription]:
        """The subscription of each member of the round, for the leader.

        A member whose metadata cannot be parsed (another client) gets no partitions; the group continues without it.
        """
        found: dict[str, Subscription] = {}
        for row in members:
            try:
                found[row.member_id] = decode_subscription(unpack(row.metadata), row.group_instance_id)
            except (ValueError, TypeError) as error:  # msgspec's errors are ValueErrors
                found[row.member_id] = Subscription(topics=(), instance_id=row.group_instance_id)
                logger.warning(
                    "Member %s of group %s gets no partitions, because its metadata cannot be read (%s): make it use "
                    "this client's embedded protocol, or another group.",
                    row.member_id,
                    self.group,
                    error,
                )
        return found

    def sync_request(
        self, subscriptions: Mapping[str, Subscription], partition_counts: Mapping[str, int], pack: Pack
    ) -> SyncGroupRequest:
        """The SyncGroup request, with the assignments of all members if this one leads.

        Raises InconsistentGroupProtocol when the group chose an assignor that is not known here.
        """
        rows: list[SyncGroupAssignment] = []
        if subscriptions:
            result = assign(self.protocol, subscriptions, partition_counts)
            rows = [
                SyncGroupAssignment(member_id, pack(encode_assignment(result[member_id])))
                for member_id in sorted(result)
            ]
        return SyncGroupRequest(self.group, self.generation, self.member_id, self.instance_id, rows)

    def synced(self, assignment: bytes, unpack: Unpack) -> tuple[TopicPartition, ...]:
        """Apply SyncGroup's answer: the partitions of this member.

        Raises InconsistentGroupProtocol for an assignment that cannot be parsed, of a leader of another kind.
        """
        try:
            self.owned = decode_assignment(unpack(assignment)) if assignment else ()
        except (ValueError, TypeError) as error:
            raise InconsistentGroupProtocol(
                f"The leader of group {self.group!r} gave an assignment that cannot be read ({error}): it is another "
                "kind of client; use another group."
            ) from error
        self.owned_generation = self.generation
        self.is_stable = True
        return self.owned

    # Other events

    def heartbeat_request(self) -> HeartbeatRequest:
        """The Heartbeat request."""
        return HeartbeatRequest(self.group, self.generation, self.member_id, self.instance_id)

    def failed(self, call: Call, error: RaylogError, *, generation: int) -> Reaction:
        """Apply an error. `generation` is that of the request; answers to an older one change nothing."""
        reaction = reaction_to(call, error)
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
        if self.is_stable:
            self.lost = True
        self.generation = NO_GENERATION
        self.is_stable = False
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

    def left(self) -> None:
        """The member has left voluntarily; its partitions were revoked before."""
        self.lose("it has left", member_too=True)
        self.lost = False
