"""Fetches ahead: one task and one outstanding request per assigned partition. Owned by `engine.py`, lives on its loop.

Each replica serves one partition, so a fetch per partition costs what a fetch per broker costs elsewhere, and a slow
partition holds up nobody. A task sleeps while its partition has enough buffered. May touch: the network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from raylog.client.cluster import SUSPECT_S, ClusterClient
from raylog.client.config import ConsumerConfig
from raylog.client.consuming.assignment import Assignment
from raylog.client.consuming.near import NearReadFailed, Place, SegmentFile
from raylog.client.consuming.partition import PartitionState, Start
from raylog.client.failures import Backoff, as_raylog_error
from raylog.core.errors import (
    CorruptMessage,
    InvalidRequest,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    RaylogError,
    RequestTimedOut,
)
from raylog.core.ids import TopicPartition
from raylog.rpc import Connection, Reply, RpcError, machine_number

ISOLATION_READ_UNCOMMITTED = 0
NEAR_AHEAD_BYTES = 8 << 20
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
                await self._fetch(state)
                backoff.reset()
            except (RpcError, RaylogError) as failure:
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
        if state.has_places:
            return NEAR_AHEAD_BYTES
        full = self._assignment.buffered_bytes >= self._config.fetch_max_bytes
        return 0 if full else self._config.max_partition_fetch_bytes

    async def _fetch(self, state: PartitionState) -> None:
        config, cluster = self._config, self._cluster
        topic, partition = state.partition
        timeout_s = config.request_timeout_ms / 1000
        info, leader = await cluster.leader(topic, partition, timeout_s=timeout_s)
        if state.topic_id is None:
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
        session, offset = state.session, state.fetch_offset
        if offset < 0:
            return  # the position went away while the leader was looked up
        args = [
            info.topic_id,
            partition,
            leader.leader_epoch,
            offset,
            config.max_partition_fetch_bytes,
            config.fetch_min_bytes,
            config.fetch_max_wait_ms,
            ISOLATION_READ_UNCOMMITTED,
        ]
        near = self._near(state, connection)
        method = "fetch" if not near else "fetch_near"
        asked = connection.call_nowait(method, [*args, *near], timeout_s=timeout_s + config.fetch_max_wait_ms / 1000)
        reply = await self._answer(asked, state.partition, leader.leader_epoch)
        rows = reply.args[3] if near else ()
        if not (_add_places(state, session, rows) if rows else state.add(session, reply.payload)):
            return
        state.high_watermark = max(state.high_watermark, reply.args[0])
        state.log_start_offset = reply.args[2]
        if rows or len(reply.payload):
            self._on_data()
        elif config.fetch_max_wait_ms < EMPTY_ANSWER_PAUSE_S * 1000:
            await asyncio.sleep(EMPTY_ANSWER_PAUSE_S)

    def _near(self, state: PartitionState, connection: Connection) -> list[int]:
        """What to add to a fetch that asks a leader on this machine for places in its files; nothing if it is none."""
        if not (self._config.short_circuit_reads and state.reads_near and connection.stays_here):
            return []
        number = machine_number()
        return [] if number is None else [number]

    async def _answer(self, asked: asyncio.Future[Reply], partition: TopicPartition, leader_epoch: int) -> Reply:
        """The leader's answer, unless it is late and another leads by now. Raises NotLeaderOrFollower then."""
        loop = asyncio.get_running_loop()
        watches: list[asyncio.Task[None]] = []
        doubt = loop.call_later(
            SUSPECT_S + self._config.fetch_max_wait_ms / 1000,
            lambda: watches.append(loop.create_task(self._watch(asked, partition, leader_epoch))),
        )
        try:
            return await asked
        finally:
            doubt.cancel()
            asked.cancel()
            for watch in watches:
                watch.cancel()

    async def _watch(self, asked: asyncio.Future[Reply], partition: TopicPartition, leader_epoch: int) -> None:
        """End the wait for an answer when the partition gets another leader."""
        while not asked.done():
            await self._cluster.look_for_leader(partition.topic)
            found = self._cluster.metadata.partition(*partition)
            if found is not None and found.leader_epoch > leader_epoch and not asked.done():
                asked.set_exception(
                    NotLeaderOrFollower(f"Partition {partition} has another leader than the one that was asked.")
                )
                return
            await asyncio.sleep(SUSPECT_S)

    async def _refresh(self, topic: str) -> None:
        try:
            await self._cluster.refresh((topic,))
        except RaylogError as error:
            if not error.retriable:
                self._on_error(error)
            # Otherwise the next try meets the same trouble; fetching goes on until the consumer is closed.


def _add_places(state: PartitionState, session: int, rows: list[list[Any]]) -> bool:
    """Open what the leader has named, and queue it. Raises NearReadFailed."""
    places: list[Place] = []
    for path, position, length, _, device, inode in rows:
        file = state.segment_file
        if file is None or file.identity != (device, inode):
            file = state.segment_file = SegmentFile(path, (device, inode))
        places.append(Place(file, position, length))
    return state.add_places(session, places, next_offset=rows[-1][3])
