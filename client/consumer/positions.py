"""Finds the start positions of partitions: the committed offset, or by auto_offset_reset. Used by `engine.py`.

Each partition gets its position as soon as its own leader has answered: a partition without a leader delays no other.
May touch: the network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from raylog.base.errors import NoOffsetForPartition, RaylogError
from raylog.base.ids import EARLIEST, LATEST, TopicPartition
from raylog.client.cluster.backoff import Backoff
from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.config import ConsumerConfig
from raylog.client.consumer.assignment import Assignment, Mode
from raylog.client.consumer.committed_offsets import CommittedOffsets
from raylog.client.consumer.newcomers import Newcomers, added_later
from raylog.client.consumer.partition import PartitionState, Start
from raylog.client.reading.isolation import LEVELS
from raylog.client.tasks import side_by_side

_TIMESTAMPS = {Start.EARLIEST: EARLIEST, Start.LATEST: LATEST}
_POLICIES = {"earliest": EARLIEST, "latest": LATEST}


class PositionFinder:
    """Looks up the positions of partitions that have none."""

    def __init__(
        self,
        cluster: ClusterClient,
        config: ConsumerConfig,
        assignment: Assignment,
        committed: CommittedOffsets,
        newcomers: Newcomers,
        *,
        own: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        on_found: Callable[[PartitionState], None],
        on_end: Callable[[], None],
        on_error: Callable[[RaylogError], None],
    ) -> None:
        """`own` starts a task that ends with the consumer.

        `on_found`: a partition has a position now; `on_end`: a search is over; `on_error`: an error for the user.
        """
        self._cluster = cluster
        self._config = config
        self._assignment = assignment
        self._committed = committed
        self._newcomers = newcomers
        self._own = own
        self._on_found = on_found
        self._on_end = on_end
        self._on_error = on_error
        self._sought: set[PartitionState] = set()
        """The partitions whose positions are being looked up."""

    def begin(self) -> None:
        """Start to look up all missing positions that are not being looked up yet."""
        lacking = [
            state for state in self._assignment.states.values() if state.position is None and state not in self._sought
        ]
        if lacking:
            self._sought.update(lacking)
            self._own(self._search(lacking)).add_done_callback(lambda _: self._over(lacking))

    def _over(self, states: list[PartitionState]) -> None:
        self._sought.difference_update(states)
        self._on_end()

    async def _search(self, states: list[PartitionState]) -> None:
        """Look up these positions, until they are found or an error needs the user."""
        await side_by_side(self._find, await self._settled(states))

    def _lacks(self, state: PartitionState) -> bool:
        return state.position is None and self._assignment.states.get(state.partition) is state

    async def _settled(self, states: Sequence[PartitionState]) -> list[PartitionState]:
        """Look up committed offsets, and decide where to begin without one; return the partitions without an error.

        Retried with backoff. A partition that may begin nowhere (auto_offset_reset=none) is reported and left out.
        """
        backoff = self._backoff()
        while True:
            open_ones = [each for each in states if self._lacks(each) and each.start in (Start.COMMITTED, Start.FIRST)]
            if not open_ones:
                break
            try:
                await self._settle(open_ones)
            except RaylogError as error:
                if self._is_final(error):
                    return []
                await asyncio.sleep(backoff.next_s())
        lost = [each for each in states if self._lacks(each) and self._timestamp(each) is None]
        if lost:
            named = ", ".join(str(each.partition) for each in lost)
            renewed = sorted({each.partition.topic for each in lost if each.is_of_new_topic})
            reason = f" ({', '.join(renewed)} was deleted and created again while it was read)" if renewed else ""
            self._on_error(
                NoOffsetForPartition(
                    f"There is no offset to begin at for {named}{reason}, and auto_offset_reset is 'none'; seek(), "
                    "or set it to 'earliest' or 'latest'."
                )
            )
        return [each for each in states if each not in lost]

    def _is_final(self, error: RaylogError) -> bool:
        """Whether a retry is useless. Reports such an error to the user, and one about a whole topic."""
        if not error.retriable or "topic" in error.details:
            self._on_error(error)
        return not error.retriable

    async def _settle(self, states: list[PartitionState]) -> None:
        """Make one attempt. A state that was moved meanwhile, as by a seek, has another session and stays as it is."""
        sessions = {state: state.session for state in states}
        at_committed = {state.partition: state for state in states if state.start is Start.COMMITTED}
        if at_committed:
            found = await self._committed.fetch(at_committed, timeout_s=self._timeout_s)
            for partition, state in at_committed.items():
                offset = found.get(partition)
                if state.session != sessions[state] or state.position is not None:
                    continue
                if offset is None:
                    state.start = Start.FIRST
                else:
                    state.topic_id = offset.topic_id  # if it differs from the current one, the fetcher begins again
                    self._set_position(state, offset.offset, offset.leader_epoch)
        first = [state for state in states if state.start is Start.FIRST and state.position is None]
        new = await self._new_ones(first)
        for state in first:
            if state.session == sessions[state]:
                state.start = Start.EARLIEST if state.partition in new else Start.POLICY

    async def _new_ones(self, states: list[PartitionState]) -> set[TopicPartition]:
        """The partitions created after this consumer subscribed, or after its group began to read their topic."""
        if self._config.auto_offset_reset != "latest" or not states:
            return set()
        await self._newcomers.settled(self._timeout_s)
        new = {each.partition for each in states if each.is_of_new_topic or self._newcomers.is_new(each.partition)}
        old_topics = {each.partition.topic for each in states if each.partition not in new}
        if not self._config.group_id or self._assignment.mode is Mode.MANUAL:
            return new
        known = self._cluster.metadata.topics
        rows = {
            topic: [TopicPartition(topic, number) for number in range(len(known[topic].partitions))]
            for topic in old_topics & known.keys()
        }
        wanted = [each for row in rows.values() if len(row) > 1 for each in row]
        found = await self._committed.fetch(wanted, timeout_s=self._timeout_s) if wanted else {}
        for topic, row in rows.items():
            later = added_later({each.partition: found.get(each) for each in row})
            new |= {TopicPartition(topic, number) for number in later}
        return new

    async def _find(self, state: PartitionState) -> None:
        """Look up one position at the partition's leader, with retries."""
        backoff = self._backoff()
        while self._lacks(state):
            session, timestamp_ms = state.session, self._timestamp(state)
            if state.start in (Start.COMMITTED, Start.FIRST) or timestamp_ms is None:  # moved meanwhile, as by a seek
                if not await self._settled([state]):
                    return
                continue
            try:
                answer = await self._cluster.list_offset(
                    state.partition,
                    timestamp_ms,
                    timeout_s=self._timeout_s,
                    isolation_level=LEVELS[self._config.isolation_level],
                )
            except RaylogError as error:
                if self._is_final(error):
                    return
                await asyncio.sleep(backoff.next_s())
                continue
            if state.session == session and state.position is None and answer.offset >= 0:
                self._set_position(state, answer.offset)

    @property
    def _timeout_s(self) -> float:
        return self._config.request_timeout_ms / 1000

    def _backoff(self) -> Backoff:
        return Backoff(self._config.retry_backoff_ms, self._config.retry_backoff_max_ms)

    def _set_position(self, state: PartitionState, offset: int, epoch: int = -1) -> None:
        state.move_to(offset, epoch)
        self._on_found(state)

    def _timestamp(self, state: PartitionState) -> int | None:
        if state.start in (Start.POLICY, Start.COMMITTED, Start.FIRST):
            return _POLICIES.get(self._config.auto_offset_reset)
        return _TIMESTAMPS[state.start]
