"""Start positions of partitions: the committed offset, or by auto_offset_reset. Used by `engine.py`.

May touch: the network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from raylog.client.cluster.cluster_client import ClusterClient
from raylog.client.cluster.failures import Backoff
from raylog.client.config import ConsumerConfig
from raylog.client.consumer.assignment import Assignment
from raylog.client.consumer.committed_offsets import CommittedOffsets, list_offsets
from raylog.client.consumer.partition import PartitionState, Start
from raylog.core.errors import NoOffsetForPartition, RaylogError
from raylog.core.ids import EARLIEST, LATEST

_TIMESTAMPS = {Start.EARLIEST: EARLIEST, Start.LATEST: LATEST}
_POLICIES = {"earliest": EARLIEST, "latest": LATEST}


class PositionFinder:
    """Looks up missing positions."""

    def __init__(
        self,
        cluster: ClusterClient,
        config: ConsumerConfig,
        assignment: Assignment,
        committed: CommittedOffsets,
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
        self._own = own
        self._on_found = on_found
        self._on_end = on_end
        self._on_error = on_error
        self._finding: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start looking up missing positions, if there are any and no look-up is running."""
        lacking = any(state.position is None for state in self._assignment.states.values())
        if lacking and (self._finding is None or self._finding.done()):
            self._finding = self._own(self._find_all())

    async def _find_all(self) -> None:
        """Look up every missing position, with backoff, until there is none or only the user can resolve the error."""
        backoff = Backoff(self._config.retry_backoff_ms, self._config.retry_backoff_max_ms)
        while True:
            lacking = [state for state in self._assignment.states.values() if state.position is None]
            if not lacking:
                break
            try:
                await self._find(lacking)
            except RaylogError as error:
                if not error.retriable or "topic" in error.details:
                    self._on_error(error)
                if not error.retriable:
                    break
            if any(state.position is None for state in lacking):
                await asyncio.sleep(backoff.next_s())
        self._on_end()

    async def _find(self, lacking: list[PartitionState]) -> None:
        """One attempt; states without an answer stay unchanged. Sessions guard against a concurrent seek."""
        timeout_s = self._config.request_timeout_ms / 1000
        sessions = {state: state.session for state in lacking}

        def current(state: PartitionState) -> bool:
            return state.session == sessions[state] and state.position is None

        at_committed = {state.partition: state for state in lacking if state.start is Start.COMMITTED}
        if at_committed:
            found = await self._committed.fetch(at_committed, timeout_s=timeout_s)
            for partition, state in at_committed.items():
                offset = found.get(partition)
                if not current(state):
                    continue
                if offset is None:
                    state.start = Start.POLICY
                else:
                    state.topic_id = offset.topic_id  # if another topic has the name by now, the fetcher begins again
                    self._set_position(state, offset.offset, offset.leader_epoch)
        lost = [state.partition for state in lacking if current(state) and self._timestamp(state) is None]
        if lost:
            named = ", ".join(map(str, lost))
            raise NoOffsetForPartition(
                f"There is no offset to begin at for {named}, and auto_offset_reset is 'none'; seek(), or set it to "
                "'earliest' or 'latest'."
            )
        wanted = {state.partition: self._timestamp(state) for state in lacking if current(state)}
        answers = await list_offsets(
            self._cluster,
            {each: time for each, time in wanted.items() if time is not None},
            self._config.isolation_level,
            timeout_s=timeout_s,
        )
        failure: RaylogError | None = None
        for state in lacking:
            answer = answers.get(state.partition)
            if isinstance(answer, RaylogError):
                if not answer.retriable or (failure is None and "topic" in answer.details):
                    failure = answer
            elif answer is not None and current(state):
                self._set_position(state, answer.offset)
        if failure is not None:
            raise failure  # after the others have their positions: it concerns one topic

    def _set_position(self, state: PartitionState, offset: int, epoch: int = -1) -> None:
        state.move_to(offset, epoch)
        self._on_found(state)

    def _timestamp(self, state: PartitionState) -> int | None:
        if state.start in (Start.POLICY, Start.COMMITTED):
            return _POLICIES.get(self._config.auto_offset_reset)
        return _TIMESTAMPS[state.start]
