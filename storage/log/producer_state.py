"""A partition's state of its producers: epoch and the last five batches of each, and their transactions.

The partition log calls `check` before a leader appends and `apply` for every batch that is appended, replicated or
replayed; the simulator's log does the same. Pure: time is an argument. The rules are Kafka's: a batch with the same
epoch and sequences as one of the last five is a duplicate and is answered with its old offset; otherwise sequences are
consecutive, a new epoch starts at 0, an older epoch is fenced, and an unknown producer may start anywhere. While a
transaction is open, its producer sends nothing else; its marker raises the producer's epoch.
"""

from __future__ import annotations

from typing import NamedTuple

import google_crc32c
import msgspec

from raylog.base.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequence,
    TooManyProducers,
    TransactionCoordinatorFenced,
)
from raylog.storage.batch.compression import Buffer
from raylog.storage.batch.header import (
    CONTROL_BIT,
    LASTING_PRODUCERS,
    SEQUENCE_MAX,
    TRANSACTIONAL_BIT,
    BatchHeader,
    parse_header,
)
from raylog.storage.batch.marker import BY_ADMINISTRATOR, TxnMarker
from raylog.storage.errors import CorruptBatch, refused
from raylog.storage.log.open_transactions import Transactions
from raylog.storage.segments.aborted import AbortedTxn

PRODUCERS_MAX = 100_000
"""Producers that a partition remembers, each in 430 bytes; see `ProducerState.admit`."""
LASTING_MAX = 20_000
"""Most lasting producers among them: those that are never forgotten, however long they are idle."""
SPARED_MS = 900_000
"""A producer is not forgotten sooner than this after its last batch: what it repeats has to be known."""
BATCHES_KEPT = 5  # Kafka's bound on in-flight requests of an idempotent producer
_SNAPSHOT_MAGIC = b"RPS4"


class KnownBatch(NamedTuple):
    """One remembered batch; `end_offset` is exclusive, `timestamp` the batch's largest, in milliseconds."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    end_offset: int
    timestamp: int


class Duplicate(NamedTuple):
    """The batch is stored already, at these offsets (the end is exclusive)."""

    first_offset: int
    end_offset: int


class ProducerEntry(msgspec.Struct, array_like=True, gc=False):
    """One producer: its epoch, up to five batches in order, and when it was last active (milliseconds)."""

    epoch: int
    batches: list[KnownBatch]
    last_seen_ms: int

    def copy(self) -> ProducerEntry:
        """An independent copy, for checking several batches before any is applied."""
        return ProducerEntry(self.epoch, list(self.batches), self.last_seen_ms)


class ActiveProducer(NamedTuple):
    """A producer in the answer to describe-producers; -1 = none. `last_timestamp` in milliseconds since 1970."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    txn_start_offset: int


def _crc_bytes(body: bytes) -> bytes:
    crc: int = google_crc32c.value(body)
    return crc.to_bytes(4, "big")


_Producers = list[tuple[int, ProducerEntry]]
_decoder = msgspec.msgpack.Decoder(
    tuple[_Producers, list[tuple[int, int]], list[tuple[int, int]], list[tuple[int, int, int]], list[AbortedTxn]]
)


class ProducerState:
    """The entries of one partition, by producer id."""

    __slots__ = ("_full_until_ms", "_lasting", "looked_at_from", "producers", "transactions")

    def __init__(self) -> None:
        self._full_until_ms = 0
        """Until then no producer can be forgotten in favour of a new one: `admit` does not search at each batch."""
        self._lasting = 0
        """How many of the producers are lasting ones."""
        self.looked_at_from = min(PRODUCERS_MAX, LASTING_MAX) - 1
        """With fewer producers than this, `admit` refuses none and need not be called."""
        self.producers: dict[int, ProducerEntry] = {}
        self.transactions = Transactions()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProducerState):
            return False
        return self.producers == other.producers and self.transactions == other.transactions

    __hash__ = None  # type: ignore[assignment]  # a mutable value

    def admit(self, producer_ids: set[int], now_ms: int) -> None:
        """Make room for producers that are not known yet. For leaders: a follower has what its leader admits.

        Writers choose their producer ids, so the number of producers is bounded. At the bound, those without an open
        transaction that were idle longest are forgotten, a tenth of all at once, but none that sent within SPARED_MS,
        and no lasting one. If there are none, the new producers are refused: a known one is never given up for them.
        Raises TooManyProducers.
        """
        fresh = {key for key in producer_ids if key not in self.producers}
        if not fresh:
            return
        lasting = sum(key >= LASTING_PRODUCERS for key in fresh)
        if lasting and self._lasting + lasting > LASTING_MAX:
            raise TooManyProducers(
                f"The partition remembers {LASTING_MAX} lasting producers, which is all that it may. Use the producers "
                "that there are, or more partitions."
            )
        if len(self.producers) + len(fresh) <= PRODUCERS_MAX:
            return
        if now_ms >= self._full_until_ms:
            self._forget_idlest(now_ms)
        if len(self.producers) + len(fresh) > PRODUCERS_MAX:
            raise TooManyProducers(
                f"The partition remembers {PRODUCERS_MAX} producers, and none of them was idle for "
                f"{SPARED_MS // 60_000} minutes. Use fewer producers, each for longer, or more partitions; this batch "
                "is taken when others have become idle."
            )

    def _forget_idlest(self, now_ms: int) -> None:
        opened = self.transactions.open
        idle = sorted(
            (entry.last_seen_ms, key)
            for key, entry in self.producers.items()
            if key not in opened and key < LASTING_PRODUCERS
        )
        for seen_ms, key in idle[: max(1, PRODUCERS_MAX // 10)]:
            if now_ms - seen_ms < SPARED_MS:
                break
            del self.producers[key]
            self.transactions.forget(key)
        first_ms = min((entry.last_seen_ms for entry in self.producers.values()), default=now_ms)
        self._full_until_ms = now_ms + min(1_000, max(0, first_ms + SPARED_MS - now_ms))

    def has_fenced(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a later epoch of the producer has written here, so that a batch of this one is refused."""
        entry = self.producers.get(producer_id)
        return entry is not None and producer_epoch < entry.epoch

    def check(self, header: BatchHeader) -> Duplicate | None:
        """Whether the batch may be appended: None, or the place of its first copy.

        Raises OutOfOrderSequence, InvalidProducerEpoch, InvalidTxnState or ConcurrentTransactions. Batches without a
        producer id always may.
        """
        if header.producer_id < 0:
            return None
        entry = self.producers.get(header.producer_id)
        if entry is None:
            return None
        if header.producer_epoch < entry.epoch:
            raise InvalidProducerEpoch(
                f"Producer {header.producer_id} has epoch {header.producer_epoch}, but epoch {entry.epoch} has written "
                "already. This producer is fenced; start a new one."
            )
        first = header.base_sequence
        if first < 0:  # a control batch: it carries an epoch and no sequence
            return None
        if header.producer_epoch > entry.epoch:
            expected = 0
        else:
            expected = (entry.batches[-1].last_sequence + 1) & SEQUENCE_MAX if entry.batches else 0
            if first == expected:  # it continues where they end, so it is not one of the last five
                if header.producer_id in self.transactions.open:
                    self._check_in_transaction(header, entry)
                return None
            last = header.last_sequence
            for known in entry.batches:
                if known.first_sequence == first and known.last_sequence == last:
                    return Duplicate(known.first_offset, known.end_offset)
        if first != expected:
            raise OutOfOrderSequence(
                f"Producer {header.producer_id} sent sequence {first} where {expected} must follow. "
                "Send the missing batch first, or take a new producer epoch."
            )
        if header.producer_id in self.transactions.open:
            self._check_in_transaction(header, entry)
        return None

    def _check_in_transaction(self, header: BatchHeader, entry: ProducerEntry) -> None:
        if not header.attributes & TRANSACTIONAL_BIT:
            raise InvalidTxnState(
                f"Producer {header.producer_id} has an open transaction here and sent a batch outside of it. "
                "Commit or abort the transaction first."
            )
        if header.producer_epoch > entry.epoch:
            raise ConcurrentTransactions(
                f"The transaction of producer {header.producer_id} with epoch {entry.epoch} has no end here yet, and a "
                f"batch of epoch {header.producer_epoch} came. Add the partition to the transaction first, then send."
            )

    def transaction_of(self, payload: Buffer) -> tuple[int, int, bool] | None:
        """(Producer id, epoch, whether an append would open the transaction here) of the payload's transaction.

        None = no batch belongs to one. Batches of an old epoch are left out, as an append refuses them. Read up to the
        first header that is malformed: a payload with such a header is refused. Raises InvalidRecord if the batches
        belong to several transactions.
        """
        found: tuple[int, int] | None = None
        position = 0
        while position < len(payload):
            try:
                header = parse_header(payload, position)
            except CorruptBatch:
                break
            position += header.size
            writer = header.producer_id, header.producer_epoch
            if not header.is_transactional or self.has_fenced(*writer):
                continue
            if found not in (None, writer):
                raise refused("its batches are of several transactions; send those of each producer alone")
            found = writer
        return None if found is None else (*found, found[0] not in self.transactions.open)

    def check_marker(self, marker: TxnMarker) -> bool:
        """Whether the marker may be appended; False if it was before.

        A marker raises the epoch of its producer: one with the same epoch is a repetition, which must not end the
        producer's next transaction. Raises InvalidProducerEpoch or TransactionCoordinatorFenced.
        """
        known = self.transactions.coordinator_epochs.get(marker.producer_id, BY_ADMINISTRATOR)
        if BY_ADMINISTRATOR < marker.coordinator_epoch < known:
            raise TransactionCoordinatorFenced(
                f"A coordinator of epoch {known} has ended transactions of producer {marker.producer_id} already; "
                f"epoch {marker.coordinator_epoch} is fenced. Find the coordinator again."
            )
        entry = self.producers.get(marker.producer_id)
        if entry is not None and marker.producer_epoch < entry.epoch:
            raise InvalidProducerEpoch(
                f"The marker of producer {marker.producer_id} has epoch {marker.producer_epoch}, but epoch "
                f"{entry.epoch} has written already. Describe the transaction again."
            )
        return entry is None or marker.producer_epoch > entry.epoch

    def apply(self, header: BatchHeader, seen_ms: int, marker: TxnMarker | None) -> None:
        """Record an appended batch, without any check. `header` carries its final offsets.

        `seen_ms` is the wall clock for `expire`. `marker`: the batch's content if it is a marker; else None.
        """
        producer_id = header.producer_id
        if producer_id < 0:
            return
        attributes = header.attributes
        if attributes & (TRANSACTIONAL_BIT | CONTROL_BIT):
            if marker is not None:
                self.transactions.end(marker, header.base_offset)
            elif not attributes & CONTROL_BIT:
                self.transactions.begin(producer_id, header.base_offset)
        entry = self.producers.get(producer_id)
        if entry is None:
            entry = self.producers[producer_id] = ProducerEntry(header.producer_epoch, [], seen_ms)
            self._lasting += producer_id >= LASTING_PRODUCERS
        elif entry.epoch != header.producer_epoch:
            entry.epoch = header.producer_epoch
            entry.batches = []
        entry.last_seen_ms = seen_ms
        first = header.base_sequence
        if first >= 0:
            batches = entry.batches
            batches.append(
                KnownBatch(
                    first,
                    (first + header.last_offset_delta) & SEQUENCE_MAX,
                    header.base_offset,
                    header.base_offset + header.last_offset_delta + 1,
                    header.max_timestamp,
                )
            )
            if len(batches) > BATCHES_KEPT:
                del batches[0]

    def staged(self, producer_ids: set[int]) -> ProducerState:
        """A copy of these producers only, to check a request of several batches before any is applied."""
        copy = ProducerState()
        copy.producers = {key: entry.copy() for key, entry in self.producers.items() if key in producer_ids}
        opened = self.transactions.open
        copy.transactions.open = {key: opened[key] for key in producer_ids if key in opened}
        return copy

    def below(self, offset: int) -> ProducerState:
        """The state for a log that begins at `offset` and continues this one: the producers of the batches before it.

        Epochs are the present ones: the batches that raised them lie before `offset`, or follow.
        """
        known = ProducerState()
        for key, entry in self.producers.items():
            batches = [batch for batch in entry.batches if batch.end_offset <= offset]
            known.producers[key] = ProducerEntry(entry.epoch, batches, entry.last_seen_ms)
        known._lasting = self._lasting
        transactions = self.transactions
        known.transactions.open = {key: first for key, first in transactions.open.items() if first < offset}
        known.transactions.coordinator_epochs = dict(transactions.coordinator_epochs)
        return known

    def expire(self, now_ms: int, idle_ms: int) -> list[int]:
        """Drop producers idle for `idle_ms`, unless their transactions are open; returns their ids, rising.

        Lasting ones stay: they may repeat a batch after any time, and it has to be known again.
        """
        opened = self.transactions.open
        idle = sorted(
            key
            for key, entry in self.producers.items()
            if now_ms - entry.last_seen_ms >= idle_ms and key not in opened and key < LASTING_PRODUCERS
        )
        for key in idle:
            del self.producers[key]
            self.transactions.forget(key)
        return idle

    def count_as_seen(self, now_ms: int) -> None:
        """Let each producer count as last seen at `now_ms`, unless it was seen later."""
        for entry in self.producers.values():
            entry.last_seen_ms = max(entry.last_seen_ms, now_ms)

    def active(self) -> list[ActiveProducer]:
        """The producers, by id."""
        known = self.transactions
        return [
            ActiveProducer(
                key,
                entry.epoch,
                entry.batches[-1].last_sequence if entry.batches else -1,
                entry.batches[-1].timestamp if entry.batches else entry.last_seen_ms,
                known.coordinator_epochs.get(key, -1),
                known.open.get(key, -1),
            )
            for key, entry in sorted(self.producers.items())
        ]

    def clear(self) -> None:
        """Drop all producers."""
        self.producers.clear()
        self.transactions.clear()
        self._lasting = 0

    def to_bytes(self) -> bytes:
        """The snapshot: a magic, a CRC-32C, and a msgpack list of the producers by id and of their transactions."""
        body = msgspec.msgpack.encode((sorted(self.producers.items()), *self.transactions.fields()))
        return _SNAPSHOT_MAGIC + _crc_bytes(body) + body

    @classmethod
    def from_bytes(cls, data: bytes) -> ProducerState:
        """Read `to_bytes`; CorruptBatch when the snapshot is cut off or altered."""
        body = data[8:]
        if data[:4] != _SNAPSHOT_MAGIC or data[4:8] != _crc_bytes(body):
            raise CorruptBatch("the producer snapshot has a wrong magic or CRC")
        state = cls()
        try:
            decoded = _decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise CorruptBatch(f"the producer snapshot cannot be read ({error})") from error
        state.producers = dict(decoded[0])
        state.transactions = Transactions.of(*decoded[1:])
        state._lasting = sum(key >= LASTING_PRODUCERS for key in state.producers)
        return state
