"""The simulator's replica process: the thin shell around the real ReplicaMachine, on virtual disk and network.

Does what the actor shell does and decides nothing: feeds events in arrival order, carries effects out, holds back
``after_sync`` until the disk has caught up. Unlike the actor it can die between any two effects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from raylog.core.errors import OutOfOrderSequence, RaylogError
from raylog.core.ids import BrokerId, Incarnation, LeaderEpoch, Offset
from raylog.core.invariants import InvariantBroken
from raylog.core.outbox import Outbox
from raylog.core.replication.events import (
    AdvanceLogStart,
    AnswerDeleteRecords,
    AnswerDiverging,
    AnswerFetch,
    AnswerProduce,
    AppendBatches,
    AppendFailed,
    AppendFetched,
    AssignLeaderEpoch,
    DeleteRecordsReceived,
    Effect,
    Event,
    FetchAnswered,
    FetchFailed,
    FetchReceived,
    FollowerAppended,
    HighWatermarkAdvanced,
    IsrChangeAnswered,
    LeaderAppended,
    LogStartAdvanced,
    ProduceReceived,
    ProposeIsr,
    RefuseRequest,
    ResetLog,
    ResignLeadership,
    RoleChanged,
    SendFetch,
    StateReceived,
    Synced,
    Tick,
    TruncateLog,
)
from raylog.core.replication.replica import ReplicaMachine, ReplicationSettings
from raylog.core.replication.state import PartitionState
from tests.simulation.disk import Entry, VirtualLog, chained
from tests.simulation.pausing import Pausable
from tests.simulation.requests import DeleteRequest, ProduceRequest, Uplink
from tests.simulation.ticking import checked_step
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

_BATCHES_PER_FETCH = 8
_TICK_US = 50_000


class ReplicaProcess(Pausable):
    """One life of the replica on one broker."""

    def __init__(self, simulation: Simulation, broker: int, log: VirtualLog, life: int) -> None:
        """Open the log; the machine comes with the registration."""
        super().__init__(simulation.world)
        self.simulation = simulation
        self.broker = broker
        self.log = log
        self.life = life
        self.alive = True
        self.crash_after_effects: int | None = None
        self.machine: ReplicaMachine | None = None
        self.uplink: Uplink | None = None
        self._requests: dict[int, ProduceRequest | DeleteRequest | tuple[ReplicaProcess, int, int]] = {}
        self._last_request = 0
        self._records: dict[int, tuple[Entry, ...]] = {}
        self._waiting: deque[tuple[int, list[Effect]]] = deque()
        self._syncing = False
        self.sync_since_ms: int | None = None
        self._summary = log.summary()
        self.log_is_new = not log.opened
        """This life made the folder; a later one does not know it any more, save by the folder's identity."""
        log.opened = True

    # ------------------------------------------------------------ life

    def _asleep(self, call: Callable[..., None], *args: object) -> bool:
        """True when this process is dead, or paused: then the call is made when it wakes up."""
        return not self.alive or self.waits(call, *args)

    def registered(self, incarnation: int, state: PartitionState) -> None:
        """Start the machine as this incarnation, or take a state over a renewed session."""
        if self._asleep(self.registered, incarnation, state):
            return
        if self.machine is None:
            faults = self.simulation.faults
            self.log.incarnation = incarnation
            self.machine = self.simulation.machine_class(
                partition=state.partition,
                broker=BrokerId(self.broker),
                incarnation=Incarnation(incarnation),
                settings=ReplicationSettings(
                    min_insync_replicas=faults.min_insync_replicas,
                    replica_lag_time_max_ms=faults.lag_max_ms,
                    fetch_timeout_ms=faults.fetch_wait_ms + 400,
                    isr_retry_ms=50,
                    sync_time_max_ms=faults.sync_time_max_ms,
                ),
                log=self._summary,
            )
            self.simulation.checks.recovered(self)
            self._tick()
        self.told(incarnation, state)

    def told(self, incarnation: int, state: PartitionState) -> None:
        """Take a partition state that the controller sent to some incarnation of this replica."""
        if self._asleep(self.told, incarnation, state):  # before there is a machine, too: it waits behind the answer
            return
        self.feed(
            lambda now: StateReceived(cause="state", now_ms=now, incarnation=Incarnation(incarnation), state=state)
        )

    def leads(self, state: PartitionState | None) -> bool:
        """True when this process leads, by its own word, in the epoch of that state or a later one."""
        machine = self.machine
        if machine is None or state is None or not self.alive:
            return False
        return machine.role == "leader" and machine.leader_epoch >= state.leader_epoch

    def kill(self) -> None:
        """End this life."""
        self.alive = False
        self.forget_inbox()

    def feed(self, make: Callable[[int], Event]) -> None:
        """Put an event into the inbox; a paused process takes it when it wakes up."""
        if self.machine is not None and not self._asleep(self.feed, make):
            self.step(make(self.world.now_ms))

    def step(self, event: Event) -> None:
        """Feed one event to the machine, carry its effects out, and have the checkers look at it."""
        machine = self.machine
        if machine is None or not self.alive:
            return
        self.simulation.machine_steps += 1
        try:
            before = machine.high_watermark
            out = checked_step(machine, event) if self.simulation.validate else machine.step(event)
        except InvariantBroken as broken:
            raise Violation("machine", broken.claim) from broken
        self.world.note(self.broker, machine.log_end_offset, machine.high_watermark, machine.leader_epoch)
        self.simulation.checks.stepped(self, event, before)
        self._carry_out(out)

    def _carry_out(self, out: Outbox[Effect]) -> None:
        for effect in out.now:
            if not self._effect(effect):
                return
        if out.after_sync:
            self._waiting.append((self.log.end, out.after_sync))
        self._release()
        self._sync()

    def _effect(self, effect: Effect) -> bool:
        """Carry one effect out; False when the process died before or through it."""
        if self.crash_after_effects is not None:
            self.crash_after_effects -= 1
            if self.crash_after_effects <= 0:
                self.simulation.crash(self.broker, "between two effects")
                return False
        _CARRY_OUT[type(effect)](self, effect)
        return self.alive

    # ------------------------------------------------------------ disk

    def _sync(self) -> None:
        log = self.log
        if self._syncing or log.durable_end >= log.end or not self.alive:
            return
        self._syncing, self.sync_since_ms = True, self.world.now_ms
        delay = self.simulation.sync_us()
        self.world.after(delay, self._synced, log.end, log.truncations)

    def _synced(self, end: int, truncations: int) -> None:
        hangs = self.simulation.hangs(self.broker, self._synced, end, truncations)
        if hangs or self._asleep(self._synced, end, truncations):
            return
        self._syncing, self.sync_since_ms = False, None
        if truncations == self.log.truncations:
            self.log.durable_end = max(self.log.durable_end, end)
            self.step(Synced(cause="sync", now_ms=self.world.now_ms, end_offset=Offset(end)))
        self._release()
        self._sync()

    def _release(self) -> None:
        while self.alive and self._waiting and self._waiting[0][0] <= self.log.durable_end:
            _, effects = self._waiting.popleft()
            for effect in effects:
                if not self._effect(effect):
                    return

    # ------------------------------------------------------------ time

    def _tick(self) -> None:
        if not self.alive:
            return
        self.world.after(_TICK_US, self._tick)
        self.feed(lambda now: Tick(cause="tick", now_ms=now, sync_since_ms=self.sync_since_ms))
        self.simulation.checks.giving_way.looked(self.simulation, self)
        if self.machine is not None and self.simulation.keeps_watermark(self):
            self.log.keep_watermark(self.machine.high_watermark)

    # ------------------------------------------------------------ requests that come in

    def produce(self, request: ProduceRequest) -> None:
        """A client's produce request arrives."""
        self._last_request += 1
        number = self._last_request
        self._requests[number] = request
        self.feed(
            lambda now: ProduceReceived(
                cause="produce",
                now_ms=now,
                request=number,
                acks=request.acks,
                leader_epoch=LeaderEpoch(request.leader_epoch),
                deadline_ms=request.deadline_ms,
            )
        )

    def delete_records(self, request: DeleteRequest) -> None:
        """An administrator's request to delete records arrives."""
        self._last_request += 1
        number = self._last_request
        self._requests[number] = request
        self.feed(
            lambda now: DeleteRecordsReceived(
                cause="delete",
                now_ms=now,
                request=number,
                leader_epoch=LeaderEpoch(request.leader_epoch),
                before_offset=Offset(request.before),
                deadline_ms=now + request.timeout_ms,
            )
        )

    def fetch(self, sender: ReplicaProcess, effect: SendFetch) -> None:
        """A follower's fetch arrives."""
        self._last_request += 1
        number = self._last_request
        self._requests[number] = (sender, effect.request, effect.leader_epoch)
        self.feed(
            lambda now: FetchReceived(
                cause="fetch",
                now_ms=now,
                request=number,
                follower=BrokerId(sender.broker),
                incarnation=effect.incarnation,
                leader_epoch=effect.leader_epoch,
                fetch_offset=effect.fetch_offset,
                last_fetched_epoch=effect.last_fetched_epoch,
                deadline_ms=now + self.simulation.faults.fetch_wait_ms,
                max_bytes=_BATCHES_PER_FETCH,
                log_start_offset=effect.log_start_offset,
                disk_failing=effect.disk_failing,
            )
        )

    def read(self, offset: int, leader_epoch: int) -> tuple[int, int, list[Entry]] | None:
        """A consumer reads: (leader epoch, exposed high watermark, entries), or None when refused."""
        machine = self.machine
        if not self.alive or machine is None or self.paused:
            return None
        exposed = machine.exposed_high_watermark
        if machine.consumer_fetch_error(LeaderEpoch(leader_epoch)) is not None or exposed is None:
            return None
        offset = max(offset, self.log.start)
        self.simulation.checks.deleted.holds("a reader's leader", machine.leader_epoch, offset)
        return machine.leader_epoch, exposed, list(self.log.read(offset, exposed, 64))

    def drop_below(self, to: int) -> None:
        """Move the log start offset."""
        if to > self.log.start:
            self.simulation.checks.deleted.moving(self.broker, to, self.simulation.checks.committed.end)
            self.log.advance_start(to)
            self.step(LogStartAdvanced(cause="retention", now_ms=self.world.now_ms, log_start_offset=Offset(to)))

    # ------------------------------------------------------------ answers that come back

    def _fetch_answered(
        self, event_of: Callable[[int], FetchAnswered], number: int, entries: tuple[Entry, ...]
    ) -> None:
        if self.machine is None or self._asleep(self._fetch_answered, event_of, number, entries):
            return
        self._records[number] = entries
        self.step(event_of(self.world.now_ms))
        self._records.pop(number, None)

    def fetch_failed(self, number: int, code: int, log_start: int) -> None:
        """Our fetch was refused, or is known to be lost."""
        self.feed(
            lambda now: FetchFailed(
                cause="refused", now_ms=now, request=number, error_code=code, log_start_offset=Offset(log_start)
            )
        )

    def isr_answered(self, number: int, code: int, state: PartitionState | None) -> None:
        """The controller answered our proposal, or the session broke before it did."""
        self.feed(lambda now: IsrChangeAnswered(cause="isr", now_ms=now, request=number, error_code=code, state=state))

    # ------------------------------------------------------------ effects

    def _assign_epoch(self, effect: AssignLeaderEpoch) -> None:
        if self.simulation.disk_is_full(self.broker):
            # A checkpoint that cannot be written leaves the process nothing to do but end.
            self.simulation.crash(self.broker, "its disk is full")
            return
        self.log.assign_epoch(effect.leader_epoch, effect.start_offset)

    def _append_batches(self, effect: AppendBatches) -> None:
        request = self._requests[effect.request]
        assert isinstance(request, ProduceRequest)
        now, number = self.world.now_ms, effect.request
        if self.simulation.disk_refuses(self.broker):
            self.step(AppendFailed(cause="append", now_ms=now, request=number))
            return
        try:
            known = self.log.check_producer(request.producer, request.sequence)
        except RaylogError:
            self.step(AppendFailed(cause="append", now_ms=now, request=number, error=OutOfOrderSequence()))
            return
        offset = self.log.end if known is None else known.first_offset
        if known is None:
            chain = chained(self.simulation.checks.chain_before(self.log, offset), effect.leader_epoch, request.value)
            entry = Entry(effect.leader_epoch, request.value, request.producer, request.sequence, chain)
            self.log.append((entry,))
            self.simulation.checks.appended(self, offset, (entry,))
        self.step(
            LeaderAppended(
                cause="append",
                now_ms=now,
                request=number,
                first_offset=Offset(offset),
                end_offset=Offset(offset + 1),
                duplicate=known is not None,
                durable=self.log.writes_through,
            )
        )

    def _append_fetched(self, effect: AppendFetched) -> None:
        entries = self._records[effect.request]
        if self.simulation.disk_refuses(self.broker):
            self.step(AppendFailed(cause="append", now_ms=self.world.now_ms, request=effect.request))
            return
        offset = self.log.end
        begun = self.log.append(entries)
        self.simulation.checks.appended(self, offset, entries)
        self.step(
            FollowerAppended(
                cause="append",
                now_ms=self.world.now_ms,
                request=effect.request,
                end_offset=Offset(self.log.end),
                epochs=begun,
                durable=self.log.writes_through,
            )
        )

    def _truncate(self, effect: TruncateLog) -> None:
        self.simulation.checks.truncating(self, effect.to)
        self.log.truncate(effect.to)
        self._waiting = deque((min(end, self.log.end), effects) for end, effects in self._waiting)

    def _reset(self, effect: ResetLog) -> None:
        # What lies below the new start is retention's to drop; only what lies above it is cut.
        self.simulation.checks.truncating(self, max(self.log.start, effect.start_offset))
        self.simulation.checks.deleted.moving(self.broker, effect.start_offset, self.simulation.checks.committed.end)
        self.log.reset(effect.start_offset)
        self.simulation.checks.committed.started_anew(effect.start_offset)
        self._waiting = deque((self.log.end, effects) for _, effects in self._waiting)

    def _answer_produce(self, effect: AnswerProduce) -> None:
        request = self._requests.pop(effect.request)
        assert isinstance(request, ProduceRequest)
        self.simulation.checks.acknowledged(self, request, effect.first_offset)
        self.simulation.network.send(self.broker, request.client, request.answer, 0, int(effect.first_offset))

    def _refuse(self, effect: RefuseRequest) -> None:
        self._send_refusal(self._requests.pop(effect.request), effect.error)

    def _send_refusal(
        self, request: ProduceRequest | DeleteRequest | tuple[ReplicaProcess, int, int], error: RaylogError
    ) -> None:
        network = self.simulation.network
        if not isinstance(request, tuple):
            network.send(self.broker, request.client, request.answer, error.code, None)
            return
        sender, number, _ = request
        log_start = error.details.get("log_start_offset", 0)
        assert isinstance(log_start, int)
        network.send(self.broker, sender.broker, sender.fetch_failed, number, error.code, log_start)

    def _advance_start(self, effect: AdvanceLogStart) -> None:
        request = None if effect.request is None else self._requests.get(effect.request)
        if isinstance(request, DeleteRequest):
            committed = self.simulation.checks.committed.end
            self.simulation.checks.deleted.asked(committed if request.before < 0 else request.before)
        self.drop_below(effect.to)

    def _answer_deletion(self, effect: AnswerDeleteRecords) -> None:
        request = self._requests.pop(effect.request)
        assert isinstance(request, DeleteRequest)
        self.simulation.checks.deletion_answered(self, request.before, effect.low_watermark)
        self.simulation.network.send(self.broker, request.client, request.answer, 0, int(effect.low_watermark))

    def _answer_fetch(self, effect: AnswerFetch) -> None:
        entries = tuple(self.log.read(effect.fetch_offset, effect.upper, _BATCHES_PER_FETCH))
        self._send_fetch_answer(effect, Offset(effect.fetch_offset + len(entries)), entries, None)

    def _answer_diverging(self, effect: AnswerDiverging) -> None:
        self._send_fetch_answer(effect, Offset(0), (), (effect.epoch, effect.end_offset))

    def _send_fetch_answer(
        self,
        effect: AnswerFetch | AnswerDiverging,
        end: Offset,
        entries: tuple[Entry, ...],
        diverging: tuple[LeaderEpoch, Offset] | None,
    ) -> None:
        request = self._requests.pop(effect.request)
        assert isinstance(request, tuple)
        sender, number, asked_epoch = request
        self.simulation.checks.earned.answered(asked_epoch, effect.leader_epoch)

        def event_of(now: int) -> FetchAnswered:
            return FetchAnswered(
                cause="fetched",
                now_ms=now,
                request=number,
                leader_epoch=effect.leader_epoch,
                high_watermark=effect.high_watermark,
                log_start_offset=effect.log_start_offset,
                end_offset=end,
                diverging=diverging,
            )

        self.simulation.network.send(self.broker, sender.broker, sender._fetch_answered, event_of, number, entries)

    def _send_fetch(self, effect: SendFetch) -> None:
        self.simulation.checks.fetching(self, effect)
        deliver = self.simulation.deliver_fetch
        if not self.simulation.network.send(self.broker, effect.leader, deliver, self, effect):
            self.world.after(2_000, self.fetch_failed, effect.request, 1001, 0)

    def _propose(self, effect: ProposeIsr) -> None:
        self.world.tell("r{} proposes isr {} at partition epoch {}", self.broker, effect.isr, effect.partition_epoch)
        if self.uplink is None:
            self.world.after(1_000, self.isr_answered, effect.request, 1001, None)
            return
        self.uplink.propose(effect)

    def _resign(self, effect: ResignLeadership) -> None:
        self.world.tell("r{} resigns from epoch {}", self.broker, effect.leader_epoch)
        if self.uplink is not None:
            self.uplink.resign(effect)

    def _watermark(self, effect: HighWatermarkAdvanced) -> None:
        self.simulation.checks.exposed(self, effect.high_watermark)

    def _role(self, effect: RoleChanged) -> None:
        watermark = self.machine.high_watermark if self.machine else 0
        known = (self.broker, self.life, effect.leading, effect.leader_epoch, self.log.end, watermark)
        self.world.tell("r{}.{} leading={} epoch={} end={} hw={}", *known)
        self.simulation.checks.role_changed(self, effect)


_CARRY_OUT: dict[type[Effect], Callable[..., None]] = {
    AssignLeaderEpoch: ReplicaProcess._assign_epoch,
    AppendBatches: ReplicaProcess._append_batches,
    AppendFetched: ReplicaProcess._append_fetched,
    TruncateLog: ReplicaProcess._truncate,
    ResetLog: ReplicaProcess._reset,
    AdvanceLogStart: ReplicaProcess._advance_start,
    AnswerDeleteRecords: ReplicaProcess._answer_deletion,
    ResignLeadership: ReplicaProcess._resign,
    AnswerProduce: ReplicaProcess._answer_produce,
    RefuseRequest: ReplicaProcess._refuse,
    AnswerFetch: ReplicaProcess._answer_fetch,
    AnswerDiverging: ReplicaProcess._answer_diverging,
    SendFetch: ReplicaProcess._send_fetch,
    ProposeIsr: ReplicaProcess._propose,
    HighWatermarkAdvanced: ReplicaProcess._watermark,
    RoleChanged: ReplicaProcess._role,
}
