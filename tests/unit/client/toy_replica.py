"""One replica of the toy cluster (`toy_server`): it answers the requests to a partition's leader, with faults."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, cast

from raylog.base import errors
from raylog.protocol.replica import (
    DELETE_RECORDS,
    FETCH,
    FIND_TIMES,
    LIST_OFFSETS,
    OFFSET_FOR_LEADER_EPOCH,
    DeleteRecordsReply,
    FetchReply,
    FindTimesReply,
    ListOffsetsReply,
    ProduceReply,
)
from raylog.rpc import Connection, Request
from raylog.rpc.framing import decode_args
from tests.unit.client.toy_partition import ToyPartition


class ToyReplica:
    """A partition's replica on one broker; all replicas of a partition share its log."""

    def __init__(
        self,
        partition: ToyPartition,
        broker: int,
        *,
        own: Callable[[Coroutine[Any, Any, None]], object],
        compared: Callable[[str], bool],
    ) -> None:
        """`own` keeps a task; `compared` notes that epochs are compared: False if leaders do not know the request."""
        self.partition = partition
        self._broker = broker
        self._own = own
        self._compared = compared

    def handle(self, request: Request) -> None:
        """Answer a request."""
        try:
            self._check(*decode_args(request.args)[:3])
            self._serve(request)
        except errors.RaylogError as error:
            request.fail(error)

    def _check(self, topic_id: str, partition: int, epoch: int) -> None:
        one = self.partition
        if topic_id != one.topic_id or partition != one.partition:
            raise errors.UnknownTopicId(f"This replica serves {one.topic}-{one.partition} of another id.")
        if epoch != -1 and epoch < one.leader_epoch:
            raise errors.FencedLeaderEpoch(f"Epoch {epoch} is older than {one.leader_epoch}.")
        if self._broker != one.leader:
            raise errors.NotLeaderOrFollower(f"Broker {one.leader} leads {one.topic}-{one.partition}.")
        if epoch > one.leader_epoch:
            raise errors.UnknownLeaderEpoch(f"Epoch {epoch} is newer than {one.leader_epoch}.")

    def _serve(self, request: Request) -> None:
        one, method = self.partition, request.method
        if method == "produce":
            self._on_produce(request)
        elif method == "fetch":
            self._own(self._fetch(request))
        elif method == "list_offsets":
            wanted = LIST_OFFSETS.read_request(request.args)
            request.reply(self._list_offsets(wanted.timestamp, self._upper(wanted.isolation_level)))
        elif method == "find_times":
            request.reply(FindTimesReply(FIND_TIMES.read_request(request.args).offset, True))  # any batch may hold some
        elif method == "offset_for_leader_epoch" and self._compared(method):
            request.reply(one.end_of_epoch(OFFSET_FOR_LEADER_EPOCH.read_request(request.args).leader_epoch))
        elif method == "delete_records":
            before = DELETE_RECORDS.read_request(request.args).before_offset
            request.reply(DeleteRecordsReply(one.delete_records(before)))
        else:
            raise errors.InvalidRequest(f"There is no method {method!r}.")

    def _on_produce(self, request: Request) -> None:
        one = self.partition
        one.produce_requests += 1
        fault = one.faults.popleft() if one.faults else "store"
        if isinstance(fault, int) and not one.has(request.payload):
            raise errors.from_code(fault, "The toy is set to refuse this.")
        if fault == "cut_before":
            request.connection.abort("cut by the test")
            return
        answer = ProduceReply(one.append(request.payload), one.log_start, one.append_ms)
        if fault == "hold":
            one.held.append((request, answer))
            return
        if fault != "cut_unreplicated" and not one.held:
            one.advance()
        if fault in ("cut_after", "cut_unreplicated"):
            request.connection.abort("cut by the test")
        elif fault == "lose_reply":
            one.lost.append(request)  # kept, because a dropped request is answered with an error
        elif one.held:
            one.held.append((request, answer))
        else:
            if fault == "duplicate_reply":
                cast(Connection, request.connection)._send(1, request._correlation_id, None, answer, b"")
            request.reply(answer)

    async def _fetch(self, request: Request) -> None:
        one = self.partition
        wanted = FETCH.read_request(request.args)
        deadline_s = time.monotonic() + wanted.max_wait_ms / 1000
        while True:
            if not one.log_start <= wanted.fetch_offset <= one.log_end:
                found = errors.OffsetOutOfRange(
                    f"Offset {wanted.fetch_offset} is not in the log.", start=one.log_start, end=one.high_watermark
                )
                request.fail(found)
                return
            upper = self._upper(wanted.isolation_level)
            batches = one.read(wanted.fetch_offset, wanted.max_bytes, upper)
            left_s = deadline_s - time.monotonic()
            if sum(map(len, batches)) >= max(1, wanted.min_bytes) or left_s <= 0 or not request.is_open:
                ends = [header.next_offset for header, batch in one.batches if batches and batch is batches[-1]]
                end = ends[0] if ends else wanted.fetch_offset
                aborted = one.aborted(wanted.fetch_offset, end) if wanted.isolation_level else ()
                request.reply(FetchReply(one.high_watermark, upper, one.log_start, aborted), batches)
                return
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            one.waiters.append(waiter)
            await asyncio.wait([waiter], timeout=left_s)

    def _upper(self, isolation_level: int) -> int:
        """Where the log ends for a reader."""
        return self.partition.last_stable_offset if isolation_level else self.partition.high_watermark

    def _list_offsets(self, timestamp_ms: int, upper: int) -> ListOffsetsReply:
        one = self.partition
        if timestamp_ms == -1:
            return ListOffsetsReply(upper, -1, one.leader_epoch)
        if timestamp_ms == -2:
            return ListOffsetsReply(one.log_start, -1, one.leader_epoch)
        rows = [
            (moment, offset)
            for _, found in one.columns()
            for offset, moment in zip(found.offsets, found.timestamps, strict=True)
            if one.log_start <= offset < upper
        ]
        if timestamp_ms == -3:
            best = max(rows, key=lambda row: (row[0], -row[1]), default=None)
        else:
            best = next((row for row in rows if row[0] >= timestamp_ms), None)
        return ListOffsetsReply(-1, -1, -1) if best is None else ListOffsetsReply(best[1], best[0], one.leader_epoch)
