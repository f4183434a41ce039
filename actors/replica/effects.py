"""Carries out the effects of a replica's state machine: appends, truncations, replies to producers and followers.

Owned by the replica's runner; ``consumer_reads.py`` carries out the effects for consumers. The outcome of an append or
a truncation is fed to the state machine as an event. May touch: the ports in ``ports.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from raylog.actors.answering import defects
from raylog.actors.metrics.counters import ReplicaCounters
from raylog.actors.replica.damage import DamageWatch
from raylog.actors.replica.ports import Clock, Keeper, Log, Records, ReplicaPorts, ReplicaRequest, Sync
from raylog.actors.replica.tail_cache import TailCache
from raylog.actors.request_table import RequestTable
from raylog.actors.roles.local import FETCH_BYTES_MAX
from raylog.actors.settings import FlushPolicy
from raylog.base.errors import RaylogError, UnknownServerError
from raylog.base.ids import LeaderEpoch, Offset, TopicPartition
from raylog.core.replication import events as ev
from raylog.core.replication.damage import RebuildLog
from raylog.core.replication.log import LogCut, LogSummary
from raylog.protocol.message import Empty
from raylog.protocol.replica import DeleteRecordsReply, EpochEnd, ProduceReply, ReplicaFetchReply
from raylog.storage.batch.marker import TxnMarker
from raylog.storage.errors import DiskFull, LogClosed, LogDamaged, StorageIoError

logger = logging.getLogger(__name__)


class ReplicaEffects:
    """The handlers of effects, and the log's end and durable end (:class:`raylog.actors.runner.Durability`)."""

    def __init__(
        self,
        partition: TopicPartition,
        log: Log,
        *,
        clock: Clock,
        time_of_day: Callable[[], int],
        sync: Sync,
        keeper: Keeper,
        ports: ReplicaPorts,
        flush: FlushPolicy,
        requests: RequestTable[ReplicaRequest],
        tail: TailCache,
        counters: ReplicaCounters,
        damage: DamageWatch,
        look_at_held: Callable[[int], tuple[int, int]],
        log_start_moved: Callable[[], None],
    ) -> None:
        """``time_of_day`` returns the time for appends, in milliseconds since 1970.

        ``look_at_held`` takes the monotonic time, and returns the lowest offset that followers must keep because the
        leader's roles need it (-1 = none), and the time until which that result may be used.
        ``log_start_moved`` is called when a deletion of records has moved the log start offset.
        """
        self.release: Callable[[], None]
        """Carries out the effects that waited for the disk; set when the state machine is made."""
        self.fetched: dict[int, Records] = {}
        """Records of the leader's reply that is being applied, by the number of the fetch."""
        self.now_ms = 0
        """Monotonic time of the last produce request; its append counts as of then, too."""
        self._partition = partition
        self._log = log
        self._monotonic_ns = clock.monotonic_ns
        self._time_of_day = time_of_day
        self._sync = sync
        self._keeper = keeper
        self._ports = ports
        self._requests = requests
        self._tail = tail
        self._counters = counters
        self._damage = damage
        self._look_at_held = look_at_held
        self._held_from = -1
        self.held_due_ms = 0
        """Monotonic time until which the result of ``look_at_held`` is used."""
        self._log_start_moved = log_start_moved
        self._append_failing = False
        self._flush = flush
        self._syncs_first = flush.before_acknowledging
        self._flush_due_ms = 0
        self._unflushed = 0

    def table(self) -> dict[type[ev.Effect], Callable[[Any], ev.Event | None]]:
        """Return the handler of each kind of effect, except those for consumers. Some return their outcome as event."""
        ports = self._ports
        return {
            ev.AppendBatches: self._append_batches,
            ev.VerifyTransaction: ports.verify,
            ev.AppendMarker: self._append_marker,
            ev.AppendFetched: self._append_fetched,
            ev.AnswerProduce: self._answer_produce,
            ev.AnswerMarker: self._answer_marker,
            ev.AnswerFetch: self._answer_fetch,
            ev.AnswerProducers: self._answer_producers,
            ev.SendFetch: self._send_fetch,
            ev.AnswerDiverging: self._answer_diverging,
            ev.AdvanceLogStart: self._advance_log_start,
            ev.AnswerDeleteRecords: self._answer_delete_records,
            ev.ResignLeadership: ports.resign,
            RebuildLog: ports.rebuild,
            ev.RefuseRequest: self._refuse,
            ev.AssignLeaderEpoch: self._assign_leader_epoch,
            ev.TruncateLog: self._cut,
            ev.ResetLog: self._cut,
            ev.ProposeIsr: ports.propose_isr,
            ev.ProposeSleep: ports.propose_sleep,
            ev.RoleChanged: ports.role_changed,
        }

    # ------------------------------------------------------------ durability

    def end(self) -> int:
        """Return the log end offset."""
        return self._log.log_end_offset

    def durable_end(self) -> int:
        """Return the durable log end offset; under a relaxed flush policy all written records count as durable."""
        return self._log.synced_end_offset if self._syncs_first else self._log.log_end_offset

    def summary(self) -> LogSummary:
        """Return the log's offsets and leader epochs, with the high watermark that an earlier incarnation wrote."""
        log = self._log
        return LogSummary(
            log_start_offset=Offset(log.log_start_offset),
            log_end_offset=Offset(log.log_end_offset),
            durable_end_offset=Offset(self.durable_end()),
            epochs=tuple((LeaderEpoch(epoch), Offset(start)) for epoch, start in log.epochs.entries),
            high_watermark=Offset(self._keeper.offset),
        )

    def kick(self) -> None:
        """Begin a sync of the log soon."""
        self._sync.kick()

    def reconfigure(self, flush: FlushPolicy) -> None:
        """Apply another flush policy; records that wait for a sync by the former one are synced now."""
        self._flush = flush
        self._syncs_first = flush.before_acknowledging
        self._unflushed = 0
        self._sync.kick()

    def flush_if_due(self, now_ms: int) -> None:
        """Begin a sync if records have waited for one as long as a relaxed policy allows."""
        if self._unflushed and now_ms >= self._flush_due_ms:
            self._unflushed = 0
            self._sync.kick()

    def flush_due_ms(self, otherwise: int) -> int:
        """Return the time at which :meth:`flush_if_due` has something to do; at the latest ``otherwise``."""
        return min(otherwise, self._flush_due_ms) if self._unflushed else otherwise

    def _appended(self, records: int) -> None:
        if self._syncs_first:
            self._sync.kick()
            return
        if not self._unflushed:
            self._flush_due_ms = self._monotonic_ms() + self._flush.ms
        self._unflushed += records
        if self._unflushed >= self._flush.messages:
            self._unflushed = 0
            self._sync.kick()

    def _monotonic_ms(self) -> int:
        return self._monotonic_ns() // 1_000_000

    # ------------------------------------------------------------ the log

    def _append_batches(self, effect: ev.AppendBatches) -> ev.Event:
        request = self._requests[effect.request]
        payload, end_before = request.payload, self._log.log_end_offset
        self._log.opened_for = request.opened_for
        try:
            done = self._log.append_as_leader(payload, effect.leader_epoch, self._time_of_day())
        except RaylogError as error:
            return self._not_appended(effect.request, error)
        except Exception as defect:  # hostile records may make the checks raise anything
            return self._fail_unforeseen(effect.request, defect, end_before)
        first, end = Offset(done.first_offset), Offset(done.end_offset)
        if done.rewritten is not None:
            payload, request.append_ms = done.rewritten
        if not done.duplicate:
            counters = self._counters
            counters.batches_in += 1
            counters.records_in += end - first
            counters.bytes_in += len(payload)
            self._tail.appended(first, end, payload)
        self._appended(end - first)
        return ev.LeaderAppended(
            cause="append",
            now_ms=self.now_ms,
            request=effect.request,
            first_offset=first,
            end_offset=end,
            duplicate=done.duplicate,
            durable=not self._syncs_first,
        )

    def _append_marker(self, effect: ev.AppendMarker) -> ev.Event:
        marker, message = effect.marker, effect.marker.message
        written = TxnMarker(
            message.producer_id, message.producer_epoch, message.coordinator_epoch, committed=message.committed
        )
        end_before = self._log.log_end_offset
        try:
            done = self._log.append_marker(written, effect.leader_epoch, self._time_of_day())
        except RaylogError as error:
            return self._not_appended(marker.request, error)
        except Exception as defect:  # as in _append_batches
            return self._fail_unforeseen(marker.request, defect, end_before)
        first = Offset(done.first_offset)
        # The offset of a duplicate's first marker is not known any more, and may still be above the high watermark.
        end = Offset(self._log.log_end_offset if done.duplicate else done.end_offset)
        self._appended(0 if done.duplicate else end - first)
        return ev.LeaderAppended(
            cause="append",
            now_ms=marker.now_ms,
            request=marker.request,
            first_offset=first,
            end_offset=end,
            duplicate=done.duplicate,
            durable=not self._syncs_first,
        )

    def _append_fetched(self, effect: ev.AppendFetched) -> ev.Event:
        try:
            fetched = self.fetched.pop(effect.request)
            done = self._log.append_as_follower(fetched, self._time_of_day())
        except RaylogError as error:
            if not self._append_failing:  # retried many times a second, logged once
                logger.warning("%s: fetched records are not appended, trying again: %s", self._partition, error)
            self._append_failing = True
            return self._append_failed(effect.request, error)
        self._append_failing = False
        self._counters.replication_bytes_in += len(fetched)
        self._appended(done.end_offset - done.first_offset)
        return ev.FollowerAppended(
            cause="append",
            now_ms=self._monotonic_ns() // 1_000_000,
            request=effect.request,
            end_offset=Offset(done.end_offset),
            epochs=tuple([(LeaderEpoch(epoch), Offset(start)) for epoch, start in done.epochs]) if done.epochs else (),
            durable=not self._syncs_first,
        )

    def _fail_unforeseen(self, number: int, defect: Exception, end_before: int) -> ev.Event:
        """Return the failure of an append by an unforeseen error. If the log has changed, raise: the process ends."""
        if self._log.log_end_offset != end_before:
            raise defect
        defects.report(defect, "%s: an append could not be handled.", self._partition)
        error = UnknownServerError(f"{type(defect).__name__}: {defect}")
        return ev.AppendFailed(cause=str(error), now_ms=self._monotonic_ms(), request=number, error=error)

    def _not_appended(self, number: int, error: RaylogError) -> ev.Event:
        """Fail the request if the disk is to blame; if the records are, the state machine does (R13)."""
        failed = self._append_failed(number, error)
        if failed.error is None:
            self._requests.pop(number).fail(error)
        return failed

    def _append_failed(self, number: int, error: RaylogError) -> ev.AppendFailed:
        """Return the event of the failure; it has the error only if the records are to blame, not the disk."""
        is_of_disk = isinstance(error, (DiskFull, StorageIoError, LogClosed))
        blamed = None if is_of_disk else error
        if isinstance(error, LogClosed):
            self._ports.fatal(f"{self._partition}: {error} Restarting to recover it.")
        return ev.AppendFailed(cause=str(error), now_ms=self._monotonic_ms(), request=number, error=blamed)

    def _assign_leader_epoch(self, effect: ev.AssignLeaderEpoch) -> None:
        """Write the epoch durably before its first record. A full disk is no error: the first record adds the epoch.

        Until then no record is appended, but readers are served; without this, the process would end.
        """
        try:
            self._log.assign_leader_epoch(effect.leader_epoch, effect.start_offset)
        except DiskFull as error:
            logger.warning("%s: leader epoch %d is not noted yet: %s", self._partition, effect.leader_epoch, error)

    def _cut(self, effect: ev.TruncateLog | ev.ResetLog) -> ev.Event:
        self._tail.forget()
        done = True
        try:
            with self._sync.exclusive:
                self._cut_log(effect)
        except DiskFull as error:
            if self._log.is_closed:
                raise
            done = False
            if not self._append_failing:  # retried many times a second, logged once
                logger.warning("%s: the log is not cut, trying again: %s", self._partition, error)
            self._append_failing = True
        self.release()
        return LogCut(cause=effect.cause, now_ms=self._monotonic_ms(), log=self.summary(), done=done)

    def _cut_log(self, effect: ev.TruncateLog | ev.ResetLog) -> None:
        if isinstance(effect, ev.TruncateLog):
            logger.info("%s: truncating to %d", self._partition, effect.to)
            self._keeper.lower(self._log.end_after_cut(effect.to))
            self._log.truncate_to(effect.to, self._time_of_day())
        else:
            logger.info("%s: starting again at %d", self._partition, effect.start_offset)
            self._keeper.lower(effect.start_offset)
            self._log.truncate_fully_and_start_at(effect.start_offset, self._time_of_day())

    def _advance_log_start(self, effect: ev.AdvanceLogStart) -> ev.Event | None:
        try:
            self._log.advance_log_start(effect.to)
        except RaylogError as error:
            start = self._log.log_start_offset
            logger.warning("%s: the log start stays at %d: %s", self._partition, start, error)
            request = None if effect.request is None else self._requests.pop(effect.request, None)
            if request is None or effect.request is None:
                return None
            request.fail(error)
            return ev.RequestDropped(cause=str(error), now_ms=self._monotonic_ms(), request=effect.request)
        self._log_start_moved()
        return None

    # ------------------------------------------------------------ answers

    def _answer_produce(self, effect: ev.AnswerProduce) -> None:
        request = self._requests.pop(effect.request, None)
        if request is not None:
            request.reply(ProduceReply(effect.first_offset, self._log.log_start_offset, request.append_ms))
            self._counters.produce.observe_ns(self._monotonic_ns() - request.began_ns)

    def _answer_marker(self, effect: ev.AnswerMarker) -> None:
        request = self._requests.pop(effect.request, None)
        if request is not None:
            request.reply(Empty())

    def _answer_fetch(self, effect: ev.AnswerFetch) -> ev.Event | None:
        request = self._requests.pop(effect.request, None)
        if request is None:
            return None
        records: Records = b""
        try:
            if effect.fetch_offset < effect.upper:
                max_bytes = FETCH_BYTES_MAX if effect.max_bytes > FETCH_BYTES_MAX else effect.max_bytes
                records = self._tail.read(effect.fetch_offset, max_bytes, effect.upper)
        except RaylogError as error:
            request.fail(error)
            return self._damage.found(error, self._monotonic_ms()) if isinstance(error, LogDamaged) else None
        self._counters.replication_bytes_out += len(records)
        held_from = self._held_from if self.now_ms < self.held_due_ms else self._held_now()
        reply = ReplicaFetchReply(effect.leader_epoch, effect.high_watermark, effect.log_start_offset, None, held_from)
        request.reply(reply, records)
        return None

    def _held_now(self) -> int:
        if self.now_ms >= self.held_due_ms:
            self._held_from, self.held_due_ms = self._look_at_held(self.now_ms)
        return self._held_from

    def _send_fetch(self, effect: ev.SendFetch) -> None:
        if self._log.may_lack_producers and self._log.lacks_producers:
            effect = replace(effect, lacks_producers=True)
        self._ports.send_fetch(effect)

    def _answer_producers(self, effect: ev.AnswerProducers) -> None:
        request = self._requests.pop(effect.request, None)
        if request is not None:
            reply = ReplicaFetchReply(
                effect.leader_epoch,
                effect.high_watermark,
                effect.log_start_offset,
                None,
                self._held_now(),
                has_producers=True,
            )
            request.reply(reply, self._log.producers_below(effect.offset))

    def adopt_producers(self, snapshot: Records) -> None:
        """Apply the leader's snapshot of the producers before the start of this log."""
        try:
            self._log.adopt_producers(snapshot)
        except RaylogError as error:
            logger.warning("%s: what the leader knows of its producers is not taken: %s", self._partition, error)

    def _answer_diverging(self, effect: ev.AnswerDiverging) -> None:
        request = self._requests.pop(effect.request, None)
        if request is not None:
            parting = EpochEnd(effect.epoch, effect.end_offset)
            request.reply(
                ReplicaFetchReply(
                    effect.leader_epoch, effect.high_watermark, effect.log_start_offset, parting, self._held_now()
                )
            )

    def _answer_delete_records(self, effect: ev.AnswerDeleteRecords) -> None:
        request = self._requests.pop(effect.request, None)
        if request is not None:
            request.reply(DeleteRecordsReply(effect.low_watermark))

    def _refuse(self, effect: ev.RefuseRequest) -> None:
        request = self._requests.pop(effect.request, None)
        if request is not None:
            request.fail(effect.error)
