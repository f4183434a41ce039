"""The simulator's group coordinator: lives of the actor's shell around the shipped runner, and its ports.

Does what the shell does: registers under the next epoch, fences its predecessor with its first append, replays the log
into a runner, appends the batches that the runner gives it. Unlike the actor it can die between any two effects, and a
superseded life may go on for a while.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from raylog.actors.group_coordinator_runner import GroupCoordinatorRunner, fence_row
from raylog.core.decision import Reply
from raylog.core.errors import CoordinatorLoadInProgress, RaylogError, UnknownMemberId
from raylog.core.groups import events as ev
from raylog.core.groups.coordinator import CoordinatorMachine
from raylog.core.groups.settings import GroupSettings
from raylog.core.groups.sizes import row_bytes
from raylog.core.invariants import InvariantBroken
from raylog.core.outbox import Outbox
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
    """One request that a life of the coordinator has taken in, as its runner sees it."""

    __slots__ = ("_life", "args", "at_end", "came_ms", "method", "number", "request", "wire")

    def __init__(self, life: Coordinator, wire: Wire, number: int, method: str, args: Any) -> None:
        """``number`` is the one that the wire knows it by."""
        self._life = life
        self.wire = wire
        self.number = number
        self.method = method
        self.args = args
        self.came_ms = life.world.now_ms
        self.at_end = life.simulation.topic.end
        """Where the log ended when the request came."""
        self.request = 0
        """The runner's number."""

    @property
    def member_id(self) -> str:
        """The member that speaks."""
        at = 1 if self.method == "join_group" else 2
        return str(self.args[at]) if self.method in MEMBER_CALLS else ""

    @property
    def group(self) -> str:
        """The group that is meant."""
        return str(self.args[0])

    @property
    def is_deserted(self) -> bool:
        """Whether the connection broke."""
        return self.wire.broken

    def reply(self, args: object = None, payload: object = b"") -> None:
        """Answer, unless the process dies before that."""
        self._life.answer(self, args, None)

    def fail(self, error: BaseException) -> None:
        """Answer with an error, unless the process dies before that."""
        self._life.answer(self, None, cast(RaylogError, error))


class _WatchedMachine(CoordinatorMachine):
    """The real machine; the books hear of its steps, and each is validated."""

    def __init__(self, life: Coordinator, settings: GroupSettings) -> None:
        super().__init__(settings=settings, new_member_id=life._new_member_id)
        self._life = life

    def step(self, event: ev.Event) -> Outbox[ev.Effect]:
        life = self._life
        life.began(event)
        try:
            out = super().step(event)
            if life.simulation.validate:
                self.validate()
        except InvariantBroken as broken:
            raise Violation("machine", broken.claim) from broken
        life.decided(out)
        return out


_Runner = GroupCoordinatorRunner[Asked, Row]


class Coordinator:
    """One life, from its registration to its end; it is the ports of its runner."""

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
        self._requests: dict[int, Asked] = {}
        """What this load has taken in and not answered, by the runner's numbers."""
        self._coming: Asked | None = None
        self._event: ev.Event | None = None
        self._last_member = 0
        self._is_writing = False
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
        if self.runner is not None:
            self.runner.end()
        self.simulation.ended(self)

    def _load(self) -> None:
        self.runner = None
        self._is_writing = False
        self._loads += 1
        self.epoch = self.simulation.register(self)
        fence = Row(fence_row(self.epoch), None, self.world.now_ms, self._number, 0, None)
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
                if self.runner is not None:
                    self.runner.end()
                    self.runner = None
                self.world.after(_RELOAD_US, self._load_again, loads)

        return outcome

    def _load_again(self, loads: int) -> None:
        if loads == self._loads and not self._asleep(self._load_again, loads):
            self._load()

    def _fenced_predecessor(self, end: int) -> None:
        rows = self.simulation.topic.read(end)
        size = sum(row.size for row in rows)
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
        self._requests = {}
        self.runner = runner = _Runner(_WatchedMachine(self, settings), self)
        for row in rows:
            runner.replay(row.key, row.value)
        self.simulation.books.loaded(self._number, self.world.now_ms)
        self.world.tell("coordinator {} serves in epoch {} after {} rows", self.life, self.epoch, runner.rows_replayed)
        runner.serve()

    def _new_member_id(self, client_id: str) -> str:
        self._last_member += 1
        member_id = f"{client_id}-{self._number}-{self._last_member}"
        asked = self._asked
        if asked is not None:
            self.simulation.books.gave_id(member_id, asked.wire.member.process)
        return member_id

    # ------------------------------------------------------------ events in

    def receive(self, wire: Wire, number: int, method: str, args: list[object]) -> None:
        """A request arrives."""
        if self._asleep(self.receive, wire, number, method, args):
            return
        asked = Asked(self, wire, number, method, args)
        if self.runner is None:
            asked.fail(CoordinatorLoadInProgress())
            return
        if method == "leave_group":
            for member_id, _ in cast("list[tuple[str, str | None]]", args[1]):
                self.simulation.books.asked_to_leave(asked.group, member_id)
        self._coming = asked
        self.runner.receive(asked)

    def _tick(self) -> None:
        if not self._asleep(self._tick):
            self.world.after(_TICK_US, self._tick)
            if self.runner is not None:
                self.runner.tick()

    # ------------------------------------------------------------ what its machine does

    @property
    def _asked(self) -> Asked | None:
        """The request of the step that is under way."""
        return self._requests.get(getattr(self._event, "request", 0))

    def began(self, event: ev.Event) -> None:
        """The machine takes an event."""
        self._event = event
        self.simulation.machine_steps += 1
        request: int = getattr(event, "request", 0)
        asked, self._coming = self._coming, None
        if asked is not None:
            asked.request = request
            self._requests[request] = asked
        self.world.note(self.life, request)

    def decided(self, out: Outbox[ev.Effect]) -> None:
        """The machine takes what it answers well for a sign of life, when it decides to, not when the answer goes."""
        for effect in out.after_sync:
            if isinstance(effect, Reply):
                asked = self._requests[effect.request]
                member_id = str(effect.result[3]) if asked.method == "join_group" else asked.member_id  # type: ignore[index]
                self.simulation.books.heard(self._number, asked.group, member_id, self.world.now_ms)
                if asked.method == "sync_group":
                    self.simulation.books.synced(asked.group, member_id, cast(int, asked.args[1]))

    def answer(self, asked: Asked, result: object, error: RaylogError | None) -> None:
        """Send an answer, unless this life ends before it; the books look at it."""
        self._requests.pop(asked.request, None)
        if self._dies_here():
            return
        books = self.simulation.books
        instance = asked.wire.member.membership.instance_id
        if isinstance(error, UnknownMemberId) and instance is not None and asked.method != "leave_group":
            books.taken_for_a_stranger(self._number, asked.group, asked.member_id, instance, self.world.now_ms)
        if error is None and asked.method == "offset_commit":
            books.commit_answered(self._number, asked.request, len(cast("list[object]", asked.args[3])))
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

    # ------------------------------------------------------------ the runner's ports

    def now_ms(self) -> int:
        """Return the virtual time."""
        return self.world.now_ms

    def wall_ms(self) -> int:
        """Return the virtual time: its day began with the run."""
        return self.world.now_ms

    def log_extent(self) -> ev.LogExtent:
        """Return how far the log is known to be stored."""
        return self._log

    def row(self, key: list[object], value: list[object] | None) -> tuple[Row, int]:
        """Return a row with what an observer knows about it, and its size."""
        asked = self._asked
        sender = _sender(asked) if asked is not None and asked.method == "offset_commit" else None
        request = 0 if asked is None else asked.request
        size = row_bytes(key, value)
        return Row(key, value, self.world.now_ms, self._number, request, sender, size), size

    def wake_writer(self) -> None:
        """Append the rows that wait, unless a batch is under way."""
        if not self._dies_here() and not self._is_writing:
            self._write()

    def _write(self) -> None:
        runner = self.runner
        rows = [] if runner is None else runner.take_batch(self.simulation.faults.batch_bytes_max)
        self._is_writing = bool(rows)
        if rows:
            self.simulation.topic.append(self.epoch, rows, self._guard(partial(self._written, rows)))

    def _written(self, rows: list[Row], end: int) -> None:
        size = sum(row.size for row in rows)
        self._log = ev.LogExtent(end_offset=end, size_bytes=self._log.size_bytes + size)
        if self.runner is not None:
            self.runner.stored()
            self._write()

    def trim(self, before_offset: int) -> None:
        """Delete the beginning of the log after a while, if it succeeds."""
        if not self._dies_here():
            self.world.tell("coordinator {} deletes what is below {}", self.life, before_offset)
            self.simulation.topic.trim(before_offset, partial(self._trimmed, self._loads, before_offset))

    def _trimmed(self, loads: int, before_offset: int) -> None:
        if loads == self._loads and not self._asleep(self._trimmed, loads, before_offset) and self.runner is not None:
            self.runner.trimmed(before_offset)

    def fatal(self, reason: str) -> None:
        """A defect ends the run: the runner raises it."""
        self.world.tell("coordinator {}: {}", self.life, reason)


def _sender(asked: Asked) -> Sender:
    generation = asked.args[1]
    assert isinstance(generation, int)
    member = asked.wire.member
    return Sender(member.process, asked.member_id, generation, asked.number in member.asked_back)
