"""Prefetching: one task and one request in flight per assigned partition. Owned by `engine.py`, runs on its loop.

Each replica is a process of its own, which serves one partition. So a fetch cannot cover several partitions, as Kafka's
do per broker; and a slow partition delays no other. A task sleeps while its partition has enough buffered. May touch:
the network.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from raylog.base.errors import (
    ConnectionFailed,
    CorruptMessage,
    InvalidRequest,
    LeaderNotAvailable,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    RaylogError,
    RequestTimedOut,
)
from raylog.base.ids import TopicPartition
from raylog.client.cluster.backoff import Backoff, as_raylog_error
from raylog.client.cluster.cluster_client import SUSPECT_S, ClusterClient
from raylog.client.cluster.metadata import PartitionInfo
from raylog.client.config import ConsumerConfig
from raylog.client.consumer.assignment import Assignment
from raylog.client.consumer.partition import PartitionState, Start
from raylog.client.consumer.stream import FetchStream
from raylog.client.consumer.truncation import CreatedAgain, has_what_was_read, must_compare
from raylog.client.reading.local_files import NearReadFailed
from raylog.client.tasks import LastingTask
from raylog.rpc.occasional import OccasionalWarning

logger = logging.getLogger(__name__)

NEAR_AHEAD_BYTES = 16 << 20
"""More file places are requested when so much of the last ones is unread: early, since located data uses no memory."""
EMPTY_ANSWER_PAUSE_S = 0.01
"""Pause after an empty answer to a fetch without a wait: the minimum interval between fetches of a partition."""

FAILURES_TO_WARN = 8
"""After so many failed attempts in a row (some seconds), a warning says that the partition is not read, and why."""


class Fetcher:
    """Keeps the buffers of all assigned partitions filled."""

    def __init__(
        self,
        cluster: ClusterClient,
        config: ConsumerConfig,
        assignment: Assignment,
        *,
        on_data: Callable[[], None],
        on_error: Callable[[RaylogError], None],
    ) -> None:
        """`on_data`: a partition has new records, or an error to raise later; `on_error`: an error for the user."""
        self._cluster = cluster
        self._config = config
        self._assignment = assignment
        self._on_data = on_data
        self._on_error = on_error
        self._tasks: dict[TopicPartition, LastingTask] = {}
        self._wakes: dict[TopicPartition, asyncio.Event] = {}
        self._warning = OccasionalWarning(logger)

    def follow_assignment(self) -> None:
        """Start tasks for newly assigned partitions, and stop those of revoked ones."""
        states = self._assignment.states
        for partition in [each for each in self._tasks if each not in states]:
            self._tasks.pop(partition).cancel()
            del self._wakes[partition]
        for partition, state in states.items():
            if partition not in self._tasks:
                self.restart(state)

    def restart(self, state: PartitionState) -> None:
        """Start the partition's task again, because its position has changed; a request in flight is dropped."""
        running = self._tasks.get(state.partition)
        if running is not None:
            running.cancel()
        wake = self._wakes[state.partition] = asyncio.Event()
        self._tasks[state.partition] = LastingTask(partial(self._serve, state, wake), f"raylog-fetch-{state.partition}")

    def wake(self, state: PartitionState) -> None:
        """Have the task check again whether to fetch: the partition has a position now, or was paused or resumed."""
        wake = self._wakes.get(state.partition)
        if wake is not None:
            wake.set()

    async def close(self) -> None:
        """End all tasks."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        self._wakes.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait([each.task for each in tasks], timeout=1)

    # Internals

    async def _serve(self, state: PartitionState, wake: asyncio.Event) -> None:
        backoff = Backoff(self._config.retry_backoff_ms, self._config.retry_backoff_max_ms)
        await asyncio.sleep(state.pause_s)
        while True:
            await self._wait_until_wanted(state, wake)
            session = state.session
            try:
                await self._fetch(state, backoff)
            except Exception as failure:  # unknown errors too: a dead task would stop its partition silently
                if not isinstance(failure, RaylogError):
                    logger.exception("Fetching %s failed.", state.partition)
                await self._failed(state, session, as_raylog_error(failure), backoff)

    async def _failed(self, state: PartitionState, session: int, error: RaylogError, backoff: Backoff) -> None:
        if isinstance(error, OffsetOutOfRange | CorruptMessage):
            # The buffered records are returned first; then poll() meets this error, and resets the position or raises.
            state.stop_behind(session, _located(state, error))
            self._on_data()
            return
        if isinstance(error, NearReadFailed | InvalidRequest) and state.reads_near:
            state.reads_near = False  # we cannot read the leader's files, or an older leader does not know the request
            return
        # "topic" in the details: no broker knows the topic, which only the user can resolve.
        if "topic" in error.details or not error.retriable:
            self._on_error(error)
        if self._cluster.learn_leader(*state.partition, error):
            return
        if error.refresh_metadata or isinstance(error, RequestTimedOut):
            before = self._cluster.metadata.partition(*state.partition)
            await self._refresh(state.partition.topic)
            after = self._cluster.metadata.partition(*state.partition)
            if before is not None and after is not None and after.leader_epoch > before.leader_epoch:
                return  # the next attempt goes to a new leader, without a pause
        if backoff.failures >= FAILURES_TO_WARN and not isinstance(error, ConnectionFailed | LeaderNotAvailable):
            reason = f"{type(error).__name__}: {error.message}"
            self._warning.warn("%s is not read, and the consumer goes on trying: %s", state.partition, reason)
        await asyncio.sleep(backoff.next_s())

    async def _wait_until_wanted(self, state: PartitionState, wake: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()

        def has_room() -> None:  # called from the user's thread
            try:
                loop.call_soon_threadsafe(wake.set)
            except RuntimeError:
                pass  # the loop has ended, and this task with it

        while True:
            wake.clear()
            room_bytes = self._room_bytes(state)
            # Register before the check: a take between the two would be missed otherwise.
            state.call_when_room(room_bytes, has_room)
            if state.wants_fetch(room_bytes):
                state.call_when_room(room_bytes, None)
                return
            await wake.wait()

    def _room_bytes(self, state: PartitionState) -> int:
        """How many bytes the partition may have buffered when its next fetch is sent.

        One answer's worth; much more if the data is only located in files. 0 while all partitions together hold
        fetch_max_bytes: an empty partition fetches even then, so that none starves.
        """
        if state.drains:
            return 0
        if state.has_places:
            return NEAR_AHEAD_BYTES
        full = self._assignment.buffered_bytes >= self._config.fetch_max_bytes
        return 0 if full else self._config.max_partition_fetch_bytes

    async def _fetch(self, state: PartitionState, backoff: Backoff) -> None:
        config, cluster = self._config, self._cluster
        topic, partition = state.partition
        timeout_s = config.request_timeout_ms / 1000
        info, leader = await cluster.leader(topic, partition, timeout_s=timeout_s)
        if not state.topic_id:
            state.topic_id = info.topic_id
        elif state.topic_id != info.topic_id:
            # The topic was deleted and created again, so the position belongs to the old topic's records. The next poll
            # moves it, after the records fetched before. It is not moved here: the user's thread may be taking records,
            # and would set it again.
            start = Start.COMMITTED if config.group_id else Start.FIRST
            state.stop_behind(state.session, CreatedAgain(info.topic_id, start))
            self._on_data()
            return
        assert leader.endpoint is not None  # `leader` raises without one
        if leader.leader_epoch < state.epochs.latest:  # an older leader may lack records that were read
            if backoff.failures >= FAILURES_TO_WARN:
                self._warning.warn(
                    "%s is not read: its position %d is behind a record of leader epoch %d, and its leader has epoch "
                    "%d. Either a newer leader is not reached, or the position was committed with a wrong "
                    "leader_epoch; seek() sets another one.",
                    state.partition, state.fetch_offset, state.epochs.latest, leader.leader_epoch,
                )  # fmt: skip
            raise LeaderNotAvailable(
                f"The newest known leader of {state.partition} has epoch {leader.leader_epoch}, and records of epoch "
                f"{state.epochs.latest} were read."
            )
        connection = cluster.live_connection(leader.endpoint)
        if connection is None:
            connection = await cluster.connection(leader.endpoint, timeout_s)
        if must_compare(state, leader.leader_epoch):
            state.drains = state.buffered_bytes > 0
            if state.drains or not await has_what_was_read(state, leader, connection, timeout_s):
                self._on_data()
                return
        stream = FetchStream(
            state,
            connection,
            leader,
            config,
            goes_on=self._goes_on,
            on_data=self._on_data,
            look_for_leader=lambda: self._look_for_leader(stream),
            suspect_s=SUSPECT_S,
        )
        try:
            await stream.run()
        except OffsetOutOfRange as error:
            _doubt(state, leader, error)
            raise
        finally:
            if stream.has_answered:
                backoff.reset()
        if not stream.has_records and config.fetch_max_wait_ms < EMPTY_ANSWER_PAUSE_S * 1000:
            await asyncio.sleep(EMPTY_ANSWER_PAUSE_S)

    def _goes_on(self, stream: FetchStream) -> bool:
        """Whether the next fetch may be sent at once, to the same leader. If not, the stream ends."""
        state = stream.state
        info = self._cluster.metadata.topic(state.partition.topic)
        return (
            info is not None
            and info.topic_id == state.topic_id
            and stream.is_led_by(info.partitions[state.partition.partition])
            and not stream.connection.is_closed
            and state.wants_fetch(self._room_bytes(state))
            and (stream.has_records or self._config.fetch_max_wait_ms >= EMPTY_ANSWER_PAUSE_S * 1000)
        )

    async def _look_for_leader(self, stream: FetchStream) -> None:
        """Look up the leader, and stop waiting for an answer if the partition has another one by now."""
        partition = stream.state.partition
        await self._cluster.look_for_leader(partition.topic)
        found = self._cluster.metadata.partition(*partition)
        if found is not None and found.leader_epoch > stream.leader.leader_epoch:
            reason = f"Partition {partition} has another leader than the one fetched from."
            stream.end(NotLeaderOrFollower(reason))

    async def _refresh(self, topic: str) -> None:
        try:
            await self._cluster.refresh((topic,))
        except RaylogError as error:
            if not error.retriable:
                self._on_error(error)
            # A retriable error is ignored: attempts continue until the consumer is closed.


def _doubt(state: PartitionState, leader: PartitionInfo, error: OffsetOutOfRange) -> None:
    """Raise NotLeaderOrFollower when a leader says for the first time that its log ends before the position.

    A leader that was paused and replaced meanwhile may say this of records that its successor has, and then a reset
    would be wrong. After a look-up and a pause either the successor answers, or the same leader again, and is believed.
    """
    where = (state.session, leader.leader_epoch)
    end = error.details.get("end")
    if isinstance(end, int) and state.fetch_offset > end and state.doubted != where:
        state.doubted = where
        raise NotLeaderOrFollower(f"Whether {state.partition} has another leader: {error.message}") from error


def _located(state: PartitionState, error: RaylogError) -> RaylogError:
    """A leader's error, completed with the partition, the position, and what the user can do."""
    if isinstance(error, CorruptMessage):
        return _damaged(state, error) if "partition" not in error.details else error
    if type(error) is not OffsetOutOfRange:
        return error
    start, end = error.details.get("start"), error.details.get("end")
    known = f", which runs from {start} to {end}" if start is not None else ""
    return OffsetOutOfRange(
        f"Position {state.fetch_offset} of {state.partition} is outside its log{known}: its records were deleted, or "
        "never written. seek() to go on elsewhere, as by seek_to_beginning(), or set auto_offset_reset.",
        topic=state.partition.topic,
        partition=state.partition.partition,
        position=state.fetch_offset,
        start=start,
        end=end,
    )


def _damaged(state: PartitionState, error: CorruptMessage) -> CorruptMessage:
    """The error for records that the leader cannot read, and that no other in-sync replica has."""
    behind = error.details.get("next_offset")
    place = {"next_offset": behind} if isinstance(behind, int) else {}
    return CorruptMessage(
        f"{state.partition} cannot be read from offset {state.fetch_offset} on. {error.message}",
        topic=state.partition.topic,
        partition=state.partition.partition,
        offset=state.fetch_offset,
        **place,
    )
