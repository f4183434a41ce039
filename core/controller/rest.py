"""Puts all partitions that can sleep to sleep before the cluster stops, a few at a time.

A dozing leader has to be continued to propose sleep, and each replica's process to end. Dozens of processes that run at
once starve their broker: it cannot vouch for those that are still stopped, so it continues them too, and with hundreds
of running processes nothing is closed in time. So the next partitions wait until those before them have no process
left.

Owned by :class:`raylog.core.controller.wake_queue.WakeQueue`. Kept in memory: the next controller is not about to stop.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from raylog.base.ids import BrokerId, TopicPartition
from raylog.core.controller.decision import ControllerDecision
from raylog.core.controller.sessions import ReplicaMember
from raylog.core.controller.sleep import request_sleep
from raylog.core.partition import PartitionState

AT_ONCE: Final = 9
"""Most replicas of one broker whose partitions fall asleep at a time."""
ANSWERS_WITHIN_MS: Final = 1_000
"""A leader that has not proposed sleep by then has something under way: others no longer wait for it. Shorter than the
silence after which a stop goes on although partitions are awake."""
ENDS_WITHIN_MS: Final = 10_000
"""Others no longer wait for a process that has not ended so long after the request."""
LASTS_MS: Final = 60_000
"""If the controller still runs so long after the last request to rest, the stop did not come."""


class StopRest:
    """Which partitions have been requested to sleep for a stop that is about to come."""

    def __init__(self) -> None:
        """Begin without a stop."""
        self._until_ms: int | None = None
        self._left: dict[TopicPartition, None] = {}
        """Partitions whose sleep is not requested yet."""
        self._requested: dict[TopicPartition, int] = {}
        """When sleep was requested, of partitions that others wait for."""

    @property
    def is_on(self) -> bool:
        """Whether a stop is about to come."""
        return self._until_ms is not None

    def begin(self, decision: ControllerDecision) -> None:
        """Request sleep of all partitions that are awake, including those that did not fall asleep in time before.

        Partitions whose request is still under way are not requested again.
        """
        self._until_ms = decision.now_ms + LASTS_MS
        awake = (state.partition for state in decision.image.partitions() if state.asleep is None)
        self._left = dict.fromkeys(partition for partition in awake if partition not in self._requested)
        self.go_on(decision)

    def ends(self, now_ms: int) -> bool:
        """Note the time; return True once, when LASTS_MS are over and no stop has come."""
        if self._until_ms is None or now_ms < self._until_ms:
            return False
        self._until_ms = None
        self._left.clear()
        self._requested.clear()
        return True

    def go_on(self, decision: ControllerDecision) -> None:
        """Request sleep of the next partitions, as far as those before them have ended or used up their time."""
        image, busy = decision.image, Counter[BrokerId]()
        for partition, requested_ms in list(self._requested.items()):
            state = image.partition(partition)
            if state is not None and _goes_on(state, decision.now_ms - requested_ms, decision):
                busy.update(state.replicas)
            else:
                del self._requested[partition]
        for partition in list(self._left):
            state = image.partition(partition)
            if state is not None and any(busy[broker] >= AT_ONCE for broker in state.replicas):
                continue
            del self._left[partition]
            if state is not None and request_sleep(state, decision, idle_ms=0, for_stop=True):
                self._requested[partition] = decision.now_ms
                busy.update(state.replicas)


def _goes_on(state: PartitionState, for_ms: int, decision: ControllerDecision) -> bool:
    """Return whether others still wait for a partition whose sleep was requested."""
    if state.asleep is None:
        return for_ms < ANSWERS_WITHIN_MS
    members = (ReplicaMember(state.topic_id, state.partition, broker) for broker in state.replicas)
    return for_ms < ENDS_WITHIN_MS and any(decision.sessions.of(member) is not None for member in members)
