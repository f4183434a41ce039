"""Moves of partitions to other brokers (KIP-455): requests, completion, removal of replicas.

Called by the controller's step: for requests, and after each event for every partition that it changed.

While a partition moves, its replicas are the target, followed by those that will be removed; ``adding`` and
``removing`` name the new and the leaving ones. The move is complete when the ISR has the whole target. Removing a
replica always ends the leader epoch, with an election or without a leader: a leader that missed the change can then
neither commit nor credit a later incarnation of that replica with the progress of the earlier one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from raylog.base.errors import (
    InvalidReplicaAssignment,
    InvalidRequest,
    NoReassignmentInProgress,
    UnknownTopicOrPartition,
    did_you_mean,
)
from raylog.base.ids import NO_LEADER, BrokerId, Incarnation, LeaderEpoch, PartitionEpoch, TopicPartition
from raylog.core.configuration.config import TopicConfig
from raylog.core.configuration.config_keys import CLUSTER_KEYS
from raylog.core.controller.cluster_config import altered
from raylog.core.controller.decision import ControllerDecision
from raylog.core.controller.events import SendPartitionState
from raylog.core.controller.leadership import Standing
from raylog.core.controller.liveness import Liveness
from raylog.core.controller.sessions import ReplicaMember
from raylog.core.controller.wake_queue import WakeQueue
from raylog.core.metadata.image import partition_changed
from raylog.core.partition import PartitionState
from raylog.core.received import Received
from raylog.protocol.admin import AlterPartitionReassignmentsRequest, ListPartitionReassignmentsRequest

THROTTLE_KEY = "follower.replication.throttled.rate"


class Moves:
    """Decides how partitions move to other brokers."""

    def __init__(self, liveness: Liveness, wakes: WakeQueue) -> None:
        """``liveness`` holds the elections that follow; a sleeping partition enters ``wakes``, and moves once awake."""
        self._liveness = liveness
        self._wakes = wakes
        self._moving: set[TopicPartition] = set()

    @property
    def count(self) -> int:
        """Number of partitions that move."""
        return len(self._moving)

    # ------------------------------------------------------------ time

    def started(self, decision: ControllerDecision) -> None:
        """Continue the moves of earlier incarnations of the controller."""
        self._moving = {state.partition for state in decision.image.partitions() if state.is_moving}
        self.time_passed(decision)

    def time_passed(self, decision: ControllerDecision) -> None:
        """Complete the moves that waited for a replica to return."""
        for partition in sorted(self._moving):
            self._advance(partition, decision)

    def advance(self, decision: ControllerDecision) -> None:
        """Check the partitions that the present step has changed."""
        for partition in sorted(decision.changed):
            self._advance(partition, decision)

    def _advance(self, partition: TopicPartition, decision: ControllerDecision) -> None:
        state = decision.image.partition(partition)
        if state is None or not state.is_moving:
            self._moving.discard(partition)
            return
        self._moving.add(partition)
        if state.asleep is not None:
            return
        lost = [broker for broker in state.isr if (partition, broker) in decision.image.lost_logs]
        after = completed(state, self._ready(state, decision), lost)
        if after is not None:
            self._change(state, after, "its partition has moved to other brokers", decision)

    # ------------------------------------------------------------ requests

    def alter(self, event: Received[AlterPartitionReassignmentsRequest], decision: ControllerDecision) -> None:
        """Begin and cancel the moves of one request, all or none; raises the error of the first impossible one."""
        throttle = event.message.throttle
        if throttle is not None:
            CLUSTER_KEYS[THROTTLE_KEY].read(throttle)
        seen: set[TopicPartition] = set()
        decided: list[tuple[PartitionState, PartitionState]] = []
        for change in event.message.changes:
            state = self._known(change.topic, change.partition, decision)
            if state.partition in seen:
                raise InvalidRequest(f"{state.partition} is named twice; say once what is to become of it.")
            seen.add(state.partition)
            if change.replicas is None:
                after = self._cancelled(state, decision)
            else:
                after = self._begun(state, tuple(BrokerId(broker) for broker in change.replicas), decision)
            decided.append((state, after))
        if throttle is not None:
            altered({THROTTLE_KEY: throttle}, (), decision)
        for before, after in decided:
            if after is not before:
                self._change(before, after, "its partition's move was changed or cancelled", decision)
            self._advance(before.partition, decision)
        self._wakes.time_passed(decision)
        decision.reply(event.request, [])

    def begin(self, state: PartitionState, target: tuple[BrokerId, ...], decision: ControllerDecision) -> bool:
        """Begin a move that the controller decides itself; False = it is not possible now, or changes nothing."""
        after = begun(state, target, self._ready(state, decision))
        if after is None or after is state:
            return False
        self._change(state, after, "its partition's move was changed", decision)
        self._advance(state.partition, decision)
        return True

    def cancel(self, state: PartitionState, decision: ControllerDecision) -> bool:
        """Cancel a move that the controller decided itself; False = it is not possible now, or changes nothing."""
        after = cancelled(state, self._ready(state, decision))
        if after is None or after is state:
            return False
        self._change(state, after, "its partition's move was cancelled", decision)
        self._advance(state.partition, decision)
        return True

    def listed(self, event: Received[ListPartitionReassignmentsRequest], decision: ControllerDecision) -> None:
        """Answer with every partition that moves: topic, partition, replicas, adding, removing, ISR, leader."""
        rows: list[object] = []
        for partition in sorted(self._moving):
            state = decision.image.partition(partition)
            if state is not None and state.is_moving:
                rows.append(
                    [
                        partition.topic,
                        partition.partition,
                        list(state.replicas),
                        list(state.adding),
                        list(state.removing),
                        list(state.isr),
                        state.leader,
                    ]
                )
        decision.reply(event.request, rows)

    # ------------------------------------------------------------ checks

    def _known(self, topic: str, number: int, decision: ControllerDecision) -> PartitionState:
        image = decision.image
        found = image.topics.get(topic)
        if found is None:
            raise UnknownTopicOrPartition(did_you_mean("topic", topic, image.topics))
        if not 0 <= number < len(found.partitions):
            raise UnknownTopicOrPartition(
                f"Topic {topic!r} has the partitions 0 to {len(found.partitions) - 1}, and no partition {number}."
            )
        return found.partitions[number]

    def _begun(
        self, state: PartitionState, target: tuple[BrokerId, ...], decision: ControllerDecision
    ) -> PartitionState:
        image, name = decision.image, state.partition
        known = sorted(image.brokers)
        if not target:
            raise InvalidReplicaAssignment(f"{name} needs at least one broker; to cancel its move, say so instead.")
        twice = [broker for broker in target if target.count(broker) > 1]
        if twice:
            raise InvalidReplicaAssignment(f"{name} would be twice on broker {twice[0]}; name each broker once.")
        unknown = [broker for broker in target if broker not in image.brokers]
        if unknown:
            raise InvalidReplicaAssignment(
                f"{name} cannot move to broker {unknown[0]}, which never registered; known are {_listed(known)}."
            )
        needed = TopicConfig.from_dict(image.topics[name.topic].config).min_insync(len(target))
        if needed > len(target):
            raise InvalidReplicaAssignment(
                f"min.insync.replicas={needed} of {name.topic!r} can never be met with {len(target)} replicas; name "
                "more brokers, or lower the setting first."
            )
        after = begun(state, target, self._ready(state, decision))
        if after is None:
            raise InvalidReplicaAssignment(
                f"{name} is in sync on {_listed(state.isr)} alone, and none of these would stay; wait for the others."
            )
        return after

    def _cancelled(self, state: PartitionState, decision: ControllerDecision) -> PartitionState:
        if not state.is_moving:
            raise NoReassignmentInProgress(f"{state.partition} is not being moved; there is nothing to cancel.")
        after = cancelled(state, self._ready(state, decision))
        if after is None:
            raise InvalidReplicaAssignment(
                f"The move of {state.partition} cannot be cancelled: only the new brokers {_listed(state.isr)} are in "
                "sync; wait until one of the old ones is."
            )
        return after

    # ------------------------------------------------------------ decisions

    def _change(self, before: PartitionState, after: PartitionState, reason: str, decision: ControllerDecision) -> None:
        """Write the new state, and stop the replicas that it no longer has; a sleeping partition is woken to move."""
        partition = before.partition
        decision.write(partition_changed(after))
        if after.is_moving:
            self._wakes.add(after)
        decision.resend_state(partition)
        self._liveness.settle(partition, decision)
        present = decision.image.partition(partition)
        for broker in before.replicas:
            session = decision.sessions.of(ReplicaMember(before.topic_id, partition, broker))
            if broker in after.replicas or session is None or present is None:
                continue
            # The state shows the replica that it was removed, so it stops leading; its broker stops it permanently.
            life = Incarnation(session.life)
            decision.after_sync.append(
                SendPartitionState(cause=decision.cause, session=session.number, incarnation=life, state=present)
            )
            decision.close(session.number, f"the replica on broker {broker} is removed: {reason}")

    def _ready(self, state: PartitionState, decision: ControllerDecision) -> list[BrokerId]:
        """Return the replicas that may lead: online, with their logs."""
        lost = decision.image.lost_logs
        return [broker for broker in self.online(state) if (state.partition, broker) not in lost]

    def online(self, state: PartitionState) -> list[BrokerId]:
        """Return the brokers whose replicas are online."""
        standing = self._liveness.standing(state)
        return [broker for broker in state.replicas if standing[broker] is Standing.ONLINE]


def _listed(brokers: Sequence[int]) -> str:
    return ", ".join(str(broker) for broker in brokers) or "none"


def begun(state: PartitionState, target: Sequence[BrokerId], ready: Collection[BrokerId]) -> PartitionState | None:
    """Return the state that begins the move to ``target``; it replaces a move that is under way.

    ``ready``: the replicas that may lead, which are online and have their logs. None = the ISR would be empty; the same
    object = no change.
    """
    original = state.original
    adding = tuple(broker for broker in target if broker not in original)
    removing = tuple(broker for broker in original if broker not in target)
    return _reshaped(state, (*target, *removing), adding, removing, ready)


def cancelled(state: PartitionState, ready: Collection[BrokerId]) -> PartitionState | None:
    """Return the state without the replicas that were to be added; None = the ISR would be empty."""
    return _reshaped(state, state.original, (), (), ready)


def completed(
    state: PartitionState, ready: Collection[BrokerId], lost: Collection[BrokerId] = ()
) -> PartitionState | None:
    """Return the state without the replicas that were to be removed; None = it is too early.

    The whole target has to be in the ISR and have its logs (``lost``: brokers that lost theirs), and one of its members
    has to be able to lead. A partition without a leader waits for its election first.
    """
    target = state.target
    if not state.is_moving or state.leader == NO_LEADER or not set(target) <= set(state.isr) - set(lost):
        return None
    after = _reshaped(state, target, (), (), ready)
    return None if after is None or after.leader == NO_LEADER else after


def _reshaped(
    state: PartitionState,
    replicas: tuple[BrokerId, ...],
    adding: tuple[BrokerId, ...],
    removing: tuple[BrokerId, ...],
    ready: Collection[BrokerId],
) -> PartitionState | None:
    if (replicas, adding, removing) == (state.replicas, state.adding, state.removing):
        return state
    isr = tuple(broker for broker in replicas if broker in state.isr)
    if not isr:
        return None
    leader, leader_epoch = state.leader, state.leader_epoch
    if leader != NO_LEADER and set(state.replicas) - set(replicas):
        heirs = [leader] if leader in replicas else [broker for broker in isr if broker in ready]
        leader = heirs[0] if heirs else NO_LEADER
        leader_epoch = LeaderEpoch(leader_epoch + 1) if heirs else leader_epoch
    return replace(
        state,
        replicas=replicas,
        adding=adding,
        removing=removing,
        isr=isr,
        elr=tuple(broker for broker in replicas if broker in state.elr),
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=PartitionEpoch(state.partition_epoch + 1),
    )
