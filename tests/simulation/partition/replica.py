"""The simulator's replica process: the shipped ReplicaRunner on a virtual disk, clock and network.

Here are ports and faults: arriving messages go to the runner, its messages go to the network, and unlike an actor the
process can be paused, and die between any two effects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from raylog.actors.metrics.counters import ReplicaCounters
from raylog.actors.replica.ports import ReplicaPorts
from raylog.actors.replica.runner import ReplicaRunner
from raylog.actors.settings import FlushPolicy
from raylog.base.errors import KafkaStorageError, NotLeaderOrFollower
from raylog.base.ids import Incarnation, TopicPartition
from raylog.base.invariants import InvariantBroken, require
from raylog.core.outbox import Outbox
from raylog.core.partition import PartitionState
from raylog.core.replication.events import (
    AdvanceLogStart,
    Effect,
    Event,
    ProposeIsr,
    ResignLeadership,
    RoleChanged,
    SendFetch,
    Tick,
)
from raylog.core.replication.replica import ReplicaMachine, ReplicationSettings
from raylog.protocol import replica as wire
from tests.simulation.partition.disk import Entry, VirtualLog
from tests.simulation.partition.pausing import Pausable
from tests.simulation.partition.replica_disk import OpenedLog, VirtualClock, VirtualKeeper, VirtualSync
from tests.simulation.partition.requests import (
    Arrived,
    ArrivedDeletion,
    ArrivedFetch,
    ArrivedProduce,
    ArrivedRead,
    DeleteRequest,
    ProduceRequest,
    Uplink,
)
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.partition.simulation import Simulation

_BATCHES_PER_FETCH = 8
_MOST_ENTRIES = 64
_TICK_US = 50_000
_AT_ONCE = FlushPolicy(messages=1, ms=1_000)
_RELAXED = FlushPolicy(messages=1 << 60, ms=1_000)
LOOKED_FOR = (ProposeIsr, ResignLeadership)
"""Consequences of lagging members and of disks that keep failing: no tick is due for them, each tick checks."""


class WatchedMachine(ReplicaMachine):
    """The machine; the checkers check each step, and shells may rest between ticks."""

    process: ReplicaProcess

    def step(self, event: Event) -> Outbox[Effect]:
        """Take the step and check it, before any of its effects is carried out."""
        process, log = self.process, self._log
        simulation = process.simulation
        simulation.machine_steps += 1
        before = log.high_watermark
        validate = simulation.validate
        is_early = validate and type(event) is Tick and self.next_due_ms(event.now_ms, event.now_ms + 1) > event.now_ms
        out = super().step(event)
        if validate:
            if is_early and (out.now or out.after_sync):
                done = [effect for effect in (*out.now, *out.after_sync) if not isinstance(effect, LOOKED_FOR)]
                require(not done, f"a tick had something to do before it was due: {done}")
            self.validate()
        process.world.note(process.broker, log.end, log.high_watermark, self.leader_epoch)
        simulation.checks.stepped(process, self, event, before)
        return out


class ReplicaProcess(Pausable):
    """One life of the replica on one broker."""

    def __init__(self, simulation: Simulation, broker: int, log: VirtualLog, life: int) -> None:
        """Open the log; the machine is created at registration."""
        super().__init__(simulation.world)
        self.simulation = simulation
        self.broker = broker
        self.log = log
        self.life = life
        self.alive = True
        self.uplink: Uplink | None = None
        self.machine: ReplicaMachine | None = None
        """None before the registration."""
        self.owed: list[Arrived] = []
        """Unanswered requests, and those answered since the last tick."""
        self.disk = OpenedLog(self)
        self._sync = VirtualSync(self)
        self.runner = ReplicaRunner(
            TopicPartition("t", 0),
            self.disk,
            clock=VirtualClock(self.world),
            sync=self._sync,
            keeper=VirtualKeeper(self),
            ports=ReplicaPorts(
                send_fetch=self._send_fetch,
                propose_isr=self._propose,
                propose_sleep=lambda _: None,
                resign=self._resign,
                rebuild=lambda _: self.simulation.wipe(self.broker),
                role_changed=self._role_changed,
                verify=lambda _: None,
                soon=lambda call: self.world.after(0, call),
                fatal=self._fatal,
            ),
            flush=_RELAXED if log.writes_through else _AT_ONCE,
            counters=ReplicaCounters(),
            machine_class=WatchedMachine,
        )
        self._effects_left: int | None = None
        self._watch(AdvanceLogStart, self._deleting)
        self.log_is_new = not log.opened
        """This life made the folder; a later life knows that only from the folder's identity."""
        log.opened = True

    # ------------------------------------------------------------ life

    @property
    def sync_since_ms(self) -> int | None:
        """Start time of the sync in progress."""
        return self._sync.busy_since_ms

    def asleep(self, call: Callable[..., None], *args: object) -> bool:
        """True when this process is dead, or paused: a paused process makes the call when it resumes."""
        if self.alive and not self._inbox and self.paused_until_us <= self.world.now_us:
            return False
        return not self.alive or self.waits(call, *args)

    def drive(self, call: Callable[..., object], *args: Any) -> None:
        """Call the runner. A disk error in a call that must not fail ends the process: see :meth:`_fatal`."""
        try:
            call(*args)
        except InvariantBroken as broken:
            raise Violation("machine", broken.claim) from broken
        except KafkaStorageError:
            if self.alive:
                raise

    def registered(self, incarnation: int, state: PartitionState) -> None:
        """Start the machine as this incarnation, or apply a state over a renewed session."""
        if self.asleep(self.registered, incarnation, state):
            return
        if self.machine is None:
            faults = self.simulation.faults
            self.log.incarnation = incarnation
            self.runner.begin(
                self.broker,
                Incarnation(incarnation),
                ReplicationSettings(
                    min_insync_replicas=faults.min_insync_replicas,
                    replica_lag_time_max_ms=faults.lag_max_ms,
                    fetch_timeout_ms=faults.fetch_wait_ms + 400,
                    isr_retry_ms=50,
                    sync_time_max_ms=faults.sync_time_max_ms,
                ),
            )
            self.machine = self.runner.machine
            self.machine.process = self  # type: ignore[union-attr]  # a WatchedMachine, as requested above
            self.simulation.checks.recovered(self)
            self._tick()
        self.notified(incarnation, state)

    def notified(self, incarnation: int, state: PartitionState) -> None:
        """Apply a partition state that the controller sent to some incarnation of this replica."""
        if not self.asleep(self.notified, incarnation, state):  # even without a machine: it waits behind the answer
            self.drive(self.runner.state_received, incarnation, state)

    def leads(self, state: PartitionState | None) -> bool:
        """True when this process considers itself leader, in the epoch of that state or a later one."""
        machine = self.machine
        if machine is None or state is None or not self.alive:
            return False
        return machine.role == "leader" and machine.leader_epoch >= state.leader_epoch

    def kill(self) -> None:
        """End this life."""
        self.alive = False
        self.runner.end()
        self.forget_inbox()

    def crash_after(self, effects: int | None) -> None:
        """Die before that many more effects are carried out; None: do not die."""
        if self._effects_left is None and effects is not None:
            for kind in self.runner.effects:
                self._watch(kind, self._dies)
        self._effects_left = effects

    def _dies(self, _: Effect) -> bool:
        if self._effects_left is not None:
            self._effects_left -= 1
            if self._effects_left <= 0:
                self.simulation.crash(self.broker, "between two effects")
        return not self.alive

    def _watch(self, kind: type[Effect], look: Callable[[Any], object]) -> None:
        """Look at each effect of a kind first; the effect is carried out only if the look returns a false value."""
        carry_out = self.runner.effects[kind]

        def watched(effect: Effect) -> Event | None:
            return None if look(effect) else carry_out(effect)

        self.runner.effects[kind] = watched

    def _tick(self) -> None:
        if not self.alive:
            return
        self.world.after(_TICK_US, self._tick)
        if not self.asleep(self._look_at_the_clock):
            self._look_at_the_clock()

    def _look_at_the_clock(self) -> None:
        self.drive(self.runner.tick)
        if self.alive:
            self.simulation.checks.looked(self)

    # ------------------------------------------------------------ arriving requests

    def produce(self, request: ProduceRequest) -> None:
        """A client's produce request."""
        if not self.asleep(self.produce, request):
            args = wire.ProduceRequest("t", 0, request.leader_epoch, request.acks, request.timeout_ms)
            self._serve(ArrivedProduce(self, request), args)

    def delete_records(self, request: DeleteRequest) -> None:
        """An administrator's request to delete records."""
        if not self.asleep(self.delete_records, request):
            args = wire.DeleteRecordsRequest("t", 0, request.leader_epoch, request.before, request.timeout_ms)
            self._serve(ArrivedDeletion(self, request), args)

    def fetch(self, sender: ReplicaProcess, fetch: SendFetch) -> None:
        """A follower's fetch."""
        if not self.asleep(self.fetch, sender, fetch):
            args = wire.ReplicaFetchRequest(
                "t",
                0,
                fetch.leader_epoch,
                sender.broker,
                fetch.incarnation,
                fetch.fetch_offset,
                fetch.last_fetched_epoch,
                fetch.max_bytes or _BATCHES_PER_FETCH,
                self.simulation.faults.fetch_wait_ms,
                fetch.log_start_offset,
                fetch.disk_failing,
                fetch.lacks_producers,
            )
            self._serve(ArrivedFetch(self, sender, fetch), args)

    def _serve(self, arrived: Arrived, args: object) -> None:
        if self.machine is None:
            arrived.fail(NotLeaderOrFollower())
        else:
            self.owed.append(arrived)
            self.drive(self.runner.receive, arrived, args)

    def read(self, arrived: ArrivedRead, leader_epoch: int) -> None:
        """A consumer's fetch."""
        if not self.asleep(self.read, arrived, leader_epoch):
            wait_ms = max(0, arrived.deadline_ms - self.world.now_ms)
            args = wire.FetchRequest("t", 0, leader_epoch, arrived.offset, _MOST_ENTRIES, arrived.least, wait_ms, 0)
            self._serve(arrived, args)

    def look_up(self, arrived: ArrivedRead, leader_epoch: int, timestamp: int) -> None:
        """A client's look-up of an offset."""
        if not self.asleep(self.look_up, arrived, leader_epoch, timestamp):
            self._serve(arrived, wire.ListOffsetsRequest("t", 0, leader_epoch, timestamp))

    def drop_below(self, to: int) -> None:
        """Retention drops the entries below an offset."""
        self.disk.retained_from = to
        self.drive(self.runner.apply_retention)

    # ------------------------------------------------------------ arriving answers

    def fetch_answered(
        self, number: int, args: wire.ReplicaFetchReply, entries: tuple[Entry, ...] | bytes, offset: int
    ) -> None:
        """The leader's answer to the fetch with this number, which began at ``offset``."""
        if not self.asleep(self.fetch_answered, number, args, entries, offset):
            count = 0 if args.has_producers else len(entries)
            self.drive(self.runner.fetch_answered, number, args, entries, offset + count)

    def fetch_failed(self, number: int, code: int, log_start: int) -> None:
        """This replica's fetch was refused, or is known to be lost."""
        if not self.asleep(self.fetch_failed, number, code, log_start):
            self.drive(self.runner.fetch_failed, number, code, log_start)

    def isr_answered(self, number: int, code: int, state: PartitionState | None) -> None:
        """The controller answered this replica's proposal, or the session broke first."""
        if not self.asleep(self.isr_answered, number, code, state):
            self.drive(self.runner.isr_answered, number, code, state)

    # ------------------------------------------------------------ ports

    def _send_fetch(self, effect: SendFetch) -> None:
        self.simulation.checks.fetching(self, effect)
        deliver = self.simulation.deliver_fetch
        if not self.simulation.network.send(self.broker, effect.leader, deliver, self, effect):
            self.world.after(2_000, self.fetch_failed, effect.request, 1001, 0)

    def _propose(self, effect: ProposeIsr) -> None:
        self.world.log("r{} proposes isr {} at partition epoch {}", self.broker, effect.isr, effect.partition_epoch)
        if self.uplink is None:
            self.world.after(1_000, self.isr_answered, effect.request, 1001, None)
            return
        self.uplink.propose(effect)

    def _resign(self, effect: ResignLeadership) -> None:
        self.world.log("r{} resigns from epoch {}", self.broker, effect.leader_epoch)
        if self.uplink is not None:
            self.uplink.resign(effect)

    def _role_changed(self, effect: RoleChanged) -> None:
        watermark = self.machine.high_watermark if self.machine else 0
        known = (self.broker, self.life, effect.leading, effect.leader_epoch, self.log.end, watermark)
        self.world.log("r{}.{} leading={} epoch={} end={} hw={}", *known)
        self.simulation.checks.role_changed(self, effect)

    def _fatal(self, why: str) -> None:
        self.simulation.crash(self.broker, why)

    # ------------------------------------------------------------ hooks on effects

    def _deleting(self, effect: AdvanceLogStart) -> None:
        arrived = None if effect.request is None else self.runner.requests[effect.request]
        if isinstance(arrived, ArrivedDeletion) and isinstance(arrived.request, DeleteRequest):
            before = arrived.request.before
            self.simulation.checks.deleted.requested(self.simulation.checks.committed.end if before < 0 else before)
