"""Requested and periodic elections: preferred leaders and unclean elections. Called by the controller.

Elections that follow from sessions starting and ending are in ``liveness.py``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from raylog.base.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    InvalidRequest,
    PreferredLeaderNotAvailable,
    RaylogError,
    UnknownTopicOrPartition,
    did_you_mean,
)
from raylog.base.ids import NO_LEADER, BrokerId, TopicPartition
from raylog.core.controller.decision import ControllerDecision
from raylog.core.controller.leadership import Standing, led_by_preferred
from raylog.core.controller.liveness import Liveness
from raylog.core.metadata.image import partition_changed
from raylog.core.partition import PartitionState
from raylog.core.received import Received
from raylog.protocol.admin import ElectedPartition, ElectLeadersRequest

ELECTIONS_MAX = 1_000
"""Leaders that one check of the imbalance moves; the next check continues."""


class Elections:
    """Moves leadership to preferred replicas, on request and periodically."""

    def __init__(self, liveness: Liveness, now_ms: int) -> None:
        """Begin with a full interval until the first periodic check."""
        self._liveness = liveness
        self._checked_ms = now_ms

    # ------------------------------------------------------------ on request

    def elect(self, event: Received[ElectLeadersRequest], decision: ControllerDecision) -> None:
        """Hold the requested elections; answers [topic, partition, error code, message, leader, epoch].

        A request for all partitions is answered without those that need no election.
        """
        requested = event.message
        if requested.unclean and requested.partitions is None:
            raise InvalidRequest("An unclean election loses records: name the partition that it is for.")
        wanted = self._named(requested.partitions, decision)
        rows: list[object] = []
        for partition in wanted:
            error = (
                self._elect_unclean(partition, decision)
                if requested.unclean
                else self._elect_preferred(partition, decision)
            )
            state = self._state(partition, decision)
            if requested.partitions is None and isinstance(error, ElectionNotNeeded):
                continue
            code, message = (0, "") if error is None else (error.code, error.message)
            rows.append([partition.topic, partition.partition, code, message, state.leader, state.leader_epoch])
        decision.reply(event.request, rows)

    def _named(self, named: Sequence[ElectedPartition] | None, decision: ControllerDecision) -> list[TopicPartition]:
        image = decision.image
        if named is None:
            return [state.partition for state in image.partitions()]
        partitions = [TopicPartition(each.topic, each.partition) for each in named]
        for partition in partitions:
            topic = image.topics.get(partition.topic)
            if topic is None:
                raise UnknownTopicOrPartition(did_you_mean("topic", partition.topic, image.topics))
            if image.partition(partition) is None:
                raise UnknownTopicOrPartition(
                    f"Topic {partition.topic!r} has no partition {partition.partition}; "
                    f"its partitions are 0 to {len(topic.partitions) - 1}."
                )
        return list(dict.fromkeys(partitions))

    def _elect_preferred(self, partition: TopicPartition, decision: ControllerDecision) -> RaylogError | None:
        state = self._state(partition, decision)
        preferred = state.replicas[0]
        if state.leader == preferred:
            return ElectionNotNeeded(f"Broker {preferred}, the preferred leader of {partition}, leads it already.")
        if self._move(state, decision):
            return None
        return PreferredLeaderNotAvailable(
            f"Broker {preferred}, the preferred leader of {partition}, {self._why_not(state, preferred, decision)}; "
            f"{self._led(state)}."
        )

    def _elect_unclean(self, partition: TopicPartition, decision: ControllerDecision) -> RaylogError | None:
        state = self._state(partition, decision)
        if state.leader != NO_LEADER:
            return ElectionNotNeeded(f"{partition} is led by broker {state.leader}; there is nothing to elect.")
        self._liveness.settle(partition, decision, unclean=True)
        after = self._state(partition, decision)
        if after.leader != NO_LEADER:
            return None
        standing = self._liveness.standing(after)
        if any(standing[broker] is Standing.AWAITED for broker in after.isr):
            return EligibleLeadersNotAvailable(
                f"An in-sync replica of {partition} may still come back after the controller's start; try again soon."
            )
        return EligibleLeadersNotAvailable(
            f"No replica of {partition} runs (brokers {list(after.replicas)}); start one of them first."
        )

    def _why_not(self, state: PartitionState, broker: BrokerId, decision: ControllerDecision) -> str:
        if decision.image.is_stopped(broker):
            return "was stopped"
        if self._liveness.standing(state)[broker] is not Standing.ONLINE:
            return "does not run"
        if broker not in state.isr:
            return f"is not in the ISR {list(state.isr)}"
        return "has lost its log"

    def _led(self, state: PartitionState) -> str:
        return "no replica leads" if state.leader == NO_LEADER else f"broker {state.leader} goes on leading"

    # ------------------------------------------------------------ periodic

    def time_passed(self, decision: ControllerDecision) -> None:
        """Periodically return leadership to preferred replicas where the imbalance exceeds the limit."""
        settings = decision.image.settings
        due_ms = self._checked_ms + 1000 * settings.leader_imbalance_check_interval_seconds
        if not settings.auto_leader_rebalance_enable or decision.now_ms < due_ms:
            return
        self._checked_ms = decision.now_ms
        if self._liveness.in_grace:
            return
        preferred: Counter[BrokerId] = Counter()
        strayed: dict[BrokerId, list[PartitionState]] = {}
        for state in decision.image.partitions():
            first = state.replicas[0]
            preferred[first] += 1
            if state.leader != first:
                strayed.setdefault(first, []).append(state)
        moved = 0
        for broker in sorted(strayed):
            if 100 * len(strayed[broker]) <= settings.leader_imbalance_per_broker_percentage * preferred[broker]:
                continue
            for state in strayed[broker]:
                if moved < ELECTIONS_MAX and state.leader != NO_LEADER:
                    moved += self._move(state, decision)

    # ------------------------------------------------------------ inside

    def _move(self, state: PartitionState, decision: ControllerDecision) -> bool:
        """Elect the preferred replica if it can lead; return whether this moved leadership to it."""
        lost = [broker for broker in state.isr if (state.partition, broker) in decision.image.lost_logs]
        after = led_by_preferred(state, self._liveness.standing(state), lost)
        if after is state:
            return False
        decision.write(partition_changed(after))
        return True

    def _state(self, partition: TopicPartition, decision: ControllerDecision) -> PartitionState:
        state = decision.image.partition(partition)
        decision.require(state is not None, f"{partition} exists")
        if state is None:
            raise AssertionError  # not reached: require has raised
        return state
