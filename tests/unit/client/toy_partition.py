"""One partition of the toy cluster (`toy_server`): its log, what waits at it, and the faults that tests have set."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from raylog.base import errors
from raylog.base.errors import RaylogError
from raylog.protocol.replica import AbortedTxn, OffsetForLeaderEpochReply, ProduceReply
from raylog.rpc import Request
from raylog.storage.batch.header import BatchHeader, check_crc, iter_headers, parse_header, stamp
from raylog.storage.batch.marker import TxnMarker, decode_marker, is_marker
from raylog.storage.batch.records import Columns, decode_batch
from raylog.storage.log.producer_state import ProducerState
from raylog.storage.segments import aborted

Fault = str | int
"""What happens to one produce request:

- "store": nothing special;
- "lose_reply": stored and replicated, but no answer is sent;
- "duplicate_reply": answered twice;
- "cut_before": the connection breaks before it is stored;
- "cut_after": stored and replicated, then the connection breaks;
- "cut_unreplicated": stored on the leader alone, then the connection breaks; a leader move forgets it;
- "hold": stored, and answered when the test calls `release`;
- a number: refused with this error and not stored, unless it was stored before.
"""


@dataclass
class ToyPartition:
    """One partition: its log (shared by the replicas), its leader, and the faults that wait for produce requests."""

    topic_id: str
    topic: str
    partition: int
    replicas: list[int]
    leader: int
    leader_epoch: int = 0
    batches: list[tuple[BatchHeader, bytes]] = field(default_factory=list)
    producers: ProducerState = field(default_factory=ProducerState)
    log_start: int = 0
    log_end: int = 0
    high_watermark: int = 0
    faults: deque[Fault] = field(default_factory=deque)
    held: list[tuple[Request, ProduceReply]] = field(default_factory=list)
    lost: list[Request] = field(default_factory=list)
    waiters: list[asyncio.Future[None]] = field(default_factory=list)
    produce_requests: int = 0
    message_bytes_max: int = 2**31 - 1
    """The topic's `max.message.bytes`, as the leader has it."""
    append_ms: int = -1
    """The time of an append that its answer names: the topic has LogAppendTime; -1 = it has not."""

    def append(self, payload: memoryview) -> int:
        """Check and store whole batches; the first offset. Raises the storage engine's errors."""
        first = -1
        for position, header in iter_headers(payload):
            check_crc(payload, position, header)
            known = self.producers.check(header)
            if known is not None:
                first = known.first_offset if first < 0 else first
                continue
            if header.size > self.message_bytes_max:
                raise errors.RecordTooLarge(f"{header.size} bytes exceed max.message.bytes={self.message_bytes_max}.")
            batch = bytearray(payload[position : position + header.size])
            stamp(batch, 0, self.log_end, self.leader_epoch)
            self._keep(bytes(batch))
            first = self.batches[-1][0].base_offset if first < 0 else first
        return first

    def end_transaction(self, producer_id: int, producer_epoch: int = 1, *, committed: bool) -> None:
        """Store and replicate the marker that ends a producer's transaction, unless it was before."""
        marker = TxnMarker(producer_id, producer_epoch, 0, committed)
        if self.producers.check_marker(marker):
            batch = bytearray(marker.encode())
            stamp(batch, 0, self.log_end, self.leader_epoch)
            self._keep(bytes(batch))
            self.advance()

    @property
    def last_stable_offset(self) -> int:
        """Where the first transaction begins that has no marker below the high watermark, or the latter."""
        first = self.producers.transactions.first_unstable(self.high_watermark)
        return self.high_watermark if first is None else min(first, self.high_watermark)

    def aborted(self, start: int, upper: int) -> list[AbortedTxn]:
        """The aborted transactions with records between two offsets, by their markers."""
        found: list[aborted.AbortedTxn] = []
        aborted.find(self.producers.transactions.aborted, start, upper, found)
        return [AbortedTxn(each.producer_id, each.first_offset) for each in found]

    def has(self, payload: memoryview) -> bool:
        """Whether the first batch is stored already: a leader does not find fault with what it has accepted before."""
        try:
            return self.producers.check(parse_header(payload)) is not None
        except RaylogError:
            return False

    def advance(self) -> None:
        """All that is stored is replicated now; fetches that wait see it."""
        self.high_watermark = self.log_end
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()

    def forget_unreplicated(self) -> None:
        """What a new leader does not have is lost, in the log and in what is known of producers."""
        if self.high_watermark == self.log_end:
            return
        kept = [batch for header, batch in self.batches if header.base_offset < self.high_watermark]
        self.batches, self.producers, self.log_end = [], ProducerState(), self.log_start
        for batch in kept:
            self._keep(batch)

    def lose(self, end: int) -> None:
        """Drop everything from an offset on, even if acknowledged as replicated: an unclean election follows."""
        self.high_watermark = end
        self.forget_unreplicated()

    def end_of_epoch(self, epoch: int) -> OffsetForLeaderEpochReply:
        """The largest leader epoch with records that is not above this one, where it ends, and the log start."""
        headers = [header for header, _ in self.batches]
        known = [header.partition_leader_epoch for header in headers if header.partition_leader_epoch <= epoch]
        later = [header.base_offset for header in headers if header.partition_leader_epoch > epoch]
        end = later[0] if later else self.log_end
        return OffsetForLeaderEpochReply(known[-1] if known else epoch, end, self.log_start)

    def read(self, offset: int, max_bytes: int, upper: int) -> list[bytes]:
        """Whole batches from the one that holds `offset`, below `upper`; at least one if there is one."""
        found: list[bytes] = []
        size = 0
        for header, batch in self.batches:
            if header.next_offset > offset and header.next_offset <= upper:
                if found and size + len(batch) > max_bytes:
                    break
                found.append(batch)
                size += len(batch)
        return found

    def columns(self) -> list[tuple[BatchHeader, Columns]]:
        """Everything stored, opened; without the markers of transactions."""
        return [(header, decode_batch(batch, 0, header)) for header, batch in self.batches if not header.is_control]

    def _keep(self, batch: bytes) -> None:
        header = parse_header(batch)
        self.batches.append((header, batch))
        self.producers.apply(header, 0, decode_marker(batch, 0, header) if is_marker(header) else None)
        self.log_end = header.next_offset

    def delete_records(self, before: int) -> int:
        """Move the log start to an offset, or to the high watermark for -1; the low watermark."""
        if before > self.high_watermark:
            raise errors.OffsetOutOfRange(f"Offsets {self.log_start} to `{self.high_watermark}` can be deleted.")
        self.log_start = max(self.log_start, self.high_watermark if before == -1 else before)
        return self.log_start
