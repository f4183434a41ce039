"""One run of the group world: coordinators, members and faults until T, then heal, and a group that settles."""

from __future__ import annotations

from collections.abc import Callable

from raylog.core.groups.states import GroupState
from tests.simulation.groups.books import GroupBooks
from tests.simulation.groups.coordinator import Coordinator
from tests.simulation.groups.faults import GroupFaults
from tests.simulation.groups.member import Member
from tests.simulation.groups.outsider import Outsider
from tests.simulation.groups.topic import ELSE_ID, ELSEWHERE, TOPIC, TOPIC_ID, OffsetsTopic
from tests.simulation.groups.transactions.ledgers import Ledgers
from tests.simulation.groups.transactions.producer import Producer
from tests.simulation.groups.wire import Wire
from tests.simulation.world import Violation, World

GROUP = "readers"
BRIEF = "visitors"
"""A group that has a member now and then."""
_ODD = ("sticky",)
_EFFECTS_UNTIL_CRASH_MAX = 5
_WIRES_KEPT = 200
_WATCH_US = 100_000
_LEDGERS = ("ledger-0", "ledger-1", "ledger-2")
"""Groups without members."""
_VISITORS = -2
"""The slot of the processes of the other group."""
_LATE_US = 2_500_000
_LULL_MS = 3_000
_END_US = 3_000_000
"""By then a coordinator that runs has answered the end of a transaction."""


class GroupSimulation:
    """One partition of the offsets topic, its coordinators, and one group with all its members."""

    known_as_lost = False
    """No loss is intended here; the partition world has runs that end with one."""

    def __init__(self, seed: int, faults: GroupFaults, *, validate: bool = True) -> None:
        """Set up everything; :meth:`run` plays it."""
        self.faults = faults
        self.validate = validate
        self.world = World(seed)
        self.healed = False
        self.machine_steps = 0
        self.books = GroupBooks(faults.partitions, faults.retention_ms, faults.group_max_size)
        self.ledgers = Ledgers()
        self.wires: list[Wire] = []
        self.cut_until_us: dict[int, int] = {}
        self.topic = OffsetsTopic(self)
        self.members: dict[int, Member] = {}
        self._lives = 0
        self._epochs = 0
        self._registered: list[tuple[int, Coordinator]] = []
        """When each registration happened: a client may get an older one for a while."""
        self._processes = 0
        self._outsider = Outsider(self, -1, 0, group=GROUP, client_id="admin", instance=None)
        self._producers = [Producer(self, number) for number in range(faults.producers)]
        """Slots that have had a process of this release: an earlier one does not come back."""
        self._lull_until_us = 0
        self._talk_since_us: int | None = None
        """Since when members and coordinator are connected, during a calm."""
        self._unowned_since_us = dict.fromkeys(range(faults.partitions), 0)
        self._static = [self.world.chance(faults.static_share) for _ in range(faults.slots)]

    @property
    def elections(self) -> int:
        """Number of generations."""
        return self.books.generations

    @property
    def acks(self) -> int:
        """Number of acknowledged commits."""
        return self.books.acknowledged

    @property
    def committed(self) -> int:
        """Number of commits in the log."""
        return self.books.commits

    @property
    def is_calm(self) -> bool:
        """Whether fault injection is suspended."""
        return self.healed or self.world.now_us < self._lull_until_us

    # ------------------------------------------------------------ the run

    def run(self) -> None:
        """Run to the end; raises Violation."""
        world = self.world
        self.start_coordinator()
        for slot in range(self.faults.slots):
            world.after(world.between_us(1, 400), self.start_member, slot)
        for producer in self._producers:
            producer.start()
        self._begin_troubles()
        self._watch()
        chaos_us = int(self.faults.chaos_s * 1e6)
        if self.faults.lull:
            world.run_until(world.now_us + chaos_us // 2)
            self._lull_until_us = world.now_us + (self.faults.settles_ms + _LULL_MS) * 1000
            world.log("a lull begins")
            world.run_until(self._lull_until_us)
            world.log("the lull is over")
            chaos_us //= 2
        world.run_until(world.now_us + chaos_us)
        self._heal()
        deadline_us = world.now_us + int(self.faults.converge_s * 1e6)
        # Messages in flight from the time of faults come first: answers, and joins of dead processes.
        world.run_until(world.now_us + _LATE_US)
        while world.now_us < deadline_us and self.unsettled() is not None:
            for slot in range(self.faults.slots):
                self._start_again(slot)
            world.run_until(world.now_us + 200_000)
        self._must_settle()
        # A settled group stays settled, and offsets advance.
        marks = {partition: self.books.committed(GROUP, partition) for partition in range(self.faults.partitions)}
        generation = self.books.images[GROUP].generation
        world.run_until(world.now_us + 3_000_000)
        self._must_settle()
        if self.books.images[GROUP].generation != generation:
            raise Violation("L2", f"generation {generation} did not last, though nothing happened")
        for partition, mark in marks.items():
            if self.books.committed(GROUP, partition) <= mark:
                raise Violation("L2", f"nothing is committed for partition {partition} since it is at {mark}")

    def _must_settle(self) -> None:
        unsettled = self.unsettled()
        if unsettled is not None:
            raise Violation("L2", f"{self.faults.converge_s} s after heal, {unsettled}")

    def unsettled(self) -> str | None:
        """Return how the group differs from a healthy one, or None."""
        image = self.books.images.get(GROUP)
        living = sorted(member.process for member in self.members.values() if member.alive)
        if image is None or image.state is not GroupState.STABLE or len(image.members) != len(living):
            return f"the group is {image.state if image else 'not there'}, {len(living)} processes live"
        for member in self.members.values():
            if member.alive and not member.is_steady:
                return f"member process {member.process} does not read ({member.membership.rejoin_reason})"
        owners = self.books.owners(GROUP)
        if sorted(owners) != list(range(self.faults.partitions)):
            return f"partitions {sorted(owners)} have an owner"
        idle = {member.process for member in self.members.values() if member.alive} - self.books.shares(GROUP)
        if idle and len(living) <= self.faults.partitions:
            return f"member processes {sorted(idle)} have no partition"
        overdue = self.books.overdue(self.world.now_ms)
        if overdue:
            return f"the offsets of {overdue} are not forgotten"
        return self.ledgers.overdue(self.world.now_us, _END_US)

    def _watch(self) -> None:
        """A partition has no owner for ``settles_ms`` at most, once members and coordinator are connected."""
        now_us = self.world.now_us
        if not self.healed:
            self.world.after(_WATCH_US, self._watch)
        if not (self.is_calm and self._can_talk()):
            self._talk_since_us = None
            return
        if self._talk_since_us is None:
            self._talk_since_us = now_us
            self._unowned_since_us = dict.fromkeys(self._unowned_since_us, now_us)
        owners = self.books.owners(GROUP)
        for partition, since_us in self._unowned_since_us.items():
            if partition in owners:
                self._unowned_since_us[partition] = now_us
            elif now_us - since_us > self.faults.settles_ms * 1000:
                raise Violation("L2", f"partition {partition} has had no owner for {self.faults.settles_ms} ms")

    def _can_talk(self) -> bool:
        coordinator, now_us = self.current, self.world.now_us
        if coordinator is None or coordinator.runner is None or coordinator.paused_until_us > now_us:
            return False
        return len(self.members) == self.faults.slots and all(
            member.alive and member.paused_until_us <= now_us and self.cut_until_us.get(slot, 0) <= now_us
            for slot, member in self.members.items()
        )

    def _heal(self) -> None:
        self.world.log("heal")
        self.healed = True
        self.cut_until_us.clear()
        coordinator = self.current
        if coordinator is None:
            self.start_coordinator()
        else:
            coordinator.paused_until_us = 0
            coordinator.crash_after_effects = None
        for slot in range(self.faults.slots):
            member = self.members.get(slot)
            if member is None or not member.alive:
                self.start_member(slot)
            else:
                member.paused_until_us = 0

    # ------------------------------------------------------------ coordinators

    @property
    def current(self) -> Coordinator | None:
        """The coordinator that registered last, if it runs."""
        found = self._registered[-1][1] if self._registered else None
        return found if found is not None and found.alive else None

    def start_coordinator(self) -> None:
        """Begin a life; a running predecessor is superseded, and learns of it later."""
        self._lives += 1
        life = Coordinator(self, self._lives)
        self.world.log("coordinator {} starts", life.life)
        life.start()

    def register(self, coordinator: Coordinator) -> int:
        """Register a life under the next epoch, and make that visible to clients."""
        before = self.current
        self._registered.append((self.world.now_us, coordinator))
        del self._registered[:-8]
        if before is not None and before is not coordinator:
            self._supersede(before, self.world.between_us(1, self.faults.zombie_ms))
        self._epochs += 1
        return self._epochs

    def _supersede(self, coordinator: Coordinator, delay_us: int) -> None:
        self.world.after(max(delay_us, coordinator.paused_until_us - self.world.now_us), self._superseded, coordinator)

    def _superseded(self, coordinator: Coordinator) -> None:
        if self.current is not coordinator:
            coordinator.end("it learned of its successor")

    def ended(self, coordinator: Coordinator) -> None:
        """A life is over: another one begins, unless one has begun already."""
        if self._registered and self._registered[-1][1] is coordinator:
            down_ms = 50 if self.is_calm else self.faults.coordinator_down_ms
            self.world.after(self.world.between_us(0.2 * down_ms, 2 * down_ms), self._restart_coordinator)

    def _restart_coordinator(self) -> None:
        if self.current is None:
            self.start_coordinator()

    def find_coordinator(self) -> Coordinator | None:
        """The answer of some broker to a client's look-up; that broker may know an older registration only."""
        horizon = self.world.now_us - (0 if self.is_calm else self.world.between_us(0, 300))
        for when, coordinator in reversed(self._registered):
            if when <= horizon:
                return coordinator
        return None

    # ------------------------------------------------------------ members

    def start_member(self, slot: int) -> None:
        """Begin a process in a slot, even if the slot has one."""
        self._processes += 1
        instance = f"instance-{slot}" if self._static[slot] else None
        client_id = "reader" if self.faults.shared_client_id else f"reader-{slot}"
        is_odd = not self.is_calm and self.world.chance(self.faults.odd_share)
        self.members[slot] = member = self._begin_process(slot, GROUP, client_id, instance, is_odd=is_odd)
        if is_odd:
            self.world.after(self.world.between_us(200, 1_500), member.end, "no other member assigns as it does")

    def _begin_process(
        self, slot: int, group: str, client_id: str, instance: str | None, *, is_odd: bool = False
    ) -> Member:
        assignors = _ODD if is_odd else self.world.random.choice(self.faults.strategies)
        process = self._processes
        member = Member(
            self,
            slot,
            process,
            group=group,
            client_id=client_id,
            instance=instance,
            assignors=assignors,
        )
        self.world.log("member {} of {} starts in slot {} as {} with {}", process, group, slot, instance, assignors)
        member.start()
        return member

    def _visit(self) -> None:
        self._processes += 1
        instance = "visitor" if self.world.chance(0.3) else None
        visitor = self._begin_process(_VISITORS, BRIEF, "visitor", instance)
        self.world.after(self.world.between_us(100, 2_000), visitor.leave)
        self.world.after(self.world.between_us(1_000, 4_000), visitor.end, "its visit is over")

    def _start_again(self, slot: int) -> None:
        member = self.members.get(slot)
        if member is None or not member.alive:
            self.start_member(slot)

    def delay_us(self) -> int:
        """Draw how long a message takes."""
        world, faults = self.world, self.faults
        delay = 100 + int(world.random.random() * 1000 * faults.delay_ms)
        if not self.is_calm and world.chance(faults.delay_tail):
            delay += world.between_us(0, faults.delay_tail_ms)
        return delay

    # ------------------------------------------------------------ faults

    def _begin_troubles(self) -> None:
        faults = self.faults
        kinds: tuple[tuple[float, Callable[[], None]], ...] = (
            (faults.crash_rate, self._crash_member),
            (faults.pause_rate, self._pause_member),
            (faults.leave_rate, self._leave),
            (faults.double_rate, self._double),
            (faults.rejoin_rate, self._rejoin),
            (faults.break_rate, self._break),
            (faults.cut_rate, self._cut),
            (faults.reset_rate, self._reset),
            (faults.coordinator_crash_rate, self._crash_coordinator),
            (faults.coordinator_move_rate, self._move_coordinator),
            (faults.coordinator_pause_rate, self._pause_coordinator),
            (faults.outage_rate, self.topic.change_leader),
            (faults.ledger_rate, self._keep_ledgers),
            (faults.visit_rate, self._visit),
            (faults.probe_rate, self._probe),
            # Processes also end by themselves, for instance when they are fenced.
            (5.0, self._fill_slots),
        )
        for rate, strike in kinds:
            if rate > 0:
                self._next(rate, strike)

    def _next(self, rate: float, strike: Callable[[], None]) -> None:
        self.world.after(int(self.world.random.expovariate(rate) * 1e6), self._strike, rate, strike)

    def _strike(self, rate: float, strike: Callable[[], None]) -> None:
        if not self.healed:
            # During a calm, ended processes still restart, and groups without members are used.
            if not self.is_calm or strike in (self._fill_slots, self._keep_ledgers):
                strike()
            self.wires = [wire for wire in self.wires if not wire.broken][-_WIRES_KEPT:]
            self._next(rate, strike)

    def _victim(self) -> Member | None:
        living = [member for member in self.members.values() if member.alive]
        return self.world.random.choice(living) if living else None

    def _fill_slots(self) -> None:
        down_ms = self.faults.down_ms
        for slot, member in self.members.items():
            if not member.alive:
                self.world.after(self.world.between_us(0.2 * down_ms, 2 * down_ms), self._start_again, slot)

    def _crash_member(self) -> None:
        member = self._victim()
        if member is not None:
            member.end("it crashes")

    def _pause_member(self) -> None:
        member = self._victim()
        if member is not None and member.paused_until_us <= self.world.now_us:
            ms = self.world.random.uniform(0.3, 1.5) * self.faults.pause_ms
            self.world.log("member {} is paused for {:.0f} ms", member.process, ms)
            member.paused_until_us = self.world.now_us + int(ms * 1000)

    def _leave(self) -> None:
        member = self._victim()
        if member is not None and member.paused_until_us <= self.world.now_us:
            member.leave()

    def _double(self) -> None:
        member = self._victim()
        if member is not None:
            # The former process lives on: fenced if it is static, and removed from the slot's books in any case.
            self.world.after(self.world.between_us(100, 3000), member.end, "its double has taken over")
            self.start_member(member.slot)

    def _rejoin(self) -> None:
        member = self._victim()
        if member is not None:
            member.membership.need_rejoin("its subscription was changed")

    def _break(self) -> None:
        wires = [wire for wire in self.wires if not wire.broken]
        if wires:
            self.world.random.choice(wires).break_off()

    def _cut(self) -> None:
        slot = self.world.random.randrange(self.faults.slots)
        ms = self.world.random.uniform(0.2, 1.5) * self.faults.cut_ms
        self.world.log("slot {} is cut off for {:.0f} ms", slot, ms)
        self.cut_until_us[slot] = self.world.now_us + int(ms * 1000)

    def _reset(self) -> None:
        partition = self.world.random.randrange(self.faults.partitions)
        committed = self.books.committed(GROUP, partition)
        if self.world.chance(0.6):
            self._plan_reset(self.world.random.choice((GROUP, BRIEF)), partition)
        elif committed > 0:
            self._outsider.reset({partition: self.world.random.randint(0, committed)})

    def _plan_reset(self, group: str, partition: int) -> None:
        """An operator looks at a group's offsets, and resets them a moment later."""
        before = {
            (ELSE_ID, ELSEWHERE, 0): self.books.committed(group, 0, ELSE_ID),
            (TOPIC_ID, TOPIC, partition): self.books.committed(group, partition),
        }
        to = [self.world.random.randint(0, 9), self.world.random.randint(0, max(0, *before.values()))]
        if group in (GROUP, BRIEF):  # a member that is sent ahead would leave records unread
            to[1] = min(to[1], max(0, self.books.committed(group, partition)))
        image = self.books.images.get(group)
        generation = 0 if image is None else image.generation
        when = self.world.between_us(0, 300)
        self.world.after(when, self._outsider.reset_as_planned, group, generation, before, to)

    def _keep_ledgers(self) -> None:
        ledger = self.world.random.choice(_LEDGERS)
        if self.world.chance(0.2):
            self._plan_reset(ledger, self.world.random.randrange(self.faults.partitions))
        else:
            self._outsider.keep(ledger, (GROUP, BRIEF))

    def _probe(self) -> None:
        self._outsider.probe(self.world.random.choice((GROUP, GROUP, BRIEF, _LEDGERS[0])))

    def _crash_coordinator(self) -> None:
        coordinator = self.current
        if coordinator is None:
            return
        if self.world.chance(0.4):
            coordinator.end("it crashes")
        else:
            coordinator.crash_after_effects = self.world.random.randint(1, _EFFECTS_UNTIL_CRASH_MAX)

    def _move_coordinator(self) -> None:
        if self.current is not None:
            self.start_coordinator()

    def _pause_coordinator(self) -> None:
        coordinator = self.current
        if coordinator is not None and coordinator.paused_until_us <= self.world.now_us:
            ms = self.world.random.uniform(0.1, 1.5) * self.faults.coordinator_pause_ms
            self.world.log("coordinator {} is paused for {:.0f} ms", coordinator.life, ms)
            coordinator.paused_until_us = self.world.now_us + int(ms * 1000)
