"""Wakes that no request waits for: moves, lost logs, and configurations that remove records. They wait for room.

Called by the controller's step. Kept in memory: a controller that starts finds what has to wake in the metadata.
"""

from __future__ import annotations

from raylog.core.config import TopicConfig
from raylog.core.controller.decision import ControllerDecision
from raylog.core.controller.liveness import Liveness
from raylog.core.ids import BrokerId, TopicPartition
from raylog.core.metadata.image import MetadataImage, TopicImage
from raylog.core.partition import PartitionState
from raylog.core.reassignment.requests import is_moving
from raylog.core.sleeping.changes import MAKES_ROOM_AFTER_MS, Sleeping


class WakeQueue:
    """Sleeping partitions that are to wake when each of their brokers has room, the oldest first."""

    def __init__(self, liveness: Liveness, sleeping: Sleeping) -> None:
        """``sleeping`` makes room."""
        self._liveness = liveness
        self._sleeping = sleeping
        self._waiting: dict[TopicPartition, None] = {}
        self._pressed_ms: dict[BrokerId, int] = {}
        """When the leaders on a full broker were last requested to make room."""

    @property
    def count(self) -> int:
        """Number of partitions that wait."""
        return len(self._waiting)

    def started(self, image: MetadataImage) -> None:
        """Find what earlier controllers had not woken."""
        lost = {partition for partition, _ in image.lost_logs}
        for topic in image.topics.values():
            for state in topic.partitions:
                if is_moving(state) or state.partition in lost or has_too_much(state, topic):
                    self.add(state)

    def add(self, state: PartitionState) -> None:
        """Wake a partition when there is room; no effect on one that is awake."""
        if state.asleep is not None:
            self._waiting[state.partition] = None

    def time_passed(self, decision: ControllerDecision) -> None:
        """Wake what has room now, and have full brokers make some."""
        if not self._waiting:
            return
        image = decision.image
        room: dict[BrokerId, float] = {}
        full: set[BrokerId] = set()
        for partition in list(self._waiting):
            state = image.partition(partition)
            if state is None or state.asleep is None:
                del self._waiting[partition]
                continue
            for broker in state.replicas:
                if broker not in room:
                    room[broker] = room_on(broker, image)
            without = [broker for broker in state.replicas if room[broker] <= 0]
            full.update(without)
            if not without:
                del self._waiting[partition]
                self._liveness.wake(partition, decision)
                for broker in state.replicas:
                    room[broker] -= 1
        for broker in sorted(full):
            if decision.now_ms - self._pressed_ms.get(broker, -MAKES_ROOM_AFTER_MS) >= MAKES_ROOM_AFTER_MS:
                self._pressed_ms[broker] = decision.now_ms
                self._sleeping.rest(decision, broker=broker, idle_ms=MAKES_ROOM_AFTER_MS)


def room_on(broker: BrokerId, image: MetadataImage) -> float:
    """Return how many more replicas may be awake on a broker now."""
    bound = image.awake_bound(broker)
    return float("inf") if bound is None else bound.limit - image.awake[broker]


def has_too_much(state: PartitionState, topic: TopicImage) -> bool:
    """Return whether a partition sleeps with more bytes than its topic's configuration retains."""
    if state.asleep is None or not state.asleep.size_bytes:
        return False
    config = TopicConfig.from_dict(topic.config)
    return config.deletes and 0 <= config.retention_bytes < state.asleep.size_bytes
