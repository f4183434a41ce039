"""Whatever comes in whichever order, with losses and restarts: a transaction has one outcome, and one producer.

The coordinator dies at any moment: with rows that were stored and not answered, with rows that never were stored, with
markers that arrived and are not known to have. Producers repeat requests, replace each other, and act late.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raylog.base.errors import ProducerFenced, RaylogError
from raylog.core.coordinators.events import AppendRecords, RequestDropped, Tick
from raylog.core.coordinators.share import EVERY_KEY
from raylog.core.decision import Refuse, Reply
from raylog.core.outbox import Outbox
from raylog.core.received import Received
from raylog.core.transactions import events as ev
from raylog.core.transactions.coordinator import TransactionMachine
from raylog.core.transactions.records import MARKER_EPOCH_MAX, PRODUCER_EPOCH_MAX, ROWS, ProducerIdentity, TxnChanged
from raylog.core.transactions.settings import TxnSettings
from raylog.core.transactions.states import TxnState
from raylog.protocol.rows import Tombstone
from raylog.protocol.transactions import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitTransactionsRequest,
    ListTransactionsRequest,
    TxnPartition,
)

NAMES = ("a", "b")
PARTITIONS = tuple(TxnPartition("o" * 32, "orders", number) for number in range(3))
TIMEOUT_MS = 1_000
SETTINGS = TxnSettings(
    max_timeout_ms=10_000, id_expiration_ms=20_000, expiration_check_ms=1_000, wait_ms=500, producer_ids=2
)
WALL_MS = 1_000_000

Row = tuple[list[object], list[object] | None]


@dataclass
class Partition:
    """What a partition's leader knows of each producer: the last epoch, and whether a transaction of it is open."""

    epochs: dict[int, int] = field(default_factory=dict)
    open: dict[int, ProducerIdentity] = field(default_factory=dict)
    ended: dict[ProducerIdentity, bool] = field(default_factory=dict)

    def append(self, writer: ProducerIdentity) -> None:
        """Take a batch of a transaction, as a leader does: not of an epoch that has passed."""
        if writer.epoch >= self.epochs.get(writer.producer_id, -1):
            standing = self.open.get(writer.producer_id)
            assert standing in (None, writer), "a new epoch writes while a transaction of an earlier one is open"
            assert writer not in self.ended, "a transaction goes on after its marker"
            self.epochs[writer.producer_id] = writer.epoch
            self.open[writer.producer_id] = writer

    def mark(self, producer_id: int, epoch: int, committed: bool) -> None:
        """Take a marker, as a leader does."""
        if epoch <= self.epochs.get(producer_id, -1):
            return  # it was written before: a late one does not end the next transaction, which has this epoch
        writer = self.open.get(producer_id)
        assert writer is None or epoch > writer.epoch, "a marker does not fence the records that it ends"
        self.epochs[producer_id] = epoch
        if writer is not None:
            assert self.ended.setdefault(writer, committed) == committed, "a transaction has one outcome"
            del self.open[producer_id]


@dataclass
class Producer:
    """A client's process with a transactional id. It may be replaced, and does not notice before a request shows it."""

    name: str
    held: ProducerIdentity
    added: set[TxnPartition] = field(default_factory=set)
    """Partitions whose addition was answered."""
    requested: bool | None = None
    """The outcome that it requests, until it is answered."""
    is_over: bool = False
    """It was fenced."""


def _init(name: str, producer_id: int, epoch: int) -> InitTransactionsRequest:
    return InitTransactionsRequest(name, TIMEOUT_MS, producer_id, epoch)


def _in_order(partitions: set[TxnPartition]) -> list[TxnPartition]:
    return sorted(partitions, key=lambda each: each.partition)


class Coordination(RuleBasedStateMachine):
    """One coordinator, its log, its participants, and producers."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: list[Row] = []
        self.now_ms = 0
        self.next_id = 5
        self.last_request = 0
        self.partitions = {partition: Partition() for partition in PARTITIONS}
        self.producers: list[Producer] = []
        self.outcomes: dict[tuple[str, ProducerIdentity], bool] = {}
        """By transactional id and writer: decided in the log."""
        self.answers: dict[tuple[str, ProducerIdentity], tuple[bool, ProducerIdentity]] = {}
        """Of ends: the outcome, and the next identity."""
        self.given: dict[ProducerIdentity, Producer] = {}
        self.begin()

    # ------------------------------------------------------------ the process

    def begin(self) -> None:
        """Begin a life of the coordinator from what is stored."""
        self.unstored: list[Row] = []
        self.held_back: list[ev.Effect] = []
        """Effects that wait for ``unstored``."""
        self.open_requests: dict[int, tuple[str, Producer | str, Any]] = {}
        self.markers: list[ev.EndTxn] = []
        self.machine = TransactionMachine(settings=SETTINGS, share=EVERY_KEY)
        for key, value in self.stored:
            self.machine.replay(key, value)
        self.carry_out(self.machine.loaded(self.now_ms, wall_ms=WALL_MS + self.now_ms))

    def feed(self, event: ev.Event) -> None:
        self.carry_out(self.machine.step(event))
        self.machine.validate()

    def carry_out(self, outbox: Outbox[ev.Effect]) -> None:
        requested = 0
        for effect in outbox.now:
            if isinstance(effect, AppendRecords):
                self.unstored += effect.records
            elif isinstance(effect, ev.RequestProducerIds):
                requested = effect.count
            else:
                self.perform(effect)
        self.held_back += outbox.after_sync
        if not self.unstored:
            self.release()
        if requested:
            self.next_id += requested
            first = self.next_id - requested
            self.feed(ev.ProducerIdsGranted(cause="ids", now_ms=self.now_ms, first=first, count=requested))

    def release(self) -> None:
        effects, self.held_back = self.held_back, []
        for effect in effects:
            self.perform(effect)

    def perform(self, effect: ev.Effect) -> None:
        match effect:
            case Reply():
                kind, sender, what = self.open_requests.pop(effect.request, ("", "", None))
                self.answered(kind, sender, what, effect.result)
            case Refuse():
                kind, sender, what = self.open_requests.pop(effect.request, ("", "", None))
                if isinstance(sender, Producer) and not effect.error.retriable:
                    self.refused(kind, sender, effect.error)
            case ev.EndTxn():
                assert self.outcomes[effect.transactional_id, effect.writer] == effect.committed
                assert effect.marker_epoch <= MARKER_EPOCH_MAX
                self.markers.append(effect)

    def request(self, kind: str, sender: Producer | str, what: Any, message: Any, *fields: object) -> None:
        self.last_request += 1
        self.open_requests[self.last_request] = kind, sender, what
        name = sender if isinstance(sender, str) else sender.name
        held = ProducerIdentity(-1, -1) if isinstance(sender, str) else sender.held
        request = message(name, *held, *fields)
        self.feed(Received(message=request, cause=kind, request=self.last_request, now_ms=self.now_ms))

    # ------------------------------------------------------------ what producers make of answers

    def answered(self, kind: str, sender: Producer | str, what: Any, result: Any) -> None:
        if kind == "init":
            assert isinstance(sender, str)
            producer = Producer(sender, ProducerIdentity(*result[:2]))
            assert producer.held.epoch <= PRODUCER_EPOCH_MAX
            assert producer.held not in self.given, "two producers have the same identity"
            self.given[producer.held] = producer
            self.producers.append(producer)
        elif kind == "add" and isinstance(sender, Producer):
            held, partitions = what
            if sender.held == held and sender.requested is None:
                sender.added |= set(partitions)
        elif kind == "end" and isinstance(sender, Producer):
            held, committed = what
            answer = committed, ProducerIdentity(*result)
            assert self.answers.setdefault((sender.name, held), answer) == answer, "the same request, another answer"
            if (sender.name, held) in self.outcomes:
                assert self.outcomes[sender.name, held] == committed, "answered otherwise than decided"
            else:
                assert not committed, "a commit is answered that was not stored"
            if sender.held == held:
                assert self.given.setdefault(answer[1], sender) is sender, "two producers have the same identity"
                sender.held, sender.requested, sender.added = answer[1], None, set()

    def refused(self, kind: str, sender: Producer, error: RaylogError) -> None:
        sender.is_over = sender.is_over or isinstance(error, ProducerFenced)

    # ------------------------------------------------------------ what happens

    @rule(name=st.sampled_from(NAMES))
    def a_producer_starts(self, name: str) -> None:
        self.request("init", name, None, _init)

    @precondition(lambda self: self.producers)
    @rule(number=st.integers(0, 20), chosen=st.sets(st.sampled_from(PARTITIONS), min_size=1))
    def a_producer_adds(self, number: int, chosen: set[TxnPartition]) -> None:
        producer = self.producers[-1 - number % len(self.producers)]
        if producer.requested is None:
            what = producer.held, _in_order(chosen)
            self.request("add", producer, what, AddPartitionsToTxnRequest, _in_order(chosen))

    @precondition(lambda self: self.producers)
    @rule(number=st.integers(0, 3), committed=st.booleans())
    def a_transaction_goes_well(self, number: int, committed: bool) -> None:
        """As far as it can: partitions are added, records written, the outcome stored."""
        self.a_producer_adds(number, set(PARTITIONS))
        if self.unstored:
            self.rows_are_stored()
        if self.producers[-1 - number % len(self.producers)].added:
            self.a_producer_writes(number)
            self.a_producer_ends(number, committed)

    @precondition(lambda self: any(producer.added for producer in self.producers))
    @rule(number=st.integers(0, 20))
    def a_producer_writes(self, number: int) -> None:
        writing = [producer for producer in self.producers if producer.added]
        producer = writing[-1 - number % len(writing)]
        for partition in _in_order(producer.added):
            self.partitions[partition].append(producer.held)

    @precondition(lambda self: self.producers)
    @rule(number=st.integers(0, 20), committed=st.booleans())
    def a_producer_ends(self, number: int, committed: bool) -> None:
        """It repeats the outcome that it has requested, until that is answered."""
        producer = self.producers[-1 - number % len(self.producers)]
        if producer.requested is None:
            producer.requested = committed and bool(producer.added)
        what = producer.held, producer.requested
        self.request("end", producer, what, EndTxnRequest, producer.requested)

    @precondition(lambda self: self.unstored)
    @rule()
    def rows_are_stored(self) -> None:
        for row in self.unstored:
            self.store(row)
        self.unstored = []
        self.release()

    def store(self, row: Row) -> None:
        self.stored.append(row)
        record = ROWS.read(*row)
        if isinstance(record, TxnChanged) and record.state.is_prepared:
            key = record.transactional_id, record.writer
            committed = record.state is TxnState.PREPARE_COMMIT
            assert self.outcomes.setdefault(key, committed) == committed, "a transaction has one outcome"
        if isinstance(record, Tombstone):
            assert all(not found.open for found in self.partitions.values()) or self.no_open(str(record.key[0]))

    def no_open(self, name: str) -> bool:
        ids = {held.producer_id for held, producer in self.given.items() if producer.name == name}
        return not any(ids & set(found.open) for found in self.partitions.values())

    @precondition(lambda self: self.markers)
    @rule(number=st.integers(0, 20), is_known=st.booleans(), is_last=st.booleans())
    def a_marker_arrives(self, number: int, is_known: bool, is_last: bool) -> None:
        """It is written; and the coordinator is notified, unless that is lost: then it is sent again."""
        effect = self.markers[number % len(self.markers)]
        for partition in effect.partitions if is_last else effect.partitions[:1]:
            self.partitions[partition].mark(effect.writer.producer_id, effect.marker_epoch, effect.committed)
            if is_known:
                self.feed(
                    ev.MarkerWritten(
                        cause="marker",
                        now_ms=self.now_ms,
                        transactional_id=effect.transactional_id,
                        writer=effect.writer,
                        participant=partition,
                    )
                )

    @rule(later_ms=st.sampled_from((10, 300, TIMEOUT_MS, 30_000)))
    def time_passes(self, later_ms: int) -> None:
        self.now_ms += later_ms
        self.feed(Tick(cause="tick", now_ms=self.now_ms, wall_ms=WALL_MS + self.now_ms))

    @precondition(lambda self: self.open_requests)
    @rule(number=st.integers(0, 20))
    def a_connection_closes(self, number: int) -> None:
        request = sorted(self.open_requests)[number % len(self.open_requests)]
        del self.open_requests[request]
        self.feed(RequestDropped(cause="closed", now_ms=self.now_ms, request=request))

    @rule(part=st.floats(0, 1))
    def the_coordinator_dies(self, part: float) -> None:
        """Some of what it had not seen stored was stored all the same."""
        for row in self.unstored[: round(part * len(self.unstored))]:
            self.store(row)
        self.begin()

    # ------------------------------------------------------------ what holds

    @invariant()
    def what_is_stored_is_what_the_machine_has(self) -> None:
        if not self.unstored:
            after = TransactionMachine(settings=SETTINGS, share=EVERY_KEY)
            for key, value in self.stored:
                after.replay(key, value)
            assert after.hard_state() == self.machine.hard_state()

    @invariant()
    def partitions_have_the_outcome_that_was_decided(self) -> None:
        decided = {writer: committed for (_, writer), committed in self.outcomes.items()}
        for found in self.partitions.values():
            for writer, committed in found.ended.items():
                assert decided[writer] == committed

    def teardown(self) -> None:
        """At last everything comes to its end: no transaction stays open."""
        for row in self.unstored:
            self.store(row)
        self.begin()
        for _ in range(3):
            self.time_passes(TIMEOUT_MS)
            if self.unstored:
                self.rows_are_stored()
            markers, self.markers = self.markers, []
            for effect in markers:
                for partition in effect.partitions:
                    self.partitions[partition].mark(effect.writer.producer_id, effect.marker_epoch, effect.committed)
                    self.feed(
                        ev.MarkerWritten(
                            cause="marker",
                            now_ms=self.now_ms,
                            transactional_id=effect.transactional_id,
                            writer=effect.writer,
                            participant=partition,
                        )
                    )
            if self.unstored:
                self.rows_are_stored()
        assert not any(found.open for found in self.partitions.values()), "a transaction is open for good"
        assert {row[2] for row in self.listed()} <= {"Empty", "CompleteCommit", "CompleteAbort"}

    def listed(self) -> list[Any]:
        replies: list[Any] = []
        outbox = self.machine.step(
            Received(message=ListTransactionsRequest(), cause="list", now_ms=self.now_ms, request=10**6)
        )
        replies += [effect.result for effect in outbox.after_sync if isinstance(effect, Reply)]
        return list(replies[0])


TestOutcomes = Coordination.TestCase
TestOutcomes.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestOutcomes = pytest.mark.timeout(300)(TestOutcomes)
