"""Fetches one range of offsets of one partition, without a consumer: for readers that already know the leader.

A task of Spark gets a `PartitionRange` from the driver, and fetches from the leader at once. Metadata is fetched from
the brokers only if the leader cannot be reached or has moved; then reading continues at the next offset. If the leader
is on the same machine, its files are read instead, as consumers do (`local_files.py`). Connections may be kept for the
next task of the process (`kept.py`). Everything here belongs to one event loop, except `near`. May touch: the network,
the clock, files that a leader has named.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field

from raylog.base.errors import (
    CorruptMessage,
    InvalidRequest,
    LeaderNotAvailable,
    OffsetOutOfRange,
    RaylogError,
    RequestTimedOut,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from raylog.base.ids import EARLIEST, TopicPartition
from raylog.client.cluster.backoff import Backoff, as_raylog_error
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.cluster.connections import ConnectionPool, call
from raylog.client.cluster.discovery import Endpoint
from raylog.client.config import ClientConfig
from raylog.client.kept import Kept
from raylog.client.reading.decode import FetchedBatch, corrupt
from raylog.client.reading.isolation import LEVELS, aborted_batches
from raylog.client.reading.local_files import NearReadFailed, Place, near_machine, near_or_plain, open_places
from raylog.protocol.replica import (
    FIND_TIMES,
    LIST_OFFSETS,
    FetchNearReply,
    FetchRequest,
    FindTimesRequest,
    ListOffsetsRequest,
)
from raylog.rpc import Connection, Token
from raylog.storage.batch.header import HEADER_BYTES, check_crc, iter_headers, out_of_place
from raylog.storage.batch.times import TimeBounds
from raylog.storage.errors import CorruptBatch

logger = logging.getLogger(__name__)

KEPT: Kept[ConnectionPool] = Kept(ConnectionPool.close, at_most=32)
"""Connections of ranges that this process has read to their ends, by credentials and leader."""
FETCH_MAX_BYTES = 4 << 20
"""Bytes per fetch: enough to hide the round trip behind the decoding, few enough to have two in memory."""
FETCH_MAX_WAIT_MS = 500
"""How long a leader may wait before it answers a fetch; all records of a range exist from the beginning."""
NEAR_CHUNK_BYTES = 512 << 10
"""Bytes read from a file at once, if its batches are small."""
NARROW_FETCH_BYTES = 64 << 10
"""Bytes of the first fetch after a leader has skipped batches; each further one is twice as large."""
NARROW_CHUNK_BYTES = 32 << 10
"""As `NEAR_CHUNK_BYTES` with time bounds: most further batches of a chunk would be skipped."""
GUESSED_BYTES = 100
"""The assumed size of a record before the first fetch."""
FETCH_MIN_BYTES = 16 << 10
"""Added to the expected bytes of the rest of a range."""
CALL_TIMEOUT_S = 10.0
"""A leader that does not answer within this counts as unavailable."""
TOPIC_GRACE_S = 5.0
"""How long the topic may be unknown to brokers before it counts as deleted; a broker that has just started knows no
topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRange:
    """Offsets `start` to `end` (exclusive) of one partition, and how to reach its leader and the brokers."""

    topic: str
    topic_id: str
    partition: int
    leader_epoch: int
    leader: Endpoint | None
    """The leader's endpoint when the range was made; None = it had no leader."""
    start: int
    end: int
    brokers: tuple[Endpoint, ...]
    secret: bytes | Token = field(repr=False)
    """Credentials for the leader and the brokers; for distributed work, a token that can read this partition."""
    node_id: str = ""
    """Ray's id of the leader's node when the range was made: there its files can be read. "" = not known."""
    may_be_compacted: bool = False
    """Whether compaction may remove records from the range while it is read."""

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition as one value."""
        return TopicPartition(self.topic, self.partition)


class RangeFetcher:
    """Reads one range from its first to its last offset. Call `next` until it returns None, then `close`."""

    def __init__(
        self,
        wanted: PartitionRange,
        *,
        fail_on_data_loss: bool = True,
        max_bytes: int = FETCH_MAX_BYTES,
        stall_timeout_s: float = 120.0,
        short_circuit_reads: bool = True,
        isolation_level: str = "read_uncommitted",
        times: TimeBounds | None = None,
        keeps_connections: bool = False,
    ) -> None:
        """`stall_timeout_s` limits the time without progress, elections and retries included.

        Without `fail_on_data_loss`, lost offsets (retention, a deleted topic) are skipped with a warning.
        `short_circuit_reads`: read the files of a leader on this machine. `isolation_level` as of a consumer; with
        `read_committed` the range must not end above the last stable offset. `times`: batches without a record within
        these bounds may be left out. `keeps_connections`: keep them for a minute, for the next range of this process
        with the same credentials and leader.
        """
        self.wanted = wanted
        self.next_offset = wanted.start
        self._fail_on_data_loss = fail_on_data_loss
        self._max_bytes = max_bytes
        self._stall_timeout_s = stall_timeout_s
        self._leader = wanted.leader
        self._leader_epoch = wanted.leader_epoch
        self._pool: ConnectionPool | None = None
        """Made, or taken from `KEPT`, on first use, on the event loop."""
        self._purpose = wanted.secret, wanted.leader
        self._keeps_connections = keeps_connections
        self._cluster: ClusterClient | None = None
        self._reads_near = short_circuit_reads
        """Whether to request file places from a leader on this machine; False after a failure."""
        self._places: deque[Place] = deque()
        self._isolation = LEVELS[isolation_level]
        self._times = times
        self._skips = times is not None
        """Whether to query the leader, before the next fetch, for the next records within the time bounds."""
        self._most_bytes = max_bytes
        """The most bytes of the next fetch."""
        self.bytes_read = 0
        """Bytes fetched or read from files so far."""
        self._bytes_an_offset = float(GUESSED_BYTES)
        """Bytes per offset in the last fetch."""

    async def next(self, *, leaves_files: bool = False) -> list[FetchedBatch] | None:
        """The next complete batches, at least one; None at the end of the range.

        Control batches and aborted ones are included, with `is_hidden`. The first batch may begin below the range, and
        the last may end above it: the caller has to trim them. With `leaves_files`, returns [] if the next batches are
        in files on this machine: call `near` then. Raises OffsetOutOfRange or UnknownTopicId for lost data,
        RequestTimedOut if no data comes in time, and permanent errors.
        """
        while self.next_offset < self.wanted.end:
            if not self._places and (sent := await self._sent()) != []:
                return sent
            if leaves_files:
                return []
            if found := await asyncio.to_thread(self.near, self._max_bytes):  # reading a file may block
                return found
        return None

    async def _sent(self) -> list[FetchedBatch] | None:
        """The next batches that the leader sends; [] if it has named files instead, None at the end of the range."""
        backoff = Backoff(20, 1_000)
        began_s = self._now_s()
        deadline_s = began_s + self._stall_timeout_s
        loss: RaylogError | None = None
        while self.next_offset < self.wanted.end:
            try:
                if self._leader is None:
                    await self._find_leader(deadline_s)
                if loss is not None:
                    log_start = await self._log_start(deadline_s)
                    # If the log does not start later, it was truncated: everything from here on is lost.
                    self._pass_over(loss, log_start if log_start > self.next_offset else self.wanted.end)
                    loss = None
                    continue
                if self._skips and await self._skip(deadline_s):
                    continue
                found = await self._fetch(deadline_s)
                if found or self.next_offset >= self.wanted.end:
                    return found or None
                if self._places:
                    return []
                error: RaylogError = RequestTimedOut(
                    f"Partition {self.wanted.topic_partition} gave nothing at offset {self.next_offset}, although "
                    f"it was committed up to {self.wanted.end}: check that its leader has caught up."
                )
            except RaylogError as failure:
                error = as_raylog_error(failure)
                if isinstance(error, NearReadFailed | InvalidRequest) and self._reads_near:
                    self._fetch_all()  # we cannot read the files, or an older leader does not know the request
                    continue
                if self._is_loss(error, began_s):
                    loss = self._accepted(error)
                    if isinstance(error, OffsetOutOfRange):
                        continue  # query the leader for the start of its log
                    self._pass_over(error, self.wanted.end)
                    return None
                if not error.retriable or isinstance(error, CorruptMessage):  # damage on disk: no retry helps
                    raise error from failure
                if error.refresh_metadata or isinstance(error, RequestTimedOut):
                    self._leader = None
            pause_s = backoff.next_s()
            if self._now_s() + pause_s >= deadline_s:
                raise error
            await asyncio.sleep(pause_s)
        return None

    async def close(self) -> None:
        """Close all connections; with `keeps_connections` keep those to the leader for another range."""
        pool, self._pool = self._pool, None
        if pool is not None:
            # Only at the end of the range: then no request is in flight on them.
            if self._keeps_connections and self.next_offset >= self.wanted.end and pool.endpoints:
                await KEPT.keep(self._purpose, pool)
            else:
                await pool.close()
        if self._cluster is not None:
            await self._cluster.close()

    # Internals

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _left_s(self, deadline_s: float, most_s: float) -> float:
        return max(0.001, min(most_s, deadline_s - self._now_s()))

    async def _connection(self, deadline_s: float) -> tuple[Connection, float]:
        """The connection with the leader, and the timeout in seconds for a call on it."""
        if self._leader is None:
            raise LeaderNotAvailable(f"Partition {self.wanted.topic_partition} has no leader at the moment.")
        timeout_s = self._left_s(deadline_s, CALL_TIMEOUT_S)
        if self._pool is None:
            kept = KEPT.take(self._purpose) if self._keeps_connections else None
            self._pool = kept or ConnectionPool(self.wanted.secret)
        return await self._pool.get(self._leader, timeout_s), timeout_s

    async def _fetch(self, deadline_s: float) -> list[FetchedBatch]:
        """Send one fetch; return the batches that overlap the rest of the range, [] if the answer names files."""
        connection, timeout_s = await self._connection(deadline_s)
        wanted = self.wanted
        # Wait for half of the remaining time at most, so that the leader answers before this call times out.
        wait_ms = min(FETCH_MAX_WAIT_MS, int(timeout_s * 500))
        request = FetchRequest(
            wanted.topic_id,
            wanted.partition,
            self._leader_epoch,
            self.next_offset,
            self._bytes_wanted(),
            1,
            wait_ms,
            self._isolation,
        )
        method, message = near_or_plain(connection, request, wants_near=self._reads_near)
        reply, payload = await call(connection, method, message, timeout_s=timeout_s)
        aborted = aborted_batches(reply.aborted)
        if isinstance(reply, FetchNearReply) and reply.slices:
            self._places.extend(open_places(reply.slices, None, wanted.topic_partition, aborted))
            return []
        self.bytes_read += len(payload)
        before = self.next_offset
        found: list[FetchedBatch] = []
        try:
            for place, header in iter_headers(payload):
                if self.next_offset >= wanted.end:
                    break
                if not header.base_offset <= self.next_offset < header.next_offset:
                    raise out_of_place(header, self.next_offset)
                is_aborted = aborted is not None and aborted.hides(header)
                found.append(FetchedBatch(payload, place, header, is_aborted=is_aborted))
                self.next_offset = header.next_offset
            if len(payload) and self.next_offset == before:
                raise CorruptBatch("it is not whole")
        except RaylogError as error:
            if not found:  # return good batches first; the next fetch meets the damage again
                raise corrupt(wanted.topic_partition, self.next_offset, error) from error
        if self.next_offset > before:
            self._bytes_an_offset = len(payload) / (self.next_offset - before)
        if found:
            self._note_last(payload, found[-1])
        return found

    async def _skip(self, deadline_s: float) -> bool:
        """Move to the next batch that may have records within the time bounds, by a query to the leader.

        Returns whether to query again, or the range is at its end; False = fetch now.
        """
        times, wanted = self._times, self.wanted
        connection, timeout_s = await self._connection(deadline_s)
        if times is None or near_machine(connection, wants_near=self._reads_near) is not None:
            self._skips = False  # batches in files are skipped when they are read
            return False
        request = FindTimesRequest(
            wanted.topic_id,
            wanted.partition,
            self._leader_epoch,
            self.next_offset,
            times.low_ms,
            times.end_ms,
            self._isolation,
        )
        reply, _ = await call(connection, FIND_TIMES, request, timeout_s=timeout_s)
        has_moved = reply.next_offset > self.next_offset
        self.next_offset = min(max(self.next_offset, reply.next_offset), wanted.end)
        self._most_bytes = min(self._max_bytes, NARROW_FETCH_BYTES)
        self._skips = not reply.is_found and has_moved
        return self._skips or self.next_offset >= wanted.end

    def _fetch_all(self) -> None:
        """Stop reading files: fetch everything from the leader from here on."""
        self._reads_near = False
        self._skips = self._times is not None

    def _note_last(self, payload: memoryview, batch: FetchedBatch) -> None:
        """After a fetch: query the leader again if the last batch is outside the time bounds; else fetch more."""
        times, header = self._times, batch.header
        if times is None:
            return
        body = batch.place + HEADER_BYTES
        shown = bytes(payload[body : body + times.bytes_to_show(header)])
        self._skips = batch.is_aborted or header.is_control or times.exclude(header, shown)
        self._most_bytes = min(self._max_bytes, 2 * self._most_bytes)

    def _bytes_wanted(self) -> int:
        """The bytes of the next fetch: estimated, so that the leader sends little after the end of the range."""
        left = self.wanted.end - self.next_offset
        return min(self._most_bytes, int(left * self._bytes_an_offset * 1.1) + FETCH_MIN_BYTES)

    def near(self, most_bytes: int = 1) -> list[FetchedBatch]:
        """The next batches from the files that the leader named: of one read, or of reads up to `most_bytes`.

        [] = go on with `next`. It may block on a disk, so it is not for the event loop; `next` must not run meanwhile.
        Call it in the thread that uses the batches: they are still in the processor's cache then, and no other thread
        has to be waited for.
        """
        had_places = bool(self._places)
        found: list[FetchedBatch] = []
        size = 0
        try:
            while self._places and size < most_bytes and self.next_offset < self.wanted.end:
                for batch in self._read_place():
                    self.bytes_read += len(batch.buffer) if batch.is_skipped else batch.header.size
                    if self.next_offset >= self.wanted.end:
                        break
                    if not batch.is_skipped:
                        check_crc(batch.buffer, batch.place, batch.header)
                    found.append(batch)
                    self.next_offset = batch.header.next_offset
                    size += 0 if batch.is_skipped else batch.header.size
            if had_places and not found and self.next_offset < self.wanted.end:
                raise NearReadFailed(f"The files that its leader named hold nothing from offset {self.next_offset} on.")
        except (NearReadFailed, RaylogError) as error:
            logger.info("%s is fetched from its leader from here on: %s", self.wanted.topic_partition, error)
            self._fetch_all()
            self._places.clear()
        return found

    def _read_place(self) -> list[FetchedBatch]:
        """The next batches of the first place. Raises NearReadFailed."""
        chunk_bytes = NEAR_CHUNK_BYTES if self._times is None else NARROW_CHUNK_BYTES
        batches, rest = self._places.popleft().read(chunk_bytes, self.next_offset, self._times)
        if rest is not None:
            self._places.appendleft(rest)
        return batches

    async def _find_leader(self, deadline_s: float) -> None:
        wanted = self.wanted
        timeout_s = self._left_s(deadline_s, CALL_TIMEOUT_S)
        if self._cluster is None:
            bootstrap = ",".join(
                f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in wanted.brokers
            )
            cluster = ClusterClient(ClientConfig(bootstrap=bootstrap, secret=wanted.secret))
            try:
                await cluster.start(timeout_s)
            except BaseException:  # after any failed start, half-made connections must be closed
                await cluster.close()
                raise
            self._cluster = cluster
        await self._cluster.refresh((wanted.topic,), timeout_s=timeout_s)
        topic = self._cluster.metadata.topic(wanted.topic)
        if topic is None:
            raise UnknownTopicOrPartition(f"Topic {wanted.topic!r} is not known to the brokers any more.")
        if topic.topic_id != wanted.topic_id:
            raise UnknownTopicId(
                f"Topic {wanted.topic!r} was deleted and created again while it was read; run the query again."
            )
        found = self._cluster.metadata.partition(wanted.topic, wanted.partition)
        if found is None or found.endpoint is None:
            raise LeaderNotAvailable(f"Partition {wanted.topic_partition} has no leader at the moment.")
        # A broker's metadata may be stale: do not go back to an older leader epoch.
        if found.leader_epoch < self._leader_epoch:
            raise LeaderNotAvailable(f"The brokers do not know the newest leader of {wanted.topic_partition} yet.")
        self._leader, self._leader_epoch = found.endpoint, found.leader_epoch

    def _is_loss(self, error: RaylogError, began_s: float) -> bool:
        """Whether the data no longer exists, and has not just moved to another leader."""
        if isinstance(error, OffsetOutOfRange):
            return True
        known_id = None if self._cluster is None else self._cluster.metadata.topic(self.wanted.topic)
        if isinstance(error, UnknownTopicId):
            return known_id is not None and known_id.topic_id != self.wanted.topic_id
        return isinstance(error, UnknownTopicOrPartition) and self._now_s() - began_s > TOPIC_GRACE_S

    def _accepted(self, error: RaylogError) -> RaylogError:
        """The error of a loss that may be skipped; with `fail_on_data_loss` raises it instead."""
        wanted, at = self.wanted, self.next_offset
        if self._fail_on_data_loss:
            raise type(error)(
                f"Offset {at} of {wanted.topic_partition} is lost, and a query wants {wanted.start} to {wanted.end}: "
                f"{error.message} Set failOnDataLoss to false to read what is left.",
                **error.details,
            ) from error
        return error

    def _pass_over(self, error: RaylogError, next_offset: int) -> None:
        """Move past lost offsets, with a warning."""
        at, self.next_offset = self.next_offset, min(next_offset, self.wanted.end)
        lost = f"Offsets {at} to {self.next_offset - 1} of {self.wanted.topic_partition} are lost"
        logger.warning("%s: %s", lost, error.message)

    async def _log_start(self, deadline_s: float) -> int:
        connection, timeout_s = await self._connection(deadline_s)
        request = ListOffsetsRequest(self.wanted.topic_id, self.wanted.partition, self._leader_epoch, EARLIEST)
        reply, _ = await call(connection, LIST_OFFSETS, request, timeout_s=timeout_s)
        return reply.offset


__all__ = ["PartitionRange", "RangeFetcher"]
