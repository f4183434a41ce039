"""I15 for answers: each answer, error or not, must be allowed by the externally visible state of its group.

Visible are the log that a life of the coordinator has read, the rows it has decided since, and the requests that
reached it. One object for each load of a coordinator, fed by ``coordinator.py``. It never looks into the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from raylog.core.errors import (
    FencedInstanceId,
    GroupIdNotFound,
    IllegalGeneration,
    MemberIdRequired,
    NonEmptyGroup,
    RaylogError,
    RebalanceInProgress,
    UnknownMemberId,
)
from raylog.core.groups.records import GROUP_KIND, GroupChanged, GroupDeleted, record_from_wire
from raylog.core.groups.states import GroupState
from tests.simulation.groups.books import RULE, GroupBooks
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.groups.coordinator import Asked

_GENERATION: Final = 1
"""Index of the generation in the arguments of a member's requests, except a join."""
_INSTANCE: Final = {"join_group": 2, "sync_group": 3, "heartbeat": 3, "offset_commit": 4}


class _Group:
    """The visible state of one group."""

    __slots__ = ("image", "is_left", "is_touched", "joining", "offsets", "successors")

    def __init__(self) -> None:
        self.image: GroupChanged | None = None
        self.offsets: set[str] = set()
        self.joining: set[int] = set()
        """Unanswered joins: while there are any, the group prepares a round."""
        self.is_touched = False
        """A join or a leave arrived since the last generation was written: the group may prepare a round."""
        self.is_left = False
        """A member of the last generation has left: the group prepares a round."""
        self.successors: set[str] = set()
        """Static instances with a new process since the last generation was written."""

    @property
    def generation(self) -> int:
        return self.image.generation if self.image is not None else 0

    @property
    def is_empty(self) -> bool:
        return self.image is None or self.image.state is GroupState.EMPTY

    def has(self, member_id: str) -> bool:
        return self.image is not None and self.image.member(member_id) is not None


class Answers:
    """The answers that one load of a coordinator may give."""

    def __init__(self, books: GroupBooks, life: int, now_ms: int) -> None:
        """``life`` is the number of the load in the books."""
        self._books = books
        self._life = life
        self._since_ms = now_ms
        self._groups: dict[str, _Group] = {}
        self._sent: dict[tuple[str, int], list[Mapping[str, bytes]]] = {}
        """Assignments that leaders sent, by group and generation."""
        self._given_ms: dict[str, int] = {}
        """When an id was issued that has not been used yet."""
        self._fresh: set[int] = set()
        """First joins with their id, sent before it expired."""

    def _group(self, name: str) -> _Group:
        return self._groups.setdefault(name, _Group())

    # ------------------------------------------------------------ visible state

    def row(self, key: Sequence[object], value: Sequence[object] | None, *, replayed: bool) -> None:
        """A row is read from the log, or decided."""
        group = self._group(str(key[1]))
        if key[0] != GROUP_KIND:
            (group.offsets.add if value is not None else group.offsets.discard)(str(key))
            return
        record = record_from_wire(key, value)
        if isinstance(record, GroupDeleted):
            group.image = None
            return
        assert isinstance(record, GroupChanged)
        if record == group.image:
            return  # rewritten unchanged
        if not replayed and record.state is GroupState.STABLE and group.image is not None:
            self._is_as_sent(record, group.image)
        group.image = record
        group.is_touched = group.is_left = False
        group.successors = set()

    def _is_as_sent(self, record: GroupChanged, before: GroupChanged) -> None:
        """Assignments are those sent by the leader of this generation, for each member that the leader knew."""
        if before.state is GroupState.STABLE:
            return  # a static member's new id; the books check it
        given = {member.member_id: member.assignment for member in record.members}
        sent = self._sent.get((record.group, record.generation), [])
        if not any({member: each.get(member, b"") for member in given} == given for each in sent):
            raise Violation(RULE, f"generation {record.generation} has assignments that its leader did not send")

    def received(self, asked: Asked) -> None:
        """A request reached the coordinator, and its machine processes it."""
        group, args = self._group(asked.group), asked.args
        if asked.method == "join_group":
            group.joining.add(asked.request)
            group.is_touched = True
            if asked.member_id == "" and args[2] is not None:
                group.successors.add(str(args[2]))
            given_ms = self._given_ms.pop(asked.member_id, None)
            if given_ms is not None and asked.came_ms - given_ms < args[4]:
                self._fresh.add(asked.request)
        elif asked.method == "leave_group":
            group.is_touched = True
            for member_id, _ in args[1]:
                self._given_ms.pop(member_id, None)
        elif asked.method == "sync_group" and args[4]:
            sent = self._sent.setdefault((asked.group, args[_GENERATION]), [])
            sent.append({member: bytes(assignment) for member, assignment in args[4]})

    def settled(self, asked: Asked) -> None:
        """A request is answered by this step, or its sender has disconnected."""
        if asked.method == "join_group":
            self._group(asked.group).joining.discard(asked.request)

    # ------------------------------------------------------------ errors

    def refused(self, asked: Asked, error: RaylogError, now_ms: int) -> None:
        """The machine refuses a request."""
        group = self._group(asked.group)
        image = group.image
        match error:
            case IllegalGeneration():
                reason = "it is the group's" if asked.args[_GENERATION] == group.generation else None
            case UnknownMemberId():
                reason = self._why_known(group, asked, asked.member_id, now_ms)
            case FencedInstanceId():
                reason = self._why_not_fenced(group, asked)
            case RebalanceInProgress() if asked.method == "offset_commit":
                completing = image is not None and image.state is GroupState.COMPLETING_REBALANCE
                reason = None if completing else "members that prepare a round, or read, may commit"
            case RebalanceInProgress():
                reason = self._why_no_round(group, now_ms)
            case MemberIdRequired():
                reason = None if asked.method == "join_group" and asked.member_id == "" else "it has an id"
                self._given_ms[str(error.details["member_id"])] = now_ms
            case NonEmptyGroup():
                reason = "it has no members" if group.is_empty and not group.is_touched else None
            case GroupIdNotFound():
                is_there = image is not None or group.offsets
                reason = "it is there" if is_there else None
            case _:
                reason = "no request here deserves that"
        if reason is not None:
            name = type(error).__name__
            raise Violation(RULE, f"{asked.method} of {asked.member_id!r} is refused with {name}, but {reason}")

    def _why_known(self, group: _Group, asked: Asked, member_id: str, now_ms: int) -> str | None:
        """Return why a member cannot be unknown, or None."""
        if asked.request in self._fresh and not self._books.is_gone(asked.group, member_id):
            return "it was given this id a moment ago"
        instance = _instance(asked)
        member = group.image.member(member_id) if group.image is not None else None
        if group.image is None or member is None or instance in group.successors:
            return None
        return self._books.why_alive(self._life, group.image, member, now_ms)

    def _why_not_fenced(self, group: _Group, asked: Asked) -> str | None:
        instance = _instance(asked)
        if instance is None:
            return "it is no static member"
        holds = any(
            member.instance_id == instance and member.member_id == asked.member_id
            for member in (group.image.members if group.image is not None else ())
        )
        return "it holds its instance" if holds and instance not in group.successors else None

    def _why_no_round(self, group: _Group, now_ms: int) -> str | None:
        """Return why a group prepares no round, or None when it may."""
        image = group.image
        if image is None or image.state is not GroupState.STABLE or group.is_touched:
            return None
        if all(self._books.why_alive(self._life, image, member, now_ms) is not None for member in image.members):
            return f"nothing happened since generation {image.generation} is stable"
        return None

    # ------------------------------------------------------------ results

    def replied(self, asked: Asked, result: Any, now_ms: int) -> None:
        """The machine answers a request; the answer leaves when its rows are stored."""
        group = self._group(asked.group) if asked.args else _Group()
        match asked.method:
            case "join_group":
                self._joined(group, asked, result)
            case "sync_group":
                self._is_member(group, asked)
                image = group.image
                member = image.member(asked.member_id) if image is not None else None
                if image is None or image.state is not GroupState.STABLE:
                    raise self._wrong(asked, "the generation is not stable")
                if member is None or member.assignment != result[0]:
                    raise self._wrong(asked, "the answer is not the assignment that was given")
            case "heartbeat":
                self._is_member(group, asked)
            case "offset_commit":
                self._committed(group, asked, result)
            case "leave_group":
                self._left(group, asked, result, now_ms)
            case "describe_group":
                self._described(group, asked, result)
            case "delete_group":
                if not group.is_empty or group.joining:
                    raise self._wrong(asked, "the group has members")
            case "list_groups":
                self._listed(asked, result)
            case _:
                pass

    def _wrong(self, asked: Asked, why: str) -> Violation:
        return Violation(RULE, f"{asked.method} of {asked.member_id!r} in {asked.group!r} succeeds, but {why}")

    def _is_member(self, group: _Group, asked: Asked) -> None:
        if group.generation != asked.args[_GENERATION]:
            raise self._wrong(asked, f"generation {group.generation} has come")
        if not group.has(asked.member_id):
            raise self._wrong(asked, "it is no member")
        if group.joining or group.is_left:
            raise self._wrong(asked, "a round has begun")

    def _joined(self, group: _Group, asked: Asked, result: Any) -> None:
        generation, protocol, leader, member_id, rows, _ = result
        image = group.image
        if image is None or (generation, protocol, leader) != (image.generation, image.protocol, image.leader):
            raise self._wrong(asked, f"{(generation, protocol, leader)} is not what is written")
        member = image.member(member_id)
        if member is None or asked.member_id not in ("", member_id) or member.instance_id != asked.args[2]:
            raise self._wrong(asked, f"{member_id!r} is not its member")
        if leader == member_id and [row[0] for row in rows] != [each.member_id for each in image.members]:
            raise self._wrong(asked, "its leader is told of other members")
        if group.joining or group.is_left:
            raise self._wrong(asked, "another round has begun")

    def _committed(self, group: _Group, asked: Asked, result: Any) -> None:
        if [row[2] for row in result] != [0] * len(asked.args[3]):
            raise self._wrong(asked, f"the codes are {result}")
        if asked.args[_GENERATION] < 0:
            if not group.is_empty:
                raise self._wrong(asked, "the group has members")
        elif group.generation != asked.args[_GENERATION] or not group.has(asked.member_id):
            raise self._wrong(asked, f"generation {group.generation} does not have it")
        elif group.image is not None and group.image.state is GroupState.COMPLETING_REBALANCE:
            raise self._wrong(asked, "nothing is assigned yet")

    def _left(self, group: _Group, asked: Asked, result: Any, now_ms: int) -> None:
        for member_id, _, code in result:
            if code == UnknownMemberId.code:
                why = self._why_known(group, asked, member_id, now_ms)
                if why is not None:
                    raise self._wrong(asked, f"{member_id!r} is unknown, and {why}")
            elif code == 0 and group.has(member_id):
                group.is_left = True
            elif code not in (0, FencedInstanceId.code):
                raise self._wrong(asked, f"the code of {member_id!r} is {code}")

    def _described(self, group: _Group, asked: Asked, result: Any) -> None:
        state = group.image.state.value if group.image is not None else GroupState.EMPTY.value
        if group.joining or group.is_left:
            state = GroupState.PREPARING_REBALANCE.value
        told = result["state"]
        may_prepare = group.is_touched or not group.is_empty
        if told != state and not (told == GroupState.PREPARING_REBALANCE.value and may_prepare):
            raise self._wrong(asked, f"its state is told as {told}, and is {state}")
        if result["generation"] != group.generation or len(result["offsets"]) != len(group.offsets):
            raise self._wrong(asked, f"{result} is not what is written")

    def _listed(self, asked: Asked, result: Any) -> None:
        named = {row[0] for row in cast("list[list[str]]", result)}
        there = {name for name, group in self._groups.items() if group.image is not None or group.offsets}
        if not there <= named:
            raise self._wrong(asked, f"{sorted(there - named)} are not named")


def _instance(asked: Asked) -> str | None:
    """Return the static instance of the sender."""
    place = _INSTANCE.get(asked.method)
    return cast("str | None", asked.args[place]) if place is not None and len(asked.args) > place else None
