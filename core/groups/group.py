"""One consumer group: its last written generation, its current members, and their parked requests.

Two kinds of state live here. ``image`` is hard: the last :class:`GroupChanged` of the log, replaced only by ``adopt``
(live) or ``replay``. The rest is soft: sessions, parked requests, deadlines and the members of the next generation; it
is lost with the coordinator's process, and rebuilt when members rejoin. ``rebalance.py`` moves a group through its
rounds; this module keeps the facts and checks them. Called by ``rebalance.py`` and ``coordinator.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from raylog.base.errors import FencedInstanceId, IllegalGeneration, RaylogError, UnknownMemberId
from raylog.base.invariants import require
from raylog.core.coordinators.sizes import row_bytes, wire_bytes
from raylog.core.decision import RequestId
from raylog.core.groups.records import GroupChanged, MemberRecord, Protocols
from raylog.core.groups.states import GroupState, is_legal_move
from raylog.protocol.rows import wire_of


@dataclass(slots=True, kw_only=True)
class Member:
    """One current member. Its assignment is in the group's image."""

    member_id: str
    instance_id: str | None
    client_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    session_deadline_ms: int
    """Session deadline; ignored while one of its requests is parked."""
    client_host: str = ""
    """Where its last join came from."""
    join_request: RequestId | None = None
    sync_request: RequestId | None = None
    sync_due: bool = False
    """The member received the current generation and has not sent SyncGroup yet."""
    size_bytes: int = field(init=False)
    """Upper bound of the member's bytes in a generation's record, without its assignment; see :meth:`measure`."""

    def __post_init__(self) -> None:
        """Compute ``size_bytes``."""
        self.measure()

    def measure(self) -> None:
        """Update ``size_bytes`` after a change of a recorded field."""
        self.size_bytes = wire_bytes(wire_of(self.to_record(b"")))

    @property
    def parked(self) -> bool:
        """Return whether a request of the member is parked; its session cannot expire meanwhile."""
        return self.join_request is not None or self.sync_request is not None

    def restart_session(self, now_ms: int) -> None:
        """Restart the session timeout."""
        self.session_deadline_ms = now_ms + self.session_timeout_ms

    def metadata(self, protocol: str) -> bytes:
        """Return the metadata for that assignor, empty when the member does not support it."""
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")

    def to_record(self, assignment: bytes) -> MemberRecord:
        """Return the member's record for the log."""
        return MemberRecord(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            protocols=self.protocols,
            assignment=assignment,
            client_host=self.client_host,
        )


class Group:
    """The state of one group and its invariants."""

    def __init__(self, name: str) -> None:
        """Start an empty group without records in the log."""
        self.name = name
        self.image: GroupChanged | None = None
        self.state = GroupState.EMPTY
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}
        """Member id by static instance id."""
        self.pending: dict[str, int] = {}
        """Deadline (ms) of each member id that was handed out and with which no member has joined yet."""
        self.leader = ""
        self.protocol_type = ""
        self.join_deadline_ms: int | None = None
        self.first_round = False
        """Whether the round began with an empty group: it waits for its full delay even if all known members joined."""
        self.first_round_left_ms = 0
        """How much longer the first round may still be extended."""
        self.newcomers = False
        """Whether members came since the first round's delay was last started."""
        self.sync_deadline_ms: int | None = None

    # ------------------------------------------------------------ reading

    @property
    def generation(self) -> int:
        """Return the number of the last generation, 0 before the first."""
        return self.image.generation if self.image is not None else 0

    @property
    def has_deadlines(self) -> bool:
        """Return whether time can change the group: it has members, pending member ids, or a round under way."""
        return bool(self.members or self.pending) or self.join_deadline_ms is not None

    def deadlines(self) -> Iterator[int]:
        """Yield the times, in ms, at which :func:`rebalance.tick` has something to do."""
        yield from self.pending.values()
        for member in self.members.values():
            if not member.parked:
                yield member.session_deadline_ms
        for due_ms in (self.join_deadline_ms, self.sync_deadline_ms):
            if due_ms is not None:
                yield due_ms

    @property
    def protocol(self) -> str:
        """Return the assignor of the current generation, empty when there is none."""
        return self.image.protocol if self.image is not None else ""

    @property
    def blank(self) -> bool:
        """Return whether the group has no state but its name."""
        return self.image is None and not self.members and not self.pending

    @property
    def all_joined(self) -> bool:
        """Return whether every member has joined the next generation and no member id is pending."""
        return not self.pending and all(member.join_request is not None for member in self.members.values())

    def rebalance_timeout_ms(self) -> int:
        """Return the longest rebalance timeout of the members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def assignment(self, member_id: str) -> bytes:
        """Return the member's assignment in the current generation."""
        member = self.image.member(member_id) if self.image is not None else None
        return member.assignment if member is not None else b""

    def fence(self, member_id: str, instance_id: str | None, generation: int | None = None) -> RaylogError | None:
        """Return the error for a sender that is not that member (of that generation), or None when it is."""
        if instance_id is not None:
            holder = self.static.get(instance_id)
            if holder is None:
                return UnknownMemberId(f"Group {self.name!r} has no static member {instance_id!r}; join again.")
            if holder != member_id:
                return FencedInstanceId(
                    f"Another process joined group {self.name!r} as {instance_id!r}; "
                    "give every running consumer its own group_instance_id.",
                    group=self.name,
                    instance_id=instance_id,
                )
        if member_id not in self.members:
            return UnknownMemberId(f"Group {self.name!r} does not know member {member_id!r}; join again.")
        if generation is not None and generation != self.generation:
            return IllegalGeneration(
                f"Group {self.name!r} is in generation {self.generation}, not {generation}; join again.",
                generation=self.generation,
            )
        return None

    def bytes_with(self, newcomer: Member, protocol_type: str, *, besides: str | None) -> int:
        """Return an upper bound of the next generation's record in bytes, with this member and without assignments.

        ``besides`` is the member that it replaces or updates.
        """
        others = [member for member in self.members.values() if member.member_id != besides]
        head = GroupChanged(
            group=self.name,
            generation=0,
            protocol_type=protocol_type,
            protocol=max((each.name for each in newcomer.protocols), key=len, default=""),
            leader=max((member.member_id for member in [*others, newcomer]), key=len),
            state=GroupState.COMPLETING_REBALANCE,
            changed_ms=0,
        )
        return row_bytes(*head.to_wire()) + newcomer.size_bytes + sum(member.size_bytes for member in others)

    def supports(self, protocol_type: str, protocols: Protocols, *, besides: str | None) -> bool:
        """Return whether the group with a member of these assignors has one that all members support.

        ``besides`` is the member that is about to be replaced or updated: its former choice does not count.
        """
        others = [member for member in self.members.values() if member.member_id != besides]
        if not others:
            return True
        names = {each.name for each in protocols}
        for member in others:
            names &= {each.name for each in member.protocols}
        return self.protocol_type == protocol_type and bool(names)

    def common_protocols(self, *, besides: str | None) -> set[str]:
        """Return the assignors that all members support, without a member that is about to be replaced or updated."""
        others = [member for member in self.members.values() if member.member_id != besides]
        return set.intersection(*({each.name for each in member.protocols} for member in others)) if others else set()

    def select_protocol(self) -> str:
        """Return the assignor with the most votes: each member votes for the first of its own that all support.

        On a tie the leader's order of preference decides, so that the result does not depend on the order of members.
        """
        members = list(self.members.values())
        common = set.intersection(*({each.name for each in member.protocols} for member in members))
        require(bool(common), f"the members of group {self.name!r} have an assignor in common")
        votes = dict.fromkeys(sorted(common), 0)
        for member in members:
            votes[next(each.name for each in member.protocols if each.name in common)] += 1
        most = max(votes.values())
        judge = self.members.get(self.leader, members[0])
        return next(each.name for each in judge.protocols if votes.get(each.name) == most)

    # ------------------------------------------------------------ hard state

    def next_image(
        self, *, wall_ms: int, generation: int, state: GroupState, protocol: str, assignments: dict[str, bytes]
    ) -> GroupChanged:
        """Return a record of the group with its present members."""
        return GroupChanged(
            group=self.name,
            generation=generation,
            protocol_type=self.protocol_type,
            protocol=protocol,
            leader=self.leader if self.members else "",
            state=state,
            changed_ms=wall_ms,
            members=tuple(member.to_record(assignments.get(member.member_id, b"")) for member in self.members.values()),
        )

    def adopt(self, image: GroupChanged) -> None:
        """Apply a record written by this incarnation: the group moves to the state that it names."""
        require(image.generation >= self.generation, f"generations of group {self.name!r} do not fall")
        self.image = image
        self.leader = image.leader
        self.protocol_type = image.protocol_type
        if image.state is not self.state:
            self.move(image.state)

    def replay(self, image: GroupChanged) -> None:
        """Apply a record of the log; members are restored when the whole log is read (:meth:`restore`)."""
        self.image = image

    def restore(self, now_ms: int) -> None:
        """Restore the last written generation; every member gets a fresh session timeout."""
        if self.image is None:
            return
        self.state = self.image.state
        self.leader = self.image.leader
        self.protocol_type = self.image.protocol_type
        for row in self.image.members:
            self.members[row.member_id] = Member(
                member_id=row.member_id,
                instance_id=row.instance_id,
                client_id=row.client_id,
                session_timeout_ms=row.session_timeout_ms,
                rebalance_timeout_ms=row.rebalance_timeout_ms,
                protocols=row.protocols,
                session_deadline_ms=now_ms + row.session_timeout_ms,
                client_host=row.client_host,
                sync_due=self.state is GroupState.COMPLETING_REBALANCE,
            )
            if row.instance_id is not None:
                self.static[row.instance_id] = row.member_id
        if self.state is GroupState.COMPLETING_REBALANCE:
            self.sync_deadline_ms = now_ms + self.rebalance_timeout_ms()

    # ------------------------------------------------------------ soft state

    def move(self, state: GroupState) -> None:
        """Change the state; an illegal transition is a defect."""
        require(is_legal_move(self.state, state), f"group {self.name!r} may go from {self.state} to {state}")
        self.state = state
        if state is not GroupState.PREPARING_REBALANCE:
            self.join_deadline_ms = None
            self.first_round = False
            self.newcomers = False

    def add(self, member: Member, protocol_type: str) -> None:
        """Add a member; the first one decides the group's protocol type."""
        if not self.members:
            self.protocol_type = protocol_type
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id

    def forget(self, member_id: str) -> Member:
        """Remove a member and return it; the caller answers its parked requests."""
        member = self.members.pop(member_id)
        if member.instance_id is not None and self.static.get(member.instance_id) == member_id:
            del self.static[member.instance_id]
        return member

    def rename(self, member_id: str, new_member_id: str) -> Member:
        """Give a static member its new id; it keeps its place in order, and the leadership if it had it."""
        member = self.members[member_id]
        member.member_id = new_member_id
        member.measure()
        self.members = {held.member_id: held for held in self.members.values()}
        if member.instance_id is not None:
            self.static[member.instance_id] = new_member_id
        if self.leader == member_id:
            self.leader = new_member_id
        return member

    def renamed_rows(self, member_id: str, new_member: Member) -> Sequence[MemberRecord]:
        """Return the image's members with one of them replaced by its successor, which keeps the assignment."""
        require(self.image is not None, "a static member is replaced in a written generation")
        rows = self.image.members if self.image is not None else ()
        return [new_member.to_record(row.assignment) if row.member_id == member_id else row for row in rows]

    def validate(self) -> None:
        """Check the invariants between the fields; raises InvariantBroken."""
        name, state = self.name, self.state
        require(state is not GroupState.DEAD, "a dead group is dropped")
        instances = 0
        # Checked for most groups after each step of a simulation: messages are built only on failure.
        for member_id, member in self.members.items():
            if member.member_id != member_id or member_id in self.pending:
                require(False, f"member {member_id!r} is filed under its id, and not pending as well")
            if member.join_request is not None and state is not GroupState.PREPARING_REBALANCE:
                require(False, f"joins are parked only while group {name!r} prepares")
            if member.sync_request is not None and state is not GroupState.COMPLETING_REBALANCE:
                require(False, f"syncs are parked only while group {name!r} completes")
            if member.instance_id is not None:
                instances += 1
                require(self.static.get(member.instance_id) == member_id, "a static member is known by its instance")
        require(len(self.static) == instances, "every instance of a group is a member")
        require((self.join_deadline_ms is not None) == (state is GroupState.PREPARING_REBALANCE), "joins end in time")
        if state is GroupState.EMPTY:
            require(not self.members, "an empty group has no members")
            require(self.image is None or not self.image.members, "an empty group is written as empty")
        if state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            image = self.image
            require(image is not None and image.state is state, f"the state of group {name!r} is written")
            require(self.leader in self.members, f"the leader of group {name!r} is a member")
            if image is not None:
                written = [row.member_id for row in image.members]
                require(written == list(self.members), f"the members of group {name!r} are written")
        if any(member.sync_due for member in self.members.values()):
            require(self.sync_deadline_ms is not None, f"syncs of group {name!r} have a deadline")
