"""Reads a leader's log for consumers, from memory or from the segment files. Owned by a replica's runner.

The state machine decides which offsets a client may see, and which fetches wait (``core/replication/visibility.py``);
this module handles bytes only. A consumer on this host (`fetch_near`) gets the positions of records in the files, and
reads them itself. Readers of committed records get the records below the last stable offset, and a list of the aborted
transactions among them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from raylog.actors.answering import defects
from raylog.actors.metrics.counters import ReplicaCounters
from raylog.actors.replica.damage import DamageWatch
from raylog.actors.replica.ports import Clock, Log, Records, ReplicaRequest
from raylog.actors.replica.tail_cache import TailCache
from raylog.actors.request_table import RequestTable
from raylog.actors.roles.local import FETCH_BYTES_MAX
from raylog.base.errors import RaylogError, UnknownServerError
from raylog.base.ids import MAX_TIMESTAMP, Offset
from raylog.core.replication import consumer_events as ce
from raylog.core.replication.damage import DamageFound
from raylog.core.replication.events import Effect, Event
from raylog.protocol.message import NONE
from raylog.protocol.replica import (
    READ_COMMITTED,
    AbortedTxn,
    ActiveProducer,
    FetchNearReply,
    FetchNearRequest,
    FetchReply,
    FindTimesReply,
    FindTimesRequest,
    ListOffsetsReply,
    NearSlice,
    OffsetForLeaderEpochReply,
)
from raylog.rpc import machine_number
from raylog.storage.batch.header import end_of_checked
from raylog.storage.batch.times import TimeBounds
from raylog.storage.errors import LogDamaged

NEAR_BYTES_MAX: Final = 64 * 1024 * 1024
"""Most bytes that the file positions of one reply cover: the leader does not read them, but it may change."""
NEAR_PLACES_MAX: Final = 16
"""Most file positions in one reply: the consumer opens a file for each."""
NEAR_BYTES_MIN: Final = 64 * 1024
"""Fewer bytes are sent with the reply: opening and reading a file would cost the consumer more."""
LOOKED_AT_MAX: Final = 256
"""Most batches that one search for a span of time reads: some milliseconds, in which the leader does nothing else."""
TURN_BYTES: Final = 8 * 1024 * 1024
"""Bytes of large reads after which other requests have their turn. They take some milliseconds, and the last fetch may
take some tens more; without this bound, the fetches of a hundred connections would block others for seconds."""
LARGE_BYTES: Final = 256 * 1024
"""Reads below this do not count for TURN_BYTES: those at the end of a log are small and frequent."""
NONE_ABORTED: Final[Sequence[AbortedTxn]] = ()


class ConsumerReads:
    """Carries out the state machine's effects for consumers of one partition."""

    def __init__(
        self,
        log: Log,
        tail: TailCache,
        requests: RequestTable[ReplicaRequest],
        clock: Clock,
        counters: ReplicaCounters,
        damage: DamageWatch,
        turn_spent: Callable[[], None],
    ) -> None:
        """``requests``: the open requests, by the numbers that the state machine has for them.

        ``turn_spent`` is called when a turn has its first large read. It must arrange that, after other requests had
        their turn, :meth:`begin_turn` is called and then ``FetchTurnBegan`` is fed.
        """
        self._damage = damage
        self._turn_spent = turn_spent
        self._turn_bytes = 0
        """Bytes of large reads since the turn began."""
        self._log = log
        self._tail = tail
        self._requests = requests
        self._monotonic_ns = clock.monotonic_ns
        self._counters = counters
        self._machine = machine_number()

    def table(self) -> dict[type[Effect], Callable[[Any], Event | None]]:
        """Return the handler of each kind of effect for consumers."""
        return {
            ce.TryFetch: self._try_fetch,
            ce.FindTimestamp: self._find_timestamp,
            ce.AnswerOffset: self._answer_offset,
            ce.AnswerEpochEnd: self._answer_epoch_end,
            ce.DescribeProducers: self._describe_producers,
        }

    def _try_fetch(self, effect: ce.TryFetch) -> ce.FetchStillWaits | DamageFound | None:
        fetch, upper = effect.fetch, effect.upper
        message = fetch.message
        offset, committed_only = message.fetch_offset, message.isolation_level == READ_COMMITTED
        is_near = type(message) is FetchNearRequest and message.machine == self._machine
        if committed_only:
            upper = Offset(self._log.last_stable_offset(upper))
        request = self._requests[fetch.request]
        room_bytes = request.room_bytes
        if not room_bytes:
            # Many fetches of one connection can wake at once, and many connections may leave their replies unread:
            # nothing is read for a connection that has no room.
            if not effect.is_last:
                return self._waits_on(effect, is_blocked=True)
            upper = Offset(offset)
        elif self._turn_bytes >= TURN_BYTES:  # even a fetch whose wait is over has to wait for the next turn
            return self._waits_on(effect, is_blocked=True)
        max_bytes = min(message.max_bytes, FETCH_BYTES_MAX, room_bytes)
        records: Records = b""
        found_bytes = 0
        places: list[NearSlice] = []
        aborted: Sequence[AbortedTxn] = NONE_ABORTED
        try:
            if offset < upper:
                # A reader at the end takes one append after the other; the tail cache has those.
                if is_near and not self._tail.is_small(offset, NEAR_BYTES_MIN):
                    places, found_bytes = self._places(offset, upper)
                if not places:
                    records = self._tail.read(offset, max_bytes, upper)
                    found_bytes = len(records)
                    if found_bytes >= LARGE_BYTES:
                        self._count(found_bytes)
            if committed_only and found_bytes:
                aborted = self._aborted(offset, places, records)
        except LogDamaged as damage:
            return self._damage.found(damage, self._now_ms(), fetch.request)
        except RaylogError as error:
            del self._requests[fetch.request]
            request.fail(error)
            return None
        except Exception as defect:  # reading changes nothing, so only this request fails
            del self._requests[fetch.request]
            self._fail_unforeseen(request, defect)
            return None
        if not effect.is_last and (not found_bytes or found_bytes < min(message.min_bytes, max_bytes)):
            return self._waits_on(effect)
        del self._requests[fetch.request]
        counters = self._counters
        counters.fetches += 1
        counters.bytes_out += found_bytes
        counters.fetch.observe_ns(self._monotonic_ns() - request.began_ns)
        mark, start = effect.exposed, effect.log_start_offset
        stable = mark if not committed_only or mark == NONE else self._log.last_stable_offset(mark)
        reply: FetchNearReply | FetchReply
        if is_near:
            reply = FetchNearReply(mark, stable, start, places, aborted)
        else:
            reply = FetchReply(mark, stable, start, aborted)
        request.reply(reply, records)
        return None

    def begin_turn(self) -> None:
        """Let fetches read again, after other requests had their turn."""
        self._turn_bytes = 0

    def _count(self, found_bytes: int) -> None:
        if self._turn_bytes == 0:
            self._turn_spent()
        self._turn_bytes += found_bytes

    def _fail_unforeseen(self, request: ReplicaRequest, defect: Exception) -> None:
        defects.report(defect, "A consumer's request could not be handled.")
        request.fail(UnknownServerError(f"{type(defect).__name__}: {defect}"))

    def _aborted(self, first: int, places: Sequence[NearSlice], records: Records) -> Sequence[AbortedTxn]:
        """Return the aborted transactions in the batches of a reply, from offset ``first`` on."""
        log = self._log
        if not log.may_have_aborted(first):
            return NONE_ABORTED
        end = places[-1].next_offset if places else end_of_checked(records, first)
        return [AbortedTxn(*row) for row in log.aborted_transactions(first, end)]

    def _waits_on(self, effect: ce.TryFetch, *, is_blocked: bool = False) -> ce.FetchStillWaits:
        return ce.FetchStillWaits(
            cause="fetch",
            now_ms=self._now_ms(),
            fetch=effect.fetch,
            tried=Offset(effect.upper),
            is_blocked=is_blocked,
        )

    def _now_ms(self) -> int:
        return self._monotonic_ns() // 1_000_000

    def _places(self, offset: int, upper: int) -> tuple[list[NearSlice], int]:
        """Return the file positions of the batches from an offset on, and their bytes; none below NEAR_BYTES_MIN."""
        found = self._log.slices(offset, NEAR_BYTES_MAX, upper)[:NEAR_PLACES_MAX]
        size = sum(place.length for place in found)
        if size < NEAR_BYTES_MIN:
            return [], 0
        return [NearSlice(os.path.abspath(path), *numbers) for path, *numbers in found], size

    def _find_timestamp(self, effect: ce.FindTimestamp) -> DamageFound | None:
        request = self._requests.get(effect.request)
        if request is None:
            return None
        log, upper, message = self._log, effect.upper, effect.message
        try:
            if message.isolation_level == READ_COMMITTED:
                upper = Offset(log.last_stable_offset(upper))
            if isinstance(message, FindTimesRequest):
                times = TimeBounds(message.low_ms, message.end_ms)
                found_within = log.first_within(times, message.offset, upper, LOOKED_AT_MAX)
                del self._requests[effect.request]
                request.reply(FindTimesReply(found_within.next_offset, found_within.is_found))
                return None
            if message.timestamp == MAX_TIMESTAMP:
                found = log.max_timestamp(upper)
            else:
                found = log.offset_for_timestamp(message.timestamp, upper)
        except LogDamaged as damage:
            return self._damage.found(damage, self._now_ms(), effect.request)
        except RaylogError as error:
            del self._requests[effect.request]
            request.fail(error)
            return None
        except Exception as defect:  # as in _try_fetch
            del self._requests[effect.request]
            self._fail_unforeseen(request, defect)
            return None
        del self._requests[effect.request]
        offset, timestamp = (NONE, NONE) if found is None else found
        request.reply(ListOffsetsReply(offset, timestamp, effect.leader_epoch))
        return None

    def _answer_offset(self, effect: ce.AnswerOffset) -> None:
        request = self._requests.pop(effect.request, None)
        if request is not None:
            offset = self._log.last_stable_offset(effect.offset) if effect.committed_only else effect.offset
            request.reply(ListOffsetsReply(offset, NONE, effect.leader_epoch))

    def _describe_producers(self, effect: ce.DescribeProducers) -> None:
        request = self._requests.pop(effect.request, None)
        if request is not None:
            request.reply(
                [
                    ActiveProducer(
                        known.producer_id,
                        known.producer_epoch,
                        known.last_sequence,
                        known.last_timestamp,
                        known.coordinator_epoch,
                        known.txn_start_offset,
                    )
                    for known in self._log.active_producers()
                ]
            )

    def _answer_epoch_end(self, effect: ce.AnswerEpochEnd) -> None:
        request = self._requests.pop(effect.request, None)
        if request is not None:
            request.reply(OffsetForLeaderEpochReply(effect.epoch, effect.end_offset, effect.log_start_offset))
