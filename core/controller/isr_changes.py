"""ISR changes and resignations, as leaders request them. Called by the controller's step."""

from __future__ import annotations

from raylog.base.errors import (
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    NotController,
    StaleBrokerEpoch,
)
from raylog.base.ids import BrokerId
from raylog.core.controller.decision import ControllerDecision
from raylog.core.controller.events import SessionId
from raylog.core.controller.leadership import (
    Standing,
    with_isr,
)
from raylog.core.controller.liveness import Liveness, known_replica
from raylog.core.controller.sessions import ReplicaMember
from raylog.core.partition import PartitionState, ReplicaPlace
from raylog.core.received import Received
from raylog.protocol.controller import (
    AlterPartitionRequest,
    ReplicaRequest,
    ResignLeaderRequest,
    SleepPartitionRequest,
)


class IsrChanges:
    """Commits or refuses the proposals of leaders: another ISR, or another leader."""

    def __init__(self, liveness: Liveness) -> None:
        """``liveness`` commits what is decided, and elects."""
        self._liveness = liveness

    # ------------------------------------------------------------ ISR

    def change_isr(self, event: Received[AlterPartitionRequest], decision: ControllerDecision) -> None:
        """Commit a leader's proposal, or refuse it: compare-and-set on the partition epoch, members by incarnation."""
        message, session = event.message, event.sender.session
        decision.sessions.heartbeat(session, decision.now_ms)
        state = checked_proposal(message, session, decision)
        proposed = {BrokerId(member.broker): member.incarnation for member in message.isr}
        if (
            len(proposed) != len(message.isr)
            or not set(proposed) <= set(state.replicas)
            or message.broker not in proposed
        ):
            raise InvalidRequest(
                f"The ISR of {state.partition} must be a part of its replicas {list(state.replicas)}, with the leader."
            )
        for broker, incarnation in sorted(proposed.items()):
            found = state.place(broker)
            standing = Standing.OFFLINE if found is None else self._liveness.standing_of(state, found)
            stays = broker in state.isr and standing is Standing.AWAITED
            if found is None or found.incarnation != incarnation or not (standing is Standing.ONLINE or stays):
                raise IneligibleReplica(
                    f"Incarnation {incarnation} of broker {broker} does not run as a replica of {state.partition}."
                )
        isr = tuple(broker for broker in state.replicas if broker in proposed)
        minimum, lost = self._liveness.min_insync(state), self._liveness.lost(state)
        after = with_isr(state, isr, min_isr=minimum, lost=lost, drops_eligible=message.drops_eligible)
        self._liveness.commit(state, after, decision)
        settled = decision.image.partition(state.partition)
        decision.require(settled is not None, f"{state.partition} exists")
        if settled is not None:
            decision.skip_state(session)
            decision.reply(event.request, [settled.to_wire()])

    def resign(self, event: Received[ResignLeaderRequest], decision: ControllerDecision) -> None:
        """Elect another member of the ISR. The one that resigns leaves the ISR and may rejoin.

        Refused when no other member runs: a leader that can only serve reads is better than none.
        """
        message, session = event.message, event.sender.session
        decision.sessions.heartbeat(session, decision.now_ms)
        state, place = _registered(message, session, decision)
        if state.leader == place.broker and state.leader_epoch == message.leader_epoch:
            lost = decision.image.lost_logs
            others = [
                other
                for other in state.places
                if other.broker != place.broker
                and other.broker in state.isr
                and (state.partition, other.broker) not in lost
                and self._liveness.standing_of(state, other) is Standing.ONLINE
            ]
            if not others:
                raise IneligibleReplica(f"{state.partition} has no other in-sync replica that runs; keep leading.")
            self._liveness.settle(state.partition, decision, leaving=place.broker)
        decision.reply(event.request, [])


def checked_proposal(
    message: AlterPartitionRequest | SleepPartitionRequest, session: SessionId, decision: ControllerDecision
) -> PartitionState:
    """Return the state of the proposal's partition, if the sender leads it and knows its newest state.

    Otherwise raises StaleBrokerEpoch, FencedLeaderEpoch, NotController, InvalidUpdateVersion or InvalidRequest.
    """
    state, place = _registered(message, session, decision)
    if message.leader_epoch < state.leader_epoch:
        raise FencedLeaderEpoch(f"{state.partition} is at leader epoch {state.leader_epoch}.")
    if message.leader_epoch > state.leader_epoch or message.partition_epoch > state.partition_epoch:
        raise NotController(f"{state.partition} is ahead of this controller at its leader; try again.")
    if message.partition_epoch < state.partition_epoch:
        # An answer that came too late for the leader's deadline was the only message with that state.
        decision.send_state(session, place.incarnation, state)
        raise InvalidUpdateVersion(f"{state.partition} is at partition epoch {state.partition_epoch}.")
    if state.leader != message.broker:
        raise InvalidRequest(f"Broker {message.broker} does not lead {state.partition}.")
    return state


def _registered(
    message: ReplicaRequest, session: SessionId, decision: ControllerDecision
) -> tuple[PartitionState, ReplicaPlace]:
    """Return the partition and the place of a replica that has registered on this session in this incarnation."""
    member = ReplicaMember.of(message)
    state, place = known_replica(decision.image, member)
    found = decision.sessions.get(session)
    if message.incarnation != place.incarnation or found is None or found.member != member:
        raise StaleBrokerEpoch(f"This life of the replica on broker {member.broker} is not registered; register first.")
    return state, place
