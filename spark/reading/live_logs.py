"""The logs that a stream reads, as they are now: which partitions there are, where they end, and their leaders.

One client stays connected as long as the query runs. A trigger sends one request for each partition to its leader, all
at once, and fetches metadata at most once a second. Everything here belongs to one event loop. May touch: the network,
the clock, and Ray through raylog.client.ranges.planning. Used by planning.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from raylog.base.errors import ConnectionFailed, RaylogError, RequestTimedOut, UnknownTopicId, UnknownTopicOrPartition
from raylog.base.ids import EARLIEST, LATEST, TopicPartition
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.cluster.deadline import Deadline, now_s
from raylog.client.ranges.cutting import RecordSizes, cut
from raylog.client.ranges.offsets import split_ranges
from raylog.client.ranges.planning import (
    PLAN_TIMEOUT_S,
    QUESTIONS_AT_ONCE,
    RangesWanted,
    range_of,
    started_client,
    starting_offsets,
)
from raylog.client.reading.isolation import LEVELS
from raylog.client.reading.range_fetcher import PartitionRange
from raylog.client.task_tokens import TaskTokens
from raylog.spark.reading.stream_offsets import Selection, StreamOffsets

Result = TypeVar("Result")

METADATA_AGE_S = 1.0
"""Metadata older than this is fetched again before a trigger, to find new topics and partitions."""
ATTEMPT_TIMEOUT_S = 5.0
"""A leader without an answer for so long may have been replaced: its partition is looked up again."""
BROKERS_TIMEOUT_S = 10.0
"""Brokers without an answer for so long may have been restarted elsewhere: the cluster is looked up again."""
SETTLE_S = 5.0
"""How long a topic or partition may be missing before it counts as lost: a broker that just started knows no topic."""
SETTLE_PAUSE_S = 0.1


class LiveLogs:
    """The cluster as one query sees it. It connects at its first use; call `close` at the end."""

    def __init__(self, wanted: RangesWanted, timeout_s: float) -> None:
        """`timeout_s` bounds each call, elections and retries included."""
        self.selection = Selection(wanted.topics, wanted.assigned, wanted.pattern)
        self._wanted = wanted
        self._timeout_s = timeout_s
        self._client: ClusterClient | None = None
        self._refreshed_s = float("-inf")
        self._at_once = asyncio.Semaphore(QUESTIONS_AT_ONCE)
        self._sizes = RecordSizes()
        self._tokens = TaskTokens()

    async def client(self, timeout_s: float = PLAN_TIMEOUT_S) -> ClusterClient:
        """The client, started at the first call."""
        if self._client is None:
            self._client = await started_client(self._wanted, timeout_s)
            self._client.watch(self.selection.named)
            self._refreshed_s = float("-inf")
        return self._client

    async def close(self) -> None:
        """Close the client."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def starts(self) -> StreamOffsets:
        """Where a new query begins. Raises InvalidConfig, OffsetOutOfRange, UnknownTopicOrPartition."""
        client = await self.client()
        offsets = await starting_offsets(client, self._wanted, timeout_s=self._timeout_s)
        return StreamOffsets(offsets, {place.topic: _id(client, place.topic) for place in offsets})

    async def now(self, start: StreamOffsets | None = None, *, is_fresh: bool = False) -> StreamOffsets:
        """The end of each partition's log, as readers of this isolation level see it; `is_fresh`: with new metadata.

        If a partition of `start` is missing, or its log ends below `start`, this waits up to SETTLE_S: after an
        election or a restart it comes back. What is missing in the result counts as lost. Raises RaylogError when
        leaders do not answer in time.
        """
        deadline = Deadline(self._timeout_s)
        settled_s = now_s() + min(SETTLE_S, self._timeout_s / 2)
        while True:
            found = await self._ends(deadline) if await self._refresh(deadline, is_forced=is_fresh) else None
            if found is not None and (start is None or found.holds(start) or now_s() >= settled_s):
                return found
            if deadline.is_over:
                raise RequestTimedOut(f"The ends of the logs were not found within {self._timeout_s:g} seconds.")
            is_fresh = True
            await asyncio.sleep(SETTLE_PAUSE_S)

    async def earliest(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The log start offsets of these partitions; those that no longer exist are left out."""
        deadline = Deadline(self._timeout_s)

        async def begin(place: TopicPartition) -> tuple[TopicPartition, int] | None:
            try:
                return place, await self._offset(place, EARLIEST, deadline)
            except (UnknownTopicId, UnknownTopicOrPartition):
                return None

        found = await _all(begin(place) for place in places)
        return dict(item for item in found if item is not None)

    async def require_topic(self, name: str) -> None:
        """Raise UnknownTopicOrPartition, with the nearest name, unless the topic exists."""
        await (await self.client()).topic(name, timeout_s=self._timeout_s)

    async def ids_of(self, end: StreamOffsets) -> dict[str, str]:
        """The ids of those topics of `end` that exist now.

        If a topic is missing, or has another id than in `end`, this waits up to SETTLE_S with new metadata. Otherwise
        it sends no request.
        """
        client = await self.client()
        settled_s = now_s() + min(SETTLE_S, self._timeout_s / 2)
        pause_s = 0.0
        while True:
            infos = {topic: client.metadata.topic(topic) for topic in end.topics}
            found = {topic: info.topic_id for topic, info in infos.items() if info is not None}
            is_same = all(topic in found and end.ids.get(topic, found[topic]) == found[topic] for topic in end.topics)
            if is_same or now_s() >= settled_s:
                return found
            await asyncio.sleep(pause_s)
            await client.refresh(end.topics, timeout_s=self._timeout_s)
            pause_s = SETTLE_PAUSE_S

    async def ranges(self, spans: Sequence[tuple[TopicPartition, int, int]]) -> list[PartitionRange]:
        """The ranges for the tasks, cut as the options say, from spans of (partition, begin, end)."""
        client, wanted = await self.client(), self._wanted
        await client.renew_secret(timeout_s=self._timeout_s)
        whole = [
            await range_of(client, self._tokens, wanted, place, begin, end, timeout_s=self._timeout_s)
            for place, begin, end in spans
        ]
        if wanted.cuts_by_size:
            return cut(whole, await self._sizes.of(whole))
        pieces = split_ranges(
            [(begin, end) for _, begin, end in spans],
            min_partitions=wanted.min_partitions,
            max_records=wanted.max_records_per_partition,
        )
        return [replace(whole[index], start=begin, end=end) for index, begin, end in pieces]

    # Internals

    async def _refresh(self, deadline: Deadline, *, is_forced: bool) -> bool:
        """Fetch the metadata if it is old, or if forced; False when no known broker answers."""
        limit_s = min(deadline.left_s, BROKERS_TIMEOUT_S)
        try:
            client = await self.client(limit_s)
            if is_forced or now_s() - self._refreshed_s >= METADATA_AGE_S:
                await client.refresh(None if self.selection.pattern is not None else (), timeout_s=limit_s)
                self._refreshed_s = now_s()
        except (ConnectionFailed, RequestTimedOut):
            if deadline.is_over:
                raise
            await self.close()
            return False
        return True

    async def _ends(self, deadline: Deadline) -> StreamOffsets | None:
        """The log ends of the selected partitions in the metadata; None when the metadata turns out to be old."""
        client = await self.client()
        topics = [topic for topic in client.metadata.topics.values() if self.selection.has_topic(topic.name)]
        ids = {topic.name: topic.topic_id for topic in topics if not topic.internal or self.selection.named}
        places = [TopicPartition(topic.name, row.partition) for topic in topics for row in topic.partitions]
        wanted = [place for place in places if place.topic in ids and self.selection.has(place)]
        try:
            ends = await _all(self._offset(place, LATEST, deadline) for place in wanted)
        except (UnknownTopicId, UnknownTopicOrPartition):
            return None  # deleted since the metadata was fetched
        if any(_id(client, topic) != topic_id for topic, topic_id in ids.items()):
            return None  # created again meanwhile: the ends may be those of the old topic
        return StreamOffsets(dict(zip(wanted, ends, strict=True)), ids)

    async def _offset(self, place: TopicPartition, edge: int, deadline: Deadline) -> int:
        client, level = await self.client(), LEVELS[self._wanted.consumer.isolation_level]
        async with self._at_once:
            while True:
                limit_s = min(deadline.left_s, ATTEMPT_TIMEOUT_S)
                try:
                    return (await client.list_offset(place, edge, timeout_s=limit_s, isolation_level=level)).offset
                except RaylogError as error:
                    # No answer, or no leader yet: both may pass. The caller handles a topic that no broker knows.
                    if not error.retriable or "topic" in error.details or deadline.is_over:
                        raise
                await client.look_for_leader(place.topic)


def _id(client: ClusterClient, topic: str) -> str:
    info = client.metadata.topic(topic)
    return "" if info is None else info.topic_id


async def _all(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Run all at once; the first error ends the others before it is raised."""
    tasks = [asyncio.ensure_future(item) for item in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
