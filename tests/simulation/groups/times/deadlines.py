"""I15 for what is due: ids that were given and not used, sessions, the leader of a round, and how long a round takes.

One object for each load of a coordinator, fed by ``coordinator.py`` with what an observer of its messages and rows
sees. A deadline of the coordinator counts as passed after its next tick.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from raylog.base.errors import MemberIdRequired, RaylogError
from raylog.core.groups.records import GROUP_ROWS, GroupChanged
from raylog.core.groups.states import GroupState
from raylog.protocol.rows import Tombstone
from tests.simulation.groups.books import RULE, GroupBooks
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.groups.coordinator import Call

_MEMBER_ID: Final = {"join_group": 1, "sync_group": 2, "heartbeat": 2, "offset_commit": 2}
"""Index of the member id in the arguments of a request."""


class _Known:
    """What is known of one group."""

    __slots__ = ("began_with", "begun_ms", "image", "joining", "parked_ms", "row_ms", "sync_ms", "waits_ms")

    def __init__(self, now_ms: int) -> None:
        self.image: GroupChanged | None = None
        self.row_ms = now_ms
        """When this life decided its last row, or was loaded."""
        self.begun_ms = now_ms
        """When this life decided its generation."""
        self.began_with: frozenset[str] = frozenset()
        """The members of that generation; none if another life decided it."""
        self.sync_ms = 0
        """How long they have to sync: the longest time that any of them allows, even if it leaves meanwhile."""
        self.joining: set[int] = set()
        """Joins that wait."""
        self.parked_ms: int | None = None
        """When the first join since the last row began to wait."""
        self.waits_ms: int | None = None
        """Since when there is always a join that waits."""

    @property
    def is_first(self) -> bool:
        """Whether the group has had no members: newcomers prolong its first round, each until the tick after."""
        return self.image is None or self.image.state is GroupState.EMPTY


class Deadlines:
    """What one load of a coordinator may not do yet, or has to have done by now."""

    def __init__(self, books: GroupBooks, now_ms: int, *, first_delay_ms: int, round_ms: int) -> None:
        """``first_delay_ms``: how long a group's first round takes at least; ``round_ms``: any round at most."""
        self._books = books
        self._since_ms = self._ticked_ms = self._now_ms = now_ms
        self._first_delay_ms, self._round_ms = first_delay_ms, round_ms
        self._groups: dict[str, _Known] = {}
        self._given: dict[tuple[str, str], tuple[int, int]] = {}
        """By group and id: when an id was given that was not used yet, and until when it is valid."""
        self._void: set[tuple[str, str]] = set()
        """Ids that have left unused."""
        self._seen_ms: dict[tuple[str, str], int] = {}
        """The last sign of life of each member."""
        self._has_to_fail: Call | None = None
        """A join of this step with an id that is not valid any more."""
        self._begun: list[GroupChanged] = []
        """Generations that this step begins."""
        self._receivers: set[tuple[str, str]] = set()
        """Group and member of the joins that this step answers."""

    def _group(self, name: str) -> _Known:
        return self._groups.setdefault(name, _Known(self._since_ms))

    # ------------------------------------------------------------ a step

    def began(self, now_ms: int) -> None:
        """A step begins."""
        self._now_ms = now_ms

    def received(self, call: Call) -> None:
        """Its event is a request."""
        self._is_alive(call)
        if call.method == "join_group":
            known = (call.group, call.member_id)
            _, until_ms = self._given.pop(known, (0, self._ticked_ms + 1))
            if until_ms <= self._ticked_ms or known in self._void:
                self._has_to_fail = call
            self._group(call.group).joining.add(call.request)
        elif call.method == "leave_group":
            for member_id, instance in call.args[1]:
                if self._given.pop((call.group, member_id), None) is not None and instance is None:
                    self._void.add((call.group, member_id))

    def _is_alive(self, call: Call) -> None:
        place = _MEMBER_ID.get(call.method)
        if place is not None:
            self._seen_ms[call.group, str(call.args[place])] = self._now_ms

    def row(self, key: Sequence[object], value: Sequence[object] | None, *, replayed: bool) -> None:
        """A row is read, or decided by this step."""
        if key[0] != GroupChanged.KIND:
            return
        record = GROUP_ROWS.read(key, value)
        if isinstance(record, Tombstone):
            (group,) = record.key
            self._groups.pop(str(group), None)
            self._given = {key: given for key, given in self._given.items() if key[0] != group}
        elif isinstance(record, GroupChanged):
            known = self._group(record.group)
            before, known.image = known.image, record
            if replayed or record == before:
                return
            if before is None or record.generation > before.generation:
                self._begins(known, before, record)
            known.row_ms = self._now_ms
            known.parked_ms = known.waits_ms = None

    def _begins(self, known: _Known, before: GroupChanged | None, image: GroupChanged) -> None:
        """A generation is written: not before its round may end."""
        known.begun_ms = self._now_ms
        known.began_with = frozenset(member.member_id for member in image.members)
        known.sync_ms = max((member.rebalance_timeout_ms for member in image.members), default=0)
        if not image.members:
            return
        self._begun.append(image)
        if before is None or before.state is GroupState.EMPTY:
            waited_ms = self._now_ms - (self._now_ms if known.parked_ms is None else known.parked_ms)
            if waited_ms < self._first_delay_ms:
                raise Violation(RULE, f"the first round of {image.group!r} is over after {waited_ms} ms")
            return
        # A round whose first members have all left has no time to wait.
        stayed = [row.rebalance_timeout_ms for row in before.members if image.member(row.member_id) is not None]
        if self._now_ms - known.row_ms < min(stayed, default=0):
            for (group, member_id), (_, until_ms) in self._given.items():
                if group == image.group and self._now_ms < until_ms:
                    raise Violation(RULE, f"generation {image.generation} does not wait for {member_id}, to join soon")

    def settled(self, call: Call) -> None:
        """A request is answered by this step, or its sender has disconnected."""
        self._is_alive(call)
        if call.method == "join_group":
            self._group(call.group).joining.discard(call.request)

    def refused(self, call: Call, error: RaylogError) -> None:
        """A request is refused."""
        if call is self._has_to_fail:
            self._has_to_fail = None
        if not isinstance(error, MemberIdRequired):
            return
        unused = sum(1 for (group, _), (_, ms) in self._given.items() if group == call.group and self._now_ms < ms)
        if unused >= self._books.members_max:
            raise Violation(RULE, f"{call.group!r} gives another member id, and {unused} were not used yet")
        self._given[call.group, str(error.details["member_id"])] = (self._now_ms, self._now_ms + call.args[4])

    def replied(self, call: Call, result: Any) -> None:
        """A request succeeds."""
        if call.method == "join_group":
            self._receivers.add((call.group, str(result[3])))
        elif call.method in ("heartbeat", "sync_group"):
            known = self._group(call.group)
            image = known.image
            if image is not None and image.state is GroupState.STABLE:
                self._all_are_alive(known, image)
            if image is not None and call.method == "heartbeat" and call.member_id in known.began_with:
                is_late = self._ticked_ms >= known.begun_ms + known.sync_ms
                if is_late and not self._books.has_synced(call.group, call.member_id, image.generation):
                    raise Violation(RULE, f"{call.member_id} is a member, and has not synced in {known.sync_ms} ms")

    def _all_are_alive(self, known: _Known, image: GroupChanged) -> None:
        """Without a round since its row, a group has members that have sent something within their session timeouts."""
        for member in image.members:
            seen_ms = max(self._seen_ms.get((image.group, member.member_id), 0), known.row_ms)
            if self._ticked_ms >= seen_ms + member.session_timeout_ms:
                silent_ms = self._now_ms - seen_ms
                raise Violation(RULE, f"{member.member_id} was silent for {silent_ms} ms, and no round has begun")

    def stepped(self, *, is_tick: bool) -> None:
        """The step is over."""
        failing, self._has_to_fail = self._has_to_fail, None
        if failing is not None:
            raise Violation(RULE, f"{failing.member_id} joins, and its id is not valid any more")
        for image in self._begun:
            if (image.group, image.leader) not in self._receivers:
                raise Violation(RULE, f"{image.leader} leads generation {image.generation}, and has not joined it")
        self._begun.clear()
        self._receivers.clear()
        for known in self._groups.values():
            if not known.joining:
                known.waits_ms = None
                continue
            if known.parked_ms is None:
                known.parked_ms = self._now_ms
            if known.waits_ms is None:
                known.waits_ms = self._now_ms
            elif is_tick and not known.is_first and self._now_ms - known.waits_ms > self._round_ms:
                raise Violation("L1", f"joins have waited for {self._now_ms - known.waits_ms} ms")
        if is_tick:
            self._ticked_ms = self._now_ms
