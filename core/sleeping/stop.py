"""A stop of the cluster is about to come: everything falls asleep that can, a few partitions at a time.

A leader that dozes is continued to propose sleep, and each of its replicas to end. Dozens of processes that run at once
starve their broker: it cannot vouch for those that are still stopped, so it continues them too, and with hundreds that
run nothing is closed in time. So the next partitions wait until those before them have no process left.

Owned by :class:`raylog.core.sleeping.queue.WakeQueue`. Kept in memory: the next controller is not about to stop.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from raylog.core.controller.decision import ControllerDecision
from raylog.core.controller.sessions import ReplicaMember
from raylog.core.ids import BrokerId, TopicPartition
from raylog.core.partition import PartitionState
from raylog.core.sleeping.changes import request_sleep

AT_ONCE: Final = 9
"""Replicas of one broker whose partitions fall asleep at a time."""
ANSWERS_WITHIN_MS: Final = 1_000
"""A leader that has not proposed sleep by then has something under way, and others come first. Shorter than the silence
after which a stop goes on with what is awake."""
ENDS_WITHIN_MS: Final = 10_000
"""A process that has not ended so long after the request holds up no other."""
LASTS_MS: Final = 60_000
"""A controller that still runs so long after the last request to rest knows that the cluster does not stop."""


class StopRest:
    """Which partitions have been requested to sleep for the stop that is about to come."""

    def __init__(self) -> None:
        """No stop is about to come."""
        self._until_ms: int | None = None
        self._left: dict[TopicPartition, None] = {}
        """Not requested yet."""
        self._requested: dict[TopicPartition, int] = {}
        """When each was requested that has not ended yet."""

    @property
    def is_on(self) -> bool:
        """Whether a stop is about to come."""
        return self._until_ms is not None

    def begin(self, decision: ControllerDecision) -> None:
        """Request sleep of all that are awake; those that were requested before are not left out if they still are."""
        self._until_ms = decision.now_ms + LASTS_MS
        awake = (state.partition for state in decision.image.partitions() if state.asleep is None)
        self._left = dict.fromkeys(partition for partition in awake if partition not in self._requested)
        self.go_on(decision)

    def ends(self, now_ms: int) -> bool:
        """Note the time; returns whether it is over only now, and no stop has come."""
        if self._until_ms is None or now_ms < self._until_ms:
            return False
        self._until_ms = None
        self._left.clear()
        self._requested.clear()
        return True

    def go_on(self, decision: ControllerDecision) -> None:
        """Request sleep of the next ones, as far as those before them have ended or have had their time."""
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
    """Return whether a partition that was requested to sleep is still waited for."""
    if state.asleep is None:
        return for_ms < ANSWERS_WITHIN_MS
    members = (ReplicaMember(state.topic_id, state.partition, broker) for broker in state.replicas)
    return for_ms < ENDS_WITHIN_MS and any(decision.sessions.of(member) is not None for member in members)
