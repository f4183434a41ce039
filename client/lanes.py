"""The queues of a producer's partitions, and which of them a record goes to.

Owned by the accumulator, under whose turn all of it is changed. Touches nothing; chance is an argument.
"""

from __future__ import annotations

import random
from collections import deque

from raylog.client.batch import Batch
from raylog.client.metadata import TopicInfo
from raylog.client.partitioner import hash_of_key, next_sticky_partition
from raylog.core.errors import UnknownTopicOrPartition

KEYS_REMEMBERED = 16_384
"""Of each topic: streams repeat their keys, and a look-up costs a tenth of hashing."""


class Lane:
    """One partition's queue: the open batch, and full ones in order behind which it stands."""

    __slots__ = (
        "closed_bytes", "is_active", "is_available", "limit", "open", "partition", "sealed", "topic", "waiting_bytes",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int, limit: int) -> None:
        self.topic = topic
        self.partition = partition
        self.limit = limit
        self.open: Batch | None = None
        self.sealed: deque[Batch] = deque()
        self.is_active = False
        self.is_available = True
        self.waiting_bytes = 0
        """Bytes of closed batches that are not done."""
        self.closed_bytes = 0
        """Bytes of all batches that were ever closed."""

    def full_size(self, batch_size: int) -> int:
        """Bytes from which on a batch is not held back for more: what is under way before it, within limits.

        Requests that queue make larger batches, and larger batches cost less: each request has its price at the
        client, the leader and the followers. While nothing is under way it is the configured `batch_size`.
        """
        return min(self.limit, max(batch_size, self.waiting_bytes))

    def appended_bytes(self) -> int:
        """Bytes of all records that were ever appended."""
        batch = self.open
        return self.closed_bytes if batch is None else self.closed_bytes + batch.reserved - batch.room


class Router:
    """One topic's lanes, and which of them gets the records without key at the moment."""

    __slots__ = ("_chance", "_sticky_until", "count", "lanes", "lanes_of_keys", "largest", "sticky", "topic")

    def __init__(self, topic: str, chance: random.Random) -> None:
        self.topic = topic
        self.largest = 0
        """Bytes up to which `send_batch()` fills a batch."""
        self.lanes: list[Lane] = []
        self.lanes_of_keys: dict[bytes, Lane] = {}
        """Of keys seen lately."""
        self.count = 0
        self._chance = chance
        self.sticky: Lane
        """Where records without key go, as long as it has got less than a batch from when it was chosen."""
        self._sticky_until = 0

    def update(self, info: TopicInfo, limit: int, request_limit: int) -> None:
        """Take in the topic's metadata: more partitions, other leaders, another largest message."""
        largest = info.config.get("max.message.bytes")
        if largest is not None:
            request_limit = max(1, min(request_limit, int(largest) * 9 // 10))
        limit = min(limit, request_limit)
        self.largest = request_limit
        for number in range(len(self.lanes), len(info.partitions)):
            self.lanes.append(Lane(self.topic, number, limit))
        for lane, partition in zip(self.lanes, info.partitions, strict=False):
            lane.is_available = partition.endpoint is not None
            lane.limit = limit
        if not self.count:
            self.sticky = self.lanes[0]
        if self.count != len(self.lanes):
            self.count, self.lanes_of_keys = len(self.lanes), {}

    def sticky_left(self) -> int:
        """How many bytes the chosen lane still gets."""
        return self._sticky_until - self.sticky.appended_bytes()

    def change_over(self, batch_size: int) -> Lane:
        """Choose where records without key go from now on: each lane gets as much as makes a batch."""
        waiting = [lane.waiting_bytes // batch_size for lane in self.lanes]
        chosen = next_sticky_partition(waiting, [lane.is_available for lane in self.lanes], self._chance)
        lane = self.sticky = self.lanes[chosen]
        self._sticky_until = lane.appended_bytes() + lane.full_size(batch_size)
        return lane

    def lane_of_key(self, key: bytes) -> Lane:
        """Where a key's records go, remembered for the next of them."""
        known = self.lanes_of_keys
        lane = known.get(key)
        if lane is None:
            if len(known) >= KEYS_REMEMBERED:
                known.clear()
            lane = known[key] = self.lanes[hash_of_key(key) % self.count]
        return lane

    def lane(self, partition: int | None) -> Lane:
        """The lane of a partition that somebody has named. Raises UnknownTopicOrPartition."""
        if partition is None or not 0 <= partition < self.count:
            raise UnknownTopicOrPartition(
                f"Topic {self.topic!r} has partitions 0 to {self.count - 1}, not {partition}.", topic=self.topic
            )
        return self.lanes[partition]
