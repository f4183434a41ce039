"""One life of a group coordinator: the real runner and machine on a virtual log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from raylog.actors.coordinators.runner import TICK_MS
from raylog.actors.groups.runner import GroupCoordinatorRunner
from raylog.base.errors import CoordinatorLoadInProgress, RaylogError
from raylog.base.invariants import InvariantBroken
from raylog.core.coordinators.share import EVERY_KEY
from raylog.core.coordinators.sizes import row_bytes
from raylog.core.groups.consumer_records import MemberChanged
from raylog.core.groups.coordinator import GroupCoordinatorMachine
from raylog.core.groups.events import Event
from raylog.core.groups.settings import GroupSettings
from raylog.core.outbox import Outbox
from raylog.protocol.groups import OFFSET_COMMIT
from tests.simulation.consumers.books import Row
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.consumers.member import Line
    from tests.simulation.consumers.simulation import ConsumerSimulation

TICK_US = 50_000
LOOKUP_MS = 10.0


class Call:
    """One request as the runner sees it."""

    def __init__(self, life: Coordinator, line: Line, number: int, method: str, args: object) -> None:
        """``number`` is the request's on its line."""
        self.life, self.line, self.number, self.method, self.args = life, line, number, method, args
        self.is_answered = False

    @property
    def is_deserted(self) -> bool:
        """Whether the connection broke."""
        return self.line.is_broken

    @property
    def grant(self) -> None:
        """It has proved a secret."""

    @property
    def peer_host(self) -> str:
        """The host of its sender."""
        return "here"

    def reply(self, args: object = None, payload: object = b"") -> None:
        """Answer."""
        self._answer(args, None)

    def fail(self, error: BaseException) -> None:
        """Answer with an error."""
        self._answer(None, cast(RaylogError, error))

    def _answer(self, result: object, error: RaylogError | None) -> None:
        if self.is_answered:
            raise Violation("L6", f"{self.method} is answered twice")
        self.is_answered = True
        if self.life.is_alive:
            self.line.answer(self.number, result, error)


class _Checked(GroupCoordinatorMachine):
    """The machine, which checks itself after each step."""

    is_checked = True
    had_effects = False
    """Whether the last step had any."""

    def step(self, event: Event) -> Outbox[object]:  # type: ignore[override]
        out = super().step(event)
        self.had_effects = bool(out.now or out.after_sync)
        if self.is_checked:
            try:
                self.validate()
            except InvariantBroken as broken:
                raise Violation("machine", str(broken)) from broken
        return cast("Outbox[object]", out)


class Coordinator:
    """One process, through as many loads as it takes."""

    def __init__(self, simulation: ConsumerSimulation, life: int) -> None:
        """:meth:`load` begins it."""
        self.simulation, self.world, self.life = simulation, simulation.world, life
        self.is_alive = True
        self.paused_until_us = 0
        self.runner: GroupCoordinatorRunner[Call, Row] | None = None
        self.machine: _Checked | None = None
        self._due_ms = 0
        """When the runner has requested its next tick for."""
        self._loads = 0
        self._is_writing = False
        self._calls: list[Call] = []

    def load(self) -> None:
        """Fence earlier lives, read the log, serve."""
        if not self.is_alive or self._is_asleep(self.load):
            return
        if self.simulation.fence > self.life:
            self.end()  # its successor has registered
            return
        self._loads += 1
        self._is_writing = False
        self.simulation.fence = self.life
        self.world.after(self.world.between_us(1, 30), self._serve, self._loads)

    def _serve(self, loads: int) -> None:
        if loads != self._loads or not self.is_alive or self._is_asleep(self._serve, loads):
            return
        if self.simulation.fence != self.life:
            self.is_alive = False
            return
        settings = GroupSettings(min_session_timeout_ms=100, assignment_interval_ms=50, topics_check_ms=300)
        self.machine = _Checked(settings=settings, share=EVERY_KEY, new_member_id=lambda client_id: client_id)
        self.machine.is_checked = self.simulation.validate
        self.runner = GroupCoordinatorRunner(self.machine, self)
        for key, value in self.simulation.rows:
            self.runner.replay(key, value)
        self.runner.serve()
        self._knows_the_log()
        self.world.log("coordinator {} serves after {} rows", self.life, len(self.simulation.rows))
        self.world.after(TICK_US, self._tick, loads)

    def _knows_the_log(self) -> None:
        books, machine = self.simulation.books.group, self.machine
        held = machine._consumers.get(books.name) if machine is not None else None
        state = None if held is None else held.hard_state()
        if state != (None if books.is_blank else books.hard_state()):
            raise Violation("CL5", f"the coordinator has loaded {state}, and the log says {books.hard_state()}")

    def end(self) -> None:
        """The process dies: what it has not appended is lost, and its connections close."""
        self.is_alive = False
        self.runner = None

    def receive(self, line: Line, number: int, method: str, args: object) -> None:
        """A request arrives."""
        if not self.is_alive:
            return
        if self.paused_until_us > self.world.now_us:  # each line keeps its order, and no line waits for another
            # Commits do: the simulated clients do not cope with one that comes behind a later one, as Kafka's do not.
            lag_us = 0 if method == OFFSET_COMMIT.name else line.lag_us
            self.world.at(self.paused_until_us + lag_us, self.receive, line, number, method, args)
            return
        call = Call(self, line, number, method, args)
        if self.runner is None:
            call.fail(CoordinatorLoadInProgress())
        else:
            self.runner.receive(call)

    def _is_asleep(self, call: object, *args: object) -> bool:
        """A paused process does everything later; what has queued up meanwhile comes in any order."""
        if self.paused_until_us <= self.world.now_us:
            return False
        self.world.at(self.paused_until_us + self.world.between_us(0, 2), call, *args)  # type: ignore[arg-type]
        return True

    def _tick(self, loads: int) -> None:
        if loads != self._loads or self.runner is None or self._is_asleep(self._tick, loads):
            return
        self.world.after(TICK_US, self._tick, loads)
        due_ms = self._due_ms
        self.runner.tick()
        if self.machine is not None and self.machine.had_effects and self.now_ms() + TICK_MS < due_ms:
            raise Violation("CL6", f"a tick has something to do, and the next one was requested for {due_ms} ms")

    # ------------------------------------------------------------ the runner's ports

    def now_ms(self) -> int:
        """Return this host's clock."""
        return self.world.now_ms + 7_919 * self.life

    def wall_ms(self) -> int:
        """Return the time of day."""
        return self.world.now_ms + 1_700_000_000_000

    def row(self, key: list[object], value: list[object] | None) -> tuple[Row, int]:
        """Return a row and its size."""
        if key[0] == MemberChanged.KIND and value is None:
            self.simulation.books.removed.add(str(key[2]))
        return (key, value), row_bytes(key, value)

    def row_bytes_max(self) -> int:
        """Return the bytes of the largest row that the log takes."""
        return 1_000_000

    def tick_at(self, due_ms: int) -> None:
        """Note it. This world ticks all the time: it checks that a tick was requested when one has something to do."""
        self._due_ms = due_ms

    def wake_writer(self) -> None:
        """Append what waits, one batch at a time."""
        if not self._is_writing and self.runner is not None:
            rows = self.runner.take_batch(self.simulation.faults.batch_bytes_max)
            if rows:
                self._is_writing = True
                delay_us = self.world.between_us(0.1, 2 * self.simulation.faults.append_ms)
                self.world.after(delay_us, self._append, self._loads, rows)

    def _append(self, loads: int, rows: list[Row]) -> None:
        """The batch reaches the log, whatever became of its sender; unless a successor has fenced it."""
        if self.simulation.fence != self.life:
            if self.is_alive and not self._is_asleep(self._append, loads, rows):
                self.world.log("coordinator {} is fenced", self.life)
                self.end()
            return
        fails = self.world.chance(self.simulation.faults.append_fails) and not self.simulation.is_healed
        if not (fails and self.world.chance(0.5)):
            self.simulation.append(rows)
        self._appended(loads, fails)

    def _appended(self, loads: int, fails: bool) -> None:
        if loads != self._loads or self.runner is None or self._is_asleep(self._appended, loads, fails):
            return
        self._is_writing = False
        if fails:
            self.world.log("coordinator {} does not know what became of its append", self.life)
            runner, self.runner = self.runner, None
            runner.end()
            self.world.after(self.world.between_us(1, 50), self.load)
        else:
            self.runner.stored()
            self.wake_writer()

    def propose_sleep(self) -> None:
        """Never here: the machine's settings say so."""
        raise Violation("L1", "the coordinator wants to end")

    def look_up_topics(self, topics: Sequence[str]) -> None:
        """Fetch metadata, which takes a moment and may fail."""
        self.world.after(self.world.between_us(0.5, LOOKUP_MS), self._looked_up, self._loads, tuple(topics))

    def _looked_up(self, loads: int, requested: tuple[str, ...]) -> None:
        if loads != self._loads or self.runner is None or self._is_asleep(self._looked_up, loads, requested):
            return
        if not self.world.chance(0.0 if self.simulation.is_healed else 0.1):
            known = {topic: facts for topic, facts in self.simulation.topics.items() if topic in requested}
            self.runner.topics_seen(requested, known, self.now_ms())

    def fatal(self, reason: str) -> None:
        """A defect ends the run."""
        raise Violation("I15", f"coordinator {self.life}: {reason}")
