"""Finds the topics that match a subscribed pattern, and, without a group, assigns all partitions of the topics.

Owned by `engine.py`, on its loop. May touch: the network.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Coroutine, Iterable
from functools import partial
from typing import Any

from raylog.base.errors import RaylogError
from raylog.base.ids import TopicPartition
from raylog.client.cluster.backoff import Backoff
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.config import ConsumerConfig
from raylog.client.consumer.assignment import Assignment
from raylog.client.consumer.newcomers import Newcomers
from raylog.client.consumer.partition import Start
from raylog.client.tasks import LastingTask

DISCOVERY_MS = 2_000
"""Interval at which new topics and partitions are looked for, when no coordinator reports them.

It is cheap: while nothing has changed, a broker answers with a few bytes."""


class SubscribedTopics:
    """Keeps the topics of a pattern up to date; assigns all partitions of a consumer without a group."""

    def __init__(
        self,
        cluster: ClusterClient,
        config: ConsumerConfig,
        assignment: Assignment,
        newcomers: Newcomers,
        *,
        own: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        keep: Callable[[Callable[[], Coroutine[Any, Any, None]], str], LastingTask],
        on_error: Callable[[RaylogError], None],
        notify: Callable[[], None],
    ) -> None:
        """`own` starts a task, `keep` one that is started again if it is cancelled; both end with the consumer.

        `on_error` gets errors for the user.
        """
        self._cluster = cluster
        self._config = config
        self._assignment = assignment
        self._newcomers = newcomers
        self._own = own
        self._keep = keep
        self._on_error = on_error
        self._notify = notify
        self._following: LastingTask | None = None
        self._discovering: LastingTask | None = None
        self._discovered: frozenset[str] = frozenset()
        self._learning: asyncio.Task[None] | None = None

    def follow(self, pattern: re.Pattern[str], on_topics: Callable[[], None]) -> None:
        """Keep the subscription to the topics that match the pattern; call `on_topics` when they change."""
        self._newcomers.follow_pattern()
        if self._following is not None:
            self._following.cancel()
        self._following = self._keep(partial(self._follow, pattern, on_topics), "raylog-topics")

    async def _follow(self, pattern: re.Pattern[str], on_topics: Callable[[], None]) -> None:
        assignment = self._assignment
        version = noted = -1
        while assignment.pattern is pattern:
            pause_ms = self._pause_ms
            try:
                version = await self._cluster.refresh_since(None, version, timeout_s=self._request_s)
            except RaylogError as error:
                pause_ms = self._config.retry_backoff_max_ms
                if not error.retriable:
                    self._on_error(error)
            topics = self._cluster.metadata.topics.values()
            matching = frozenset(info.name for info in topics if not info.internal and pattern.fullmatch(info.name))
            if assignment.pattern is pattern and noted < 0 <= version:
                self._newcomers.note(matching)
                noted = version
            if assignment.pattern is pattern and matching != assignment.topics:
                known = self._cluster.metadata.topics
                self._cluster.unwatch(name for name in assignment.topics - matching if name not in known)
                assignment.topics = matching
                on_topics()
            await asyncio.sleep(pause_ms / 1000)

    def note(self, topics: Collection[str]) -> None:
        """Note which of these topics exist as the subscription to them begins."""
        missing = self._newcomers.follow_topics(topics)
        if missing:
            self._keep(partial(self._note, missing), "raylog-newcomers")

    async def _note(self, topics: Collection[str]) -> None:
        backoff = Backoff(self._config.retry_backoff_ms, self._config.retry_backoff_max_ms)
        while True:
            try:
                await self._cluster.refresh(topics)
                break
            except RaylogError as error:
                if not error.retriable:
                    self._on_error(error)
                    break
                await asyncio.sleep(backoff.next_s())
        self._newcomers.note(topics)

    @property
    def _pause_ms(self) -> int:
        return min(self._config.metadata_max_age_ms, DISCOVERY_MS)

    @property
    def _request_s(self) -> float:
        return self._config.request_timeout_ms / 1000

    async def _discover(self, topics: frozenset[str]) -> None:
        """While these topics are subscribed to, fetch their metadata periodically, to notice new partitions."""
        version = -1
        while self._assignment.topics == topics:
            try:
                version = await self._cluster.refresh_since(topics, version, timeout_s=self._request_s)
            except RaylogError as error:
                if not error.retriable:
                    self._on_error(error)
            await asyncio.sleep(self._pause_ms / 1000)

    def assign_all(self) -> bool:
        """Assign all partitions of the subscribed topics; True if that changed the assignment."""
        if self._assignment.pattern is None and self._discovered != self._assignment.topics:
            self._discovered = self._assignment.topics
            if self._discovering is not None:
                self._discovering.cancel()
            self._discovering = self._keep(partial(self._discover, self._discovered), "raylog-partitions")
        topics, known = self._assignment.topics, self._cluster.metadata.topics
        missing = sorted(topics - known.keys())
        if missing and (self._learning is None or self._learning.done()):
            self._learning = self._own(self._learn(missing))
        wanted = [
            TopicPartition(topic, number)
            for topic in sorted(topics & known.keys())
            for number in range(len(known[topic].partitions))
        ]
        if set(wanted) == self._assignment.states.keys():
            return False
        self._assignment.set_partitions(wanted, Start.FIRST)
        return True

    async def _learn(self, topics: Iterable[str]) -> None:
        try:
            for topic in topics:
                await self._cluster.topic(topic, timeout_s=self._request_s)
        except RaylogError as error:
            self._on_error(error)
        self._notify()
