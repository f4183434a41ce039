"""What a controller has to do in time, without a request: give leadership back. Silent sessions: ``signs.py``.

Looked at after each of its ticks; counted is for how long a duty has been due at every tick.
"""

from __future__ import annotations

from collections import Counter

from raylog.base.ids import NO_LEADER, BrokerId, TopicPartition
from raylog.core.controller.controller import ControllerMachine
from raylog.core.controller.sessions import ReplicaMember
from raylog.core.partition import PartitionState
from tests.simulation.world import Violation

_SLACK_MS = 200


class Duties:
    """The duties of one controller."""

    RULE = "controller"

    def __init__(self, machine: ControllerMachine) -> None:
        """Begin with nothing due."""
        self._machine = machine
        self._due_since_ms: dict[tuple[str, TopicPartition], int] = {}

    def ticked(self, now_ms: int) -> None:
        """The tick is over."""
        machine = self._machine
        due = {} if machine.awaited() is not None else self._due()
        self._due_since_ms = {key: self._due_since_ms.get(key, now_ms) for key in due}
        for key, since_ms in self._due_since_ms.items():
            if now_ms - since_ms > due[key] + _SLACK_MS:
                raise Violation(self.RULE, f"{key} has been due since {since_ms} ms, and at {now_ms} ms it is not done")

    def _due(self) -> dict[tuple[str, TopicPartition], int]:
        """Return what is due, and within how many milliseconds the controller looks for it."""
        machine, due = self._machine, {}
        image, settings = machine.image, machine.image.settings
        interval_ms = 1000 * settings.leader_imbalance_check_interval_seconds
        preferred: Counter[BrokerId] = Counter()
        strayed: Counter[BrokerId] = Counter()
        back: list[PartitionState] = []
        for state in image.partitions():
            first = state.replicas[0]
            preferred[first] += 1
            strayed[first] += state.leader != first
            if NO_LEADER != state.leader != first and first in state.isr and is_able(machine, state, first):
                back.append(state)
        for state in back:
            first = state.replicas[0]
            is_much = 100 * strayed[first] > settings.leader_imbalance_per_broker_percentage * preferred[first]
            if settings.auto_leader_rebalance_enable and is_much:
                due["the return to the preferred leader of", state.partition] = interval_ms
        return due


def is_able(machine: ControllerMachine, state: PartitionState, broker: BrokerId) -> bool:
    """Return whether a replica runs, is connected, has its log, and is not about to be stopped."""
    return (
        has_port(state, broker)
        and machine.is_present(ReplicaMember(state.topic_id, state.partition, broker))
        and not machine.image.is_stopped(broker)
        and (state.partition, broker) not in machine.image.lost_logs
    )


def has_port(state: PartitionState, broker: BrokerId) -> bool:
    """Return whether a replica is placed at an endpoint."""
    place = state.place(broker)
    return place is not None and place.port != 0
