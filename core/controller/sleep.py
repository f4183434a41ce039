"""How partitions fall asleep: their leaders propose it. ``wake_queue.py`` wakes them. Called by the controller's step.

A partition falls asleep only with all its replicas in sync and registered, so every log ends where the leader's does.
From then on nothing is written to it before it wakes, in the next leader epoch (ADR 0042).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from raylog.base.errors import IneligibleReplica
from raylog.base.ids import NO_LEADER, BrokerId, PartitionEpoch
from raylog.core.controller.decision import ControllerDecision
from raylog.core.controller.events import RequestSleep
from raylog.core.controller.isr_changes import checked_proposal
from raylog.core.controller.leadership import Standing
from raylog.core.controller.liveness import Liveness
from raylog.core.controller.sessions import ReplicaMember
from raylog.core.metadata.image import MetadataImage
from raylog.core.partition import PartitionState, SleepPoint
from raylog.core.received import Received
from raylog.protocol.controller import SleepPartitionRequest

MAKES_ROOM_AFTER_MS = 5_000
"""On a broker with too many replicas awake, partitions that were unused for so long fall asleep."""


class Sleeping:
    """Decides which partitions sleep."""

    def __init__(self, liveness: Liveness) -> None:
        """``liveness`` applies the changes of leadership that follow."""
        self._liveness = liveness

    def propose(self, event: Received[SleepPartitionRequest], decision: ControllerDecision) -> None:
        """Put a partition to sleep, or refuse: compare-and-set on the partition epoch, as for its ISR.

        Raises IneligibleReplica if a replica could lack records or has to stay awake.
        """
        session = event.sender.session
        state = checked_proposal(event.message, session, decision)
        why_not = self._why_not(state, decision.image)
        if why_not:
            raise IneligibleReplica(f"{state.partition} cannot sleep now: {why_not}.")
        point = SleepPoint.from_row(event.message.point)
        following = PartitionEpoch(state.partition_epoch + 1)
        self._liveness.forget(state.partition)
        self._liveness.commit(state, replace(state, asleep=point, partition_epoch=following), decision)
        settled = decision.image.partition(state.partition)
        decision.require(settled is not None and settled.asleep == point, f"{state.partition} sleeps")
        if settled is not None:
            decision.skip_state(session)
            decision.reply(event.request, [settled.to_wire()])

    def _why_not(self, state: PartitionState, image: MetadataImage) -> str:
        if state.is_moving:
            return "it is being reassigned"
        if set(state.isr) != set(state.replicas) or state.elr:
            return f"its ISR is {list(state.isr)} of {list(state.replicas)}"
        standing = self._liveness.standing(state)
        if any(found is not Standing.ONLINE for found in standing.values()):
            return "not all its replicas run"
        if any((state.partition, broker) in image.lost_logs for broker in state.replicas):
            return "a replica has lost its log"
        return ""

    def make_room(self, decision: ControllerDecision, broker: BrokerId) -> None:
        """Request sleep of all partitions with a replica on a broker, if they were unused for MAKES_ROOM_AFTER_MS."""
        for state in decision.image.partitions():
            if broker in state.replicas:
                request_sleep(state, decision, idle_ms=MAKES_ROOM_AFTER_MS)


def request_sleep(state: PartitionState, decision: ControllerDecision, *, idle_ms: int, for_stop: bool = False) -> bool:
    """Request a partition's leader to propose its sleep, if it was unused for ``idle_ms``.

    Returns False if there is no such leader: the partition sleeps, has no leader, or its leader has no session.
    """
    if state.asleep is not None or state.leader == NO_LEADER:
        return False
    session = decision.sessions.of(ReplicaMember(state.topic_id, state.partition, state.leader))
    if session is None:
        return False
    number, cause = session.number, decision.cause
    decision.after_sync.append(RequestSleep(cause=cause, session=number, idle_ms=idle_ms, for_stop=for_stop))
    return True


def room_on(broker: BrokerId, image: MetadataImage) -> float:
    """Return how many more replicas may be awake on a broker: infinite without a limit, below 0 if too many are."""
    bound = image.awake_bound(broker)
    return float("inf") if bound is None else bound.limit - image.awake[broker]


def full_broker(state: PartitionState, image: MetadataImage, taken: Mapping[BrokerId, int]) -> BrokerId | None:
    """Return a broker of the partition that has as many replicas awake as it may; None = all have room.

    ``taken``: by broker, the room that is reserved for others.
    """
    return next((broker for broker in state.replicas if room_on(broker, image) <= taken.get(broker, 0)), None)
