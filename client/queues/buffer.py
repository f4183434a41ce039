"""A buffer of messages that are locked for a queue's consumer and not taken yet; with priorities one lane per topic.

Without priorities there is one lane for all topics. With them, as many messages of each topic are locked ahead as its
share of `max_poll_records`. With strict priorities a lower lane is used, and fetched for, only while the higher lanes
have nothing; a leader that had records has to answer that it has no more before. `pop` is called from any thread, one
at a time; all else from the loop. May touch: the loop's clock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from raylog.base.ids import TopicPartition
from raylog.client.queues.message import Holder, QueueMessage
from raylog.client.queues.priorities import Standing, Turns

UNKNOWN_MAX_S: Final = 1.0
"""A leader that does not answer for so long counts as having no records, so that lower topics do not wait for it."""


class BufferLane:
    """The messages of one topic; without priorities of all topics."""

    def __init__(self, most: int) -> None:
        """`most`: how many messages are locked ahead. More are fetched when less than half of them are left."""
        self.messages: deque[QueueMessage] = deque()
        self.most = most
        self.low = max(1, most // 2)
        self.room = asyncio.Event()
        self.room.set()
        self.flowing: set[TopicPartition] = set()
        """Partitions that may have more records: their last answer had some, or there was no answer yet."""

    @property
    def standing(self) -> Standing:
        """Whether records of this lane are here, may come, or do not exist."""
        if self.messages:
            return Standing.AT_HAND
        return Standing.UNKNOWN if self.flowing else Standing.NONE


class MessageBuffer:
    """All messages that are locked ahead for one consumer."""

    def __init__(
        self,
        most: int,
        turns: Turns | None,
        lane_of: Mapping[str, int],
        *,
        call_on_loop: Callable[[Callable[[], object]], None],
        on_change: Callable[[], object],
    ) -> None:
        """`lane_of`: each topic's lane, 0 = the first. `on_change` is called when `pop` may have a message again."""
        self._turns = turns
        self._is_strict = turns is not None and turns.is_strict
        self._lane_of = lane_of
        if turns is None:
            self._lanes = [BufferLane(most)]
        else:
            self._lanes = [BufferLane(turns.share(lane, most)) for lane in range(max(lane_of.values()) + 1)]
        self._call_on_loop = call_on_loop
        self._on_change = on_change
        self._changed = asyncio.Event()
        """Set when lanes that wait for higher ones have to check again."""
        self._waiting = 0

    def __len__(self) -> int:
        return sum(len(lane.messages) for lane in self._lanes)

    def __iter__(self) -> Iterator[QueueMessage]:
        return iter([message for lane in self._lanes for message in list(lane.messages)])

    # Messages

    def put(self, partition: TopicPartition, messages: Iterable[QueueMessage]) -> None:
        """Add messages of a partition, which may have more."""
        lane = self._lanes[self._place(partition)]
        if self._is_strict:
            lane.flowing.add(partition)
        lane.messages.extend(messages)
        if len(lane.messages) >= lane.low:
            lane.room.clear()
        self._on_change()

    @property
    def is_ready(self) -> bool:
        """Whether `pop` would return a message."""
        if self._turns is None:
            return bool(self._lanes[0].messages)
        return self._turns.is_ready([lane.standing for lane in self._lanes])

    def pop(self) -> QueueMessage | None:
        """The next message by the priorities; None if there is none that may be taken now. From any thread."""
        turns, lanes = self._turns, self._lanes
        while True:
            place = 0 if turns is None else turns.next([lane.standing for lane in lanes])
            if place is None:
                return None
            lane = lanes[place]
            try:
                message = lane.messages.popleft()
            except IndexError:  # empty, or the loop has just released the last one
                self._make_room(lane)
                if turns is None:
                    return None
                continue
            left = len(lane.messages)
            if left == lane.low - 1:
                self._make_room(lane)
            if not left and self._waiting:
                self._call_on_loop(self._changed.set)
            return message

    def take_out(self, holders: Collection[Holder]) -> list[QueueMessage]:
        """Remove and return the messages of some partitions, except those that a user's thread takes meanwhile."""
        returned: list[QueueMessage] = []
        for lane in self._lanes:
            kept: list[QueueMessage] = []
            while True:
                try:
                    message = lane.messages.popleft()
                except IndexError:
                    break
                (returned if message._lock.source in holders else kept).append(message)
            lane.messages.extendleft(reversed(kept))
            if len(kept) < lane.low:
                self._make_room(lane)
        self._changed.set()
        self._on_change()  # while they were taken out, another thread may have found the lanes empty
        return returned

    # Fetches

    async def room(self, partition: TopicPartition) -> int:
        """Wait until more records of a partition may be fetched; return how many."""
        place = self._place(partition)
        lane = self._lanes[place]
        while True:
            await lane.room.wait()
            if not self.is_behind(partition):
                return max(1, lane.most - len(lane.messages))
            self._changed.clear()
            self._waiting += 1
            try:
                await self._changed.wait()
            finally:
                self._waiting -= 1

    def is_behind(self, partition: TopicPartition) -> bool:
        """Whether a partition has to wait, because a topic of higher priority has records or may have some."""
        if not self._is_strict:
            return False
        higher: Sequence[BufferLane] = self._lanes[: self._place(partition)]
        return any(lane.standing is not Standing.NONE for lane in higher)

    def wait_ms(self, partition: TopicPartition, most_ms: int) -> int:
        """How long a fetch may wait for its first record: 0 if lower topics may be waiting for its answer."""
        return 0 if partition in self._lanes[self._place(partition)].flowing else most_ms

    def begins(self, partition: TopicPartition) -> None:
        """A partition is about to be fetched from; it may have records."""
        if self._is_strict:
            self._lanes[self._place(partition)].flowing.add(partition)

    def dry(self, partition: TopicPartition) -> None:
        """A partition has no record to hand out, or is no longer fetched from."""
        lane = self._lanes[self._place(partition)]
        if partition in lane.flowing:
            lane.flowing.discard(partition)
            self._changed.set()
            self._on_change()

    @contextmanager
    def fetching(self, partition: TopicPartition) -> Iterator[None]:
        """Wrap a fetch: if it fails, or takes longer than `UNKNOWN_MAX_S`, lower topics do not wait for its answer."""
        if not self._is_strict:
            yield
            return
        timer = asyncio.get_running_loop().call_later(UNKNOWN_MAX_S, self.dry, partition)
        try:
            yield
        except BaseException:  # even if it was cancelled: no answer comes for which lower topics could wait
            self.dry(partition)
            raise
        finally:
            timer.cancel()

    def _place(self, partition: TopicPartition) -> int:
        return 0 if self._turns is None else self._lane_of[partition.topic]

    def _make_room(self, lane: BufferLane) -> None:
        if not lane.room.is_set():
            self._call_on_loop(lane.room.set)
