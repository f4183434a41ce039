"""Fetches one range of offsets of one partition, without a consumer: for readers that already know the leader.

Where the leader is on the same machine, its files are read instead, as consumers do (see `local_files.py`).

A task of Spark gets a `PartitionRange` from the driver and sends to the leader at once. Only when the leader cannot be
reached or has moved is metadata fetched from the brokers; reading then continues at the next offset. Connections may be
left to the next task of the process (`kept.py`). Everything here belongs to one event loop. May touch: the network, the
clock, files that a leader has named.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field

from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.cluster.connections import ConnectionPool, call
from raylog.client.cluster.discovery import Endpoint
from raylog.client.cluster.failures import Backoff, as_raylog_error
from raylog.client.config import ClientConfig
from raylog.client.kept import Kept
from raylog.client.reading.decode import FetchedBatch, corrupt
from raylog.client.reading.isolation import LEVELS, aborted_batches
from raylog.client.reading.local_files import NearReadFailed, Place, near_machine, near_or_plain, open_places
from raylog.core.errors import (
    CorruptMessage,
    InvalidRequest,
    LeaderNotAvailable,
    OffsetOutOfRange,
    RaylogError,
    RequestTimedOut,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from raylog.core.ids import EARLIEST, TopicPartition
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
"""Bytes per fetch: enough to hide the round trip behind the decoding, small enough to hold two of them."""
FETCH_MAX_WAIT_MS = 500
"""How long a leader may park a fetch; all records of a range exist from the beginning."""
NEAR_CHUNK_BYTES = 512 << 10
"""Bytes read from a file at once where batches are small."""
NARROW_FETCH_BYTES = 64 << 10
"""Of the first fetch behind what a leader has skipped; each further one is twice as large."""
NARROW_CHUNK_BYTES = 32 << 10
"""The same where times bound the read: what is read along is more often skipped than wanted."""
GUESSED_BYTES = 100
"""Of a record, before the first fetch shows it."""
FETCH_MIN_BYTES = 16 << 10
CALL_TIMEOUT_S = 10.0
"""A leader without an answer within this counts as unavailable."""
TOPIC_GRACE_S = 5.0
"""How long the topic may be unknown to brokers before it counts as deleted; a broker that has just started knows
none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRange:
    """Offsets `start` to `end` (exclusive) of one partition, and how to reach its leader and the brokers."""

    topic: str
    topic_id: str
    partition: int
    leader_epoch: int
    leader: Endpoint | None
    """The leader's endpoint when the range was made; None without a leader."""
    start: int
    end: int
    brokers: tuple[Endpoint, ...]
    secret: bytes | Token = field(repr=False)
    """Credentials for the leader and the brokers; for distributed work, a token that can read this partition."""
    node_id: str = ""
    """Ray's id of the node with the leader when the range was made: there its files can be read. Empty: not known."""
    may_be_compacted: bool = False
    """Whether the cleaner may remove records from the range while it is read: the topic is compacted."""

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition as one value."""
        return TopicPartition(self.topic, self.partition)


class RangeFetcher:
    """Reads one range from its first to its last offset. Call `next` one at a time until None, then `close`."""

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
        """`stall_timeout_s` bounds the time without progress, elections and retries included.

        Without `fail_on_data_loss`, lost offsets (retention, a deleted topic) are skipped with a warning.
        `short_circuit_reads`: read the files of a leader on this machine. `isolation_level`: as that of a consumer; the
        range has to end at or below the last stable offset for `read_committed`. `times`: batches that have no record
        within need not be read; some are all the same. `keeps_connections`: leave them to the next range of this
        process with equal credentials and the same leader, if it comes within a minute.
        """
        self.wanted = wanted
        self.next_offset = wanted.start
        self._fail_on_data_loss = fail_on_data_loss
        self._max_bytes = max_bytes
        self._stall_timeout_s = stall_timeout_s
        self._leader = wanted.leader
        self._leader_epoch = wanted.leader_epoch
        self._pool: ConnectionPool | None = None
        """Made or taken when it is needed first, on the event loop."""
        self._purpose = wanted.secret, wanted.leader
        self._keeps_connections = keeps_connections
        self._cluster: ClusterClient | None = None
        self._reads_near = short_circuit_reads
        """Whether to request file places from a leader on this machine; not after a failure."""
        self._places: deque[Place] = deque()
        self._isolation = LEVELS[isolation_level]
        self._times = times
        self._skips = times is not None
        """Whether to request from the leader where the next records within the times are, before the next fetch."""
        self._most_bytes = max_bytes
        """Of the next fetch."""
        self.bytes_read = 0
        """Fetched, and read from files."""
        self._bytes_an_offset = float(GUESSED_BYTES)
        """Of what was fetched last."""

    async def next(self, *, leaves_files: bool = False) -> list[FetchedBatch] | None:
        """The next whole batches, at least one; None at the end of the range. Markers and aborted ones are hidden.

        The first may begin below the range and the last may end above it: the caller trims. With `leaves_files`, an
        empty list where the next ones are in files on this machine: `near` reads those. Raises OffsetOutOfRange or
        UnknownTopicId for lost data, RequestTimedOut when no data comes in time, and permanent errors.
        """
        while self.next_offset < self.wanted.end:
            if not self._places and (sent := await self._sent()) != []:
                return sent
            if leaves_files:
                return []
            if found := await asyncio.to_thread(self.near, self._max_bytes):  # files may be cold
                return found
        return None

    async def _sent(self) -> list[FetchedBatch] | None:
        """The next batches as the leader sends them; an empty list where it has named files, None at the end."""
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
                    # Nothing from here on, if the log does not begin behind: its end was cut off.
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
                    self._fetch_all()  # not readable from here, or the leader does not know the request
                    continue
                if self._is_loss(error, began_s):
                    loss = self._accepted(error)
                    if isinstance(error, OffsetOutOfRange):
                        continue  # the leader knows which records are left
                    self._pass_over(error, self.wanted.end)
                    return None
                if not error.retriable or isinstance(error, CorruptMessage):  # on disk; a retry reads the same bytes
                    raise error from failure
                if error.refresh_metadata or isinstance(error, RequestTimedOut):
                    self._leader = None
            pause_s = backoff.next_s()
            if self._now_s() + pause_s >= deadline_s:
                raise error
            await asyncio.sleep(pause_s)
        return None

    async def close(self) -> None:
        """Close every connection, or keep those with leaders for another range."""
        pool, self._pool = self._pool, None
        if pool is not None:
            # At the end of the range no request is under way on them.
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
        """The connection with the leader, and the timeout of a call on it in seconds."""
        if self._leader is None:
            raise LeaderNotAvailable(f"Partition {self.wanted.topic_partition} has no leader at the moment.")
        timeout_s = self._left_s(deadline_s, CALL_TIMEOUT_S)
        if self._pool is None:
            kept = KEPT.take(self._purpose) if self._keeps_connections else None
            self._pool = kept or ConnectionPool(self.wanted.secret)
        return await self._pool.get(self._leader, timeout_s), timeout_s

    async def _fetch(self, deadline_s: float) -> list[FetchedBatch]:
        """Make one request: the batches that overlap the rest of the range; none where the answer names files."""
        connection, timeout_s = await self._connection(deadline_s)
        wanted = self.wanted
        # Half of the remaining time, so that the leader's answer arrives before this call's own deadline.
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
            if not found:  # good batches come first; the next fetch meets the damage again
                raise corrupt(wanted.topic_partition, self.next_offset, error) from error
        if self.next_offset > before:
            self._bytes_an_offset = len(payload) / (self.next_offset - before)
        if found:
            self._note_last(payload, found[-1])
        return found

    async def _skip(self, deadline_s: float) -> bool:
        """Move to the next batch that may have records within the times, as its leader knows; whether to look again."""
        times, wanted = self._times, self.wanted
        connection, timeout_s = await self._connection(deadline_s)
        if times is None or near_machine(connection, wants_near=self._reads_near) is not None:
            self._skips = False  # batches in files are looked at here
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
        try:
            reply, _ = await call(connection, FIND_TIMES, request, timeout_s=timeout_s)
        except InvalidRequest:  # a leader of an earlier release: it sends everything
            self._skips, self._times = False, None
            return False
        has_moved = reply.next_offset > self.next_offset
        self.next_offset = min(max(self.next_offset, reply.next_offset), wanted.end)
        self._most_bytes = min(self._max_bytes, NARROW_FETCH_BYTES)
        self._skips = not reply.is_found and has_moved
        return self._skips or self.next_offset >= wanted.end

    def _fetch_all(self) -> None:
        """Read no files from here on."""
        self._reads_near = False
        self._skips = self._times is not None

    def _note_last(self, payload: memoryview, batch: FetchedBatch) -> None:
        """Choose what follows a fetch: another look by the leader if its last batch is outside the times, or more."""
        times, header = self._times, batch.header
        if times is None:
            return
        body = batch.place + HEADER_BYTES
        shown = bytes(payload[body : body + times.bytes_to_show(header)])
        self._skips = batch.is_aborted or header.is_control or times.exclude(header, shown)
        self._most_bytes = min(self._max_bytes, 2 * self._most_bytes)

    def _bytes_wanted(self) -> int:
        """The bytes of the next fetch: a leader does not know the end of the range, and would send what lies behind."""
        left = self.wanted.end - self.next_offset
        return min(self._most_bytes, int(left * self._bytes_an_offset * 1.1) + FETCH_MIN_BYTES)

    def near(self, most_bytes: int = 1) -> list[FetchedBatch]:
        """The next batches of the files that the leader named: one read, or reads until there are `most_bytes`.

        An empty list: go on with `next`. May wait for a disk, so it is not for the event loop; no `next` may be under
        way meanwhile. Batches that are used in the thread that reads them are still in the processor's cache, and no
        other thread has to be waited for.
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
        # A broker may be behind: do not return to an epoch that is known to be over.
        if found.leader_epoch < self._leader_epoch:
            raise LeaderNotAvailable(f"The brokers do not know the newest leader of {wanted.topic_partition} yet.")
        self._leader, self._leader_epoch = found.endpoint, found.leader_epoch

    def _is_loss(self, error: RaylogError, began_s: float) -> bool:
        """Whether the wanted data no longer exists, as opposed to being elsewhere."""
        if isinstance(error, OffsetOutOfRange):
            return True
        known_id = None if self._cluster is None else self._cluster.metadata.topic(self.wanted.topic)
        if isinstance(error, UnknownTopicId):
            return known_id is not None and known_id.topic_id != self.wanted.topic_id
        return isinstance(error, UnknownTopicOrPartition) and self._now_s() - began_s > TOPIC_GRACE_S

    def _accepted(self, error: RaylogError) -> RaylogError:
        """The loss, if it may be skipped; raises it otherwise."""
        wanted, at = self.wanted, self.next_offset
        if self._fail_on_data_loss:
            raise type(error)(
                f"Offset {at} of {wanted.topic_partition} is lost, and a query wants {wanted.start} to {wanted.end}: "
                f"{error.message} Set failOnDataLoss to false to read what is left.",
                **error.details,
            ) from error
        return error

    def _pass_over(self, error: RaylogError, next_offset: int) -> None:
        """Move behind the lost offsets."""
        at, self.next_offset = self.next_offset, min(next_offset, self.wanted.end)
        lost = f"Offsets {at} to {self.next_offset - 1} of {self.wanted.topic_partition} are lost"
        logger.warning("%s: %s", lost, error.message)

    async def _log_start(self, deadline_s: float) -> int:
        connection, timeout_s = await self._connection(deadline_s)
        request = ListOffsetsRequest(self.wanted.topic_id, self.wanted.partition, self._leader_epoch, EARLIEST)
        reply, _ = await call(connection, LIST_OFFSETS, request, timeout_s=timeout_s)
        return reply.offset


__all__ = ["PartitionRange", "RangeFetcher"]
