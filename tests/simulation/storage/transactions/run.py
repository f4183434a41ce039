"""One seed of the profile `storage-transactions`: producers with transactions, beside everything of `storage`."""

from __future__ import annotations

from collections.abc import Callable

from raylog.base.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidTxnState,
    RaylogError,
    TransactionCoordinatorFenced,
)
from raylog.storage.batch.header import TRANSACTIONAL_BIT, stamp
from raylog.storage.batch.marker import BY_ADMINISTRATOR, TxnMarker
from raylog.storage.batch.records import BatchMeta
from raylog.storage.cleaner.cleaning import CleaningOrder
from raylog.storage.log.config import AppendInfo
from raylog.storage.log.partition_log import PartitionLog
from raylog.storage.segments.segment import Segment
from tests.simulation.storage import payloads
from tests.simulation.storage.checks import require
from tests.simulation.storage.model import Records, Stored
from tests.simulation.storage.run import StorageRun
from tests.simulation.storage.transactions.checks import check_transactions, open_in
from tests.simulation.storage.transactions.history import Transaction, ends_of_cleaned, marker_of, transactions
from tests.simulation.storage.transactions.markers import check_markers
from tests.simulation.world import Violation

_PRODUCERS = (7, 8, 9)


class TransactionRun(StorageRun):
    """The world of one seed."""

    def __init__(self, seed: int) -> None:
        """Draw the options; in a part of the seeds a cleaner works on the log."""
        super().__init__(seed)
        if self.draw.random() < 0.4:
            self.options = self.options.with_cleaner(self.draw)
        self.coordinator = 0

    def _verbs(self) -> list[tuple[Callable[[], None], int]]:
        return [*super()._verbs(), (self.end, 14), (self.repeat_end, 4), (self.refuse_in_transaction, 4)]

    # --- sending ---------------------------------------------------------------------------------------------------

    def _meta(self, producer: int, stored: list[Stored]) -> BatchMeta:
        meta = super()._meta(producer, stored)
        if producer < 0:
            return meta
        last = self.model.last_of(producer, stored)
        opened = {found.producer for found in transactions([*self.model.sent, *stored]) if found.marker is None}
        if producer in opened and last is not None:
            return BatchMeta(producer, last.producer_epoch, last.last_sequence + 1, attributes=TRANSACTIONAL_BIT)
        return meta._replace(attributes=TRANSACTIONAL_BIT) if self.draw.random() < 0.7 else meta

    def _marker(self, producer: int, epoch: int) -> TxnMarker:
        coordinator = self.coordinator = self.coordinator + (self.draw.random() < 0.1)
        if self.draw.random() < 0.1:
            coordinator = BY_ADMINISTRATOR
        return TxnMarker(producer, epoch, coordinator, self.draw.random() < 0.5)

    def _stored_marker(self, marker: TxnMarker, epoch: int) -> Stored:
        data, base = bytearray(marker.encode()), self.model.end
        stamp(data, 0, base, epoch)
        return Stored(
            base, base + 1, bytes(data), epoch, Records([]), marker.producer_id, -1, marker.producer_epoch, ()
        )

    def end(self) -> None:
        """A transaction ends, or a producer that has sent nothing here; at the leader, or as a follower gets it."""
        model = self.model
        producer = self.draw.choice((*_PRODUCERS, *open_in(model) - {self.draw.choice(_PRODUCERS)}))
        last = model.last_of(producer)
        marker = self._marker(producer, 1 if last is None else last.producer_epoch + 1)
        stored = self._stored_marker(marker, model.epoch)
        model.tail, answers = [stored], list[AppendInfo]()
        model.epochs_begun = [] if model.epochs else [(stored.epoch, stored.base)]
        if self.draw.random() < 0.7:
            done = self._done(lambda: answers.append(self.log.append_marker(marker, stored.epoch, self.now_ms)))
        else:
            done = self._done(lambda: answers.append(self.log.append_as_follower(stored.data, self.now_ms)))
        if done:
            self._appended([stored], answers[0])
            self._check()

    def repeat_end(self) -> None:
        """The last marker of a producer comes again, perhaps within the next transaction: nothing changes."""
        model = self.model
        producer = self.draw.choice(_PRODUCERS)
        last = model.last_of(producer)
        if last is None or not self._is_known(last):
            return
        marker = TxnMarker(producer, last.producer_epoch, self.coordinator, self.draw.random() < 0.5)
        before, answers = self.log.producers.to_bytes(), list[AppendInfo]()
        if self._done(lambda: answers.append(self.log.append_marker(marker, model.epoch, self.now_ms))):
            answer = answers[0]
            require(answer.duplicate and answer.end_offset == model.end, "S15", f"a repeated marker: {answer}")
            require(self.log.log_end_offset == model.end, "S15", "a repeated marker is appended again")
            require(before == self.log.producers.to_bytes(), "S15", "a repeated marker has changed the producers")

    def _is_known(self, last: Stored) -> bool:
        return last.producer in self.log.producers.producers and not self.model.may_have_forgotten(last)

    def refuse_in_transaction(self) -> None:
        """What must not come within or after a transaction comes: nothing changes."""
        model = self.model
        last = model.last_of(self.draw.choice(_PRODUCERS))
        if last is None or not self._is_known(last):
            return
        producer, epoch, opened = last.producer, last.producer_epoch, open_in(model)
        records = self._records()

        def batch(epoch: int, sequence: int, attributes: int, count: int = 1) -> Callable[[], AppendInfo]:
            payload = b""
            for _ in range(count):
                meta = BatchMeta(producer, epoch, sequence, attributes=attributes)
                payload += payloads.encode(self.draw, records, meta)
                sequence += len(records.timestamps)
            return lambda: self.log.append_as_leader(payload, model.epoch, self.now_ms)

        def marker(epoch: int, coordinator: int) -> Callable[[], AppendInfo]:
            made = TxnMarker(producer, epoch, coordinator, committed=True)
            return lambda: self.log.append_marker(made, model.epoch, self.now_ms)

        choices: list[tuple[Callable[[], AppendInfo], type[RaylogError]]] = []
        if epoch:
            choices.append((marker(epoch - 1, self.coordinator), InvalidProducerEpoch))
            choices.append((batch(epoch - 1, self.draw.choice((0, 1)), TRANSACTIONAL_BIT), InvalidProducerEpoch))
        if producer in opened:
            choices.append((batch(epoch, last.last_sequence + 1, 0, self.draw.randint(1, 2)), InvalidTxnState))
            choices.append((batch(epoch + 1, 0, TRANSACTIONAL_BIT), ConcurrentTransactions))
        since = max(self.log.segments[0].base_offset, model.known_from.get(producer, 0))
        markers = [marker_of(sent) for sent in model.sent if sent.producer == producer and sent.base >= since]
        known = max((ended.coordinator_epoch for ended in markers if ended is not None), default=-1)
        if known > 0:
            choices.append((marker(epoch + 1, known - 1), TransactionCoordinatorFenced))
        if choices:
            call, expected = self.draw.choice(choices)
            self._unchanged(call, expected)

    def _unchanged(self, call: Callable[[], AppendInfo], expected: type[RaylogError]) -> None:
        before = (self.log.log_end_offset, self.log.size_bytes, self.log.producers.to_bytes())
        try:
            answer = call()
        except RaylogError as error:
            if type(error) is not expected:
                raise Violation("S13", f"{error!r}, and not {expected.__name__}") from error
        else:
            raise Violation("S13", f"it is taken, and not refused as {expected.__name__}: {answer}")
        after = (self.log.log_end_offset, self.log.size_bytes, self.log.producers.to_bytes())
        require(before == after, "S13", "what was refused has changed the log")

    def refuse(self) -> None:
        """As without transactions, unless one is open or just ended: `refuse_in_transaction` has those."""
        model = self.model
        if not open_in(model) and all(batch.first_sequence >= 0 for batch in model.sent if batch.producer >= 0):
            super().refuse()

    # --- checking --------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        super()._open()
        check_transactions(self.log, self.model, self.draw)

    def truncate(self) -> None:
        """As without transactions."""
        super().truncate()
        self._check()

    def _lowest_cut(self) -> int:
        """Not below the ends of transactions that were cleaned: only an unclean election cuts there."""
        return max(super()._lowest_cut(), ends_of_cleaned(self._ended(), self.model.cleaned_to))

    def retain(self) -> None:
        """As without transactions."""
        super().retain()
        self._check()

    def look_up(self) -> None:
        """Something is read, also by readers of committed records."""
        super().look_up()
        self._check()

    def _check(self) -> None:
        self._done(lambda: check_transactions(self.log, self.model, self.draw))

    def _keeps(self, producer: int) -> bool:
        return producer in open_in(self.model)

    def _check_copy(self, log: PartitionLog) -> None:
        super()._check_copy(log)
        check_transactions(log, self.model, self.draw)

    def _cleaned(
        self, order: CleaningOrder, old: tuple[Segment, ...], new: Segment, whole: list[Stored]
    ) -> list[Stored]:
        """As without transactions, of the records that were not aborted."""
        aborted = {offset for found in self._ended() if found.is_aborted for offset in found.batches}
        stable = self.log.last_stable_offset(self.model.end)
        require(
            order.next_offset <= stable, "S15", f"cleaned up to {order.next_offset}, beyond the stable end {stable}"
        )
        left = [batch._replace(records=Records([]), offsets=()) if batch.base in aborted else batch for batch in whole]
        after = super()._cleaned(order, old, new, left)
        before = [batch for batch in whole if old[0].base_offset <= batch.base < old[-1].next_offset]
        check_markers(before, after, whole, self._ended(), order)
        return after

    def _ended(self) -> list[Transaction]:
        return [found for found in transactions(self.model.sent) if found.marker is not None]
