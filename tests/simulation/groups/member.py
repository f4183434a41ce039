"""A member process of the group world: the client's real Membership, driven the way
``client/consumer/group_session.py`` does.

It polls, reads, commits now and then, sends heartbeats, and rebalances step by step: commit, give up partitions, join,
sync, fetch offsets. All waiting is on the virtual clock; a paused process does everything late.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from raylog.base.errors import (
    AssignorFailed,
    ConnectionFailed,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    FencedInstanceId,
    MemberIdRequired,
    RaylogError,
    RequestTimedOut,
)
from raylog.base.ids import TopicPartition
from raylog.client.group.assignors import strategies_of
from raylog.client.group.membership import GroupRequest, Membership
from raylog.protocol.groups import JOIN_GROUP, SYNC_GROUP
from raylog.protocol.message import Message
from tests.simulation.groups.books import Claim
from tests.simulation.groups.topic import TOPIC, TOPIC_ID
from tests.simulation.groups.wire import Wire
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.groups.simulation import GroupSimulation

JOIN_EXTRA_MS = 500
REQUEST_MS = 600

Then = Callable[[Any, RaylogError | None], None]


class _Pending:
    """One request with its retries, until it is answered or times out."""

    __slots__ = ("args", "call", "deadline_us", "then", "wire")

    def __init__(self, call: str, args: list[object], deadline_us: int, then: Then) -> None:
        self.call = call
        self.args = args
        self.deadline_us = deadline_us
        self.then = then
        self.wire: Wire | None = None


class Member:
    """One process with one consumer."""

    def __init__(
        self,
        simulation: GroupSimulation,
        slot: int,
        process: int,
        *,
        group: str,
        client_id: str,
        instance: str | None,
        assignors: tuple[str, ...] = ("range",),
    ) -> None:
        """``process`` is unique to this process, and so are its timeouts: their record must be its own."""
        faults = simulation.faults
        self.simulation = simulation
        self.world = simulation.world
        self.slot = slot
        self.process = process
        self.group = group
        self.alive = True
        self.paused_until_us = 0
        self.membership = Membership(
            group,
            client_id=client_id,
            instance_id=instance,
            assignors=strategies_of(assignors),
            session_timeout_ms=faults.session_timeout_ms + process % 7,
            rebalance_timeout_ms=faults.rebalance_timeout_ms - 150 * (process % 3) + process % 5,
        )
        self.positions: dict[int, int] = {}
        self.fetched = False
        self.moved_back: set[int] = set()
        """Numbers of commits that move the offset back on purpose."""
        self._wire: Wire | None = None
        self._pending: dict[int, _Pending] = {}
        self._last_number = 0
        self._busy = False
        """A rebalance is in progress."""
        self._reads_on = False
        """It is one that has taken nothing away yet."""
        self._assignments = 0
        self._committing = False
        self._beating = False
        self._leaving = False
        self._is_fenced = False

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Begin to poll and to send heartbeats."""
        self._poll()
        self._beat()
        self._autocommit()

    def _asleep(self, call: Callable[..., None], *args: object) -> bool:
        if self.alive and self.paused_until_us > self.world.now_us:
            self.world.at(self.paused_until_us, call, *args)
            return True
        return not self.alive

    def end(self, why: str) -> None:
        """End the process at once; only its broken connection shows it."""
        if self.alive:
            self.alive = False
            self.world.log("member {} ends: {}", self.process, why)
            self.simulation.books.gives_back(self.process)
            if self._wire is not None:
                self._wire.break_off()

    def leave(self) -> None:
        """Commit, give up partitions, leave, end."""
        if self._leaving:
            return
        self._leaving = True
        request = self.membership.leave_request()
        if request is not None and self.membership.instance_id is not None:
            raise Violation("I15", f"static member {self.process} leaves its group when it stops")
        if request is None and self.membership.instance_id is None and self.membership.member_id:
            raise Violation("I15", f"member {self.process} does not leave its group when it stops")
        self.world.log("member {} leaves", self.process)

        def goodbye(_: Any, __: RaylogError | None) -> None:
            self._give_back()
            self.membership.lose("it has left", member_too=True)
            self.membership.lost = False
            if request is None:
                self.end("it is closed")
            else:
                self._call("leave_group", _sent(request), REQUEST_MS, lambda _, __: self.end("it has left"))

        self._commit(goodbye)

    @property
    def is_steady(self) -> bool:
        """True when it reads the partitions of a generation that it believes to be current."""
        return self.alive and self.fetched and self.membership.is_stable and not self._busy

    # ------------------------------------------------------------ polls

    def _poll(self) -> None:
        if self._asleep(self._poll):
            return
        self.world.after(self.world.between_us(0.5, 1.5 * self.simulation.faults.poll_ms), self._poll)
        member = self.membership
        if self._leaving:
            return
        if self._busy:
            if self._reads_on and not member.lost:
                self._read()
        elif member.rejoin_reason is not None:
            self._busy = True
            if member.is_cooperative and not member.lost:
                self._reads_on = True
                self._join()
            elif self.positions and not member.lost:
                self._commit(lambda _, __: self._rejoin())
            else:
                self._rejoin()
        elif self.fetched:
            self._read()

    def _read(self) -> None:
        books = self.simulation.books
        for partition in self.positions:
            self.positions[partition] += self.world.random.randint(0, 3)
            books.processed(self.group, partition, self.positions[partition])

    def _rejoin(self) -> None:
        self._give_back()
        self._join()

    def _give_back(self) -> None:
        self._assignments += 1
        self._reads_on = False
        self.positions = {}
        self.fetched = False
        self.simulation.books.gives_back(self.process)

    # ------------------------------------------------------------ joining

    def _join(self) -> None:
        if self._leaving or not self.alive:
            return
        if self._is_fenced:
            raise Violation("I15", f"member {self.process} joins again, though another process has its instance")
        request = self.membership.join_request([TOPIC])
        if self.membership.is_cooperative:
            metadata = {each.name: each.metadata for each in request.protocols}
            self.simulation.books.joins(self.process, request.member_id, metadata)
        args = _sent(request)
        timeout_ms = self.membership.rebalance_timeout_ms + JOIN_EXTRA_MS
        self._call(GroupRequest.JOIN.value, args, timeout_ms, self._joined)

    def _joined(self, result: Any, error: RaylogError | None) -> None:
        if self._leaving:
            return
        if error is not None:
            self._join_failed(GroupRequest.JOIN, error)
            return
        member = self.membership
        rows = member.joined(JOIN_GROUP.read_reply(result))
        self.simulation.books.joined(self.process, member.generation)
        subscriptions = member.subscriptions(rows)
        counts = {TOPIC: self.simulation.faults.partitions}
        try:
            args = _sent(member.sync_request(subscriptions, counts))
        except AssignorFailed as error:
            raise Violation("I15", str(error)) from error
        self._call(GroupRequest.SYNC.value, args, REQUEST_MS, self._synced)

    def _synced(self, result: Any, error: RaylogError | None) -> None:
        if self._leaving:
            return
        if error is not None:
            self._join_failed(GroupRequest.SYNC, error)
            return
        member = self.membership
        assignment = SYNC_GROUP.read_reply(result).assignment
        partitions = frozenset(number for _, number in member.synced(assignment))
        revoked = self.positions.keys() - partitions
        self._reads_on = False
        if member.has_missed:
            self.positions = {}
            self.simulation.books.gives_back(self.process)
            self._take_up(partitions)
        elif revoked:
            self._commit(lambda _, __: self._take_up(partitions))
        else:
            self._take_up(partitions)

    def _take_up(self, partitions: frozenset[int]) -> None:
        """What a cooperative member lost was committed and is dropped; what is new begins at its committed offset."""
        if self._leaving or not self.alive:
            return
        member = self.membership
        self._busy = False
        self._assignments += 1
        if member.lost:
            return  # while it committed; the next poll gives everything back
        self.world.log("member {} holds {} in generation {}", self.process, sorted(partitions), member.generation)
        self.positions = {number: at for number, at in self.positions.items() if number in partitions}
        self._claim(partitions)
        member.taken_up()
        if member.is_cooperative and member.unassigned_rows and not self.simulation.books.is_whole(self.group):
            # As `GroupSession._check_assignment`: a static leader has returned to a round that was the first of two.
            member.need_rejoin("partitions have no owner since it was away")
        self.fetched = False
        self._fetch_offsets(partitions - self.positions.keys(), self._assignments)

    def _claim(self, partitions: frozenset[int]) -> None:
        member = self.membership
        claim = Claim(self.group, member.member_id, member.owned_generation, partitions)
        self.simulation.books.claims(self.process, claim)

    def _join_failed(self, call: GroupRequest, error: RaylogError) -> None:
        member = self.membership
        reaction = member.failed(call, error, generation=member.generation)
        if reaction.fatal:
            self.end(f"{type(error).__name__}: {error}")
            return
        if reaction.retry:
            self._forget_coordinator()
        member.need_rejoin(error.message)
        if member.lost:
            self._give_back()  # the shipped client does so in its next poll, and returns no record before
        if isinstance(error, MemberIdRequired):
            self._join()
        else:
            self.world.after(self.world.between_us(5, 60), self._join_again)

    def _join_again(self) -> None:
        if not self._asleep(self._join_again):
            self._join()

    def _fetch_offsets(self, partitions: frozenset[int], assignment: int) -> None:
        rows: list[object] = [[TOPIC_ID, *TopicPartition(TOPIC, number)] for number in sorted(partitions)]

        def answered(result: Any, error: RaylogError | None) -> None:
            if self._assignments != assignment:
                return
            if error is not None:
                self.world.after(self.world.between_us(5, 60), self._fetch_offsets, partitions, assignment)
                return
            for row in result:
                self.positions[row[2]] = max(row[3], 0)
                self.simulation.books.begins_at(self.group, row[2], max(row[3], 0))
            self.fetched = True

        if self.alive and self._assignments == assignment:
            self._call("offset_fetch", [self.group, rows], REQUEST_MS, answered)

    # ------------------------------------------------------------ commits and heartbeats

    def _autocommit(self) -> None:
        if self._asleep(self._autocommit):
            return
        self.world.after(self.world.between_us(0.5, 1.5 * self.simulation.faults.commit_ms), self._autocommit)
        if self.is_steady and not self._committing and not self._leaving:
            self._commit(lambda _, __: None)

    def _commit(self, then: Then) -> None:
        member = self.membership
        generation, member_id = member.commit_identity
        if generation < 0 or not self.positions:
            then(None, None)
            return
        self._committing = True
        rows: list[object] = [
            [TOPIC_ID, TOPIC, partition, position, -1, ""] for partition, position in sorted(self.positions.items())
        ]

        def answered(result: Any, error: RaylogError | None) -> None:
            self._committing = False
            if error is not None:
                member.failed(GroupRequest.COMMIT, error, generation=generation)
            then(result, error)

        args = [self.group, generation, member_id, rows, member.instance_id]
        self._call(GroupRequest.COMMIT.value, args, REQUEST_MS, answered)

    def _beat(self) -> None:
        if self._asleep(self._beat):
            return
        member = self.membership
        self.world.after(member.session_timeout_ms * 250, self._beat)
        if not member.is_stable or self._beating:
            return
        generation = member.generation
        self._beating = True

        def answered(_: Any, error: RaylogError | None) -> None:
            self._beating = False
            if error is not None:
                reaction = member.failed(GroupRequest.HEARTBEAT, error, generation=generation)
                if reaction.retry:
                    self._forget_coordinator()
                elif reaction.fatal:
                    self.end(f"{type(error).__name__}: {error}")

        args = _sent(member.heartbeat_request())
        self._call(GroupRequest.HEARTBEAT.value, args, member.session_timeout_ms // 3, answered)

    # ------------------------------------------------------------ requests

    def _call(self, call: str, args: list[object], timeout_ms: int, then: Then) -> None:
        """Send to the current coordinator, until answered or timed out."""
        self._last_number += 1
        number = self._last_number
        self._pending[number] = _Pending(call, args, self.world.now_us + timeout_ms * 1000, then)
        self.world.after(timeout_ms * 1000, self._timed_out, number)
        self._try(number)

    def _try(self, number: int) -> None:
        pending = self._pending.get(number)
        if pending is None or self._asleep(self._try, number):
            return
        if self._wire is None or self._wire.broken:
            found = self.simulation.find_coordinator()
            if found is None:
                self._failed(number, CoordinatorNotAvailable())
                return
            if not found.alive:
                self._failed(number, ConnectionFailed())
                return
            self._wire = Wire(self.simulation, self, found)
        pending.wire = self._wire
        self._wire.call(number, pending.call, pending.args, lambda result, error: self._answered(number, result, error))

    def _answered(self, number: int, result: object, error: RaylogError | None) -> None:
        if self._asleep(self._answered, number, result, error):
            return
        if error is not None and (error.refresh_metadata or isinstance(error, CoordinatorLoadInProgress)):
            self._failed(number, error)
            return
        pending = self._pending.pop(number, None)
        if pending is not None:
            self._is_fenced |= isinstance(error, FencedInstanceId) and pending.call != GroupRequest.COMMIT.value
            pending.then(result, error)

    def connection_lost(self, number: int) -> None:
        """The connection broke before the answer arrived."""
        if not self._asleep(self.connection_lost, number):
            self._failed(number, ConnectionFailed())

    def _failed(self, number: int, error: RaylogError) -> None:
        pending = self._pending.get(number)
        if pending is None:
            return
        if error.refresh_metadata:
            self._forget_coordinator()
        pause_us = self.world.between_us(2, 80)
        if self.world.now_us + pause_us >= pending.deadline_us:
            del self._pending[number]
            pending.then(None, error)
        else:
            self.world.after(pause_us, self._try, number)

    def _timed_out(self, number: int) -> None:
        if number not in self._pending or self._asleep(self._timed_out, number):
            return
        pending = self._pending.pop(number)
        if pending.wire is not None:
            pending.wire.forget(number)
        pending.then(None, RequestTimedOut())

    def _forget_coordinator(self) -> None:
        self._wire = None


def _sent(request: Message) -> list[object]:
    """A request as it arrives: a list of its fields."""
    listed: list[object] = msgspec.to_builtins(request, builtin_types=(bytes,))
    return listed
