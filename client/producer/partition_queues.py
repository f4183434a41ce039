"""The queues of a producer's partitions, and the choice of a record's queue.

Owned by the accumulator; changed only under its lock. Pure; randomness is an argument.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace

from raylog.base.errors import UnknownTopicOrPartition
from raylog.client.cluster.metadata import TopicInfo
from raylog.client.producer.batch import Batch
from raylog.client.producer.partitioner import hash_of_key, next_sticky_partition
from raylog.client.producer.sizes import INT_MAX, MESSAGE_BYTES_DEFAULT, LargestRecord, most_counted_bytes

KEYS_REMEMBERED = 16_384
"""How many keys of a topic are cached with their queue: keys repeat, and a look-up costs a tenth of hashing."""


class PartitionQueue:
    """One partition's queue: the sealed batches in order, then the open one."""

    __slots__ = (
        "closed_bytes", "is_active", "is_available", "is_removed", "limit", "open", "partition", "sealed", "topic",
        "waiting_bytes",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int, limit: int) -> None:
        self.topic = topic
        self.partition = partition
        self.limit = limit
        self.open: Batch | None = None
        self.sealed: deque[Batch] = deque()
        self.is_active = False
        self.is_available = True
        self.is_removed = False
        """Whether the topic was recreated with fewer partitions: then `open` stays None, and sealed batches fail."""
        self.waiting_bytes = 0
        """Bytes of sealed batches that are not done, in this queue or in flight."""
        self.closed_bytes = 0
        """Bytes of all batches ever sealed."""

    def full_size(self, batch_size: int) -> int:
        """The size in bytes at which a batch counts as full: the bytes waiting before it, within limits.

        While nothing waits it is the configured `batch_size`. While requests queue up, batches grow: each request has a
        fixed cost at the client, the leader and the followers, so larger batches cost less.
        """
        return min(self.limit, max(batch_size, self.waiting_bytes))

    def appended_bytes(self) -> int:
        """Bytes of all records ever appended."""
        batch = self.open
        return self.closed_bytes if batch is None else self.closed_bytes + batch.reserved - batch.room


class TopicQueues:
    """The queues of one topic, and which one is the sticky queue for records without a key."""

    __slots__ = (
        "_chance",
        "_sticky_until",
        "check_from",
        "count",
        "delay_ms",
        "largest",
        "largest_record",
        "queues",
        "queues_of_keys",
        "sticky",
        "topic",
    )  # fmt: skip

    def __init__(self, topic: str, chance: random.Random) -> None:
        self.topic = topic
        self.delay_ms = 0
        """`delay.default.ms` of the topic. If set, every record goes to ``__scheduled``: no queue here has an open
        batch, and so `send` never takes its fast path."""
        self.largest = 0
        """The size in bytes up to which `send_batch()` fills a batch."""
        self.largest_record = LargestRecord(topic, INT_MAX, INT_MAX, is_compressed=False)
        self.check_from = 0
        """`largest_record.check_from`, cached because it is read for each record."""
        self.queues: list[PartitionQueue] = []
        self.queues_of_keys: dict[bytes, PartitionQueue] = {}
        """The queues of recent keys."""
        self.count = 0
        self._chance = chance
        self.sticky: PartitionQueue
        """The queue for records without a key; another one is chosen after it has got a batch's worth of bytes."""
        self._sticky_until = 0

    def update(self, info: TopicInfo, limit: int, request_limit: int) -> list[PartitionQueue]:
        """Apply the topic's metadata: changed partitions, leaders, largest message.

        Returns the queues of removed partitions, when the topic was deleted and recreated with fewer.
        """
        message_bytes = int(info.config.get("max.message.bytes", MESSAGE_BYTES_DEFAULT))
        self.delay_ms = int(info.config.get("delay.default.ms", 0))
        request_limit = min(request_limit, most_counted_bytes(message_bytes))
        limit = min(limit, request_limit)
        self.largest = request_limit
        self.largest_record = replace(self.largest_record, message_bytes=message_bytes)
        self.check_from = self.largest_record.check_from
        removed = self.queues[len(info.partitions) :] if info.partitions else []
        # `queue_of_key` reads `queues` and `queues_of_keys` without the lock.
        self.queues = [queue for queue in self.queues if queue not in removed]
        for number in range(len(self.queues), len(info.partitions)):
            self.queues.append(PartitionQueue(self.topic, number, limit))
        for queue in removed:
            queue.is_removed = True
        for queue, partition in zip(self.queues, info.partitions, strict=False):
            queue.is_available = partition.endpoint is not None
            queue.limit = limit
        if not self.count or self.sticky.is_removed:
            self.sticky, self._sticky_until = self.queues[0], 0
        if self.count != len(self.queues):
            self.count, self.queues_of_keys = len(self.queues), {}
        return removed

    def sticky_left(self) -> int:
        """How many bytes the sticky queue still gets."""
        return self._sticky_until - self.sticky.appended_bytes()

    def change_over(self, batch_size: int) -> PartitionQueue:
        """Choose the next sticky queue, which gets a batch's worth of bytes."""
        waiting = [queue.waiting_bytes // batch_size for queue in self.queues]
        chosen = next_sticky_partition(waiting, [queue.is_available for queue in self.queues], self._chance)
        queue = self.queues[chosen]
        until = queue.appended_bytes() + queue.full_size(batch_size)
        self.sticky, self._sticky_until = queue, until
        return queue

    def queue_of_key(self, key: bytes) -> PartitionQueue:
        """The queue of a key's records, cached."""
        known = self.queues_of_keys
        queue = known.get(key)
        if queue is None:
            if len(known) >= KEYS_REMEMBERED:
                known.clear()
            queues = self.queues
            queue = known[key] = queues[hash_of_key(key) % len(queues)]
        return queue

    def has_leader(self, partition: int) -> bool:
        """Whether the partition has a leader, as far as known."""
        queues = self.queues
        return partition < len(queues) and queues[partition].is_available

    def queue(self, partition: int | None) -> PartitionQueue:
        """The queue of a given partition. Raises UnknownTopicOrPartition."""
        queues = self.queues
        if partition is None or not 0 <= partition < len(queues):
            raise UnknownTopicOrPartition(
                f"Topic {self.topic!r} has partitions 0 to {len(queues) - 1}, not {partition}.", topic=self.topic
            )
        return queues[partition]


def partition_removed(queue: PartitionQueue) -> UnknownTopicOrPartition:
    """The error for records of a partition that its topic no longer has."""
    return UnknownTopicOrPartition(
        f"Partition {queue.topic}-{queue.partition} does not exist: the topic was deleted and created again with fewer "
        "partitions. Send the records again; their keys have other partitions now.",
        topic=queue.topic,
    )
