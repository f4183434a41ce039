"""A consumer's process in the world of the consumer protocol: the real membership, and a twin of its session."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raylog.base.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    NotCoordinator,
    RaylogError,
    RequestTimedOut,
    UnknownMemberId,
)
from raylog.base.ids import TopicPartition
from raylog.client.group.consumer_membership import ConsumerMembership
from raylog.client.group.membership import GroupRequest as Kind
from raylog.core.groups.consumer_records import Place
from raylog.protocol import groups
from raylog.protocol.message import Message
from raylog.protocol.method import Method
from tests.simulation.consumers.faults import LATE_MS

if TYPE_CHECKING:
    from tests.simulation.consumers.coordinator import Coordinator
    from tests.simulation.consumers.simulation import ConsumerSimulation

Answer = Callable[[Any, RaylogError | None], None]
POLL_US = 20_000
COMMIT_US = 70_000
ADDITIONS = (0, 0, 0, 0, 1, 10)
"""How long the listener takes over what has come, beside what goes: the assignment may change meanwhile."""


class Line:
    """One connection to a coordinator."""

    def __init__(self, member: Member, coordinator: Coordinator) -> None:
        """Open it."""
        self.member, self.coordinator = member, coordinator
        self.simulation, self.world = member.simulation, member.world
        self.is_broken = False
        self.lag_us = self.world.between_us(0, 2)
        """How long after a pause of the coordinator its requests are read."""
        self._waiting: dict[int, Answer] = {}
        self._last = 0
        self._last_us = [0, 0]

    def send(self, method: str, args: Any, answer: Answer, timeout_ms: float) -> int:
        """Send a request; the answer, or a timeout, comes later."""
        self._last += 1
        self._waiting[self._last] = answer
        self._send(0, self._arrive, self._last, method, args)
        self.world.after(int(timeout_ms * 1000), self._expired, self._last)
        return self._last

    def _send(self, direction: int, deliver: Callable[..., None], *args: object) -> None:
        when_us = max(self.world.now_us + self.simulation.delay_us(), self._last_us[direction] + 1)
        self._last_us[direction] = when_us
        self.world.at(when_us, deliver, *args)

    def _arrive(self, number: int, method: str, args: object) -> None:
        if self.is_broken:
            if self.world.chance(0.5):  # it was in a buffer, and is read late
                self.world.after(self.world.between_us(0, LATE_MS), self._arrive_late, number, method, args)
        elif not self.coordinator.is_alive:
            self.break_off()
        else:
            self.coordinator.receive(self, number, method, args)

    def _arrive_late(self, number: int, method: str, args: Any) -> None:
        # A commit that comes behind a later one of the same owner moves the offset back, here as in Kafka. One that
        # comes behind its owner must not.
        if method == groups.OFFSET_COMMIT.name:
            owners, member_id = self.simulation.books.group.owners, self.member.membership.member_id
            if any(owners.get(Place(*row[:3]), member_id) == member_id for row in args[3]):
                return
        self.coordinator.receive(self, number, method, args)

    def answer(self, number: int, result: object, error: RaylogError | None) -> None:
        """The coordinator answers."""
        if not self.is_broken:
            self._send(1, self._answered, number, result, error)

    def _answered(self, number: int, result: object, error: RaylogError | None) -> None:
        answer = None if self.is_broken else self._waiting.pop(number, None)
        if answer is not None:
            answer(result, error)

    def _expired(self, number: int) -> None:
        answer = self._waiting.pop(number, None)
        if answer is not None:
            answer(None, RequestTimedOut("no answer"))

    def forget(self, number: int) -> None:
        """The answer is not wanted any more."""
        self._waiting.pop(number, None)

    def break_off(self) -> None:
        """Break; the client learns of it at once."""
        self.is_broken = True
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            self.world.after(500, answer, None, RequestTimedOut("the connection broke"))


class Member:
    """One process."""

    def __init__(self, simulation: ConsumerSimulation, process: int, instance: str | None) -> None:
        """:meth:`start` begins it."""
        faults = simulation.faults
        self.simulation, self.world, self.process = simulation, simulation.world, process
        self.membership = ConsumerMembership(
            simulation.group,
            member_id=f"member-{process}",
            client_id=f"client-{process}",
            instance_id=instance,
            assignor=faults.assignor,
            session_timeout_ms=faults.session_timeout_ms,
            rebalance_timeout_ms=faults.rebalance_timeout_ms,
            max_wait_ms=faults.max_wait_ms,
        )
        self.topics: tuple[str, ...] = tuple(simulation.names)
        self.states: dict[TopicPartition, str] = {}
        """The topic id of each partition whose records it fetches: those of its last change."""
        self.positions: dict[TopicPartition, int] = {}
        self.is_alive = True
        self.paused_until_us = 0
        self.slow_until_us = 0
        self.is_stuck = False
        """It never gives partitions up: its listener does not return."""
        self._line: Line | None = None
        self._beat = 0
        """The number of the heartbeat that is waited for; 0 = none."""
        self._is_committing = False
        self._fetching: set[TopicPartition] = set()

    def start(self) -> None:
        """Begin to poll, to commit and to send heartbeats."""
        self._poll()
        self.world.after(self.world.between_us(1, 100), self._commit_regularly)

    def end(self) -> None:
        """Die."""
        self.is_alive = False
        if self._line is not None:
            self._line.break_off()
        self.membership.gave_all_back()
        self.states, self.positions = {}, {}

    def leave(self) -> None:
        """Stop reading, commit, and say so."""
        request = self.membership.leave_request()
        if request is not None:
            self._commit()
            self._call(groups.CONSUMER_GROUP_HEARTBEAT, request, lambda result, error: None)
        self.is_alive = False
        self.membership.gave_all_back()
        self.states, self.positions = {}, {}

    def _is_out(self, call: Callable[..., None], *args: object) -> bool:
        if not self.is_alive:
            return True
        if self.paused_until_us > self.world.now_us:
            self.world.at(self.paused_until_us + self.world.between_us(0, 2), call, *args)
            return True
        return False

    # ------------------------------------------------------------ polling

    def _poll(self) -> None:
        if self._is_out(self._poll):
            return
        self.world.after(POLL_US, self._poll)
        self._hand_over()
        for partition in self.positions:
            if self.membership.change is None or partition in self.membership.owned:
                self.positions[partition] += 1
                self.simulation.read(self, partition)
        self._speak()

    def _hand_over(self) -> None:
        """Begin to give up what is not assigned, and to take what is; a call of the listener takes a moment."""
        member = self.membership
        if member.change is not None or member.fenced is not None:
            return
        if member.is_in_force:
            self._fetch()
            return
        owned, change = member.owned, member.begin_change()
        given_up = [each for each in owned if each not in change.partitions]
        if given_up and not change.is_lost:
            self._commit()
        self.states = dict(change.partitions)
        for partition in [each for each in self.positions if each not in self.states]:
            del self.positions[partition]
        self._fetch()
        takes_ms = self.simulation.faults.revoke_ms * self.world.random.uniform(0.2, 1.5)
        if not given_up:
            takes_ms *= self.world.random.choice(ADDITIONS)
        slow_us = max(0, self.slow_until_us - self.world.now_us) if takes_ms else 0
        if not takes_ms:
            self._changed()
        elif not (given_up and self.is_stuck):
            self.world.after(int(takes_ms * 1000) + slow_us, self._changed)

    def _changed(self) -> None:
        if self._is_out(self._changed):
            return
        self.membership.end_change()
        self.simulation.check()
        self._hand_over()
        self._speak()

    def _fetch(self) -> None:
        """Begin at the committed offsets."""
        member = self.membership
        missing = [each for each in self.states if each not in self.positions and each not in self._fetching]
        if not missing or not member.is_stable:
            return
        epoch, member_id = member.commit_identity
        rows = [groups.OffsetFetchPartition(self.states[each], *each) for each in missing]
        ids = {each: self.states[each] for each in missing}
        self._fetching.update(missing)
        request = groups.OffsetFetchRequest(member.group, rows, False, member_id, epoch)
        self._call(groups.OFFSET_FETCH, request, lambda result, error: self._fetched(ids, result, error))

    def _fetched(self, ids: dict[TopicPartition, str], result: Any, error: RaylogError | None) -> None:
        self._fetching.difference_update(ids)
        if self._is_out(self._fetched, ids, result, error) or error is not None:
            return
        for topic_id, topic, partition, offset, *_ in result:
            place = TopicPartition(topic, partition)
            if self.states.get(place) == topic_id == ids[place]:
                self.positions.setdefault(place, max(0, offset))
                self.world.log("member {} begins {} at {}", self.process, place, offset)

    # ------------------------------------------------------------ commits

    def _commit_regularly(self) -> None:
        if not self._is_out(self._commit_regularly):
            self.world.after(COMMIT_US, self._commit_regularly)
            self._commit()

    def _commit(self) -> None:
        member = self.membership
        epoch, member_id = member.commit_identity
        offsets = dict(self.positions)
        if epoch < 0 or member.lost or not offsets or self._is_committing:
            return
        self._is_committing = True
        rows = [
            groups.OffsetCommitPartition(self.states[each], *each, offset, -1, "") for each, offset in offsets.items()
        ]
        self.world.log("member {} commits {} in epoch {}", self.process, offsets, epoch)
        request = groups.OffsetCommitRequest(member.group, epoch, member_id, rows, member.instance_id)

        def answered(result: Any, error: RaylogError | None) -> None:
            self._is_committing = False
            if error is not None:
                if self.is_alive:
                    self._failed(Kind.COMMIT, error, epoch)
                return
            for row, (_, _, code) in zip(rows, result, strict=True):
                if code == 0:
                    place = Place(row.topic_id, row.topic, row.partition)
                    self.simulation.books.acknowledged(place, row.committed_offset)

        self._call(groups.OFFSET_COMMIT, request, answered)

    # ------------------------------------------------------------ heartbeats

    def _speak(self) -> None:
        """Send a heartbeat: now if there is something to say, else when the last one is answered."""
        member = self.membership
        if member.fenced is not None or (member.lost and not member.is_stable):
            return
        if self._beat and not member.has_to_speak(self.topics):
            return
        if self._beat and member.epoch == 0:
            return  # the join is under way
        if self._beat and self._line is not None:
            self._line.forget(self._beat)
            member.unanswered()
        request = member.heartbeat_request(self.topics)
        timeout_ms = self.simulation.faults.max_wait_ms + self.simulation.faults.session_timeout_ms / 3
        self._beat = -1

        def answered(result: Any, error: RaylogError | None) -> None:
            if self._is_out(answered, result, error) or request.sequence != member.sequence:
                return
            self._beat = 0
            if error is None:
                member.answered(request, groups.CONSUMER_GROUP_HEARTBEAT.read_reply(result))
                self._hand_over()
                if member.has_to_speak(self.topics) or self.simulation.faults.max_wait_ms > 0:
                    self._speak()
            else:
                self._failed(Kind.HEARTBEAT, error, request.member_epoch)

        self._beat = self._call(groups.CONSUMER_GROUP_HEARTBEAT, request, answered, timeout_ms)

    def _failed(self, kind: Kind, error: RaylogError, epoch: int) -> None:
        was = self.membership.epoch
        self.membership.failed(kind, error, generation=epoch)
        if isinstance(error, FencedInstanceId):
            self.simulation.ended(self)
        if isinstance(error, (FencedMemberEpoch, UnknownMemberId)) and was > 0 and self.membership.epoch == 0:
            self.world.log("member {} has lost all: {}", self.process, error)
            self.simulation.lost_all(self, error)

    def _call(self, method: Method[Any, Any], request: Message, answer: Answer, timeout_ms: float = 1_000) -> int:
        line = self._line
        if line is None or line.is_broken or not line.coordinator.is_alive or self.simulation.is_stale(line):
            coordinator = self.simulation.find_coordinator()
            if coordinator is None:
                self.world.after(10_000, answer, None, NotCoordinator("none is known"))
                return -1
            self._line = line = Line(self, coordinator)
        return line.send(method.name, _wire(request), answer, timeout_ms)

    def break_off(self) -> None:
        """Its connection breaks."""
        if self._line is not None:
            self._line.break_off()


def _wire(value: Any) -> Any:
    """Return a message as lists, as it comes off the wire."""
    if isinstance(value, Message):
        return [_wire(getattr(value, name)) for name in value.__struct_fields__]
    if isinstance(value, (list, tuple)):
        return [_wire(each) for each in value]
    return value
