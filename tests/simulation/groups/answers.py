"""I15 for answers: each answer, error or not, must be allowed by the externally visible state of its group.

Visible are the log that a life of the coordinator has read, the rows it has decided since, and the requests that
reached it. One object for each load of a coordinator, fed by ``coordinator.py``. It never looks into the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from raylog.base.errors import (
    FencedInstanceId,
    GroupIdNotFound,
    GroupMaxSizeReached,
    IllegalGeneration,
    InconsistentGroupProtocol,
    MemberIdRequired,
    NonEmptyGroup,
    RaylogError,
    RebalanceInProgress,
    ResetOutdated,
    UnknownMemberId,
)
from raylog.core.groups.records import GROUP_ROWS, GroupChanged, MemberRecord, OffsetCommitted
from raylog.core.groups.states import GroupState
from raylog.protocol.rows import Tombstone
from tests.simulation.groups.books import RULE, GroupBooks
from tests.simulation.groups.observed import (
    Committed,
    ObservedGroup,
    Where,
    commit_code,
    differs_from_join,
    in_common,
    keeps_leader,
    malformed,
    preferences,
    voted,
)
from tests.simulation.groups.operators import codes_of_deletion, why_not_reset, why_outdated
from tests.simulation.groups.transactions.ledgers import POT
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.groups.coordinator import Call

_GENERATION: Final = 1
"""Index of the generation in the arguments of a member's requests, except a join."""
_INSTANCE: Final = {"join_group": 2, "sync_group": 3, "heartbeat": 3, "offset_commit": 4}
_OFFSETS: Final = frozenset(
    {"offset_commit", "offset_fetch", "offset_delete", "offset_reset", "delete_group", "describe_group"}
)
"""Requests whose answer is compared with the committed offsets."""


Leaver = tuple[bool, bool, MemberRecord | None]
"""Whether it may be a member, whether it is one in the last generation, and that generation's member of its instance.
"""


class Answers:
    """The answers that one load of a coordinator may give."""

    def __init__(self, books: GroupBooks, life: int, now_ms: int) -> None:
        """``life`` is the number of the load in the books."""
        self._books = books
        self._life = life
        self._since_ms = now_ms
        self._groups: dict[str, ObservedGroup] = {}
        self._sent: dict[tuple[str, int], list[Mapping[str, bytes]]] = {}
        """Assignments that leaders sent, by group and generation."""
        self._given_ms: dict[tuple[str, str], int] = {}
        """When an id was issued that has not been used yet."""
        self._used_ms: int | None = None
        """When the id of this step's join was issued; None = it was used before."""
        self._leavers: list[Leaver] = []
        """The members that this step's request removes, before the step."""
        self._fresh: set[int] = set()
        """First joins with their id, sent before it expired."""
        self._current: Call | None = None
        """The request of this step."""
        self._before: dict[Where, Committed] = {}
        """The offsets of its group before it."""
        self._due: Call | None = None
        """A request that this step has to answer."""
        self._excess: Call | None = None
        """A join for which the group has no place."""

    def _group(self, name: str) -> ObservedGroup:
        return self._groups.setdefault(name, ObservedGroup(name))

    # ------------------------------------------------------------ visible state

    def row(self, key: Sequence[object], value: Sequence[object] | None, *, replayed: bool) -> None:
        """A row is read from the log, or decided."""
        group = self._group(str(key[1]))
        if key[0] == OffsetCommitted.KIND:
            _, _, topic_id, topic, partition = cast("tuple[str, str, str, str, int]", tuple(key))
            if value is None:
                group.offsets.pop((topic_id, topic, partition), None)
            else:
                group.offsets[topic_id, topic, partition] = cast(Committed, tuple(value[1:4]))
            return
        if key[0] != GroupChanged.KIND:
            return
        record = GROUP_ROWS.read(key, value)
        if isinstance(record, Tombstone):
            group.image = None
            self._given_ms = {given: when for given, when in self._given_ms.items() if given[0] != key[1]}
            self._fresh.clear()
            return
        assert isinstance(record, GroupChanged)
        if not replayed and record.state is GroupState.STABLE and group.image is not None:
            self._is_as_sent(record, group.image)
        if record.members and not replayed:
            self._is_voted(record)
            if group.image is not None and not keeps_leader(group.image, record):
                raise Violation(RULE, f"{group.image.leader} leads no more, and is in generation {record.generation}")
        group.image = record
        group.is_touched = group.is_left = False
        group.successors = set()
        group.comers = []

    def _is_voted(self, record: GroupChanged) -> None:
        """A generation has the assignor that its members voted for, and no more members than a group may have."""
        chosen = voted(record)
        if record.protocol != chosen:
            raise Violation(
                RULE, f"generation {record.generation} has {record.protocol}, and its members vote for {chosen}"
            )
        if len(record.members) > self._books.members_max:
            raise Violation(RULE, f"generation {record.generation} has {len(record.members)} members")

    def _is_as_sent(self, record: GroupChanged, before: GroupChanged) -> None:
        """Assignments are those sent by the leader of this generation, for each member that the leader knew."""
        if before.state is GroupState.STABLE:
            return  # a static member's new id; the books check it
        given = {member.member_id: member.assignment for member in record.members}
        sent = self._sent.get((record.group, record.generation), [])
        if not any({member: each.get(member, b"") for member in given} == given for each in sent):
            raise Violation(RULE, f"generation {record.generation} has assignments that its leader did not send")

    def received(self, call: Call) -> None:
        """A request reached the coordinator, and its machine processes it."""
        group, args = self._group(call.group), call.args
        self._current = call
        self._before = dict(group.offsets) if call.method in _OFFSETS else {}
        if call.method == "join_group":
            self._due = call if self._keeps_generation(group, call) else None
            self._excess = call if self._exceeds(group, call) else None
            group.comers.append((call.member_id, args[7]))
            group.joining.add(call.request)
            group.is_touched = True
            if call.member_id == "" and args[2] is not None:
                group.successors.add(str(args[2]))
            self._used_ms = given_ms = self._given_ms.pop((call.group, call.member_id), None)
            if given_ms is not None and call.came_ms - given_ms < args[4]:
                self._fresh.add(call.request)
        elif call.method == "leave_group":
            group.is_touched = True
            self._leavers = [self._leaver(group, member_id, instance) for member_id, instance in args[1]]
        elif call.method == "sync_group" and args[4]:
            sent = self._sent.setdefault((call.group, args[_GENERATION]), [])
            sent.append({member: bytes(assignment) for member, assignment in args[4]})

    def _leaver(
        self, group: ObservedGroup, member_id: str, instance: str | None
    ) -> tuple[bool, bool, MemberRecord | None]:
        is_given = self._given_ms.pop((group.name, member_id), None) is not None
        return member_id == "" or is_given or group.may_have(member_id), group.has(member_id), group.holder(instance)

    def _keeps_generation(self, group: ObservedGroup, call: Call) -> bool:
        """Whether a static member returns to a stable group that keeps its assignor: it takes its place, at once."""
        image, holder = group.image, group.holder(call.args[2])
        if call.member_id != "" or image is None or holder is None or malformed(call.method, call.args) is not None:
            return False
        if image.state is not GroupState.STABLE or self._why_no_round(group, call.came_ms) is None:
            return False
        return voted(image, {holder.member_id: call.args[7]}) == image.protocol

    def holder(self, group: str, instance: str | None) -> str | None:
        """Return the member id that holds a static instance, as far as an observer knows."""
        found = self._group(group).holder(instance)
        return None if found is None else found.member_id

    def _exceeds(self, group: ObservedGroup, call: Call) -> bool:
        """Whether a new member comes to a stable group that is full."""
        image, instance = group.image, call.args[2]
        if call.member_id != "" or image is None or malformed(call.method, call.args) is not None:
            return False
        held = group.successors | {row.instance_id for row in image.members}
        is_full = len(image.members) >= self._books.members_max
        return is_full and (instance is None or instance not in held) and bool(self._why_no_round(group, call.came_ms))

    def stepped(self) -> None:
        """The step is over, after all its answers."""
        due, self._due, self._current = self._due, None, None
        if self._excess is not None:
            raise Violation(RULE, f"a join for a group with {self._books.members_max} members is not refused")
        if due is not None:
            raise Violation(RULE, f"{due.args[2]!r} has returned to a group that keeps its generation, and has to wait")

    def settled(self, call: Call) -> None:
        """A request is answered by this step, or its sender has disconnected."""
        if call is self._due:
            self._due = None
        if call.method == "join_group":
            self._group(call.group).joining.discard(call.request)

    # ------------------------------------------------------------ errors

    def refused(self, call: Call, error: RaylogError, now_ms: int) -> None:
        """The machine refuses a request."""
        group = self._group(call.group)
        if call is self._excess and isinstance(error, GroupMaxSizeReached):
            self._excess = None
        if isinstance(error, (GroupMaxSizeReached, InconsistentGroupProtocol)) and self._used_ms is not None:
            self._given_ms[call.group, call.member_id] = self._used_ms  # it may be used again, or given back
        invalid = malformed(call.method, call.args)
        if invalid is not None:
            reason = None if isinstance(error, invalid) else f"it deserves {invalid.__name__}"
        elif isinstance(error, (FencedInstanceId, GroupMaxSizeReached, InconsistentGroupProtocol, MemberIdRequired)):
            reason = self._why_may_join(group, call, error, now_ms)
        elif self._is_replaced(call):
            reason = "its successor has joined"
        else:
            reason = self._why_wrong(group, call, error, now_ms)
        if reason is not None:
            name = type(error).__name__
            raise Violation(RULE, f"{call.method} of {call.member_id!r} is refused with {name}, but {reason}")

    def _why_wrong(self, group: ObservedGroup, call: Call, error: RaylogError, now_ms: int) -> str | None:
        """Return why a request does not deserve an error, or None when it may."""
        image = group.image
        match error:
            case IllegalGeneration() if image is not None and call.args[_GENERATION] == image.generation:
                return "it is the group's"
            case IllegalGeneration():
                return self._why_stranger(group, call)
            case UnknownMemberId():
                return self._why_known(group, call, call.member_id, now_ms)
            case RebalanceInProgress() if call.method == "offset_commit":
                completing = image is not None and image.state is GroupState.COMPLETING_REBALANCE
                return None if completing else "members that prepare a round, or read, may commit"
            case RebalanceInProgress():
                return self._why_no_round(group, now_ms, is_heartbeat=call.method == "heartbeat")
            case ResetOutdated():
                is_outdated = why_outdated(group, group.offsets, call.args) is not None
                return None if is_outdated else "the group is as it was planned from"
            case NonEmptyGroup() if call.method == "offset_delete":
                return "consumers have other topics as well"
            case NonEmptyGroup():
                return "it has no members" if group.is_empty and not group.is_touched else None
            case GroupIdNotFound():
                return "it is there" if image is not None or group.offsets else None
            case _:
                return "no request here deserves that"

    def _why_may_join(self, group: ObservedGroup, call: Call, error: RaylogError, now_ms: int) -> str | None:
        """Return why a member may join, or be the one that it claims to be, or None when the error may be right."""
        args = call.args
        if isinstance(error, FencedInstanceId):
            return self._why_not_fenced(group, call)
        if call.method != "join_group":
            return "it does not join"
        if isinstance(error, MemberIdRequired):
            self._given_ms[call.group, str(error.details["member_id"])] = now_ms
            return None if call.member_id == "" and args[2] is None else "it has an id, or an instance"
        members = group.image.members if group.image is not None else ()
        if isinstance(error, GroupMaxSizeReached):
            # The join itself is one of those that came.
            given = sum(1 for name, _ in self._given_ms if name == call.group)
            places = max(len(members) + len(group.comers) - 1, given)
            return None if places >= self._books.members_max else f"{places} members leave room for it"
        others = [*map(preferences, members), *(protocols for _, protocols in group.comers)]
        return "all support an assignor of it" if in_common(others) else None

    def _is_replaced(self, call: Call) -> bool:
        """Whether this step's request is the join of a new process for the instance of an earlier, parked one."""
        current = self._current
        if current is None or current is call or current.method != "join_group" or current.member_id != "":
            return False
        return current.args[2] is not None and current.args[2] == _instance(call)

    def _why_stranger(self, group: ObservedGroup, call: Call) -> str | None:
        """Return why a sender is no member, whatever its generation, or None when it may be one."""
        holder = group.holder(_instance(call))
        if holder is not None and holder.member_id != call.member_id:
            return f"its instance is that of {holder.member_id}"
        is_known = group.may_have(call.member_id) or _instance(call) is not None or group.image is None
        return None if is_known else "it is no member"

    def _why_known(self, group: ObservedGroup, call: Call, member_id: str, now_ms: int) -> str | None:
        """Return why a member cannot be unknown, or None."""
        if call.request in self._fresh and not self._books.has_left(call.group, member_id):
            return "it was given this id a moment ago"
        instance = _instance(call)
        holder = group.holder(instance)
        if holder is not None and holder.member_id != member_id and group.image is not None:
            return self._books.why_alive(self._life, group.image, holder, now_ms)
        member = group.image.member(member_id) if group.image is not None else None
        if group.image is None or member is None or instance in group.successors:
            return None
        if instance is not None and instance != member.instance_id:
            return None
        return self._books.why_alive(self._life, group.image, member, now_ms)

    def _why_not_fenced(self, group: ObservedGroup, call: Call) -> str | None:
        instance = _instance(call)
        if instance is None:
            return "it is no static member"
        holder = group.holder(instance)
        return "it holds its instance" if holder is not None and holder.member_id == call.member_id else None

    def _why_no_round(self, group: ObservedGroup, now_ms: int, *, is_heartbeat: bool = False) -> str | None:
        """Return why a group prepares no round, or None when it may."""
        image = group.image
        quiet = (GroupState.STABLE, GroupState.COMPLETING_REBALANCE) if is_heartbeat else (GroupState.STABLE,)
        if image is None or image.state not in quiet or group.is_touched:
            return None
        if all(self._books.why_alive(self._life, image, member, now_ms) is not None for member in image.members):
            return f"nothing happened since generation {image.generation} is {image.state.value}"
        return None

    # ------------------------------------------------------------ results

    def replied(self, call: Call, result: Any, now_ms: int) -> None:
        """The machine answers a request; the answer leaves when its rows are stored."""
        group = self._group(call.group) if call.args else ObservedGroup("")
        if malformed(call.method, call.args) is not None:
            raise self._wrong(call, "it is malformed")
        match call.method:
            case "join_group":
                self._joined(group, call, result)
            case "sync_group":
                self._is_member(group, call)
                image = group.image
                member = image.member(call.member_id) if image is not None else None
                if image is None or image.state is not GroupState.STABLE:
                    raise self._wrong(call, "the generation is not stable")
                if member is None or member.assignment != result[0]:
                    raise self._wrong(call, "the answer is not the assignment that was given")
            case "heartbeat":
                self._is_member(group, call)
            case "offset_commit":
                self._committed(group, call, result, now_ms)
            case "offset_fetch":
                self._fetched(group, call, result)
            case "offset_reset":
                if (why := why_not_reset(group, self._before, call.args)) is not None:
                    raise self._wrong(call, why)
            case "offset_delete":
                self._deleted(group, call, result)
            case "leave_group":
                self._has_left(group, call, result, now_ms)
            case "describe_group":
                self._described(group, call, result)
            case "delete_group":
                if not group.is_empty or group.joining:
                    raise self._wrong(call, "the group has members")
                if group.offsets or group.image is not None:
                    raise self._wrong(call, "the group is there")
            case "list_groups":
                self._listed(call, result)
            case _:
                raise self._wrong(call, "it is no request")

    def _wrong(self, call: Call, why: str) -> Violation:
        return Violation(RULE, f"{call.method} of {call.member_id!r} in {call.group!r} succeeds, but {why}")

    def _is_member(self, group: ObservedGroup, call: Call) -> None:
        if group.generation != call.args[_GENERATION]:
            raise self._wrong(call, f"generation {group.generation} has come")
        if not group.has(call.member_id):
            raise self._wrong(call, "it is no member")
        if group.joining or group.is_left:
            raise self._wrong(call, "a round has begun")

    def _joined(self, group: ObservedGroup, call: Call, result: Any) -> None:
        generation, protocol, leader, member_id, rows, skips = result
        image = group.image
        if image is None or (generation, protocol, leader) != (image.generation, image.protocol, image.leader):
            raise self._wrong(call, f"{(generation, protocol, leader)} is not what is written")
        member = image.member(member_id)
        if member is None or call.member_id not in ("", member_id) or member.instance_id != call.args[2]:
            raise self._wrong(call, f"{member_id!r} is not its member")
        if (otherwise := differs_from_join(member, call.args)) is not None:
            raise self._wrong(call, otherwise)
        is_new, is_stable = call.member_id == "", image.state is GroupState.STABLE
        if is_new and call.args[2] is None:
            raise self._wrong(call, "it has no id yet")
        if is_stable and leader == member_id and not is_new:
            raise self._wrong(call, "a leader that joins again has to assign again")
        if skips is not (is_stable and leader == member_id):
            raise self._wrong(call, f"its answer is {skips} about skipping the assignment")
        if leader == member_id and [row[0] for row in rows] != [each.member_id for each in image.members]:
            raise self._wrong(call, "its leader receives other members")
        if group.joining or group.is_left:
            raise self._wrong(call, "another round has begun")

    def _committed(self, group: ObservedGroup, call: Call, result: Any, now_ms: int) -> None:
        wanted = dict(self._before)
        codes: list[object] = []
        for topic_id, topic, partition, offset, epoch, note in call.args[3]:
            codes.append([topic, partition, commit_code(offset, note)])
            if commit_code(offset, note) == 0:
                wanted[topic_id, topic, partition] = (offset, epoch, note)
        if result != codes:
            raise self._wrong(call, f"the codes are {result} and not {codes}")
        if group.offsets != wanted:
            raise self._wrong(call, f"{group.offsets} is committed and not {wanted}")
        if call.args[_GENERATION] < 0:
            if not group.is_empty:
                raise self._wrong(call, "the group has members")
        elif group.generation != call.args[_GENERATION] or not group.has(call.member_id):
            raise self._wrong(call, f"generation {group.generation} does not have it")
        elif group.image is not None and group.image.state is GroupState.COMPLETING_REBALANCE:
            # In another round that has begun, members commit for the last time.
            has_begun = self._why_no_round(group, now_ms, is_heartbeat=True) is None
            if not has_begun:
                raise self._wrong(call, "nothing is assigned yet")

    def _fetched(self, group: ObservedGroup, call: Call, result: Any) -> None:
        places = sorted(group.offsets) if call.args[1] is None else [tuple(place) for place in call.args[1]]
        wanted = [[*place, *group.offsets.get(place, (-1, -1, ""))] for place in places]
        if [list(row) for row in result] != wanted:
            raise self._wrong(call, f"the answer is {result}, and {wanted} is committed")

    def _deleted(self, group: ObservedGroup, call: Call, result: Any) -> None:
        deleted = set[tuple[Any, ...]]()
        for place, (topic, partition, code) in zip(call.args[1], result, strict=True):
            allowed = codes_of_deletion(group, place[0])
            if [topic, partition] != list(place[1:]) or code not in allowed:
                raise self._wrong(call, f"{place} is answered with {topic}-{partition} and {code}, not {allowed}")
            deleted |= {tuple(place)} if code == 0 else set()
        left = {place: held for place, held in self._before.items() if place not in deleted}
        if group.offsets != left:
            raise self._wrong(call, f"{group.offsets} is left and not {left}")

    def _has_left(self, group: ObservedGroup, call: Call, result: Any, now_ms: int) -> None:
        for (member_id, instance, code), (may_be, is_there, holder) in zip(result, self._leavers, strict=True):
            is_holder = holder is not None and member_id in ("", holder.member_id)
            if code == UnknownMemberId.code:
                if group.image is None or holder is None:
                    continue
                if self._books.why_alive(self._life, group.image, holder, now_ms) is not None:
                    raise self._wrong(call, f"{instance!r} is unknown, and is a member")
            elif code == FencedInstanceId.code:
                if is_holder:
                    raise self._wrong(call, f"{member_id!r} is fenced, and holds its instance")
            elif code != 0:
                raise self._wrong(call, f"the code of {member_id!r} is {code}")
            elif not may_be or (holder is not None and not is_holder):
                raise self._wrong(call, f"{member_id!r} is removed, and is no member")
            elif is_there or is_holder:
                removed = member_id if holder is None else holder.member_id
                group.is_left = group.is_left or group.has(removed)

    def _described(self, group: ObservedGroup, call: Call, result: Any) -> None:
        state = group.image.state.value if group.image is not None else GroupState.EMPTY.value
        if group.joining or group.is_left:
            state = GroupState.PREPARING_REBALANCE.value
        shown = result["state"]
        may_prepare = group.is_touched or not group.is_empty
        if shown != state and not (shown == GroupState.PREPARING_REBALANCE.value and may_prepare):
            raise self._wrong(call, f"its state is shown as {shown}, and is {state}")
        offsets = [[*place, *held] for place, held in sorted(group.offsets.items())]
        if result["generation"] != group.generation or [list(row) for row in result["offsets"]] != offsets:
            raise self._wrong(call, f"{result} is not what is written")
        image = group.image
        if image is None or image.state is not GroupState.STABLE or group.is_touched:
            return
        written = [(each.member_id, each.instance_id, each.assignment) for each in image.members]
        named = [(each["member_id"], each["instance_id"], each["assignment"]) for each in result["members"]]
        if not set(named) <= set(written):
            raise self._wrong(call, f"{named} are described as members")

    def _listed(self, call: Call, result: Any) -> None:
        named = {row[0] for row in cast("list[list[str]]", result) if not row[0].startswith(POT)}
        there = {name for name, group in self._groups.items() if group.image is not None or group.offsets}
        if not there <= named:
            raise self._wrong(call, f"{sorted(there - named)} are not named")
        unknown = {name for name in named - there if not self._group(name).is_touched}
        if unknown:
            raise self._wrong(call, f"{sorted(unknown)} are named, and do not exist")


def _instance(call: Call) -> str | None:
    """Return the static instance of the sender."""
    place = _INSTANCE.get(call.method)
    return cast("str | None", call.args[place]) if place is not None and len(call.args) > place else None
