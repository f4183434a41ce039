"""The transaction coordinator as a state machine: all transactional ids of one ``__transaction_state`` partition.

Decide, then apply: a handler decides records, replies and markers (``rules.py``); records are applied at once through
``_apply`` (which replay uses too), and replies and markers wait in ``after_sync`` until the records are committed. The
record with the outcome is the commit point: from then on a transaction is committed, or aborted, whatever is lost. Run
by the ``TransactionCoordinator`` actor and by the simulator: first ``replay`` of the last record of each key, or of all
in order, then ``loaded``, then ``step`` for each event; when an append fails, a new machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, assert_never

from raylog.base.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidRequest,
    NotCoordinator,
    RaylogError,
    TransactionAbortable,
    TransactionalIdNotFound,
    did_you_mean,
)
from raylog.base.invariants import require
from raylog.core.coordinators.decision import CoordinatorDecision
from raylog.core.coordinators.events import AppendRecords, RequestDropped, SleepRefused, SleepRequested, Tick
from raylog.core.coordinators.idleness import Idleness
from raylog.core.coordinators.share import CoordinatorKeys
from raylog.core.decision import Story
from raylog.core.outbox import Outbox
from raylog.core.received import Received
from raylog.core.transactions import rules
from raylog.core.transactions.events import (
    Effect,
    EndTxn,
    Event,
    MarkerWritten,
    ProducerIdsGranted,
    RequestProducerIds,
    TxnRequest,
)
from raylog.core.transactions.records import (
    NEVER,
    NO_IDENTITY,
    ROWS,
    ProducerIdentity,
    Record,
    TxnChanged,
    check_move,
    deleted,
)
from raylog.core.transactions.room import Room
from raylog.core.transactions.settings import TxnSettings
from raylog.core.transactions.states import TxnState
from raylog.core.transactions.waiting import Ending, ProducerIds, Timeouts, Waiting
from raylog.protocol.rows import Tombstone
from raylog.protocol.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionRequest,
    EndTxnRequest,
    InitTransactionsRequest,
    ListTransactionsRequest,
    TxnPartition,
    VerifyTransactionRequest,
)

EXPIRED_IDS_MAX: Final = 1_000
"""Most tombstones that one tick writes; the rest follows with the next ticks."""

_IDS: Final = ""
"""Key under which requests wait for a producer id; no transactional id is empty."""
_TAKEN_ALWAYS: Final = (SleepRefused, ProducerIdsGranted, RequestDropped)
"""Notices that are handled even while a proposal to sleep is under way: something waits for them."""
_WaitingRequest: TypeAlias = (
    InitTransactionsRequest | AddPartitionsToTxnRequest | AddOffsetsToTxnRequest | EndTxnRequest
)


class TxnDecision(CoordinatorDecision[Record]):
    """Records of transactional ids, and answers and markers that wait for them."""

    __slots__ = ("wall_ms",)

    def __init__(
        self,
        cause: str,
        now_ms: int,
        *,
        apply: Callable[[Record], None],
        wall_ms: int = -1,
        story: Story | None = None,
    ) -> None:
        """``wall_ms`` is the time of day for stamps in records, which outlive this process; -1 = unknown."""
        super().__init__(cause, now_ms, apply=apply, story=story)
        self.wall_ms = wall_ms

    def end_transaction(self, decided: TxnChanged) -> None:
        """Send the outcome to the participants once it is committed."""
        self.after_sync.append(
            EndTxn(
                cause=self.cause,
                transactional_id=decided.transactional_id,
                writer=decided.writer,
                marker_epoch=decided.marker_epoch,
                committed=decided.state.outcome is True,
                partitions=decided.partitions,
                groups=decided.groups,
            )
        )

    def request_producer_ids(self, count: int) -> None:
        """Take producer ids from the controller."""
        self.now.append(RequestProducerIds(cause=self.cause, count=count))

    def _store(self) -> Effect:
        return AppendRecords(cause=self.cause, records=tuple(record.to_wire() for record in self.records))


class TransactionMachine:
    """All transactional ids that hash to one partition of ``__transaction_state``."""

    def __init__(self, *, settings: TxnSettings, share: CoordinatorKeys) -> None:
        """Start before replay. ``share``: the ids that this coordinator serves; requests for others are refused."""
        self._settings = settings
        self._share = share
        self._txns: dict[str, TxnChanged] = {}
        self._room = Room(settings)
        self._timeouts = Timeouts()
        self._ending = Ending()
        self._ids = ProducerIds(settings.producer_ids_retry_ms)
        self._waiting: Waiting[Received[_WaitingRequest]] = Waiting(settings.wait_ms)
        self._idleness = Idleness(settings.sleep_after_ms)
        self._loaded = False
        self._next_expiry_ms = 0
        self._wall_ahead_ms: int | None = None
        """How far the time of day is ahead of ``now_ms``."""
        self.counters: Counter[str] = Counter()
        """What happened since this machine was loaded, by name."""
        self.story = Story()
        """The last steps, ticks aside: (now_ms, cause, event)."""

    def reconfigure(self, settings: TxnSettings) -> None:
        """Use these settings from the next step on."""
        self._next_expiry_ms -= max(0, self._settings.expiration_check_ms - settings.expiration_check_ms)
        self._settings = settings
        self._room.reconfigure(settings)
        self._idleness.reconfigure(settings.sleep_after_ms)

    def set_clock(self, now_ms: int, wall_ms: int) -> None:
        """Take note of the time of day, in milliseconds since 1970, at this time."""
        self._wall_ahead_ms = wall_ms - now_ms

    # ------------------------------------------------------------ the log

    def replay(self, key: Sequence[object], value: Sequence[object] | None) -> None:
        """Apply one record of the log before :meth:`loaded`, after those with its key; a value of None is a tombstone.

        Raises ValueError or TypeError for a record that this release cannot read.
        """
        require(not self._loaded, "records are replayed before the coordinator serves")
        self._apply(ROWS.read(key, value))

    def loaded(self, now_ms: int, *, wall_ms: int | None = None) -> Outbox[Effect]:
        """Start serving, once the log is read to its end. Decided transactions are ended in all participants again.

        ``now_ms`` (of every event too) may come from any clock that does not go back. ``wall_ms`` is the time of day in
        milliseconds since 1970 at the same moment: stamps in records are made from it, because they outlive this
        process. Without it (here or in a :class:`Tick`) stamps are -1, no id expires, and a loaded transaction has its
        whole timeout again.
        """
        require(not self._loaded, "the log is loaded once")
        if wall_ms is not None:
            self.set_clock(now_ms, wall_ms)
        self._loaded = True
        self._idleness.used(now_ms)
        self._next_expiry_ms = now_ms + self._settings.expiration_check_ms
        decision = TxnDecision("loaded", now_ms, apply=self._apply, wall_ms=self._wall_ms(now_ms), story=self.story)
        for txn in self._txns.values():
            if txn.state.is_prepared:
                self._ending.begin(txn)
                decision.end_transaction(txn)
            elif txn.state is TxnState.ONGOING:
                self._set_timeout(txn, decision)
        return decision.finish()

    def _apply(self, record: Record) -> None:
        """Apply a record: the only mutator of hard state, for live traffic and replay alike."""
        match record:
            case TxnChanged():
                if self._loaded:  # a compacted log lacks the records between
                    check_move(self._txns.get(record.transactional_id), record)
                self._room.changed(record.transactional_id, self._txns.get(record.transactional_id), record)
                self._txns[record.transactional_id] = record
            case Tombstone():
                name = str(record.key[0])
                self._room.changed(name, self._txns.pop(name, None), None)
            case _:
                assert_never(record)

    # ------------------------------------------------------------ step

    def step(self, event: Event) -> Outbox[Effect]:
        """Handle one event and return its effects."""
        if isinstance(event, Tick):
            if event.wall_ms is not None:
                self.set_clock(event.now_ms, event.wall_ms)
        else:
            self.story.append((event.now_ms, event.cause, type(event).__name__))
        wall_ms = self._wall_ms(event.now_ms)
        decision = TxnDecision(event.cause, event.now_ms, apply=self._apply, wall_ms=wall_ms, story=self.story)
        error = self._door_error(event)
        if error is None:
            if isinstance(event, Received) and not isinstance(event.message, ListTransactionsRequest):
                self._idleness.used(event.now_ms)
            self._handle(event, decision)
        elif isinstance(event, Received):
            decision.refuse_at_once(event.request, error)
        return decision.finish()

    def _door_error(self, event: Event) -> RaylogError | None:
        """Return the error of an event that is invalid in every state."""
        if not self._loaded:
            return CoordinatorLoadInProgress("The coordinator still reads its log; try again.")
        if self._idleness.is_closed and not isinstance(event, _TAKEN_ALWAYS):
            return NotCoordinator("The coordinator ends, because its transactions were not used; find it again.")
        return self._request_error(event.message) if isinstance(event, Received) else None

    def _request_error(self, request: TxnRequest) -> RaylogError | None:
        if isinstance(request, ListTransactionsRequest):
            return self._share.list_refusal(request.coordinator)
        if request.transactional_id == "":
            return InvalidRequest("A transactional id may not be empty; set transactional_id.")
        refusal = self._share.refusal(request.transactional_id)
        if refusal is None and isinstance(request, InitTransactionsRequest):
            return rules.timeout_error(request, self._settings)
        return refusal

    def _handle(self, event: Event, decision: TxnDecision) -> None:
        match event:
            case Received():
                self._answer(event, decision)
            case MarkerWritten():
                self._marker_written(event, decision)
            case ProducerIdsGranted():
                self._ids.granted(event.first, event.count, event.now_ms)
                self._go_on(_IDS, decision)
            case RequestDropped():
                self._waiting.drop(event.request)
            case Tick():
                self._tick(decision)
            case SleepRequested():
                self._idleness.request_sleep()
            case SleepRefused():
                self._idleness.refused(event.now_ms)
            case _:
                assert_never(event)

    def _answer(self, event: Received[Any], decision: TxnDecision) -> None:
        request: TxnRequest = event.message
        match request:
            case InitTransactionsRequest():
                self._initialise(event, decision)
            case AddPartitionsToTxnRequest():
                self._add(event, request.partitions, (), decision)
            case AddOffsetsToTxnRequest():
                self._add(event, (), (request.group_id,), decision)
            case EndTxnRequest():
                self._end(event, decision)
            case VerifyTransactionRequest():
                self._verify(event, decision)
            case ListTransactionsRequest():
                self._list(event, decision)
            case DescribeTransactionRequest():
                self._describe(event, decision)
            case _:
                assert_never(request)

    # ------------------------------------------------------------ requests of producers

    def _initialise(self, event: Received[InitTransactionsRequest], decision: TxnDecision) -> None:
        request = event.message
        name = request.transactional_id
        txn = self._txns.get(name)
        if not rules.may_initialise(txn, request):
            decision.refuse(event.request, rules.fenced(name))
        elif txn is not None and txn.state.is_prepared:
            self._waiting.add(name, event)
        elif txn is None and (refusal := self._new_id_refusal(event, decision)) is not None:
            decision.refuse(event.request, refusal)
        elif self._lacks_id(txn, event, decision):
            return
        elif txn is not None and txn.state is TxnState.ONGOING and not request.keep_prepared:
            self.counters["aborted_by_a_new_producer"] += 1
            sender = rules.identity_of(request)
            self._decide(txn, committed=False, last=NO_IDENTITY if sender.is_none else sender, decision=decision)
            self._waiting.add(name, event)
        else:
            now = rules.initialised(txn, request, self._ids.take, decision.wall_ms)
            if not rules.fits(now, self._settings.record_bytes_max):
                message = "The transactional id is too long to be stored; use a shorter one."
                decision.refuse(event.request, InvalidRequest(message))
                return
            decision.write(now)
            self.counters["initialised"] += 1
            if now.state is TxnState.ONGOING:  # it was kept, and has the timeout of its new producer
                self._timeouts.clear(now.transactional_id)
                self._set_timeout(now, decision)
            decision.reply(event.request, [*now.producer, *now.writer])

    def _new_id_refusal(self, event: Received[InitTransactionsRequest], decision: TxnDecision) -> RaylogError | None:
        """Return why there may be no new id, or None; in a full coordinator, those unused for longest give way."""
        refusal = self._room.refusal(event.message.transactional_id, event.sender.transactional_id_prefix, self._txns)
        if refusal is not None or not self._room.is_full(self._txns):
            return refusal
        for name in self._room.unused(self._txns, decision.wall_ms):
            decision.write(deleted(name))
            self.counters["given_way"] += 1
        return self._room.full() if self._room.is_full(self._txns) else None

    def _add(
        self,
        event: Received[AddPartitionsToTxnRequest | AddOffsetsToTxnRequest],
        partitions: Sequence[TxnPartition],
        groups: Sequence[str],
        decision: TxnDecision,
    ) -> None:
        request = event.message
        name = request.transactional_id
        txn = self._txns.get(name)
        error = rules.identity_error(txn, request)
        if error is not None or txn is None:
            decision.refuse(event.request, error or rules.fenced(name))
            return
        if not partitions and not groups:
            message = "Name at least one partition to add to the transaction."
            decision.refuse_at_once(event.request, InvalidRequest(message))
            return
        if txn.state.is_prepared:
            self._waiting.add(name, event)
            return
        now = rules.added(txn, partitions, groups, decision.wall_ms)
        if isinstance(now, RaylogError):
            decision.refuse(event.request, now)
            return
        if not rules.fits(now, self._settings.record_bytes_max):
            message = "The transaction has too many partitions and groups to be stored; abort it, and use smaller ones."
            decision.refuse(event.request, TransactionAbortable(message))
            return
        full = self._room.has_room_for(event.sender.transactional_id_prefix, self._txns, txn, now)
        if full is not None:
            decision.refuse(event.request, full)
            return
        if now is not txn:
            decision.write(now)
            if txn.state is not TxnState.ONGOING:
                self.counters["begun"] += 1
                self._set_timeout(now, decision)
        decision.reply(event.request, [])

    def _end(self, event: Received[EndTxnRequest], decision: TxnDecision) -> None:
        request = event.message
        name = request.transactional_id
        txn = self._txns.get(name)
        error = rules.end_error(txn, request, request.committed)
        if error is not None or txn is None:
            decision.refuse(event.request, error or rules.fenced(name))
            return
        if not rules.is_repeated_end(txn, request):
            if txn.state.is_prepared:
                decision.refuse(event.request, _still_ending(name))
                return
            if self._lacks_id(txn, event, decision):
                return
            if txn.state is TxnState.ONGOING:
                self._decide(txn, committed=request.committed, last=txn.producer, decision=decision)
            else:
                decision.write(rules.aborted_unbegun(txn, self._ids.take, decision.wall_ms))
        decision.reply(event.request, [*self._txns[name].producer])

    def _verify(self, event: Received[VerifyTransactionRequest], decision: TxnDecision) -> None:
        """Answer a leader. What is confirmed is stored: the answer waits for the record that added the partition."""
        error = rules.claim_error(self._txns.get(event.message.transactional_id), event.message)
        if error is None:
            decision.reply(event.request, [])
        else:
            self.counters["claims_refused"] += 1
            decision.refuse(event.request, error)

    def _decide(self, txn: TxnChanged, *, committed: bool, last: ProducerIdentity, decision: TxnDecision) -> None:
        """Write the outcome of an open transaction: the commit point. Its markers follow once that is stored."""
        now = rules.decided(txn, committed, last, self._ids.take, decision.wall_ms)
        decision.write(now)
        self._timeouts.clear(txn.transactional_id)
        self._ending.begin(now)
        decision.end_transaction(now)
        self.counters["committed" if committed else "aborted"] += 1

    def _marker_written(self, event: MarkerWritten, decision: TxnDecision) -> None:
        name = event.transactional_id
        if self._ending.written(name, event.writer, event.participant):
            decision.write(rules.completed(self._txns[name], decision.wall_ms))
            self._go_on(name, decision)

    def _go_on(self, key: str, decision: TxnDecision) -> None:
        """Handle the requests that waited under a key; each may begin to wait again."""
        for event in self._waiting.take(key):
            self._handle(event, decision)

    def _lacks_id(self, txn: TxnChanged | None, event: Received[_WaitingRequest], decision: TxnDecision) -> bool:
        """Return whether a request needs a producer id that is not at hand; it waits for one then."""
        if not self._ids.is_empty or (txn is not None and not txn.producer.is_last):
            return False
        self._request_ids(decision)
        self._waiting.add(_IDS, event)
        return True

    def _request_ids(self, decision: TxnDecision) -> None:
        if self._ids.request(decision.now_ms):
            decision.request_producer_ids(self._settings.producer_ids)

    def _set_timeout(self, txn: TxnChanged, decision: TxnDecision) -> None:
        if txn.timeout_ms == NEVER:
            return
        # A transaction that was kept for another process gets the whole timeout of the producer that took it over.
        since_ms = txn.started_ms if txn.writer == txn.producer else txn.changed_ms
        known = since_ms >= 0 and decision.wall_ms >= 0
        open_ms = max(0, decision.wall_ms - since_ms) if known else 0
        self._timeouts.set(txn.transactional_id, decision.now_ms + max(0, txn.timeout_ms - open_ms))

    # ------------------------------------------------------------ time

    def next_due_ms(self) -> int | None:
        """Return when a tick has something to do, as things are now; None = never."""
        if not self._loaded or self._idleness.is_closed:
            return None
        is_used = bool(self._timeouts or self._ending or self._waiting)
        found = (
            self._next_expiry_ms,
            self._timeouts.next_ms(),
            self._waiting.next_ms(),
            self._ids.due_ms() if self._waiting.is_awaited(_IDS) else None,
            None if is_used else self._idleness.due_ms(),
        )
        return min(due_ms for due_ms in found if due_ms is not None)

    def _tick(self, decision: TxnDecision) -> None:
        for name in self._timeouts.past(decision.now_ms):
            txn = self._txns[name]
            if txn.producer.is_last and self._ids.is_empty:
                self._request_ids(decision)
                break
            self.counters["timed_out"] += 1
            self._decide(txn, committed=False, last=NO_IDENTITY, decision=decision)
        for event in self._waiting.expired(decision.now_ms):
            decision.refuse(event.request, self._waited_for_too_long(event.message.transactional_id))
        if self._waiting.is_awaited(_IDS):
            self._request_ids(decision)
        if decision.now_ms >= self._next_expiry_ms:
            self._expire(decision)
        self._sleep_if_idle(decision)

    def _waited_for_too_long(self, name: str) -> RaylogError:
        if name in self._ending:
            return _still_ending(name)
        return CoordinatorNotAvailable("No producer id was granted by the controller in time; try again.")

    def _expire(self, decision: TxnDecision) -> None:
        self._next_expiry_ms = decision.now_ms + self._settings.expiration_check_ms
        if decision.wall_ms < 0:
            return
        before_ms = decision.wall_ms - self._settings.id_expiration_ms
        due = [txn for txn in self._txns.values() if not txn.state.is_open and 0 <= txn.changed_ms <= before_ms]
        if len(due) > EXPIRED_IDS_MAX:
            self._next_expiry_ms = decision.now_ms
        for txn in due[:EXPIRED_IDS_MAX]:
            decision.write(deleted(txn.transactional_id))
            self.counters["expired"] += 1

    def _sleep_if_idle(self, decision: TxnDecision) -> None:
        """Propose to end if nothing is left to do; ids that have expired by now are deleted first.

        An open transaction without a timeout does not keep the coordinator up: nothing about it is due.
        """
        if not self._idleness.is_due(decision.now_ms) or self._timeouts or self._ending or self._waiting:
            return
        self._expire(decision)
        if self._next_expiry_ms > decision.now_ms:  # else more ids have expired than one tick deletes
            self._idleness.propose()
            decision.propose_sleep()

    def _wall_ms(self, now_ms: int) -> int:
        return -1 if self._wall_ahead_ms is None else now_ms + self._wall_ahead_ms

    # ------------------------------------------------------------ requests of administrators

    def _list(self, event: Received[ListTransactionsRequest], decision: TxnDecision) -> None:
        request = event.message
        known = {state.value: state for state in TxnState if state is not TxnState.DEAD}
        unknown = next((name for name in request.states if name not in known), None)
        if unknown is not None:
            error = InvalidRequest(did_you_mean("state of a transaction", unknown, known))
            decision.refuse_at_once(event.request, error)
            return
        states = {known[name] for name in request.states} or set(TxnState)
        rows: list[object] = []
        for name in sorted(name for name in self._txns if name.startswith(request.transactional_id_prefix)):
            txn = self._txns[name]
            open_ms = decision.wall_ms - txn.started_ms if txn.started_ms >= 0 and decision.wall_ms >= 0 else -1
            if txn.state in states and (request.longer_than_ms < 0 or open_ms >= request.longer_than_ms):
                writer = txn.writer if txn.state.is_open else txn.producer
                rows.append([name, writer.producer_id, txn.state.value])
        decision.reply_proved(event.request, rows)

    def _describe(self, event: Received[DescribeTransactionRequest], decision: TxnDecision) -> None:
        request = event.message
        name = request.transactional_id
        txn = self._txns.get(name)
        if txn is None:
            message = f"There is no transactional id {name!r}; list_transactions() names them all."
            decision.refuse(event.request, TransactionalIdNotFound(message))
            return
        identity = txn.writer if txn.state.is_open else txn.producer
        decision.reply_proved(
            event.request,
            {
                "transactional_id": txn.transactional_id,
                "coordinator": self._share.index,
                "producer_id": identity.producer_id,
                "producer_epoch": identity.epoch,
                "state": txn.state.value,
                "timeout_ms": txn.timeout_ms,
                "started_ms": txn.started_ms,
                "partitions": [[each.topic_id, each.topic, each.partition] for each in txn.partitions],
                "groups": list(txn.groups),
            },
        )

    def census(self) -> dict[str, int]:
        """Return the number of transactional ids by state, in Kafka's spelling."""
        return dict(Counter(txn.state.value for txn in self._txns.values()))

    def longest_open_ms(self, wall_ms: int) -> int:
        """Return the age of the oldest open transaction by the time of day; -1 = none is open."""
        began = [txn.started_ms for txn in self._txns.values() if txn.started_ms >= 0]
        return max(0, wall_ms - min(began)) if began else -1

    # ------------------------------------------------------------ checks

    def hard_state(self) -> list[object]:
        """Return the state of the log as comparable values: equal for a machine that replayed this one's records."""
        return [self._txns[name].to_wire() for name in sorted(self._txns)]

    def validate(self) -> None:
        """Check every transactional id and every cross-reference; raises InvariantBroken with the last steps."""
        require(not self._room.validate(self._txns), "what prefixes take is what their ids say", self.story)
        writers: set[int] = set()
        for name, txn in self._txns.items():
            txn.validate()
            require(txn.transactional_id == name, "an id is filed under its name", self.story)
            ids = {txn.producer.producer_id, *(() if txn.writer.is_none else (txn.writer.producer_id,))}
            require(not ids & writers, "a producer id is that of one transactional id", self.story)
            writers |= ids
            if self._loaded:
                timed = txn.state is TxnState.ONGOING and txn.timeout_ms != NEVER
                require(timed == (name in self._timeouts), "an open transaction has its timeout", self.story)
                require(txn.state.is_prepared == (name in self._ending), "a decided one is being ended", self.story)


def _still_ending(name: str) -> ConcurrentTransactions:
    return ConcurrentTransactions(
        f"The transaction before is still being ended in some partitions of {name!r}; try again."
    )


__all__ = ["TransactionMachine", "TxnSettings"]
