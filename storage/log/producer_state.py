"""A partition's state of its idempotent producers: epoch and the last five batches of each.

The partition log calls `check` before a leader appends and `apply` for every batch that is appended, replicated or
replayed; the simulator's log does the same. Pure: time is an argument. The rules are Kafka's: a batch with the same
epoch and sequences as one of the last five is a duplicate and is answered with its old offset; otherwise sequences are
consecutive, a new epoch starts at 0, an older epoch is fenced, and an unknown producer may start anywhere.
"""

from __future__ import annotations

from typing import NamedTuple

import google_crc32c
import msgspec

from raylog.core.errors import InvalidProducerEpoch, OutOfOrderSequence
from raylog.storage.batch.header import SEQUENCE_MAX, BatchHeader
from raylog.storage.errors import CorruptBatch

BATCHES_KEPT = 5  # Kafka's bound on in-flight requests of an idempotent producer
_SNAPSHOT_MAGIC = b"RPS1"


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


def _crc_bytes(body: bytes) -> bytes:
    crc: int = google_crc32c.value(body)
    return crc.to_bytes(4, "big")


_decoder = msgspec.msgpack.Decoder(list[tuple[int, ProducerEntry]])


class ProducerState:
    """The entries of one partition, by producer id."""

    __slots__ = ("producers",)

    def __init__(self) -> None:
        self.producers: dict[int, ProducerEntry] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProducerState) and self.producers == other.producers

    __hash__ = None  # type: ignore[assignment]  # a mutable value

    def check(self, header: BatchHeader) -> Duplicate | None:
        """Whether the batch may be appended: None, or the place of its first copy.

        Raises OutOfOrderSequence or InvalidProducerEpoch. Batches without a producer id always may.
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
            if first == expected:  # it continues where they end, so it is none of the last five
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
        return None

    def apply(self, header: BatchHeader, seen_ms: int | None = None) -> None:
        """Record an appended batch, without any check. `header` carries its final offsets.

        `seen_ms` is the wall clock for `expire`; without it the batch's own largest timestamp is used.
        """
        producer_id = header.producer_id
        if producer_id < 0:
            return
        seen = header.max_timestamp if seen_ms is None else seen_ms
        entry = self.producers.get(producer_id)
        if entry is None:
            entry = self.producers[producer_id] = ProducerEntry(header.producer_epoch, [], seen)
        elif entry.epoch != header.producer_epoch:
            entry.epoch = header.producer_epoch
            entry.batches = []
        entry.last_seen_ms = seen
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
        return copy

    def expire(self, now_ms: int, idle_ms: int = 86_400_000) -> list[int]:
        """Drop producers idle for `idle_ms`; returns their ids, rising."""
        idle = sorted(key for key, entry in self.producers.items() if now_ms - entry.last_seen_ms >= idle_ms)
        for key in idle:
            del self.producers[key]
        return idle

    def clear(self) -> None:
        """Drop all producers."""
        self.producers.clear()

    def to_bytes(self) -> bytes:
        """The snapshot: a magic, a CRC-32C, and a msgpack list ordered by producer id."""
        body = msgspec.msgpack.encode(sorted(self.producers.items()))
        return _SNAPSHOT_MAGIC + _crc_bytes(body) + body

    @classmethod
    def from_bytes(cls, data: bytes) -> ProducerState:
        """Read `to_bytes`; CorruptBatch when the snapshot is cut off or altered."""
        body = data[8:]
        if data[:4] != _SNAPSHOT_MAGIC or data[4:8] != _crc_bytes(body):
            raise CorruptBatch("the producer snapshot has a wrong magic or CRC")
        state = cls()
        try:
            state.producers = dict(_decoder.decode(body))
        except msgspec.MsgspecError as error:
            raise CorruptBatch(f"the producer snapshot cannot be read ({error})") from error
        return state
