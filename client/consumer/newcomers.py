"""Which partitions were born after the subscription to their topics began. Pure; owned by `engine.py`.

`auto_offset_reset=latest` is for what a new reader wants to skip. No reader can have wanted to skip the records of a
partition that did not exist yet: it is read from its start, however late the reader learns of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping

from raylog.client.cluster.metadata import MetadataCache
from raylog.core.errors import RequestTimedOut
from raylog.core.ids import TopicPartition


class Newcomers:
    """What there was when each topic was first subscribed to: its id, and how many partitions it had."""

    def __init__(self, metadata: MetadataCache) -> None:
        """`metadata` is the client's."""
        self._metadata = metadata
        self._noted: dict[str, tuple[str, int]] = {}
        self._pending: set[str] = set()
        self._follows_pattern = False
        self._is_settled = asyncio.Event()
        self._is_settled.set()

    def follow_topics(self, topics: Collection[str]) -> list[str]:
        """These topics are subscribed to; what was noted of them stays. Returns those to look up, then to `note`."""
        noted = {} if self._follows_pattern else self._noted
        self._noted = {topic: noted[topic] for topic in topics if topic in noted}
        self._follows_pattern = False
        self._pending = set(topics) - self._noted.keys()
        self._settle()
        return sorted(self._pending)

    def follow_pattern(self) -> None:
        """A pattern is subscribed to: all that does not match it when `note` is called comes later."""
        self._noted, self._pending, self._follows_pattern = {}, set(), True
        self._is_settled.clear()

    def note(self, topics: Iterable[str]) -> None:
        """The metadata of these topics, or that they do not exist, was fetched since the subscription began."""
        for topic in topics:
            if self._follows_pattern or topic in self._pending:
                info = self._metadata.topic(topic)
                self._noted[topic] = ("", 0) if info is None else (info.topic_id, len(info.partitions))
                self._pending.discard(topic)
        self._settle()

    def forget(self) -> None:
        """Nothing is subscribed to."""
        self.follow_topics(())

    def _settle(self) -> None:
        if self._pending:
            self._is_settled.clear()
        else:
            self._is_settled.set()

    async def settled(self, timeout_s: float) -> None:
        """Wait until all that is subscribed to was noted. Raises RequestTimedOut."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._is_settled.wait()
        except TimeoutError:
            raise RequestTimedOut("No broker has answered which of the topics exist; check that one runs.") from None

    def is_new(self, partition: TopicPartition) -> bool:
        """Whether the partition did not exist when its topic was first subscribed to."""
        info = self._metadata.topic(partition.topic)
        noted = self._noted.get(partition.topic, ("", 0) if self._follows_pattern else None)
        if info is None or noted is None:
            return False
        topic_id, count = noted
        return info.topic_id != topic_id or partition.partition >= count


def added_later(committed: Mapping[int, object | None]) -> frozenset[int]:
    """The partitions of one topic that were added since a group began to read it, by its committed offsets.

    A group commits for all that its members hold. If the partitions with a committed offset are the lower ones without
    a gap, those above were never held.
    """
    have = [number for number, offset in committed.items() if offset is not None]
    if not have or len(have) != max(have) + 1:
        return frozenset()
    return frozenset(number for number in committed if number > max(have))
