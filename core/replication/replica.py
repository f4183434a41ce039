"""The state machine of one partition replica, and its only entry point.

Fed by ``raylog.actors.replica`` and by the simulator: ``step(event)`` changes the state and returns effects. Idle until
the controller's state reaches *this* incarnation: a restarted replica never acts on state addressed to an earlier one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any, Literal, assert_never

from raylog.base.errors import (
    FencedLeaderEpoch,
    KafkaStorageError,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    RaylogError,
    UnknownLeaderEpoch,
)
from raylog.base.ids import NO_EPOCH, NO_LEADER, BrokerId, Incarnation, LeaderEpoch, Offset, TopicPartition
from raylog.base.invariants import InvariantBroken, require
from raylog.core.configuration.config import majority
from raylog.core.dozing.rest import Quiet
from raylog.core.outbox import Outbox
from raylog.core.partition import PartitionState
from raylog.core.received import Received
from raylog.core.replication.consumer_events import DescribeProducers, FetchStillWaits, FetchTurnBegan
from raylog.core.replication.damage import DamageFound, RebuildLog, answer_to
from raylog.core.replication.events import (
    AppendBatches,
    AppendFailed,
    AppendMarker,
    AssignLeaderEpoch,
    Effect,
    Event,
    FetchAnswered,
    FetchFailed,
    FollowerAppended,
    IsrChangeAnswered,
    LeaderAppended,
    LeaderRequest,
    LogStartAdvanced,
    RefuseRequest,
    RequestDropped,
    RequestId,
    RoleChanged,
    SleepAnswered,
    SleepRequested,
    StateReceived,
    Synced,
    Tick,
    TransactionalProduce,
    TransactionConfirmed,
    deadline_ms,
)
from raylog.core.replication.follower import Follower
from raylog.core.replication.leader import Leader
from raylog.core.replication.log import LogCut, LogSummary, ReplicaLog, ReplicationSettings
from raylog.core.replication.parked import ParkedProduce
from raylog.core.replication.throttle import Throttle
from raylog.protocol.replica import (
    DeleteRecordsRequest,
    DescribeProducersRequest,
    FetchNearRequest,
    FetchRequest,
    FindTimesRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
    ReplicaFetchRequest,
    WriteTxnMarkersRequest,
)

__all__ = ["LogSummary", "ReplicaMachine", "ReplicationSettings"]

Role = Literal["leader", "follower", "idle"]

_STORY_LENGTH = 200
_WRITES = (ProduceRequest, WriteTxnMarkersRequest, DeleteRecordsRequest)


class ReplicaMachine:
    """One incarnation of one replica of one partition. The shell and the simulator's checkers read its properties."""

    def __init__(
        self,
        *,
        partition: TopicPartition,
        broker: BrokerId,
        incarnation: Incarnation,
        settings: ReplicationSettings,
        log: LogSummary,
    ) -> None:
        """Start idle on the log that recovery found."""
        self.partition = partition
        self.broker = broker
        self.incarnation = incarnation
        self.state: PartitionState | None = None
        self._settings = settings
        self._log = ReplicaLog(log)
        self._leader: Leader | None = None
        self._follower: Follower | None = None
        self._throttle = Throttle()
        self._last_request = 0
        self._gives_up = False
        """Whether the log is given up: the next incarnation of this replica copies it again."""
        self._story: deque[Event | str] = deque(maxlen=_STORY_LENGTH)

    def reconfigure(self, settings: ReplicationSettings) -> None:
        """Use these settings from the next step on."""
        if settings.catch_up_bytes_per_s != self._settings.catch_up_bytes_per_s:
            self._throttle.forget()
        self._settings = settings
        self._count_replicas()

    # ------------------------------------------------------------ step

    def step(self, event: Event) -> Outbox[Effect]:
        """Handle one event, in arrival order; return its effects."""
        self._story.append(event)
        out: Outbox[Effect] = Outbox()
        try:
            match event:
                case Received():  # the most frequent come first
                    self._on_request(event, out)
                case LeaderAppended():
                    self._on_leader_appended(event, out)
                case FetchAnswered():
                    if self._follower is not None:
                        self._follower.on_answered(event, out)
                case FollowerAppended():
                    if self._follower is None:
                        raise InvariantBroken("records were fetched by a replica that does not follow")
                    self._follower.on_appended(event, out)
                case FetchFailed():
                    if self._follower is not None:
                        self._follower.on_failed(event, out)
                case LogCut():
                    self._on_cut(event, out)
                case Synced():
                    self._on_synced(event, out)
                case Tick():
                    self._on_tick(event, out)
                case FetchStillWaits() | FetchTurnBegan():
                    self._on_waiting_fetches(event, out)
                case TransactionConfirmed():
                    self._on_confirmed(event, out)
                case RequestDropped():
                    self._on_dropped(event)
                case AppendFailed():
                    self._on_append_failed(event, out)
                case DamageFound():
                    self._on_damage(event, out)
                case LogStartAdvanced():
                    self._on_log_start_advanced(event, out)
                case StateReceived():
                    self._on_state(event, out)
                case IsrChangeAnswered():
                    self._on_isr_answered(event, out)
                case SleepRequested():
                    if self._leader is not None:
                        self._leader.idleness.request_sleep(event.now_ms, event.idle_ms, for_stop=event.for_stop)
                case SleepAnswered():
                    self._on_sleep_answered(event, out)
                case _:
                    assert_never(event)
        except InvariantBroken as broken:
            raise InvariantBroken(f"{self.partition} on {self.broker}: {broken.claim}", self.story) from broken
        return out

    # ------------------------------------------------------------ requests

    def leadership_error(
        self, leader_epoch: LeaderEpoch = NO_EPOCH, *, is_follower: bool = False
    ) -> RaylogError | None:
        """Return the error of a request to the leader of that epoch, or None when it is served here.

        A client may know no epoch (-1); a follower sends the epoch of the leader that it acknowledges records to.
        """
        if self.state is not None and (leader_epoch != NO_EPOCH or is_follower):
            if leader_epoch < self.state.leader_epoch:
                return FencedLeaderEpoch()
            if leader_epoch > self.state.leader_epoch:
                return UnknownLeaderEpoch()
        return None if self._leader is not None else NotLeaderOrFollower()

    def _on_request(self, event: Received[Any], out: Outbox[Effect]) -> None:
        """Check a request's leader epoch, for all requests about the log, then handle the request by its message."""
        message: LeaderRequest = event.message
        leader, state = self._leader, self.state
        error: RaylogError | None = None
        if leader is None or state is None or message.current_leader_epoch != state.leader_epoch:
            epoch, is_follower = LeaderEpoch(message.current_leader_epoch), isinstance(message, ReplicaFetchRequest)
            error = self.leadership_error(epoch, is_follower=is_follower)
        if leader is not None and error is None and leader.idleness.is_closed and isinstance(message, _WRITES):
            error = NotLeaderOrFollower("The partition falls asleep; refresh the metadata.")
        if leader is None or error is not None:
            if not isinstance(message, ProduceRequest) or message.acks != 0:
                refusal = error or NotLeaderOrFollower()
                out.now.append(RefuseRequest(cause=event.cause, request=event.request, error=refusal))
            return
        match message:
            case ProduceRequest():
                if isinstance(event, TransactionalProduce):
                    self._on_transaction(leader, event, event.now_ms, out)
                else:
                    self._on_produce(leader, event, out)
            case ReplicaFetchRequest():
                leader.on_fetch(event, out)
            case FetchRequest() | FetchNearRequest():
                leader.visibility.on_fetch(event, out)
            case DeleteRecordsRequest():
                leader.idleness.active_ms = event.now_ms
                leader.deletions.on_request(event, leader.visibility.exposed, out)
            case ListOffsetsRequest():
                leader.visibility.list_offsets(event, self.leader_epoch, out)
            case FindTimesRequest():
                leader.visibility.find_times(event, self.leader_epoch, out)
            case OffsetForLeaderEpochRequest():
                leader.visibility.epoch_end(event, out)
            case WriteTxnMarkersRequest():
                self._on_marker(leader, event, out)
            case DescribeProducersRequest():
                out.now.append(DescribeProducers(request=event.request))
            case _:
                assert_never(message)

    def _on_produce(self, leader: Leader, event: Received[ProduceRequest], out: Outbox[Effect]) -> None:
        """Append batches, of no transaction or of one that is confirmed."""
        message, state = event.message, leader.isr.state
        if message.acks == -1 and len(state.isr) < self._settings.min_insync_replicas:
            self._refuse_as_too_few(leader, event, out)
            return
        until_ms = deadline_ms(event.now_ms, message.timeout_ms)
        leader.produces.add(event.request, ParkedProduce(event.cause, message.acks, until_ms))
        out.now.append(AppendBatches(cause=event.cause, request=event.request, leader_epoch=state.leader_epoch))

    def _on_transaction(self, leader: Leader, event: TransactionalProduce, now_ms: int, out: Outbox[Effect]) -> None:
        """Append batches of a transaction that is confirmed; else they wait, unless they would be refused then."""
        is_refused = event.message.acks == -1 and len(leader.isr.state.isr) < self._settings.min_insync_replicas
        if not is_refused and (event.opens_transaction or not leader.confirmations.has_confirmed(event.claim)):
            leader.confirmations.wait(event, now_ms, self._next_request(), out)
        else:
            self._on_produce(leader, event, out)

    def _on_confirmed(self, event: TransactionConfirmed, out: Outbox[Effect]) -> None:
        """Append the requests that waited for this answer, or refuse them; one with another claim is handled again."""
        leader = self._leader
        found = None if leader is None else leader.confirmations.answered(event)
        if leader is None or found is None:
            return
        confirmed, waiting = found
        for produce in waiting:
            if produce.claim != confirmed:
                self._on_transaction(leader, produce, event.now_ms, out)
            elif event.error is not None:
                out.now.append(RefuseRequest(cause=produce.cause, request=produce.request, error=event.error))
            else:
                self._on_produce(leader, produce, out)

    def _on_marker(self, leader: Leader, event: Received[WriteTxnMarkersRequest], out: Outbox[Effect]) -> None:
        state = leader.isr.state
        if len(state.isr) < self._settings.min_insync_replicas:
            self._refuse_as_too_few(leader, event, out)
            return
        until_ms = deadline_ms(event.now_ms, event.message.timeout_ms)
        leader.produces.add(event.request, ParkedProduce(event.cause, -1, until_ms, is_marker=True))
        out.now.append(AppendMarker(marker=event, leader_epoch=state.leader_epoch))

    def _refuse_as_too_few(self, leader: Leader, event: Received[Any], out: Outbox[Effect]) -> None:
        error = NotEnoughReplicas(
            f"{len(leader.isr.state.isr)} replicas are in sync, acks=all needs {self._settings.min_insync_replicas}; "
            "try again when more replicas are back."
        )
        out.now.append(RefuseRequest(cause=event.cause, request=event.request, error=error))

    def _on_waiting_fetches(self, event: FetchStillWaits | FetchTurnBegan, out: Outbox[Effect]) -> None:
        if self._leader is not None and isinstance(event, FetchTurnBegan):
            self._leader.visibility.retry_blocked(event.now_ms, out)
        elif self._leader is not None and isinstance(event, FetchStillWaits):
            self._leader.visibility.on_still_waits(event, out)
        elif isinstance(event, FetchStillWaits):
            error = NotLeaderOrFollower()
            out.now.append(RefuseRequest(cause=event.cause, request=event.fetch.request, error=error))

    # ------------------------------------------------------------ time and disk

    def next_due_ms(self, now_ms: int, otherwise: int) -> int:
        """Return when the next tick is due, if no other event comes before; at the latest ``otherwise``.

        Members that lag, and disks that go on failing, are checked at each tick, also before that time.
        """
        role = self._leader or self._follower
        return otherwise if role is None else min(otherwise, role.next_due_ms(now_ms, otherwise))

    def _on_tick(self, event: Tick, out: Outbox[Effect]) -> None:
        self._log.in_transaction = event.in_transaction
        self._log.disk.note_tick(event.now_ms, event.sync_since_ms, self._settings.sync_time_max_ms)
        if self._leader is not None:
            self._leader.tick(event.cause, event.now_ms, out)
        elif self._follower is not None:
            self._rebuild_if_damaged(event.cause, out)
            self._follower.tick(event.cause, event.now_ms, out)

    def _on_leader_appended(self, event: LeaderAppended, out: Outbox[Effect]) -> None:
        leader, log = self._leader, self._log
        produce = leader.produces.take(event.request) if leader is not None else None
        if leader is None or produce is None:
            require(False, f"append {event.request} was not requested")
            return
        leader.idleness.active_ms = event.now_ms
        if not event.duplicate:
            if event.first_offset != log.end:
                require(False, f"append at {event.first_offset}, log end is {log.end}")
            log.appended(event.end_offset, durable=event.durable)
            if log.disk.failing_since_ms is not None:
                log.disk.append_succeeded()
            if leader.fetches.waiting:
                leader.records_came(event.now_ms, out)
        produce.first = event.first_offset
        leader.produces.wait(event.request, produce, event.end_offset)
        leader.advance(event.cause, out)

    def _on_append_failed(self, event: AppendFailed, out: Outbox[Effect]) -> None:
        if self._leader is not None:
            if event.error is None:
                self._log.disk.append_failed(event.now_ms)
            produce = self._leader.produces.take(event.request)
            if produce is not None:
                error = self._leader.judged(event.error or KafkaStorageError())
                out.now.append(RefuseRequest(cause=event.cause, request=event.request, error=error))
        elif self._follower is not None:
            self._follower.on_append_failed(event)

    def _on_damage(self, event: DamageFound, out: Outbox[Effect]) -> None:
        """Answer the request that met damage; let another replica lead, or have the log copied from the leader."""
        if event.offset < self._log.end and self._log.start < max(event.next_offset, event.offset + 1):
            self._log.disk.damage_found(event.offset, event.next_offset)
        if event.request is not None:
            is_curable = self._leader is None or self._leader.is_replaceable
            error = answer_to(event, is_curable=is_curable)
            out.now.append(RefuseRequest(cause=event.cause, request=event.request, error=error))
        if self._leader is not None:
            self._leader.resign_if_the_disk_fails(event.cause, event.now_ms, out)
        else:
            self._rebuild_if_damaged(event.cause, out)

    def _rebuild_if_damaged(self, cause: str, out: Outbox[Effect]) -> None:
        """Give a damaged log up while another replica leads, which has what was acknowledged."""
        follower, state, damaged_at = self._follower, self.state, self._log.disk.damaged_at
        if follower is None or state is None or damaged_at is None or self._gives_up:
            return
        place = state.place(follower.leader)
        if place is not None and place.port:
            self._gives_up = True
            self._note(f"the log is damaged at {damaged_at}: copy it again from {follower.leader}")
            out.now.append(RebuildLog(cause=cause, offset=damaged_at))

    def _on_log_start_advanced(self, event: LogStartAdvanced, out: Outbox[Effect]) -> None:
        self._log.advance_start(event.log_start_offset)
        if self._leader is not None:
            self._leader.log_start_advanced(out)
        elif self._follower is not None:
            self._follower.on_log_start_advanced(event.cause, event.now_ms, out)

    def _on_cut(self, event: LogCut, out: Outbox[Effect]) -> None:
        self._log.was_cut(event.log)
        if self._follower is not None:
            self._follower.on_cut(event, out)

    def _on_dropped(self, event: RequestDropped) -> None:
        if self._leader is not None:
            self._leader.drop(event.request)

    def _on_synced(self, event: Synced, out: Outbox[Effect]) -> None:
        self._log.synced(event.end_offset)
        if self._leader is not None:
            self._leader.advance(event.cause, out)
        elif self._follower is not None:
            self._follower.follow_watermark()

    # ------------------------------------------------------------ the controller

    def _on_isr_answered(self, event: IsrChangeAnswered, out: Outbox[Effect]) -> None:
        if event.error_code == 0 and event.state is not None:
            self._adopt(event.state, event.cause, event.now_ms, out)
        if self._leader is not None:
            self._leader.on_isr_answered(event)

    def _on_sleep_answered(self, event: SleepAnswered, out: Outbox[Effect]) -> None:
        if event.error_code == 0 and event.state is not None:
            self._adopt(event.state, event.cause, event.now_ms, out)
        if self._leader is not None:
            settings = self._settings
            self._leader.idleness.answered(event, settings.isr_retry_ms, settings.sleep_after_ms)

    def _on_state(self, event: StateReceived, out: Outbox[Effect]) -> None:
        if event.incarnation != self.incarnation:
            self._note(f"ignored: addressed to incarnation {event.incarnation}")
            return
        self._adopt(event.state, event.cause, event.now_ms, out)

    def _adopt(self, state: PartitionState, cause: str, now_ms: int, out: Outbox[Effect]) -> None:
        place = state.place(self.broker)
        if place is not None and place.incarnation != self.incarnation:
            self._note(f"ignored: that state places incarnation {place.incarnation} here")
            return
        held = self.state
        if held is None:
            self._enter(state, cause, now_ms, out)
            return
        if state.topic_id != held.topic_id or state.leader_epoch < held.leader_epoch:
            self._note("ignored: of another topic or an older leader epoch")
        elif state.partition_epoch > held.partition_epoch:
            if state.leader_epoch > held.leader_epoch or state.leader != held.leader or state.asleep is not None:
                require(
                    state.leader_epoch > held.leader_epoch or state.leader in (held.leader, NO_LEADER),
                    f"leader {state.leader} in the leader epoch {held.leader_epoch} of {held.leader}",
                )
                self._enter(state, cause, now_ms, out)
            else:
                self.state = state
                self._count_replicas()
                self._set_pace()
                if self._leader is not None:
                    self._leader.adopt(state, cause, now_ms, out)
                elif self._follower is not None and self.broker in held.isr and self.broker not in state.isr:
                    self._follower.leave_isr(cause, now_ms, out)
        elif state.partition_epoch == held.partition_epoch and state.leader_epoch == held.leader_epoch:
            self.state = _with_places_of(held, state)
            if self._leader is not None and self.state is not held:
                self._leader.adopt(self.state, cause, now_ms, out)

    def _enter(self, state: PartitionState, cause: str, now_ms: int, out: Outbox[Effect]) -> None:
        """Take the role that a state of another leadership assigns; none while the partition sleeps."""
        require(
            self._log.epochs.latest <= state.leader_epoch,
            f"the log knows leader epoch {self._log.epochs.latest}, the controller is at {state.leader_epoch}",
        )
        if self._leader is not None:
            self._leader.resign(cause, out)
        self.state, self._leader, self._follower = state, None, None
        self._count_replicas()
        leading = state.leader == self.broker and state.asleep is None
        self._note(f"leader epoch {state.leader_epoch} of {state.leader}, isr {state.isr}")
        if leading:
            self._lead(state, cause, now_ms, out)
        out.now.append(RoleChanged(cause=cause, leading=leading, leader=state.leader, leader_epoch=state.leader_epoch))
        if leading:
            self._serve(cause, now_ms, out)
        elif state.leader != NO_LEADER and self.broker in state.replicas and state.asleep is None:
            self._follower = Follower(
                leader=state.leader,
                leader_epoch=state.leader_epoch,
                incarnation=self.incarnation,
                log=self._log,
                settings=self._settings,
                next_request=self._next_request,
                note=self._note,
                throttle=self._throttle,
            )
            self._set_pace()
            self._follower.fetch(cause, now_ms, out)
            self._rebuild_if_damaged(cause, out)

    def _lead(self, state: PartitionState, cause: str, now_ms: int, out: Outbox[Effect]) -> None:
        require(
            self._log.epochs.latest < state.leader_epoch,
            f"leader epoch {state.leader_epoch} was begun by an earlier life of this replica",
        )
        self._log.begin_epoch(state.leader_epoch, self._log.end)
        out.now.append(AssignLeaderEpoch(cause=cause, leader_epoch=state.leader_epoch, start_offset=self._log.end))
        self._leader = Leader(
            state=state,
            me=self.broker,
            incarnation=self.incarnation,
            log=self._log,
            settings=self._settings,
            now_ms=now_ms,
            next_request=self._next_request,
            note=self._note,
        )

    def _serve(self, cause: str, now_ms: int, out: Outbox[Effect]) -> None:
        if self._leader is not None:
            self._leader.advance(cause, out)
            self._leader.drop_eligible(cause, now_ms, out)

    def _count_replicas(self) -> None:
        """Derive the settings for the current replica set, at once with the state that names it."""
        settings, state = self._settings, self.state
        if settings.majority and state is not None:
            wanted = majority(state.replication_factor)
            if wanted != settings.min_insync_replicas:
                self._settings = replace(settings, min_insync_replicas=wanted)
        for half in (self._leader, self._follower):
            if half is not None:
                half.settings = self._settings

    def _set_pace(self) -> None:
        """Throttle a replica while it is being added; an in-sync replica must stay in sync."""
        if self._follower is not None and self.state is not None:
            self._follower.in_sync = self.broker in self.state.isr
            self._follower.throttled = self.broker in self.state.adding and self.broker not in self.state.isr

    def _next_request(self) -> RequestId:
        self._last_request += 1
        return self._last_request

    def _note(self, line: str) -> None:
        self._story.append(line)

    # ------------------------------------------------------------ what the shell reads

    @property
    def role(self) -> Role:
        """The current role of this replica."""
        if self._leader is not None:
            return "leader"
        return "follower" if self._follower is not None else "idle"

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The leader epoch of the state held; :data:`NO_EPOCH` before the first state arrives."""
        return self.state.leader_epoch if self.state is not None else NO_EPOCH

    @property
    def held_from(self) -> int:
        """Lowest offset that the roles of the last leader followed still had to copy elsewhere; -1 = none."""
        return self._log.held_from

    @property
    def high_watermark(self) -> Offset:
        """Everything below is committed, as far as this replica knows."""
        return self._log.high_watermark

    @property
    def exposed_high_watermark(self) -> Offset | None:
        """The high watermark for clients; None when not leading, or while the watermark is below this epoch's start."""
        return self._leader.exposed_watermark if self._leader is not None else None

    @property
    def log_start_offset(self) -> Offset:
        """First offset of the log."""
        return self._log.start

    @property
    def log_end_offset(self) -> Offset:
        """Offset that the next record will get."""
        return self._log.end

    @property
    def durable_end_offset(self) -> Offset:
        """Everything below is on disk."""
        return self._log.durable_end

    @property
    def disk_hanging_ms(self) -> int:
        """For how long the oldest sync has been under way, once that is too long for a leader; 0 otherwise."""
        return self._log.disk.hanging_ms

    @property
    def damaged_at(self) -> Offset | None:
        """First offset of the damage that was found in the log and is still there; None = none was."""
        return self._log.disk.damaged_at

    @property
    def epochs(self) -> tuple[tuple[LeaderEpoch, Offset], ...]:
        """The leader epochs of the log and where they begin."""
        return tuple(self._log.epochs.entries)

    @property
    def falls_asleep(self) -> bool:
        """Whether this leader has proposed that its partition sleeps, and does not know the outcome yet."""
        return self._leader is not None and self._leader.idleness.is_closed

    @property
    def parked_consumer_fetches(self) -> int:
        """Number of consumer fetches parked here."""
        return 0 if self._leader is None else len(self._leader.visibility.waiting)

    @property
    def isr(self) -> tuple[BrokerId, ...]:
        """The committed in-sync replicas, as far as this replica knows."""
        return self.state.isr if self.state is not None else ()

    @property
    def maximal_isr(self) -> tuple[BrokerId, ...]:
        """Committed and possibly committed members together; empty when not leading."""
        return self._leader.isr.maximal if self._leader is not None else ()

    @property
    def settings(self) -> ReplicationSettings:
        """The configuration in force."""
        return self._settings

    def quiet(self, otherwise_ms: int) -> Quiet | None:
        """Return since when and until when nothing is to be done, ``otherwise_ms`` at the latest; None = something is.

        At rest the process of this replica may be stopped: parked requests wait for records, or until the given time.
        """
        log, disk = self._log, self._log.disk
        disk_is_well = disk.failing_since_ms is None and not disk.hanging_ms and disk.damaged_at is None
        if not disk_is_well or not log.high_watermark == log.durable_end == log.end:
            return None
        if self._leader is not None:
            return self._leader.quiet(otherwise_ms)
        return None if self._follower is None else self._follower.quiet(otherwise_ms)

    @property
    def story(self) -> tuple[str, ...]:
        """The last steps, oldest first, as text."""
        return tuple(str(step) for step in self._story)

    def validate(self) -> None:
        """Check every cross-reference; raises InvariantBroken."""
        try:
            self._log.validate()
            if self._leader is not None:
                self._leader.validate()
                require(self._follower is None and self.state is not None, "leader and follower at once, or no state")
            elif self._follower is not None:
                self._follower.validate()
                require(self.state is not None, "a role without the controller's word")
        except InvariantBroken as broken:
            raise InvariantBroken(f"{self.partition} on {self.broker}: {broken.claim}", self.story) from broken


def _with_places_of(held: PartitionState, received: PartitionState) -> PartitionState:
    """Return the held state with the received places, except where a newer incarnation is known already."""
    newest = {place.broker: place.incarnation for place in held.places}
    places = tuple(
        place if place.incarnation >= newest.get(place.broker, place.incarnation) else held.place(place.broker) or place
        for place in received.places
    )
    return held if places == held.places else replace(held, places=places)
