"""The simulator's group coordinator: lives of the actor's shell around the shipped runner, and its ports.

Follows the shell: registers under the next epoch, fences its predecessor with its first append, replays the log into a
runner, appends the batches that the runner produces. Unlike the actor it can die between any two effects, and a
superseded life may continue for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from raylog.actors.coordinators.runner import TICK_MS, fence_row
from raylog.actors.groups.runner import GroupCoordinatorRunner
from raylog.base.errors import (
    CoordinatorLoadInProgress,
    NotCoordinator,
    RaylogError,
    RebalanceInProgress,
    UnknownMemberId,
)
from raylog.base.invariants import InvariantBroken
from raylog.core.coordinators.share import EVERY_KEY
from raylog.core.coordinators.sizes import row_bytes
from raylog.core.decision import Refuse, Reply
from raylog.core.groups import events as ev
from raylog.core.groups.coordinator import GroupCoordinatorMachine
from raylog.core.groups.settings import GroupSettings
from raylog.core.outbox import Outbox
from tests.simulation.groups.answers import Answers
from tests.simulation.groups.books import WALL_AHEAD_MS
from tests.simulation.groups.observed import NOTE_BYTES_MAX, SESSION_MS_MIN
from tests.simulation.groups.times.deadlines import Deadlines
from tests.simulation.groups.topic import Row, Sender
from tests.simulation.groups.transactions.ledgers import POT
from tests.simulation.groups.wire import MEMBER_CALLS, UNDECIDED, Wire
from tests.simulation.groups.wire import Call as Call
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.groups.simulation import GroupSimulation

_TICK_US = 50_000
_RELOAD_US = 200_000
_ROWS_PER_MS = 20
_ANSWER_MS = 3_000
"""What a request may wait for besides its round: the log's leader, and the rows before its own."""
RETENTION_CHECK_MS = 400
ROUND_MORE_MS = 4
"""How much longer than drawn the rebalance timeout of a member may be."""
ROUND_LESS_MS = 300
"""How much shorter it may be."""
PROBE_ROUND_MS = 1_000
"""The rebalance timeout of a client that is only a probe."""
_DELETERS = ("offset_commit", "offset_reset", "offset_delete", "delete_group")
"""Requests that write offsets, or delete them."""


class _WatchedMachine(GroupCoordinatorMachine):
    """The real machine; its steps are reported to the books, and each is validated."""

    def __init__(self, life: Coordinator, settings: GroupSettings) -> None:
        super().__init__(settings=settings, share=EVERY_KEY, new_member_id=life._new_member_id)
        self._life = life

    def step(self, event: ev.Event) -> Outbox[ev.Effect]:
        life = self._life
        life.began(event)
        try:
            out = super().step(event)
            # An invariant broken by a tick without effects is still broken at the next event.
            if life.simulation.validate and (out.now or out.after_sync or not isinstance(event, ev.Tick)):
                self.validate()
        except InvariantBroken as broken:
            raise Violation("machine", broken.claim) from broken
        life.decided(out)
        return out


_Runner = GroupCoordinatorRunner[Call, Row]


class Coordinator:
    """One life, from its registration to its end; it implements the ports of its runner."""

    def __init__(self, simulation: GroupSimulation, life: int) -> None:
        """Prepare; :meth:`start` begins."""
        self.simulation = simulation
        self.world = simulation.world
        self.life = life
        self.epoch = -1
        self.alive = True
        self.paused_until_us = 0
        self.crash_after_effects: int | None = None
        self.runner: _Runner | None = None
        """None = loading."""
        self._loads = 0
        self._requests: dict[int, Call] = {}
        """Requests that this load has received and not answered, by the runner's numbers."""
        self._coming: Call | None = None
        self._due_ms = 0
        """When the runner has requested its next tick for."""
        self._answers = Answers(simulation.books, 0, 0)
        self._deadlines = self._new_deadlines()
        self._event: ev.Event | None = None
        self._last_member = 0
        self._is_writing = self._proposes = False

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Begin to load and to tick."""
        self._load()
        self._tick()

    def _asleep(self, call: Callable[..., None], *args: object) -> bool:
        """True when this life is over, or paused: a paused life makes the call when it resumes."""
        if self.alive and self.paused_until_us > self.world.now_us:
            self.world.at(self.paused_until_us, call, *args)
            return True
        return not self.alive

    def end(self, why: str) -> None:
        """End this life: connections break, parked requests are never answered."""
        if not self.alive:
            return
        self.alive = False
        self.world.log("coordinator {} ends: {}", self.life, why)
        for wire in self.simulation.wires:
            if wire.coordinator is self:
                wire.break_off()
        if self.runner is not None:
            self.runner.end()
        self.simulation.ended(self)

    def _load(self) -> None:
        self.runner = None
        self._is_writing = self._proposes = False
        self._loads += 1
        self.epoch = self.simulation.register(self)
        fence = Row(fence_row(self.epoch), None, self.world.now_ms, self._number, 0, None)
        self.simulation.topic.append(self.epoch, [fence], self._guard(self._fenced_predecessor))

    @property
    def _number(self) -> int:
        """The number of this life in the books: one per load."""
        return self.life * 1000 + self._loads

    def _guard(self, done: Callable[[int], None]) -> Callable[[str, int], None]:
        """Handle the outcome of an append: continue, load again, or end."""
        loads = self._loads

        def outcome(how: str, end: int) -> None:
            if self._loads != loads or self._asleep(outcome, how, end):
                return
            if how == "ok":
                done(end)
            elif how == "fenced":
                self.end("a newer coordinator has taken over")
            else:
                self.world.log("coordinator {} does not know what became of its append", self.life)
                ended, self.runner = self.runner, None
                if ended is not None:
                    ended.end()
                    if self.alive and self._requests:
                        raise Violation("L1", "requests are left without an answer when groups are loaded again")
                self.world.after(_RELOAD_US, self._load_again, loads)

        return outcome

    def _load_again(self, loads: int) -> None:
        if loads == self._loads and not self._asleep(self._load_again, loads):
            self._load()

    def _fenced_predecessor(self, end: int) -> None:
        rows = self.simulation.topic.read(end)
        self.world.after(1000 * (1 + len(rows) // _ROWS_PER_MS), self._replay, self._loads, rows)

    def _replay(self, loads: int, rows: list[Row]) -> None:
        if loads != self._loads or self._asleep(self._replay, loads, rows):
            return
        faults = self.simulation.faults
        settings = GroupSettings(
            initial_rebalance_delay_ms=faults.initial_rebalance_delay_ms,
            min_session_timeout_ms=SESSION_MS_MIN,
            group_max_size=faults.group_max_size,
            offset_metadata_bytes_max=NOTE_BYTES_MAX,
            offsets_retention_ms=faults.retention_ms,
            offsets_retention_check_ms=RETENTION_CHECK_MS,
            sleep_after_ms=faults.sleep_after_ms,
        )
        self._requests = {}
        self._answers = Answers(self.simulation.books, self._number, self.world.now_ms)
        self._deadlines = self._new_deadlines()
        self.runner = runner = _Runner(_WatchedMachine(self, settings), self)
        for row in rows:
            runner.replay(row.key, row.value)
            self._row(row.key, row.value, replayed=True)
        self.simulation.books.loaded(self._number, self.world.now_ms)
        self.world.log("coordinator {} serves in epoch {} after {} rows", self.life, self.epoch, runner.rows_replayed)
        runner.serve()

    def _new_deadlines(self) -> Deadlines:
        faults = self.simulation.faults
        return Deadlines(
            self.simulation.books,
            self.world.now_ms,
            first_delay_ms=min(faults.initial_rebalance_delay_ms, faults.rebalance_timeout_ms - ROUND_LESS_MS),
            round_ms=max(faults.rebalance_timeout_ms + ROUND_MORE_MS, PROBE_ROUND_MS),
        )

    def _new_member_id(self, client_id: str) -> str:
        self._last_member += 1
        member_id = f"{client_id}-{self._number}-{self._last_member}"
        call = self._call
        if call is not None:
            self.simulation.books.gave_id(member_id, call.wire.member.process)
        return member_id

    # ------------------------------------------------------------ events in

    def receive(self, wire: Wire, number: int, method: str, args: list[object]) -> None:
        """A request arrives."""
        if self._asleep(self.receive, wire, number, method, args):
            return
        call = Call(self, wire, number, method, args)
        if self.runner is None or self._proposes:  # after a proposal the machine would refuse it as well
            call.fail(CoordinatorLoadInProgress() if self.runner is None else NotCoordinator())
            return
        if method == "leave_group":
            for member_id, instance in cast("list[tuple[str, str | None]]", args[1]):
                self.simulation.books.leave_requested(call.group, member_id)
                if member_id == "" and (holder := self._answers.holder(call.group, instance)) is not None:
                    self.simulation.books.leave_requested(call.group, holder)
        self._coming = call
        self.runner.receive(call)

    def _tick(self) -> None:
        if not self._asleep(self._tick):
            self.world.after(_TICK_US, self._tick)
            if self.runner is not None:
                self._nothing_is_overdue()
                self.runner.tick()
                if self.alive and any(call.is_deserted for call in self._requests.values()):
                    raise Violation("L1", "a request is kept whose connection has closed")

    def _nothing_is_overdue(self) -> None:
        """Each request is answered in time as long as its coordinator runs and its connection is open."""
        awake_ms, now_ms, faults = self.paused_until_us // 1000, self.world.now_ms, self.simulation.faults
        for call in self._requests.values():
            waits = call.method in ("join_group", "sync_group")
            limit_ms = _ANSWER_MS + (faults.rebalance_timeout_ms + faults.initial_rebalance_delay_ms if waits else 0)
            if now_ms - max(call.came_ms, awake_ms) > limit_ms and not call.is_deserted:
                raise Violation("L1", f"{call.method} of {call.member_id!r} is not answered in {limit_ms} ms")

    # ------------------------------------------------------------ its machine

    @property
    def _call(self) -> Call | None:
        """The request of the current step."""
        return self._requests.get(getattr(self._event, "request", 0))

    def began(self, event: ev.Event) -> None:
        """The machine processes an event."""
        self._event = event
        self.simulation.machine_steps += 1
        request: int = getattr(event, "request", 0)
        call = None
        if request and not isinstance(event, ev.RequestDropped):
            call, self._coming = self._coming, None
        self._deadlines.began(self.world.now_ms)
        if call is not None:
            call.request = request
            self._requests[request] = call
            if not call.is_of_pot:
                self._answers.received(call)
                self._deadlines.received(call)
        elif isinstance(event, ev.RequestDropped) and (dropped := self._requests.pop(request, None)) is not None:
            self._answers.settled(dropped)
            self._deadlines.settled(dropped)
            if dropped.decided is None:
                self._keeps_alive(dropped, dropped.member_id)
        self.world.note(self.life, request)

    def decided(self, out: Outbox[ev.Effect]) -> None:
        """The machine has processed an event: check its answers when they are decided, not when they are sent."""
        answers, deadlines, now_ms = self._answers, self._deadlines, self.world.now_ms
        is_tick = isinstance(self._event, ev.Tick)
        if not (out.now or out.after_sync):
            answers.stepped()
            deadlines.stepped(is_tick=is_tick)
            return
        if is_tick and self.now_ms() + TICK_MS < self._due_ms:
            raise Violation("L1", f"a tick has something to do, and the next one was requested for {self._due_ms} ms")
        effects = [*out.now, *out.after_sync]
        for effect in effects:
            if isinstance(effect, ev.AppendRecords):
                for key, value in effect.records:
                    self._row(key, value, replayed=False)
                self._note_reset(effect.records)
            elif isinstance(effect, (Reply, Refuse)) and not self._requests[effect.request].is_of_pot:
                answers.settled(self._requests[effect.request])
                deadlines.settled(self._requests[effect.request])
            elif isinstance(effect, ev.ProposeSleep):
                self._proposes = True
        for effect in effects:
            if isinstance(effect, Refuse):
                call = self._requests[effect.request]
                call.decided = effect.error
                if call.is_of_pot:
                    continue
                if call.method == "heartbeat" and isinstance(effect.error, RebalanceInProgress):
                    self._keeps_alive(call, call.member_id)
                answers.refused(call, effect.error, now_ms)
                deadlines.refused(call, effect.error)
            elif isinstance(effect, Reply):
                call = self._requests[effect.request]
                call.decided = effect.result
                if call.is_of_pot:
                    continue
                answers.replied(call, effect.result, now_ms)
                deadlines.replied(call, effect.result)
                self._note_activity(call, effect.result)
        answers.stepped()
        deadlines.stepped(is_tick=is_tick)

    def _note_reset(self, rows: Sequence[tuple[list[object], list[object] | None]]) -> None:
        call = self._call
        if call is not None and call.method == "offset_reset":
            size = sum(row_bytes(key, value) for key, value in rows)
            if size <= self.simulation.faults.batch_bytes_max:
                self.simulation.books.reset_decided(self._number, call.request, len(rows))

    def _row(self, key: list[object], value: list[object] | None, *, replayed: bool) -> None:
        if not str(key[1]).startswith(POT):
            self._answers.row(key, value, replayed=replayed)
            self._deadlines.row(key, value, replayed=replayed)

    def _note_activity(self, call: Call, result: Any) -> None:
        """The machine counts a request that it answers without an error as a heartbeat."""
        if call.method == "leave_group":
            self.simulation.books.left(self._number, call.group)
        if call.method in MEMBER_CALLS:
            member_id = str(result[3]) if call.method == "join_group" else call.member_id
            self._keeps_alive(call, member_id)
            if call.method == "sync_group":
                self.simulation.books.synced(self._number, call.group, member_id, call.args[1], self.world.now_ms)

    def _keeps_alive(self, call: Call, member_id: str) -> None:
        self.simulation.books.active(self._number, call.group, member_id, self.world.now_ms)

    def answer(self, call: Call, result: object, error: RaylogError | None) -> None:
        """Send an answer, unless this life ends first; the books check it."""
        self._requests.pop(call.request, None)
        if self._dies_here():
            return
        if isinstance(error, UNDECIDED) and self.runner is not None and not self._proposes:
            raise Violation("I15", f"{call.method} is refused with {type(error).__name__} by the coordinator")
        if call.is_of_pot:
            if self.epoch >= self.simulation.topic.epoch:
                self.simulation.ledgers.answered(call, result, error)
            call.wire.answer(call.number, result, error)
            return
        books = self.simulation.books
        instance = call.wire.member.membership.instance_id
        if isinstance(error, UnknownMemberId) and instance is not None and call.method != "leave_group":
            books.taken_for_a_stranger(self._number, call.group, call.member_id, instance, self.world.now_ms)
        if error is None and call.method == "offset_commit":
            accepted = [code for _, _, code in cast("list[tuple[str, int, int]]", result) if code == 0]
            books.commit_answered(self._number, call.request, len(accepted))
        if error is None and call.method == "offset_reset":
            books.commit_answered(self._number, call.request, len(call.args[2]))
        if error is None and call.method in ("join_group", "sync_group"):
            is_join = call.method == "join_group"
            generation = cast("list[int]", result)[0] if is_join else call.args[1]
            books.generation_answered(call.group, generation, is_stable=not is_join)
        if error is None and call.method == "offset_fetch" and self.epoch >= self.simulation.topic.epoch:
            # A superseded coordinator may answer with old offsets until it notices; Kafka's can too.
            books.offsets_answered(call.group, call.at_end, cast("list[list[object]]", result))
        call.wire.answer(call.number, result, error)

    def _dies_here(self) -> bool:
        if self.crash_after_effects is not None:
            self.crash_after_effects -= 1
            if self.crash_after_effects <= 0:
                self.end("between two effects")
        return not self.alive

    # ------------------------------------------------------------ the runner's ports

    def now_ms(self) -> int:
        """Return the time of this host's clock, which started with the host."""
        return self.world.now_ms + 7_919 * self.life

    def wall_ms(self) -> int:
        """Return the time of day."""
        return self.world.now_ms + WALL_AHEAD_MS

    def row(self, key: list[object], value: list[object] | None) -> tuple[Row, int]:
        """Return a row with its observer's notes, and its size."""
        call = self._call
        sender = _sender(call) if call is not None and call.method in _DELETERS else None
        request = 0 if call is None else call.request
        size = row_bytes(key, value)
        return Row(key, value, self.world.now_ms, self._number, request, sender, size), size

    def row_bytes_max(self) -> int:
        """Return the bytes of the largest row that the log takes."""
        return 1_000_000

    def tick_at(self, due_ms: int) -> None:
        """Note it. This world ticks all the time: it checks that a tick was requested when one has something to do."""
        self._due_ms = due_ms

    def wake_writer(self) -> None:
        """Append the pending rows, unless a batch is in flight."""
        if not self._dies_here() and not self._is_writing:
            self._write()

    def _write(self) -> None:
        runner = self.runner
        rows = [] if runner is None else runner.take_batch(self.simulation.faults.batch_bytes_max)
        self._is_writing = bool(rows)
        if rows:
            self.simulation.books.sent(rows)
            self.simulation.topic.append(self.epoch, rows, self._guard(self._written))

    def _written(self, end: int) -> None:
        if self.runner is not None:
            self.runner.stored()
            self._write()

    def propose_sleep(self) -> None:
        """The controller decides a moment later: this life ends, or serves on."""
        if self._dies_here():
            return
        if self._requests:
            raise Violation("L1", "the coordinator proposes to end, and requests are left without an answer")
        if self.runner is not None and (members := [each for each in self.runner.census() if each.members]):
            raise Violation("I15", f"the coordinator proposes to end, and has members: {members}")
        self.world.after(self.world.between_us(1, 20), self._sleep_decided, self._loads)

    def _sleep_decided(self, loads: int) -> None:
        if loads != self._loads or self._asleep(self._sleep_decided, loads) or self.runner is None:
            return
        self._proposes = False
        if self.world.chance(self.simulation.faults.sleep_refused):
            self.runner.sleep_refused()
        else:
            self.end("its groups are not used")

    def look_up_topics(self, topics: Sequence[str]) -> None:
        """Never here: these groups use the classic protocol."""
        raise Violation("I15", f"topics {topics} are looked up for a group of the classic protocol")

    def fatal(self, reason: str) -> None:
        """A defect ends the run."""
        raise Violation("I15", f"coordinator {self.life}: {reason}")


def _sender(call: Call) -> Sender:
    generation = call.args[1] if call.method == "offset_commit" else -1
    member = call.wire.member
    return Sender(member.process, call.member_id, generation, call.number in member.moved_back)
