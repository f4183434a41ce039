"""A run of fetches from one leader. Each is sent in the same loop iteration in which the previous answer arrived.

No task has to wake up between two fetches: the next request is sent together with the wake-up of the user's thread.
Made by `fetcher.py`, runs on its loop. May touch: the network, timers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from raylog.base.errors import RaylogError
from raylog.client.cluster.metadata import PartitionInfo
from raylog.client.config import ConsumerConfig
from raylog.client.consumer.partition import PartitionState
from raylog.client.reading.isolation import LEVELS, AbortedBatches, aborted_batches
from raylog.client.reading.local_files import NearReadFailed, near_or_plain, open_places
from raylog.client.tasks import LastingTask
from raylog.protocol.method import AnyMethod
from raylog.protocol.replica import FetchNearReply, FetchReply, FetchRequest, NearSlice
from raylog.rpc import Connection, Reply

LONG_WAIT_MS = 20_000
"""The longest wait of a fetch at the end of a silent partition, unless fetch_max_wait_ms is longer.

A long wait lets the leader doze, since each answer wakes it. Its cost: a leader that hangs is noticed later.
"""


def wait_ms(last_ms: int | None, config: ConsumerConfig, *, is_asleep: bool, has_records: bool) -> int:
    """How long the next fetch may wait at the end of the log; `last_ms`: the wait of the last fetch, None = none yet.

    For a sleeping partition it is long at once: it has been silent, and its waking ends the wait. For others it doubles
    after each empty answer, so it is about as long as the partition has been silent. With `fetch_min_bytes` above 1, or
    a fetch_max_wait_ms of 0, it stays fetch_max_wait_ms.
    """
    first_ms = config.fetch_max_wait_ms
    if is_asleep and first_ms:
        return max(LONG_WAIT_MS, first_ms)
    if last_ms is None or has_records or config.fetch_min_bytes > 1:
        return first_ms
    return max(first_ms, min(2 * last_ms, LONG_WAIT_MS))


class FetchStream:
    """Fetches one partition, in one of its sessions, from one leader. Call `run` once."""

    def __init__(
        self,
        state: PartitionState,
        connection: Connection,
        leader: PartitionInfo,
        config: ConsumerConfig,
        *,
        goes_on: Callable[[FetchStream], bool],
        on_data: Callable[[], None],
        look_for_leader: Callable[[], Awaitable[None]],
        suspect_s: float,
    ) -> None:
        """`goes_on` decides after each answer whether to fetch again.

        `look_for_leader` is awaited, again and again, while an answer is late by `suspect_s`; if it finds another
        leader it calls `end`.
        """
        self.state = state
        self.connection = connection
        self.leader = leader
        self._config = config
        self._isolation = LEVELS[config.isolation_level]
        self._goes_on = goes_on
        self._on_data = on_data
        self._look_for_leader = look_for_leader
        self._loop = asyncio.get_running_loop()
        self._session = state.session
        self._suspect_s = suspect_s
        self._wait_ms = wait_ms(None, config, is_asleep=leader.is_asleep, has_records=False)
        self._sent_s = 0.0
        self._timer: asyncio.TimerHandle
        self._watch: LastingTask | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self.has_answered = False
        self.has_records = False
        """Whether the last answer had records."""

    async def run(self) -> None:
        """Fetch until `goes_on` returns False or the session is over. Raises the error of a failed fetch."""
        if self.state.fetch_offset < 0:
            return  # the position was dropped while the leader was looked up
        self._fetch()
        self._timer = self._loop.call_later(self._patience_s, self._look)
        try:
            await self._ended
        finally:
            self._timer.cancel()
            if self._watch is not None:
                self._watch.cancel()

    def is_led_by(self, found: PartitionInfo) -> bool:
        """Whether this metadata still names the leader that is fetched from; if so it is kept as the newest."""
        if found is not self.leader:
            if _leadership(found) != _leadership(self.leader):
                return False
            self.leader = found
        return True

    def end(self, error: Exception | None = None) -> None:
        """Have `run` return, or raise this error; a later answer is dropped."""
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    def _fetch(self) -> None:
        config, leader = self._config, self.leader
        fetch = FetchRequest(
            self.state.topic_id,
            leader.partition,
            leader.leader_epoch,
            self.state.fetch_offset,
            config.max_partition_fetch_bytes,
            config.fetch_min_bytes,
            self._wait_ms,
            self._isolation,
        )
        self._sent_s = self._loop.time()
        wants_near = config.short_circuit_reads and self.state.reads_near
        method, message = near_or_plain(self.connection, fetch, wants_near=wants_near)
        timeout_s = (config.request_timeout_ms + self._wait_ms) / 1000
        self.connection.call_then(method.name, message, timeout_s=timeout_s, then=partial(self._answered, method))

    def _answered(self, method: AnyMethod, answer: Reply | RaylogError) -> None:
        if self._ended.done():  # also when `run` was cancelled
            return
        if not isinstance(answer, Reply):
            self.end(answer)
            return
        try:
            self._take_in(method.read_reply(answer.args), answer.payload)
        except Exception as failure:  # any error: otherwise `run` would wait in vain
            self.end(failure)

    def _take_in(self, reply: FetchReply | FetchNearReply, payload: memoryview) -> None:
        state = self.state
        rows = reply.slices if isinstance(reply, FetchNearReply) else ()
        aborted = aborted_batches(reply.aborted)
        try:
            if rows:
                taken = _add_places(state, self._session, rows, aborted)
            else:
                taken = state.add(self._session, payload, aborted)
        except NearReadFailed as failure:
            self.end(failure)
            return
        if not taken:
            self.end()
            return
        if reply.high_watermark > state.high_watermark:
            state.high_watermark = reply.high_watermark
        if reply.last_stable_offset > state.visible_end:
            state.visible_end = reply.last_stable_offset
        state.log_start_offset = reply.log_start_offset
        self.has_answered = True
        self.has_records = bool(rows) or len(payload) > 0
        if self.has_records:
            # Before the next request: the user's thread wakes up while this thread writes it, and then gets the GIL.
            self._on_data()
        if self._goes_on(self):
            self._choose_wait()
            self._fetch()
        else:
            self.end()

    def _choose_wait(self) -> None:
        before_ms = self._wait_ms
        self._wait_ms = wait_ms(before_ms, self._config, is_asleep=self.leader.is_asleep, has_records=self.has_records)
        if self._wait_ms < before_ms and self._watch is None:  # the timer was set for the longer wait
            self._timer.cancel()
            self._timer = self._loop.call_later(self._patience_s, self._look)

    @property
    def _patience_s(self) -> float:
        """How long after a fetch was sent its leader becomes suspect."""
        return self._suspect_s + self._wait_ms / 1000

    def _look(self) -> None:
        """Look for another leader if the answer is late; otherwise set the timer to when it would be."""
        left_s = self._sent_s + self._patience_s - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._look)
        else:
            self._watch = LastingTask(partial(self._watch_leader, self._sent_s), "raylog-watch")

    async def _watch_leader(self, sent_s: float) -> None:
        while self._sent_s == sent_s and not self._ended.done():
            await self._look_for_leader()
            await asyncio.sleep(self._suspect_s)
        self._watch = None
        if not self._ended.done():
            self._look()


def _leadership(info: PartitionInfo) -> tuple[object, ...]:
    return info.leader_epoch, info.endpoint, info.is_asleep


def _add_places(state: PartitionState, session: int, rows: Sequence[NearSlice], aborted: AbortedBatches | None) -> bool:
    """Open the files that the leader has named, and queue places in them. Raises NearReadFailed."""
    places = open_places(rows, state.segment_file, state.partition, aborted)
    state.segment_file = places[-1].file
    return state.add_places(session, places, next_offset=rows[-1].next_offset)
