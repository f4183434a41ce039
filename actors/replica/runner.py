"""Runs a replica's state machine on its log: it turns requests and replies into events, and carries out effects.

Owned by the replica's shell: ``server.py`` under Ray, and a process of the simulator. Requests are messages of
``raylog.protocol.replica``; effects reach everything except the log through ports (``ports.py``). Has no event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from raylog.actors.careful_clock import CarefulClock
from raylog.actors.metrics.counters import ReplicaCounters
from raylog.actors.replica.consumer_reads import ConsumerReads
from raylog.actors.replica.damage import DamageWatch
from raylog.actors.replica.effects import ReplicaEffects
from raylog.actors.replica.ports import (
    Cleaning,
    Clock,
    Keeper,
    Log,
    Records,
    ReplicaPorts,
    ReplicaRequest,
    Scrubbing,
    Sync,
)
from raylog.actors.replica.tail_cache import TailCache
from raylog.actors.request_table import RequestTable
from raylog.actors.runner import Runner
from raylog.actors.settings import FlushPolicy, Paces
from raylog.actors.timer import LONGEST_MS, SHORTEST_MS
from raylog.base.errors import InvalidRequest, RaylogError
from raylog.base.ids import NO_LEADER, BrokerId, Incarnation, LeaderEpoch, Offset, TopicPartition
from raylog.core.partition import PartitionState
from raylog.core.received import Received
from raylog.core.replication import consumer_events as ce
from raylog.core.replication import events as ev
from raylog.core.replication.holding import Hold
from raylog.core.replication.replica import ReplicaMachine, ReplicationSettings
from raylog.protocol import replica as wire
from raylog.protocol.message import Message
from raylog.storage.errors import LogDamaged
from raylog.storage.log.config import LogConfig

logger = logging.getLogger(__name__)

RETENTION_CHECK_MS: Final = 300_000
"""Default of ``log.retention.check.interval.ms``."""
RETENTION_SOON_MS: Final = 500
"""Time from the start of a leadership until retention first runs; a partition does not sleep before that."""
RETENTION_RETRY_MS: Final = 5_000
"""Pause after a disk error until retention runs again."""
HELD_LOOK_MS: Final = 100
"""Time for which replies to followers reuse the offset that the leader's roles need."""
DESERTED_CHECK_MS: Final = 500
"""Interval between checks for requests with a closed connection."""
_FETCHES: Final[frozenset[type[Message]]] = frozenset(
    {wire.ReplicaFetchRequest, wire.FetchRequest, wire.FetchNearRequest}
)
_APPLIED_EVERYWHERE: Final[frozenset[type[Message]]] = frozenset(
    {wire.DeleteRecordsRequest, wire.WriteTxnMarkersRequest}
)
"""Requests that are answered when the other replicas have applied them, too."""
_LOOK_UPS: Final[frozenset[type[Message]]] = frozenset(
    {
        wire.ListOffsetsRequest,
        wire.FindTimesRequest,
        wire.OffsetForLeaderEpochRequest,
        wire.DescribeProducersRequest,
    }
)
"""Requests that are answered at once."""
_CAUSES: Final[dict[type[Message], str]] = {method.request: method.name for method in wire.REPLICA.methods.values()}


class ReplicaRunner:
    """A partition's log, with the state machine that decides what happens to it."""

    _deserted_due_ms = 0
    _notified_of_work = False
    _has_followed = False
    """Whether another replica leads."""
    _retention_failing = False

    def __init__(
        self,
        partition: TopicPartition,
        log: Log,
        *,
        clock: Clock,
        sync: Sync,
        keeper: Keeper,
        ports: ReplicaPorts,
        flush: FlushPolicy,
        counters: ReplicaCounters,
        retention_check_ms: int = RETENTION_CHECK_MS,
        cleaner: Cleaning | None = None,
        scrubber: Scrubbing | None = None,
        machine_class: type[ReplicaMachine] = ReplicaMachine,
    ) -> None:
        """``flush``: when appended records count as durable. ``retention_check_ms``: interval of retention."""
        self.partition = partition
        self.log = log
        self.machine: ReplicaMachine | None = None
        self.counters, self.hold = counters, Hold()
        self.clock = CarefulClock(str(partition), since_boot=clock.since_boot_ns, wall=clock.wall_ns)
        """The time of day for retention and appends."""
        self.requests: RequestTable[ReplicaRequest] = RequestTable()
        """Requests that the state machine has not answered yet."""
        self.feed: Callable[[ev.Event], None] = _ignore
        """Feeds an event and carries out its effects; events before :meth:`begin` are ignored."""
        tail = TailCache(log)
        self.cleaner, self.scrubber = cleaner, scrubber
        self.damage = DamageWatch(partition)
        self._watch_threads(tail)
        self._reads = ConsumerReads(log, tail, self.requests, clock, counters, self.damage, self._turn_spent)
        self._monotonic_ns = clock.monotonic_ns
        self._sync = sync
        self._keeper = keeper
        self._ports = ports
        self._machine_class = machine_class
        self._runner: Runner[ev.Event, ev.Effect] | None = None
        self._flush = flush
        self._retention_check_ms = retention_check_ms
        self._retention_due_ms = clock.monotonic_ns() // 1_000_000 + retention_check_ms
        self._effects = ReplicaEffects(
            partition,
            log,
            clock=clock,
            time_of_day=self.clock.appending_ms,
            sync=sync,
            keeper=keeper,
            ports=ports,
            flush=flush,
            requests=self.requests,
            tail=tail,
            counters=self.counters,
            damage=self.damage,
            look_at_held=self._look_at_held,
            log_start_moved=self._records_deleted,
        )
        self.effects: dict[type[ev.Effect], Callable[[Any], ev.Event | None]]
        self.effects = {**self._effects.table(), **self._reads.table(), ev.RoleChanged: self._role_changed}
        """The handler of each kind of effect in :data:`ev.Effect`."""

    def _watch_threads(self, tail: TailCache) -> None:
        """Set the callbacks of cleaner and scrubber, which work in threads."""
        if self.cleaner is not None:
            self.cleaner.when_cleaned(tail.forget)
            self.cleaner.when_damaged(self.damaged)
        if self.scrubber is not None:
            self.scrubber.when_damaged(self.damaged)
            self.scrubber.when_remade(self.damage.file_remade)

    def begin(self, broker: int, incarnation: Incarnation, settings: ReplicationSettings) -> None:
        """Make the state machine, once the controller has granted this process its incarnation."""
        self.machine = machine = self._machine_class(
            partition=self.partition,
            broker=BrokerId(broker),
            incarnation=incarnation,
            settings=settings,
            log=self._effects.summary(),
        )
        runner: Runner[ev.Event, ev.Effect] = Runner(
            machine.step, self.effects, self._effects, on_defect=self._on_defect
        )
        self._runner, self.feed = runner, runner.feed
        self._effects.release = runner.release

    def end(self) -> None:
        """Take no more events and carry out no more effects."""
        if self._runner is not None:
            self._runner.end()

    @property
    def disk_hanging_ms(self) -> int:
        """Duration of the running sync, if it counts as hanging; else 0."""
        return 0 if self.machine is None else self.machine.disk_hanging_ms

    def reconfigure(self, log: LogConfig, flush: FlushPolicy, settings: ReplicationSettings, paces: Paces) -> None:
        """Apply a changed configuration from the next event on; if the log's has changed, retention runs soon."""
        self._retention_due_ms -= max(0, self._retention_check_ms - paces.retention_check_ms)
        self._retention_check_ms = paces.retention_check_ms
        if self.cleaner is not None:
            self.cleaner.reconfigure(paces.cleaner)
        if self.scrubber is not None:
            self.scrubber.reconfigure(paces.scrub)
        if log != self.log.config:
            self._retention_due_ms = min(self._retention_due_ms, self._now_ms() + RETENTION_SOON_MS)
        self.log.config = log
        self._flush = flush
        if self.machine is not None:
            self.machine.reconfigure(settings)
        self._effects.reconfigure(flush)

    # ------------------------------------------------------------ requests

    def receive(self, request: ReplicaRequest, message: Any, has_plain: bool = False) -> bool:
        """Take a request, and have ticks come often enough for its deadline; False: it is not about the log.

        ``has_plain``: the payload is known to be one batch that belongs to no transaction. Raises InvalidRequest for an
        unknown ``acks``, and for a batch of a transaction with acks=0; InvalidRecord for batches of several
        transactions.
        """
        kind = type(message)
        found: tuple[int, int, bool] | None = None
        if kind is wire.ProduceRequest:
            wait_ms = message.timeout_ms
            if message.acks not in (-1, 0, 1):
                raise InvalidRequest(f"acks={message.acks}: only 0, 1 and -1 (all) are known.")
            if not has_plain:
                found = self._transaction_of(request, message)
        elif kind in _FETCHES:
            wait_ms = message.max_wait_ms
        elif kind in _APPLIED_EVERYWHERE:
            wait_ms = SHORTEST_MS
        elif kind in _LOOK_UPS:
            wait_ms = LONGEST_MS
        else:
            return False
        if wait_ms < LONGEST_MS:
            self._ports.tick_within(wait_ms)
        request.began_ns = now_ns = self._monotonic_ns()
        self._effects.now_ms = now_ms = now_ns // 1_000_000
        number = self.requests.remember(request)
        if found is None:
            self.feed(Received(message=message, cause=_CAUSES[kind], request=number, now_ms=now_ms))
        else:
            producer, epoch, opens = found
            self.feed(
                ev.TransactionalProduce(
                    message=message,
                    cause=_CAUSES[kind],
                    request=number,
                    now_ms=now_ms,
                    producer_id=producer,
                    producer_epoch=epoch,
                    opens_transaction=opens,
                )
            )
        if kind is wire.ProduceRequest and message.acks == 0:  # the producer does not expect a reply
            self.requests.pop(number, None)
        return True

    def _transaction_of(self, request: ReplicaRequest, message: wire.ProduceRequest) -> tuple[int, int, bool] | None:
        found = self.log.transaction_of(request.payload)
        if found is not None and message.acks == 0:
            raise InvalidRequest("A batch of a transaction needs acks=all.")
        return found

    def transaction_confirmed(self, request: int, error: RaylogError | None) -> None:
        """Take a coordinator's answer. No error: the transaction is open and has this partition."""
        now_ms = self._now_ms()
        self.feed(ev.TransactionConfirmed(cause="verify", now_ms=now_ms, request=request, error=error))

    # ------------------------------------------------------------ the controller and the leader

    def state_received(self, incarnation: int, state: PartitionState) -> None:
        """Take the partition's state, which the controller has sent to an incarnation of this replica."""
        now_ms, addressed = self._now_ms(), Incarnation(incarnation)
        self.feed(ev.StateReceived(cause="controller", now_ms=now_ms, incarnation=addressed, state=state))

    def isr_answered(self, request: int, error_code: int, state: PartitionState | None) -> None:
        """Take the controller's answer to an ISR proposal; 1001 = the outcome is not known."""
        now_ms = self._now_ms()
        self.feed(
            ev.IsrChangeAnswered(cause="controller", now_ms=now_ms, request=request, error_code=error_code, state=state)
        )

    def sleep_requested(self, idle_ms: int, *, for_stop: bool) -> None:
        """Take the controller's request that the partition sleep soon."""
        now_ms = self._now_ms()
        self.feed(ev.SleepRequested(cause="controller", now_ms=now_ms, idle_ms=idle_ms, for_stop=for_stop))

    def sleep_answered(self, request: int, error_code: int, state: PartitionState | None) -> None:
        """Take the controller's answer to a sleep proposal; 1001 = the outcome is not known."""
        now_ms = self._now_ms()
        self.feed(
            ev.SleepAnswered(cause="controller", now_ms=now_ms, request=request, error_code=error_code, state=state)
        )

    def fetch_answered(self, request: int, answer: wire.ReplicaFetchReply, records: Records, end_offset: int) -> None:
        """Take the leader's reply to a fetch of this replica; ``end_offset`` is the end of its ``records``."""
        self._effects.now_ms = now_ms = self._monotonic_ns() // 1_000_000  # as `_now_ms`, without its call
        parting = answer.diverging
        if answer.has_producers:
            self._effects.adopt_producers(records)
            records = b""
        self._effects.fetched[request] = records
        self.feed(
            ev.FetchAnswered(
                cause="fetch answer",
                now_ms=now_ms,
                request=request,
                leader_epoch=LeaderEpoch(answer.leader_epoch),
                high_watermark=Offset(answer.high_watermark),
                log_start_offset=Offset(answer.log_start_offset),
                end_offset=Offset(end_offset),
                diverging=None if parting is None else (LeaderEpoch(parting.leader_epoch), Offset(parting.end_offset)),
                size_bytes=len(records),
                held_from=answer.held_from,
            )
        )
        self._effects.fetched.pop(request, None)

    def fetch_failed(self, request: int, error_code: int, log_start_offset: int) -> None:
        """Take the failure of this replica's fetch; 1001 = no reply.

        The leader's log start offset is known only with code 1 (OffsetOutOfRange).
        """
        now_ms, start = self._now_ms(), Offset(log_start_offset)
        self.feed(
            ev.FetchFailed(
                cause="fetch failure", now_ms=now_ms, request=request, error_code=error_code, log_start_offset=start
            )
        )

    # ------------------------------------------------------------ disk and time

    def damaged(self, damage: LogDamaged) -> None:
        """Take damage that a cleaning or the scrub has found, not a request."""
        self.feed(self.damage.found(damage, self._now_ms()))

    def synced(self) -> None:
        """Note that a sync has ended. The log may have been truncated since, so its present durable end counts."""
        end = Offset(self.log.synced_end_offset)
        self.feed(ev.Synced(cause="sync", now_ms=self._now_ms(), end_offset=end))
        if self._runner is not None:
            self._runner.release()

    def sync_failed(self, error: BaseException) -> None:
        """End the process after a failed sync: only a restart can find out what the disk has."""
        self._ports.fatal(f"{self.partition}: the disk refused to sync ({error}); restarting to recover from it.")

    @property
    def _has_work(self) -> bool:
        """Whether a transaction is open in the log, or a role is busy; the partition must not sleep then."""
        return self.log.has_open_transactions or self._ports.is_busy()

    @property
    def is_up_to_date(self) -> bool:
        """Whether the state machine knows if there is work. It learns at each tick what has ended since the last."""
        return self._notified_of_work == self._has_work

    def tick(self) -> int:
        """Do what is due; returns the time, in monotonic milliseconds."""
        now_ms = self._now_ms()
        since_ms, self._notified_of_work = self._sync.busy_since_ms, self._has_work
        self.feed(ev.Tick(cause="tick", now_ms=now_ms, sync_since_ms=since_ms, in_transaction=self._notified_of_work))
        if self.machine is not None:
            self._keeper.tick(now_ms, self.machine.high_watermark, self.machine.state)
        if now_ms >= self._deserted_due_ms:
            self._deserted_due_ms = now_ms + DESERTED_CHECK_MS
            self._drop_deserted(now_ms)
        self._effects.flush_if_due(now_ms)
        if now_ms >= self._retention_due_ms:
            self._retention_due_ms = now_ms + self._retention_check_ms
            self.apply_retention()
        if self.machine is not None and not self.machine.falls_asleep:
            if self.cleaner is not None:
                self.cleaner.tick(now_ms, self.clock.deleting_ms(), self.machine.high_watermark)
            if self.scrubber is not None:
                self.scrubber.tick(now_ms, self.clock.deleting_ms())
        return now_ms

    def _turn_spent(self) -> None:
        self._ports.soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._reads.begin_turn()
        self.feed(ce.FetchTurnBegan(cause="fetch", now_ms=self._now_ms()))

    def next_tick_ms(self, now_ms: int, latest_ms: int) -> int:
        """Return the time at which :meth:`tick` is due, if no event comes before; at most ``latest_ms``."""
        machine = self.machine
        if machine is None:
            return now_ms
        latest_ms = min(latest_ms, now_ms + self._flush.ms)
        return self._effects.flush_due_ms(machine.next_due_ms(now_ms, latest_ms))

    def flush_due_ms(self, otherwise: int) -> int:
        """Return the time at which unsynced records of a relaxed policy are to be synced; at most ``otherwise``."""
        return self._effects.flush_due_ms(otherwise)

    def apply_retention(self) -> None:
        """Delete segments by the topic's retention."""
        machine = self.machine
        if machine is None or machine.falls_asleep:
            return  # the sleep point that is being proposed has the log start offset, which must not move
        before = self.log.log_start_offset
        now_ms = self.clock.deleting_ms()
        try:
            self.log.purge_deleted(now_ms)
            self.log.apply_retention(now_ms, self._retention_limit(machine))
            self.log.purge_deleted(now_ms)
            self._retention_failing = False
        except RaylogError as error:
            self._retention_failed(error)
        if self.log.log_start_offset != before:
            self._log_start_moved("retention")

    def _retention_limit(self, machine: ReplicaMachine) -> int:
        """Return the offset below which segments may be deleted: records are committed, and no role needs them."""
        hold, log = self.hold, self.log
        was_given_up = hold.given_up
        limit = hold.limit(
            self._ports.needed_from(),
            inherited=machine.held_from,
            log_start=log.log_start_offset,
            watermark=machine.high_watermark,
            size_bytes=log.size_bytes,
            now_ms=self._now_ms(),
        )
        if hold.given_up and not was_given_up:
            logger.error(
                "%s: the record at offset %d waits to be copied to a topic that does not take it; from here on "
                "retention removes it with the others. Look at the dead-letter and retry topics of its queues.",
                self.partition,
                hold.offset,
            )
        return limit

    def _look_at_held(self, now_ms: int) -> tuple[int, int]:
        """Return the lowest offset that followers must keep, too (-1 = none), and the time until which that holds."""
        machine = self.machine
        if machine is None:
            return -1, 0
        needed = self._ports.needed_from()
        held = self.hold.stated(needed, inherited=machine.held_from, log_start=self.log.log_start_offset)
        return held, now_ms + HELD_LOOK_MS

    def _retention_failed(self, error: RaylogError) -> None:
        """Let retention run again soon, as only it makes room on a full disk. Only a closed log ends the process."""
        if self.log.is_closed:
            self._ports.fatal(f"{self.partition}: {error} Restarting to recover it.")
            return
        if not self._retention_failing:  # retried every few seconds, logged once
            logger.warning("%s: retention goes on in a while: %s", self.partition, error)
        self._retention_failing = True
        self._retention_due_ms = min(self._retention_due_ms, self._now_ms() + RETENTION_RETRY_MS)

    def _role_changed(self, effect: ev.RoleChanged) -> None:
        """Run retention soon after a leadership begins: the partition may have been woken for that.

        After another replica has led, the producers' idle time begins again: they may repeat batches because that
        leader has stopped, and must be recognized even if its clock was ahead. A waking does not restart it: a
        partition that wakes often would never forget a producer.
        """
        if effect.leading:
            if self._has_followed:
                self.log.count_producers_as_seen(self.clock.appending_ms())
            self._retention_due_ms = min(self._retention_due_ms, self._now_ms() + RETENTION_SOON_MS)
        else:
            self.hold.followed()
        self._effects.held_due_ms = 0
        self._has_followed = not effect.leading and effect.leader != NO_LEADER
        self._ports.role_changed(effect)

    def _drop_deserted(self, now_ms: int) -> None:
        """Drop the requests of closed connections now, instead of at deadlines that the sender has chosen."""
        for number in self.requests.take_deserted():
            self.feed(ev.RequestDropped(cause="connection lost", now_ms=now_ms, request=number))

    def _log_start_moved(self, cause: str) -> None:
        start = Offset(self.log.log_start_offset)
        self.feed(ev.LogStartAdvanced(cause=cause, now_ms=self._now_ms(), log_start_offset=start))

    def _records_deleted(self) -> None:
        self._log_start_moved("delete_records")
        self.apply_retention()

    def _now_ms(self) -> int:
        self._effects.now_ms = now_ms = self._monotonic_ns() // 1_000_000
        return now_ms

    def _on_defect(self, what: str) -> None:
        self._ports.fatal(f"{self.partition}: {what}")


def _ignore(_: ev.Event) -> None:
    """Drop an event before the registration: the first state comes with the reply to it."""
