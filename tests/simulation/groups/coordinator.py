"""The simulator's group coordinator: lives of the shell around the real CoordinatorMachine, and who finds which.

Does what the actor shell does: registers under the next epoch, fences its predecessor with its first append, replays
the log, answers; replies wait for the rows of their step. Unlike the actor it can die between any two effects, and a
superseded life may go on for a while.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from raylog.actors.group_requests import event_for
from raylog.core.decision import Refuse, Reply
from raylog.core.errors import CoordinatorLoadInProgress, NotCoordinator, RaylogError, UnknownMemberId
from raylog.core.groups import events as ev
from raylog.core.groups.coordinator import CoordinatorMachine
from raylog.core.groups.settings import GroupSettings
from raylog.core.groups.sizes import row_bytes
from raylog.core.groups.writing import WriteQueue
from raylog.core.invariants import InvariantBroken
from raylog.core.outbox import Outbox
from raylog.rpc import Request
from tests.simulation.groups.topic import Row, Sender
from tests.simulation.groups.wire import Wire
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.groups.simulation import GroupSimulation

_TICK_US = 50_000
_RELOAD_US = 200_000
_ROWS_PER_MS = 20

MEMBER_CALLS = ("join_group", "sync_group", "heartbeat", "offset_commit")


class Asked:
    """One request that a life of the coordinator has taken in."""

    __slots__ = ("args", "at_end", "came_ms", "method", "number", "wire")

    def __init__(self, wire: Wire, number: int, method: str, args: list[object], came_ms: int, at_end: int) -> None:
        """``at_end``: where the log ended when the request came."""
        self.wire = wire
        self.number = number
        self.method = method
        self.args = args
        self.came_ms = came_ms
        self.at_end = at_end

    @property
    def member_id(self) -> str:
        """The member that speaks."""
        at = 1 if self.method == "join_group" else 2
        return str(self.args[at]) if self.method in MEMBER_CALLS else ""

    @property
    def group(self) -> str:
        """The group that is meant."""
        return str(self.args[0])


class Coordinator:
    """One life, from its registration to its end."""

    def __init__(self, simulation: GroupSimulation, life: int) -> None:
        """Prepare; :meth:`load` begins."""
        self.simulation = simulation
        self.world = simulation.world
        self.life = life
        self.epoch = -1
        self.alive = True
        self.paused_until_us = 0
        self.crash_after_effects: int | None = None
        self.machine: CoordinatorMachine | None = None
        self._loads = 0
        self._requests: dict[int, Asked] = {}
        self._last_number = 0
        self._last_member = 0
        self._queue: WriteQueue[Row, ev.Effect] = WriteQueue(simulation.faults.batch_bytes_max)
        self._event_request: Asked | None = None
        self._log = ev.LogExtent(end_offset=0, size_bytes=0)

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Begin to load and to tick."""
        self._load()
        self._tick()

    def _asleep(self, call: Callable[..., None], *args: object) -> bool:
        """True when this life is over, or paused: then the call is made when it wakes up."""
        if self.alive and self.paused_until_us > self.world.now_us:
            self.world.at(self.paused_until_us, call, *args)
            return True
        return not self.alive

    def end(self, why: str) -> None:
        """End this life: connections break, parked requests are never answered."""
        if not self.alive:
            return
        self.alive = False
        self.world.tell("coordinator {} ends: {}", self.life, why)
        for wire in self.simulation.wires:
            if wire.coordinator is self:
                wire.break_off()
        self.simulation.ended(self)

    def _load(self) -> None:
        self.machine = None
        self._loads += 1
        self.epoch = self.simulation.register(self)
        fence = Row(["fence", self.epoch], None, self.world.now_ms, self._number, 0, None)
        self.simulation.topic.append(self.epoch, [fence], self._guard(self._fenced_predecessor))

    @property
    def _number(self) -> int:
        """The life as the books know it: each load is one."""
        return self.life * 1000 + self._loads

    def _guard(self, done: Callable[[int], None]) -> Callable[[str, int], None]:
        """Take the outcome of an append: go on, load again, or end."""
        loads = self._loads

        def outcome(how: str, end: int) -> None:
            if self._loads != loads or self._asleep(outcome, how, end):
                return
            if how == "ok":
                done(end)
            elif how == "fenced":
                self.end("a newer coordinator has taken over")
            else:
                self.world.tell("coordinator {} does not know what became of its append", self.life)
                self._forget()
                self.world.after(_RELOAD_US, self._load_again, loads)

        return outcome

    def _load_again(self, loads: int) -> None:
        if loads == self._loads and not self._asleep(self._load_again, loads):
            self._load()

    def _fenced_predecessor(self, end: int) -> None:
        rows = self.simulation.topic.read(end)
        size = sum(row_bytes(row.key, row.value) for row in rows)
        self._log = ev.LogExtent(end_offset=end, size_bytes=size)
        self.world.after(1000 * (1 + len(rows) // _ROWS_PER_MS), self._replay, self._loads, rows)

    def _replay(self, loads: int, rows: list[Row]) -> None:
        if loads != self._loads or self._asleep(self._replay, loads, rows):
            return
        faults = self.simulation.faults
        settings = GroupSettings(
            initial_rebalance_delay_ms=faults.initial_rebalance_delay_ms,
            min_session_timeout_ms=100,
            rewrite_floor_bytes=faults.rewrite_floor_bytes,
            rewrite_chunk_bytes=faults.rewrite_chunk_bytes,
            trim_retry_ms=1_000,
        )
        machine = CoordinatorMachine(settings=settings, new_member_id=self._new_member_id)
        for row in rows:
            if row.key[0] != "fence":
                machine.replay(row.key, row.value)
        self.machine = machine
        self.simulation.books.loaded(self._number, self.world.now_ms)
        self.world.tell("coordinator {} serves in epoch {} after {} rows", self.life, self.epoch, len(rows))
        self._perform(machine.loaded(self.world.now_ms, wall_ms=self.world.now_ms), None)

    def _new_member_id(self, client_id: str) -> str:
        self._last_member += 1
        member_id = f"{client_id}-{self._number}-{self._last_member}"
        if self._event_request is not None:
            self.simulation.books.gave_id(member_id, self._event_request.wire.member.process)
        return member_id

    def _forget(self) -> None:
        self.machine = None
        self._queue.clear()
        requests, self._requests = self._requests, {}
        for asked in requests.values():
            asked.wire.answer(asked.number, None, NotCoordinator("loading again"))

    # ------------------------------------------------------------ events in

    def receive(self, wire: Wire, number: int, method: str, args: list[object]) -> None:
        """A request arrives."""
        if self._asleep(self.receive, wire, number, method, args):
            return
        if self.machine is None:
            wire.answer(number, None, CoordinatorLoadInProgress())
            return
        asked = Asked(wire, number, method, args, self.world.now_ms, self.simulation.topic.end)
        self._last_number += 1
        event = event_for(cast(Request, asked), self._last_number, self.world.now_ms)
        self._requests[self._last_number] = asked
        if isinstance(event, ev.LeaveReceived):
            for member_id, _ in event.members:
                self.simulation.books.asked_to_leave(event.group, member_id)
        self._step(event, asked)

    def _step(self, event: ev.Event, asked: Asked | None) -> None:
        machine = self.machine
        if machine is None:
            return
        self.simulation.machine_steps += 1
        self.world.note(self.life, self._last_number)
        self._event_request = asked
        try:
            out = machine.step(event)
            if self.simulation.validate:
                machine.validate()
        except InvariantBroken as broken:
            raise Violation("machine", broken.claim) from broken
        self._perform(out, asked)

    def _tick(self) -> None:
        if self._asleep(self._tick):
            return
        self.world.after(_TICK_US, self._tick)
        deserted = [number for number, asked in self._requests.items() if asked.wire.broken]
        for number in deserted:
            del self._requests[number]
            self._step(ev.RequestDropped(cause="lost", now_ms=self.world.now_ms, request=number), None)
        if self.machine is not None:
            now_ms = self.world.now_ms
            self._step(ev.Tick(cause="tick", now_ms=now_ms, wall_ms=now_ms, log=self._log), None)

    # ------------------------------------------------------------ effects out

    def _perform(self, out: Outbox[ev.Effect], asked: Asked | None) -> None:
        rows: list[Row] = []
        for effect in out.now:
            if isinstance(effect, ev.AppendRecords):
                sender = _sender(asked) if asked is not None and asked.method == "offset_commit" else None
                rows.extend(
                    Row(list(key), value, self.world.now_ms, self._number, self._last_number, sender)
                    for key, value in effect.records
                )
            else:
                self._release([effect])
            if self._dies_here():
                return
        for effect in out.after_sync:
            self._heard(effect)
        self._release(self._queue.add([(row, row_bytes(row.key, row.value)) for row in rows], out.after_sync))
        self._write()

    def _write(self) -> None:
        while self.alive and not self._queue.is_idle and not self._queue.is_under_way:
            rows = self._queue.take()
            if rows:
                self.simulation.topic.append(self.epoch, rows, self._guard(partial(self._written, rows)))
                return
            self._release(self._queue.stored())

    def _written(self, rows: list[Row], end: int) -> None:
        size = sum(row_bytes(row.key, row.value) for row in rows)
        self._log = ev.LogExtent(end_offset=end, size_bytes=self._log.size_bytes + size)
        self._release(self._queue.stored())
        self._write()

    def _heard(self, effect: ev.Effect) -> None:
        """The machine takes what it answers well for a sign of life, when it decides to, not when the answer goes."""
        if isinstance(effect, Reply):
            asked = self._requests.get(effect.request)
            if asked is not None:
                member_id = str(effect.result[3]) if asked.method == "join_group" else asked.member_id  # type: ignore[index]
                self.simulation.books.heard(self._number, asked.group, member_id, self.world.now_ms)
                if asked.method == "sync_group":
                    self.simulation.books.synced(asked.group, member_id, cast(int, asked.args[1]))

    def _release(self, effects: list[ev.Effect]) -> None:
        for effect in effects:
            if self._dies_here():
                return
            if isinstance(effect, ev.AppendRecords):
                raise Violation("machine", "records come behind the effects that wait for them")
            if isinstance(effect, ev.ReportStored):
                self._step(ev.RowsStored(cause=effect.cause, now_ms=self.world.now_ms), None)
                continue
            if isinstance(effect, ev.TrimLog):
                self.world.tell("coordinator {} deletes what is below {}", self.life, effect.before_offset)
                self.simulation.topic.trim(effect.before_offset, partial(self._trimmed, self._loads, effect))
                continue
            asked = self._requests.pop(effect.request, None)
            if asked is not None:
                result = effect.result if isinstance(effect, Reply) else None
                self._answer(asked, effect.request, result, effect.error if isinstance(effect, Refuse) else None)

    def _trimmed(self, loads: int, effect: ev.TrimLog) -> None:
        if loads == self._loads and not self._asleep(self._trimmed, loads, effect):
            event = ev.LogTrimmed(cause=effect.cause, now_ms=self.world.now_ms, before_offset=effect.before_offset)
            self._step(event, None)

    def _answer(self, asked: Asked, request: int, result: object, error: RaylogError | None) -> None:
        books = self.simulation.books
        instance = asked.wire.member.membership.instance_id
        if isinstance(error, UnknownMemberId) and instance is not None and asked.method != "leave_group":
            books.taken_for_a_stranger(self._number, asked.group, asked.member_id, instance, self.world.now_ms)
        if error is None and asked.method == "offset_commit":
            books.commit_answered(self._number, request, len(cast("list[object]", asked.args[3])))
        if error is None and asked.method == "offset_fetch" and self.epoch >= self.simulation.topic.epoch:
            # A superseded coordinator may tell old offsets for the moment until it notices; Kafka's can too.
            books.offsets_answered(asked.group, asked.at_end, cast("list[list[object]]", result))
        asked.wire.answer(asked.number, result, error)

    def _dies_here(self) -> bool:
        if self.crash_after_effects is not None:
            self.crash_after_effects -= 1
            if self.crash_after_effects <= 0:
                self.end("between two effects")
        return not self.alive


def _sender(asked: Asked) -> Sender:
    generation = asked.args[1]
    assert isinstance(generation, int)
    member = asked.wire.member
    return Sender(member.process, asked.member_id, generation, asked.number in member.asked_back)
