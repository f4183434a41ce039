"""Reads for consumers at a leader: long polls that wait for the high watermark, and offset look-ups.

Owned by a replica's shell. Hands out only records below the high watermark. A consumer on this machine (`fetch_near`)
is told where records lie in the segment files, and reads them itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic_ns
from typing import Final

from raylog.actors.clock import monotonic_ms
from raylog.actors.metrics.counters import ReplicaCounters
from raylog.actors.replica_ports import Log, Records
from raylog.actors.tail_reader import TailReader
from raylog.core.errors import NotLeaderOrFollower, OffsetNotAvailable, RaylogError
from raylog.core.ids import EARLIEST, LATEST, MAX_TIMESTAMP, LeaderEpoch, Offset
from raylog.core.replication.replica import ReplicaMachine
from raylog.protocol.message import NONE
from raylog.protocol.replica import (
    FetchNearReply,
    FetchNearRequest,
    FetchReply,
    FetchRequest,
    ListOffsetsReply,
    ListOffsetsRequest,
    NearSlice,
    OffsetForLeaderEpochReply,
    OffsetForLeaderEpochRequest,
)
from raylog.rpc import Request, machine_number

FETCH_BYTES_MAX: Final = 32 * 1024 * 1024
"""Most bytes of one answer, whatever was asked for; with one batch more it stays far below a frame's limit."""
NEAR_BYTES_MAX: Final = 64 * 1024 * 1024
"""Most bytes of the places in files that one answer names: nothing is read for it, but a leader may change."""
NEAR_PLACES_MAX: Final = 16
"""Most places of one answer: the consumer opens a file for each."""
NEAR_BYTES_MIN: Final = 64 * 1024
"""Fewer bytes come with the answer: opening and reading a file costs the consumer more."""


@dataclass(slots=True)
class ParkedFetch:
    """A consumer's fetch that waits for records or for its deadline."""

    request: Request
    offset: int
    max_bytes: int
    min_bytes: int
    deadline_ms: int
    is_near: bool
    """Whether the consumer is on this machine and takes places in files."""
    began_ns: int
    """When the request came."""


class ConsumerReads:
    """Answers ``fetch`` and ``list_offsets`` of one partition."""

    def __init__(
        self,
        log: Log,
        tail: TailReader,
        machine: Callable[[], ReplicaMachine | None],
        counters: ReplicaCounters | None = None,
    ) -> None:
        """``machine`` returns the replica's machine, or None before its first registration."""
        self._counters = ReplicaCounters() if counters is None else counters
        self._log = log
        self._tail = tail
        self._machine = machine
        self.waiting: list[ParkedFetch] = []
        """The fetches that are parked."""

    def fetch(self, request: Request, args: FetchRequest | FetchNearRequest) -> None:
        """Answer a consumer's fetch at once when there is something to read, else park it."""
        leading = self._leading(request, args.current_leader_epoch)
        if leading is None:
            return
        max_bytes = min(args.max_bytes, FETCH_BYTES_MAX)
        deadline_ms = monotonic_ms() + args.max_wait_ms
        is_near = type(args) is FetchNearRequest and args.machine == machine_number()
        least = min(args.min_bytes, max_bytes)
        waiting = ParkedFetch(request, args.fetch_offset, max_bytes, least, deadline_ms, is_near, monotonic_ns())
        if not self._try(leading, waiting, expired=args.max_wait_ms <= 0):
            self.waiting.append(waiting)

    def wake(self) -> None:
        """Answer every parked fetch that can be answered now; called when the high watermark moved and on each tick."""
        machine = self._machine() if self.waiting else None
        if machine is None:
            return
        now = monotonic_ms()
        self.waiting = [one for one in self.waiting if not self._try(machine, one, expired=one.deadline_ms <= now)]

    def first_deadline_ms(self, otherwise: int) -> int:
        """When the first of the fetches that wait is overdue."""
        return min([one.deadline_ms for one in self.waiting], default=otherwise)

    @property
    def parked(self) -> int:
        """How many fetches wait."""
        return len(self.waiting)

    def drop_deserted(self) -> None:
        """Forget the fetches of consumers that have gone."""
        self.waiting = [one for one in self.waiting if not one.request.connection.is_closed]

    def refuse_all(self) -> None:
        """Send parked consumers away: this replica leads no more."""
        parked, self.waiting = self.waiting, []
        for one in parked:
            one.request.fail(NotLeaderOrFollower())

    def list_offsets(self, request: Request, args: ListOffsetsRequest) -> None:
        """Answer where a timestamp, the start, the end or the newest record is."""
        timestamp = args.timestamp
        machine = self._leading(request, args.current_leader_epoch)
        if machine is None:
            return
        epoch = machine.leader_epoch
        if timestamp == EARLIEST:
            request.reply(ListOffsetsReply(self._log.log_start_offset, NONE, epoch))
            return
        upper = machine.exposed_high_watermark
        if upper is None:
            request.fail(OffsetNotAvailable())
        elif timestamp == LATEST:
            request.reply(ListOffsetsReply(upper, NONE, epoch))
        else:
            self._answer_time(request, timestamp, upper, epoch)

    def end_of_epoch(self, request: Request, args: OffsetForLeaderEpochRequest) -> None:
        """Answer where the records of a leader epoch end here: a consumer compares that with what it has read."""
        machine = self._leading(request, args.current_leader_epoch)
        if machine is not None:
            epoch, end = machine.end_of_epoch(LeaderEpoch(args.leader_epoch))
            request.reply(OffsetForLeaderEpochReply(epoch, end, self._log.log_start_offset))

    def _answer_time(self, request: Request, timestamp: int, upper: int, epoch: int) -> None:
        try:
            if timestamp == MAX_TIMESTAMP:
                found = self._log.max_timestamp(upper)
            else:
                found = self._log.offset_for_timestamp(timestamp, upper)
        except RaylogError as error:
            request.fail(error)
            return
        offset, found_ms = (NONE, NONE) if found is None else found
        request.reply(ListOffsetsReply(offset, found_ms, epoch))

    def _leading(self, request: Request, leader_epoch: int) -> ReplicaMachine | None:
        machine = self._machine()
        error: RaylogError | None = (
            NotLeaderOrFollower() if machine is None else machine.consumer_fetch_error(LeaderEpoch(leader_epoch))
        )
        if error is not None:
            request.fail(error)
            return None
        return machine

    def _try(self, machine: ReplicaMachine, waiting: ParkedFetch, *, expired: bool) -> bool:
        exposed = machine.exposed_high_watermark
        upper = machine.high_watermark
        if waiting.request.connection.is_behind:
            # Many fetches of one connection can wake at once: what its peer does not take is not read for it.
            if not expired:
                return False
            upper = Offset(min(upper, waiting.offset))
        records: Records = b""
        found_bytes = 0
        places: list[NearSlice] = []
        try:
            # A reader at the end takes one append after the other: nothing is looked up in the log for those.
            if waiting.is_near and not self._tail.is_small(waiting.offset, NEAR_BYTES_MIN):
                places, found_bytes = self._places(waiting.offset, upper)
            if not places and waiting.offset != upper:
                records = self._read(waiting, upper)
                found_bytes = len(records)
        except RaylogError as error:
            waiting.request.fail(error)
            return True
        if not expired and (not found_bytes or found_bytes < waiting.min_bytes):
            return False
        counters = self._counters
        counters.fetches += 1
        counters.bytes_out += found_bytes
        counters.fetch.observe_ns(monotonic_ns() - waiting.began_ns)
        mark = -1 if exposed is None else exposed
        start = self._log.log_start_offset
        reply = FetchNearReply(mark, mark, start, places) if waiting.is_near else FetchReply(mark, mark, start)
        waiting.request.reply(reply, records)
        return True

    def _places(self, offset: int, upper: int) -> tuple[list[NearSlice], int]:
        """Where the batches from an offset on lie, and how many bytes they are; nowhere if they are few."""
        if upper <= offset <= self._log.log_end_offset:
            return [], 0
        found = self._log.slices(offset, NEAR_BYTES_MAX, upper)[:NEAR_PLACES_MAX]
        size = sum(one.length for one in found)
        if size < NEAR_BYTES_MIN:
            return [], 0
        return [NearSlice(os.path.abspath(path), *numbers) for path, *numbers in found], size

    def _read(self, waiting: ParkedFetch, upper: int) -> Records:
        if upper < waiting.offset <= self._log.log_end_offset:
            return b""
        return self._tail.read(waiting.offset, waiting.max_bytes, upper)
