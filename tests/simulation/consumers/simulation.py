"""One run of the consumer protocol's world: troubles until T, then heal, and every partition is read again in time."""

from __future__ import annotations

from collections.abc import Callable

from raylog.base.ids import TopicPartition
from raylog.core.groups.consumer_records import Place
from tests.simulation.consumers.books import Books, Row
from tests.simulation.consumers.coordinator import Coordinator
from tests.simulation.consumers.faults import LATE_MS, ConsumerFaults
from tests.simulation.consumers.member import Line, Member
from tests.simulation.world import Violation, World

GROUP = "readers"
MARGIN_MS = 3_000
"""The last pause, messages, look-ups and appends, on top of the timeouts that a group may have to wait for."""


class ConsumerSimulation:
    """One coordinator's log, its lives, and one group with its members."""

    known_as_lost = False

    def __init__(self, seed: int, faults: ConsumerFaults, *, validate: bool = True) -> None:
        """Set up everything; :meth:`run` plays it."""
        self.faults, self.validate = faults, validate
        self.world = World(seed)
        self.group = GROUP
        self.books = Books(GROUP)
        self.rows: list[Row] = []
        self.fence = 0
        self.names = [f"orders-{number}" for number in range(faults.topics)]
        self._ids = 0
        self.topics = {name: (self._new_id(), faults.partitions) for name in self.names}
        self.coordinators: list[Coordinator] = []
        self.members: dict[int, Member] = {}
        self._all: list[Member] = []
        self._processes = 0
        self._static = [self.world.chance(faults.static_share) for _ in range(faults.slots)]
        self.is_healed = False
        self.machine_steps = 0
        self.last_read_ms: dict[TopicPartition, int] = {}

    def _new_id(self) -> str:
        self._ids += 1
        return f"id-{self._ids}"

    @property
    def elections(self) -> int:
        """Number of epochs of the group."""
        return self.books.epochs

    @property
    def acks(self) -> int:
        """Number of commits in the log."""
        return self.books.commits

    committed = acks

    # ------------------------------------------------------------ the run

    def run(self) -> None:
        """Run to the end; raises Violation."""
        world, faults = self.world, self.faults
        self.start_coordinator()
        for slot in range(faults.slots):
            world.after(world.between_us(1, 300), self._fill, slot)
        self._begin_troubles()
        world.run_until(world.now_us + int(faults.chaos_s * 1e6))
        self._heal()
        limit_ms = faults.session_timeout_ms + faults.rebalance_timeout_ms + LATE_MS + MARGIN_MS
        world.run_until(world.now_us + limit_ms * 1000)
        self._everything_is_read(limit_ms)
        epochs, marks = self.books.group.epoch, dict(self.books.offsets)
        lost = [member.membership.epoch for member in self.members.values() if not member.is_stuck]
        world.run_until(world.now_us + 2_000_000)
        self._everything_is_read(2_000)
        if self.books.group.epoch != epochs or lost != [
            each.membership.epoch for each in self.members.values() if not each.is_stuck
        ]:
            raise Violation("CL6", f"the group goes from epoch {epochs} to {self.books.group.epoch} for no reason")
        for place in self._places():
            if self.books.offsets.get(place, 0) <= marks.get(place, 0):
                raise Violation("CL6", f"nothing is committed for {place}")

    def _places(self) -> list[Place]:
        return [Place(topic_id, name, n) for name, (topic_id, count) in self.topics.items() for n in range(count)]

    def _everything_is_read(self, within_ms: int) -> None:
        if self.books.group.state != "Stable":
            raise Violation("CL6", f"the group is {self.books.group.state} {within_ms} ms after the last change")
        held = {
            Place(topic_id, *partition): member.process
            for member in self.members.values()
            for partition, topic_id in member.membership.owned.items()
            if partition in member.positions and not member.membership.lost
        }
        missing = [place for place in self._places() if place not in held]
        if missing or len(held) != len(self._places()):
            raise Violation("CL6", f"{missing} are not read {within_ms} ms after the last change")
        now_ms = self.world.now_ms
        silent = [place for place in self._places() if now_ms - self.last_read_ms.get(_partition(place), 0) > 200]
        if silent:
            raise Violation("CL6", f"{silent} were not read for 200 ms")

    def _heal(self) -> None:
        self.world.log("heal")
        self.is_healed = True
        if self.current is None:
            self.start_coordinator()
        for slot in range(self.faults.slots):
            self._fill(slot)
            self.members[slot].paused_until_us = self.members[slot].slow_until_us = 0
            self.members[slot].topics = tuple(self.names)
        self._keep_filled()

    def _keep_filled(self) -> None:
        for slot in range(self.faults.slots):
            self._fill(slot)
        self.world.after(50_000, self._keep_filled)

    # ------------------------------------------------------------ the log

    def append(self, rows: list[Row]) -> None:
        """Rows are durable."""
        for row in rows:
            self.rows.append(row)
            self.books.row(row)
        self.check()

    def check(self) -> None:
        """Check what must hold at every moment."""
        self.machine_steps += 1
        self.books.none_is_shared(member for member in self._all if member.is_alive)

    def read(self, member: Member, partition: TopicPartition) -> None:
        """A member has read a record."""
        if partition not in member.membership.owned:
            raise Violation("CL1", f"member {member.process} reads {partition} and does not hold it")
        self.last_read_ms[partition] = self.world.now_ms

    def lost_all(self, member: Member, error: Exception) -> None:
        """A member was sent that it is none: it must have been removed, or its coordinator be a former one."""
        member_id = member.membership.member_id
        line = member._line
        is_former = line is None or line.coordinator is not self.current or self.faults.append_fails > 0
        if member_id not in self.books.removed and not is_former:
            raise Violation("CL4", f"{member_id} was not removed, and has lost its partitions: {error}")

    # ------------------------------------------------------------ coordinators

    @property
    def current(self) -> Coordinator | None:
        """The newest coordinator, if it runs."""
        found = self.coordinators[-1] if self.coordinators else None
        return found if found is not None and found.is_alive else None

    def start_coordinator(self) -> None:
        """Begin a life; a former one learns of it when it is fenced."""
        self.coordinators.append(Coordinator(self, len(self.coordinators) + 1))
        self.world.log("coordinator {} starts", len(self.coordinators))
        self.coordinators[-1].load()

    def find_coordinator(self) -> Coordinator | None:
        """The answer to a client's look-up."""
        return self.current

    def is_stale(self, line: Line) -> bool:
        """Whether a client looks the coordinator up again before its next request."""
        return line.coordinator is not self.current and self.world.chance(0.3)

    # ------------------------------------------------------------ members

    def start_member(self, slot: int) -> None:
        """Begin a process in a slot."""
        self._processes += 1
        instance = f"instance-{slot}" if self._static[slot] else None
        member = self.members[slot] = Member(self, self._processes, instance)
        self._all = [each for each in self._all if each.is_alive] + [member]
        self.world.log("member {} starts in slot {} as {}", self._processes, slot, instance)
        member.start()

    def _fill(self, slot: int) -> None:
        if slot not in self.members or not self.members[slot].is_alive:
            self.start_member(slot)

    def ended(self, member: Member) -> None:
        """A process ends by itself, because it is fenced."""
        member.end()

    def delay_us(self) -> int:
        """Draw how long a message takes."""
        return 100 + int(self.world.random.random() * 2_000 * self.faults.delay_ms)

    # ------------------------------------------------------------ troubles

    def _begin_troubles(self) -> None:
        faults = self.faults
        kinds: tuple[tuple[float, Callable[[], None]], ...] = (
            (faults.break_rate, lambda: self._one().break_off()),
            (faults.crash_rate, lambda: self._one().end()),
            (faults.leave_rate, lambda: self._one().leave()),
            (faults.pause_rate, self._pause),
            (faults.slow_rate, self._slow),
            (faults.resubscribe_rate, self._resubscribe),
            (faults.coordinator_crash_rate, self._crash_coordinator),
            (faults.coordinator_move_rate, self.start_coordinator),
            (faults.coordinator_pause_rate, self._pause_coordinator),
            (faults.grow_rate, self._grow),
            (faults.recreate_rate, self._recreate),
            (5.0, self._restart),
        )
        for rate, strike in kinds:
            if rate > 0:
                self._next(rate, strike)

    def _next(self, rate: float, strike: Callable[[], None]) -> None:
        self.world.after(int(self.world.random.expovariate(rate) * 1e6), self._strike, rate, strike)

    def _strike(self, rate: float, strike: Callable[[], None]) -> None:
        if not self.is_healed:
            if self.members:
                strike()
            self._next(rate, strike)

    def _one(self) -> Member:
        return self.members[self.world.random.choice(sorted(self.members))]

    def _pause(self) -> None:
        member = self._one()
        member.paused_until_us = self.world.now_us + self.world.between_us(50, 2_000)

    def _slow(self) -> None:
        member = self._one()
        member.slow_until_us = self.world.now_us + self.world.between_us(200, 2_500)
        others = [each for each in self.members.values() if each is not member and not each.is_stuck]
        member.is_stuck = member.is_stuck or (len(others) > 0 and self.world.chance(0.3))

    def _resubscribe(self) -> None:
        member = self._one()
        member.topics = tuple(self.names) if len(member.topics) < len(self.names) else tuple(self.names[:1])

    def _crash_coordinator(self) -> None:
        if self.current is not None:
            self.world.log("coordinator {} crashes", self.current.life)
            self.current.end()

    def _pause_coordinator(self) -> None:
        current = self.current
        if current is not None and current.paused_until_us < self.world.now_us:
            current.paused_until_us = self.world.now_us + self.world.between_us(50, 1_500)

    def _grow(self) -> None:
        name = self.world.random.choice(self.names)
        topic_id, count = self.topics[name]
        self.topics[name] = topic_id, min(12, count + 1)

    def _recreate(self) -> None:
        name = self.world.random.choice(self.names)
        self.topics[name] = self._new_id(), self.topics[name][1]

    def _restart(self) -> None:
        if self.current is None:
            self.start_coordinator()
        for slot in range(self.faults.slots):
            self._fill(slot)


def _partition(place: Place) -> TopicPartition:
    return TopicPartition(place.topic, place.partition)
