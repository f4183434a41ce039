"""Runs a replica's machine on its log: events in, effects carried out at once and in order.

Owned by the replica's shell (``replica_server.py``), which turns requests, replies and time into events. What an effect
needs beyond the log (the link to the leader, the controller) is done through the hands it is given.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any, Final

from raylog.actors.careful_clock import CarefulClock
from raylog.actors.clock import monotonic_ms, wall_ms
from raylog.actors.consumer_reads import FETCH_BYTES_MAX, ConsumerReads
from raylog.actors.flusher import Flusher
from raylog.actors.metrics.counters import ReplicaCounters
from raylog.actors.settings import FlushPolicy
from raylog.actors.tail_reader import TailReader
from raylog.actors.watermark_keeper import WatermarkKeeper
from raylog.core.errors import from_code
from raylog.core.ids import BrokerId, Incarnation, LeaderEpoch, Offset, TopicPartition
from raylog.core.replication import events as ev
from raylog.core.replication.replica import LogSummary, ReplicaMachine, ReplicationSettings
from raylog.rpc import Request
from raylog.storage.errors import DiskFull, LogClosed, StorageError, StorageIoError
from raylog.storage.log import LogConfig, PartitionLog

logger = logging.getLogger(__name__)

MAX_BYTES = 7
"""Place of ``max_bytes`` in the arguments of ``replica_fetch``."""
RETENTION_CHECK_MS: Final = 300_000
"""Default of ``log.retention.check.interval.ms``."""
DESERTED_CHECK_MS: Final = 500
"""How often requests are looked for whose sender has gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hands:
    """What the runner cannot do itself."""

    send_fetch: Callable[[ev.SendFetch], None]
    propose_isr: Callable[[ev.ProposeIsr], None]
    resign: Callable[[ev.ResignLeadership], None]
    role_changed: Callable[[ev.RoleChanged], None]
    fatal: Callable[[str], None]
    """Must end the process: the disk failed or a defect showed."""


class ReplicaRunner:
    """A partition log with the machine that decides what happens to it."""

    def __init__(
        self,
        partition: TopicPartition,
        log: PartitionLog,
        *,
        flush: FlushPolicy,
        hands: Hands,
        retention_check_ms: int = RETENTION_CHECK_MS,
    ) -> None:
        """``flush`` says when what was appended counts as durable, ``retention_check_ms`` how often old segments go."""
        self.partition = partition
        self.log = log
        self.machine: ReplicaMachine | None = None
        self.counters = ReplicaCounters()
        self._tail = TailReader(log)
        self.reads = ConsumerReads(log, self._tail, lambda: self.machine, self.counters)
        self._flush = flush
        self._syncs_first = flush.before_acknowledging
        self._flush_due_ms = 0
        self._retention_check_ms = retention_check_ms
        self._retention_due_ms = monotonic_ms() + retention_check_ms
        self.clock = CarefulClock(str(partition))
        """What retention goes by."""
        self._deserted_due_ms = 0
        self._append_failing = False
        self._unflushed = 0
        self._hands = hands
        self._flusher = Flusher(
            log,
            on_synced=self._on_synced,
            on_failed=self._on_sync_failed,
            name=str(partition),
            durations=self.counters.flush,
        )
        self._keeper = WatermarkKeeper(partition, log.folder, log.log_end_offset)
        self._next_request = 1
        self._now_ms = 0
        """When the last event happened that came from outside; what an append brings about happens then, too."""
        self._requests: dict[int, Request] = {}
        self._fetched: dict[int, memoryview] = {}
        self._after_sync: deque[tuple[int, list[ev.Effect]]] = deque()
        self._carry_out_by: dict[type[ev.Effect], Callable[[Any], None]] = {
            ev.AppendBatches: self._append_batches,
            ev.AppendFetched: self._append_fetched,
            ev.AnswerProduce: self._answer_produce,
            ev.AnswerFetch: self._answer_fetch,
            ev.SendFetch: hands.send_fetch,
            ev.HighWatermarkAdvanced: self._high_watermark_advanced,
            ev.AnswerDiverging: self._answer_diverging,
            ev.AdvanceLogStart: self._advance_log_start,
            ev.AnswerDeleteRecords: self._answer_delete_records,
            ev.ResignLeadership: hands.resign,
            ev.RefuseRequest: self._refuse,
            ev.AssignLeaderEpoch: self._assign_leader_epoch,
            ev.TruncateLog: self._cut,
            ev.ResetLog: self._cut,
            ev.ProposeIsr: hands.propose_isr,
            ev.RoleChanged: self._role_changed,
        }
        """What is done about each kind of effect: all that :data:`ev.Effect` names."""

    def start(self) -> None:
        """Begin to sync; there is no machine before :meth:`begin_life`."""
        self._flusher.start()

    async def stop(self) -> None:
        """End the syncing and keep the high watermark; the log stays open."""
        await self._flusher.stop()
        await self._keeper.stop(None if self.machine is None else self.machine.high_watermark)

    def begin_life(self, broker: int, incarnation: Incarnation, settings: ReplicationSettings) -> None:
        """Make the machine, once the controller has granted this life its incarnation."""
        log = self.log
        self.machine = ReplicaMachine(
            partition=self.partition,
            broker=BrokerId(broker),
            incarnation=incarnation,
            settings=settings,
            log=LogSummary(
                log_start_offset=Offset(log.log_start_offset),
                log_end_offset=Offset(log.log_end_offset),
                durable_end_offset=Offset(log.synced_end_offset),
                epochs=tuple((LeaderEpoch(epoch), Offset(start)) for epoch, start in log.epochs.entries),
                high_watermark=Offset(self._keeper.offset),
            ),
        )

    @property
    def disk_hanging_ms(self) -> int:
        """For how long the disk has not finished a sync, if that is too long; else 0."""
        return 0 if self.machine is None else self.machine.disk_hanging_ms

    def reconfigure(self, log: LogConfig, flush: FlushPolicy, settings: ReplicationSettings) -> None:
        """Go by a changed configuration from the next event on."""
        self.log.config = log
        self._flush = flush
        self._syncs_first = flush.before_acknowledging
        if self.machine is not None:
            self.machine.reconfigure(settings)
        self._flusher.kick()

    # ------------------------------------------------------------ events in

    def remember(self, request: Request) -> int:
        """Return the number under which the machine will answer a request."""
        number = self._next_request
        self._next_request = number + 1
        self._requests[number] = request
        return number

    def forget(self, number: int) -> None:
        """Drop a request that nobody waits for (acks=0)."""
        self._requests.pop(number, None)

    def feed_fetched(self, event: ev.FetchAnswered, records: memoryview) -> None:
        """Feed a leader's answer together with the records that came with it."""
        self._fetched[event.request] = records
        self.feed(event)
        self._fetched.pop(event.request, None)

    def feed(self, event: ev.Event) -> None:
        """Take one event and carry out what follows from it. Ignored before the first registration."""
        machine = self.machine
        if machine is None:
            return
        self._now_ms = event.now_ms
        try:
            outbox = machine.step(event)
            for effect in outbox.now:
                self._carry_out_by[type(effect)](effect)
            if outbox.after_sync:
                self._wait_for_disk(outbox.after_sync)
        except Exception as defect:  # a defect or a failing disk: a replica that cannot go on ends, and Ray restarts it
            self._hands.fatal(f"{self.partition}: {type(event).__name__} could not be carried out: {defect!r}")
            raise

    def tick(self) -> int:
        """Let the machine and the parked consumers look at the clock; returns what it shows, in milliseconds."""
        now = monotonic_ms()
        self.feed(ev.Tick(cause="tick", now_ms=now, sync_since_ms=self._flusher.busy_since_ms))
        self.reads.wake()
        if self.machine is not None:
            self._keeper.tick(now, self.machine.high_watermark, self.machine.state)
        if now >= self._deserted_due_ms:
            self._deserted_due_ms = now + DESERTED_CHECK_MS
            self._drop_deserted(now)
        if self._unflushed and now >= self._flush_due_ms:
            self._unflushed = 0
            self._flusher.kick()
        if now >= self._retention_due_ms:
            self._retention_due_ms = now + self._retention_check_ms
            self.apply_retention()
        return now

    def next_tick_ms(self, now: int, latest: int) -> int:
        """When :meth:`tick` has something to do, if nothing comes in before; at the latest ``latest``."""
        machine = self.machine
        if machine is None:
            return now
        latest = min(latest, now + self._flush.ms)
        due = min(machine.next_due_ms(now, latest), self.reads.first_deadline_ms(latest))
        return min(due, self._flush_due_ms) if self._unflushed else due

    def _drop_deserted(self, now: int) -> None:
        """Forget requests whose sender has gone; nobody else would, until deadlines that the sender chose."""
        self.reads.drop_deserted()
        deserted = [number for number, request in self._requests.items() if request.connection.is_closed]
        for number in deserted:
            del self._requests[number]
            self.feed(ev.RequestDropped(cause="connection lost", now_ms=now, request=number))

    @property
    def carried_out(self) -> tuple[type[ev.Effect], ...]:
        """The kinds of effects that this runner knows what to do about."""
        return tuple(self._carry_out_by)

    def apply_retention(self) -> None:
        """Remove what the topic's configuration no longer keeps."""
        machine = self.machine
        if machine is None:
            return
        before = self.log.log_start_offset
        now = self.clock.deleting_ms()
        self.log.apply_retention(now, machine.high_watermark)
        self.log.purge_deleted(now)
        if self.log.log_start_offset != before:
            self._log_start_moved("retention")

    # ------------------------------------------------------------ effects out

    def _on_synced(self, _: int) -> None:
        # The log may have been cut since the sync ended in its thread: only what the log says now is true now.
        end = Offset(self.log.synced_end_offset)
        self.feed(ev.Synced(cause="sync", now_ms=monotonic_ms(), end_offset=end))
        self._release_synced()

    def _on_sync_failed(self, error: BaseException) -> None:
        self._hands.fatal(f"{self.partition}: the disk refused to sync ({error}); restarting to recover from it.")

    def _wait_for_disk(self, effects: list[ev.Effect]) -> None:
        end = self.log.log_end_offset
        if not self._syncs_first or self.log.synced_end_offset >= end:
            for effect in effects:
                self._carry_out_by[type(effect)](effect)
        else:
            self._after_sync.append((end, effects))
            self._flusher.kick()

    def _release_synced(self) -> None:
        waiting = self._after_sync
        durable = self.log.synced_end_offset
        everything = durable >= self.log.log_end_offset
        while waiting and (everything or waiting[0][0] <= durable):
            for effect in waiting.popleft()[1]:
                self._carry_out_by[type(effect)](effect)

    def _answer_produce(self, effect: ev.AnswerProduce) -> None:
        request = self._requests.pop(effect.request, None)
        if request is not None:
            request.reply([effect.first_offset, self.log.log_start_offset])
            self.counters.produce.observe_ns(monotonic_ns() - request.began_ns)

    def _high_watermark_advanced(self, _: ev.HighWatermarkAdvanced) -> None:
        if self.reads.waiting:
            self.reads.wake()

    def _answer_diverging(self, effect: ev.AnswerDiverging) -> None:
        parting = [effect.epoch, effect.end_offset]
        self._answer(effect.request, [effect.leader_epoch, effect.high_watermark, effect.log_start_offset, parting])

    def _answer_delete_records(self, effect: ev.AnswerDeleteRecords) -> None:
        self._answer(effect.request, [effect.low_watermark])

    def _assign_leader_epoch(self, effect: ev.AssignLeaderEpoch) -> None:
        self.log.assign_leader_epoch(effect.leader_epoch, effect.start_offset)

    def _role_changed(self, effect: ev.RoleChanged) -> None:
        if not effect.leading:
            self.reads.refuse_all()
        self._hands.role_changed(effect)

    def _append_batches(self, effect: ev.AppendBatches) -> None:
        request = self._requests[effect.request]
        try:
            done = self.log.append_as_leader(request.payload, effect.leader_epoch, wall_ms())
        except StorageError as error:
            del self._requests[effect.request]
            request.fail(error)
            self._append_failed(effect.request, error)
            return
        if not done.duplicate:
            counters = self.counters
            counters.batches_in += 1
            counters.records_in += done.end_offset - done.first_offset
            counters.bytes_in += len(request.payload)
            self._tail.appended(done.first_offset, done.end_offset, request.payload)
        self.feed(
            ev.LeaderAppended(
                cause="append",
                now_ms=self._now_ms,
                request=effect.request,
                first_offset=Offset(done.first_offset),
                end_offset=Offset(done.end_offset),
                duplicate=done.duplicate,
                durable=not self._syncs_first,
            )
        )
        self._appended(done.end_offset - done.first_offset)

    def _append_fetched(self, effect: ev.AppendFetched) -> None:
        try:
            fetched = self._fetched.pop(effect.request)
            done = self.log.append_as_follower(fetched)
            self.counters.replication_bytes_in += len(fetched)
        except StorageError as error:
            if not self._append_failing:  # it is tried again many times a second, and said once
                logger.warning("%s: fetched records are not appended, trying again: %s", self.partition, error)
            self._append_failing = True
            self._append_failed(effect.request, error)
            return
        self.feed(
            ev.FollowerAppended(
                cause="append",
                now_ms=monotonic_ms(),
                request=effect.request,
                end_offset=Offset(done.end_offset),
                epochs=tuple([(LeaderEpoch(epoch), Offset(start)) for epoch, start in done.epochs])
                if done.epochs
                else (),
                durable=not self._syncs_first,
            )
        )
        self._append_failing = False
        self._appended(done.end_offset - done.first_offset)

    def _append_failed(self, number: int, error: StorageError) -> None:
        """Tell the machine; it is told apart whether the disk or the records are to blame."""
        of_the_disk = isinstance(error, (DiskFull, StorageIoError, LogClosed))
        told = None if of_the_disk else from_code(error.code, str(error))
        self.feed(ev.AppendFailed(cause=str(error), now_ms=monotonic_ms(), request=number, error=told))
        if isinstance(error, LogClosed):
            self._hands.fatal(f"{self.partition}: {error} Restarting to recover it.")

    def _advance_log_start(self, effect: ev.AdvanceLogStart) -> None:
        try:
            self.log.advance_log_start(effect.to)
        except StorageError as error:
            logger.warning("%s: the log start stays at %d: %s", self.partition, self.log.log_start_offset, error)
            request = self._requests.pop(effect.request, None) if effect.request is not None else None
            if request is not None:
                request.fail(error)
                now = monotonic_ms()
                self.feed(ev.RequestDropped(cause=str(error), now_ms=now, request=effect.request or 0))
            return
        self._log_start_moved("delete_records")
        self.apply_retention()

    def _log_start_moved(self, cause: str) -> None:
        start = Offset(self.log.log_start_offset)
        self.feed(ev.LogStartAdvanced(cause=cause, now_ms=monotonic_ms(), log_start_offset=start))

    def _appended(self, records: int) -> None:
        if self._syncs_first:
            self._flusher.kick()
            return
        if not self._unflushed:
            self._flush_due_ms = monotonic_ms() + self._flush.ms
        self._unflushed += records
        if self._unflushed >= self._flush.messages:
            self._unflushed = 0
            self._flusher.kick()

    def _answer_fetch(self, effect: ev.AnswerFetch) -> None:
        request = self._requests.pop(effect.request, None)
        if request is None:
            return
        max_bytes = min(request.args[MAX_BYTES], FETCH_BYTES_MAX)
        try:
            behind = effect.fetch_offset < effect.upper
            records = self._tail.read(effect.fetch_offset, max_bytes, effect.upper) if behind else b""
        except StorageError as error:
            request.fail(error)
            return
        self.counters.replication_bytes_out += len(records)
        request.reply([effect.leader_epoch, effect.high_watermark, effect.log_start_offset, None], records)

    def _answer(self, number: int, result: list[object]) -> None:
        request = self._requests.pop(number, None)
        if request is not None:
            request.reply(result)

    def _refuse(self, effect: ev.RefuseRequest) -> None:
        request = self._requests.pop(effect.request, None)
        if request is not None:
            request.fail(effect.error)

    def _cut(self, effect: ev.TruncateLog | ev.ResetLog) -> None:
        self._tail.forget()
        with self._flusher.exclusive:
            self._keeper.lower(effect.to if isinstance(effect, ev.TruncateLog) else effect.start_offset)
            if isinstance(effect, ev.TruncateLog):
                logger.info("%s: truncating to %d", self.partition, effect.to)
                self.log.truncate_to(effect.to)
            else:
                logger.info("%s: starting anew at %d", self.partition, effect.start_offset)
                self.log.truncate_fully_and_start_at(effect.start_offset)
        self._release_synced()
