"""Which partitions were created after the subscription to their topics began. Pure; owned by `engine.py`.

`auto_offset_reset=latest` lets a new consumer skip older records. It cannot have meant those of a partition that did
not exist yet, so such a partition is read from its start, however late the consumer learns of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping

from raylog.base.errors import RequestTimedOut
from raylog.base.ids import TopicPartition
from raylog.client.cluster.metadata import MetadataCache


class Newcomers:
    """The id and the number of partitions of each subscribed topic, at the time when the subscription began."""

    def __init__(self, metadata: MetadataCache) -> None:
        """`metadata`: the cache of the consumer's `ClusterClient`."""
        self._metadata = metadata
        self._noted: dict[str, tuple[str, int]] = {}
        self._pending: set[str] = set()
        self._follows_pattern = False
        self._is_settled = asyncio.Event()
        self._is_settled.set()

    def follow_topics(self, topics: Collection[str]) -> list[str]:
        """Begin a subscription to these topics. Returns those to fetch and pass to `note`; known ones stay noted."""
        noted = {} if self._follows_pattern else self._noted
        self._noted = {topic: noted[topic] for topic in topics if topic in noted}
        self._follows_pattern = False
        self._pending = set(topics) - self._noted.keys()
        self._settle()
        return sorted(self._pending)

    def follow_pattern(self) -> None:
        """Begin a subscription to a pattern: topics that are not passed to the next `note` count as created later."""
        self._noted, self._pending, self._follows_pattern = {}, set(), True
        self._is_settled.clear()

    def note(self, topics: Iterable[str]) -> None:
        """Note what these topics are like; their metadata was fetched after the subscription began."""
        for topic in topics:
            if self._follows_pattern or topic in self._pending:
                info = self._metadata.topic(topic)
                self._noted[topic] = ("", 0) if info is None else (info.topic_id, len(info.partitions))
                self._pending.discard(topic)
        self._settle()

    def forget(self) -> None:
        """The subscription ended."""
        self.follow_topics(())

    def _settle(self) -> None:
        if self._pending:
            self._is_settled.clear()
        else:
            self._is_settled.set()

    async def settled(self, timeout_s: float) -> None:
        """Wait until all subscribed topics were noted. Raises RequestTimedOut."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._is_settled.wait()
        except TimeoutError:
            raise RequestTimedOut("No broker has answered which of the topics exist; check that one runs.") from None

    def is_new(self, partition: TopicPartition) -> bool:
        """Whether the partition was created after the subscription to its topic began."""
        info = self._metadata.topic(partition.topic)
        noted = self._noted.get(partition.topic, ("", 0) if self._follows_pattern else None)
        if info is None or noted is None:
            return False
        topic_id, count = noted
        return info.topic_id != topic_id or partition.partition >= count


def added_later(committed: Mapping[int, object | None]) -> frozenset[int]:
    """The partitions of one topic that were added since a group began to read it, judged by its committed offsets.

    A group commits for all partitions of its members. If the partitions with a committed offset are exactly 0 to n,
    the group never had those above n.
    """
    have = [number for number, offset in committed.items() if offset is not None]
    if not have or len(have) != max(have) + 1:
        return frozenset()
    return frozenset(number for number in committed if number > max(have))
