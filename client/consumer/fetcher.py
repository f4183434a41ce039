"""Fetches ahead: one task and one outstanding request per assigned partition. Owned by `engine.py`, lives on its loop.

Each replica serves one partition, so a fetch per partition costs what a fetch per broker costs elsewhere, and a slow
partition holds up nobody. A task sleeps while its partition has enough buffered. May touch: the network.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from raylog.client.cluster.cluster_client import SUSPECT_S, ClusterClient
from raylog.client.cluster.failures import Backoff, as_raylog_error
from raylog.client.config import ConsumerConfig
from raylog.client.consumer.assignment import Assignment
from raylog.client.consumer.partition import PartitionState, Start
from raylog.client.consumer.stream import FetchStream
from raylog.client.consumer.truncation import has_what_was_read, must_compare
from raylog.client.reading.local_files import NearReadFailed
from raylog.core.errors import (
    CorruptMessage,
    InvalidRequest,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    RaylogError,
    RequestTimedOut,
)
from raylog.core.ids import TopicPartition

logger = logging.getLogger(__name__)

NEAR_AHEAD_BYTES = 16 << 20
"""Places in files are asked for again when so much is left of them: early enough, and nothing that costs memory."""
EMPTY_ANSWER_PAUSE_S = 0.01
"""Pause after an empty answer when the server was asked not to wait: no partition is asked more often than this."""


class Fetcher:
    """Keeps the buffers of all assigned partitions filled."""

    def __init__(
        self,
        cluster: ClusterClient,
        config: ConsumerConfig,
        assignment: Assignment,
        *,
        on_data: Callable[[], None],
        on_change: Callable[[], None],
        on_error: Callable[[RaylogError], None],
    ) -> None:
        """`on_data`: records came; `on_change`: a partition needs a position; `on_error`: the user has to know."""
        self._cluster = cluster
        self._config = config
        self._assignment = assignment
        self._on_data = on_data
        self._on_change = on_change
        self._on_error = on_error
        self._tasks: dict[TopicPartition, asyncio.Task[None]] = {}
        self._wakes: dict[TopicPartition, asyncio.Event] = {}

    def follow_assignment(self) -> None:
        """Begin with newly assigned partitions, and stop with those that are gone."""
        states = self._assignment.states
        for partition in [each for each in self._tasks if each not in states]:
            self._tasks.pop(partition).cancel()
            del self._wakes[partition]
        for partition, state in states.items():
            if partition not in self._tasks:
                self.restart(state)

    def restart(self, state: PartitionState) -> None:
        """Forget the outstanding request: the position was changed, and nobody wants its answer."""
        running = self._tasks.get(state.partition)
        if running is not None:
            running.cancel()
        wake = self._wakes[state.partition] = asyncio.Event()
        self._tasks[state.partition] = asyncio.get_running_loop().create_task(
            self._serve(state, wake), name=f"raylog-fetch-{state.partition}"
        )

    def wake(self, state: PartitionState) -> None:
        """Look again whether the partition wants records: it has a position now, or is not paused any more."""
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
            await asyncio.wait(tasks, timeout=1)

    # Inside

    async def _serve(self, state: PartitionState, wake: asyncio.Event) -> None:
        backoff = Backoff(self._config.retry_backoff_ms, self._config.retry_backoff_max_ms)
        while True:
            await self._wait_until_wanted(state, wake)
            session = state.session
            try:
                await self._fetch(state, backoff)
            except Exception as failure:  # an unknown one, too: the end of this task would end the partition unseen
                if not isinstance(failure, RaylogError):
                    logger.exception("Fetching %s failed.", state.partition)
                await self._failed(state, session, as_raylog_error(failure), backoff)

    async def _failed(self, state: PartitionState, session: int, error: RaylogError, backoff: Backoff) -> None:
        if isinstance(error, OffsetOutOfRange | CorruptMessage):
            # What is buffered comes first; then poll() meets this, and resets the position or tells the user.
            state.stop_behind(session, error)
            self._on_data()
            return
        if isinstance(error, NearReadFailed | InvalidRequest) and state.reads_near:
            state.reads_near = False  # the files are not to be seen from here, or the leader knows no such request
            return
        # `topic` in the details: the whole topic is unknown, which only the user can explain.
        if "topic" in error.details or not error.retriable:
            self._on_error(error)
        if error.refresh_metadata or isinstance(error, RequestTimedOut):
            await self._refresh(state.partition.topic)
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
            # First the callback, then the look: what is taken between the two is not missed.
            state.call_when_room(room_bytes, has_room)
            if state.wants_fetch(room_bytes):
                state.call_when_room(room_bytes, None)
                return
            await wake.wait()

    def _room_bytes(self, state: PartitionState) -> int:
        """One answer ahead, or much more where it is only located.

        None while all partitions together hold fetch_max_bytes, so that none starves either.
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
            # Deleted and created again: the position belonged to other records.
            state.topic_id = info.topic_id
            state.find_start(Start.POLICY)
            self._on_change()
            return
        assert leader.endpoint is not None  # `leader` returns none without
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
        finally:
            if stream.has_answered:
                backoff.reset()
        if not stream.has_records and config.fetch_max_wait_ms < EMPTY_ANSWER_PAUSE_S * 1000:
            await asyncio.sleep(EMPTY_ANSWER_PAUSE_S)

    def _goes_on(self, stream: FetchStream) -> bool:
        """Whether the next fetch may go where the last one went, at once. If not, `_serve` takes it from there."""
        state = stream.state
        info = self._cluster.metadata.topic(state.partition.topic)
        return (
            info is not None
            and info.topic_id == state.topic_id
            and stream.leader is info.partitions[state.partition.partition]
            and not stream.connection.is_closed
            and state.wants_fetch(self._room_bytes(state))
            and (stream.has_records or self._config.fetch_max_wait_ms >= EMPTY_ANSWER_PAUSE_S * 1000)
        )

    async def _look_for_leader(self, stream: FetchStream) -> None:
        """End the wait for an answer when the partition has another leader."""
        partition = stream.state.partition
        await self._cluster.look_for_leader(partition.topic)
        found = self._cluster.metadata.partition(*partition)
        if found is not None and found.leader_epoch > stream.leader.leader_epoch:
            reason = f"Partition {partition} has another leader than the one that was asked."
            stream.end(NotLeaderOrFollower(reason))

    async def _refresh(self, topic: str) -> None:
        try:
            await self._cluster.refresh((topic,))
        except RaylogError as error:
            if not error.retriable:
                self._on_error(error)
            # Otherwise the next try meets the same trouble; fetching goes on until the consumer is closed.
