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
from raylog.core.controller.decision import ControllerDecision
from raylog.core.controller.events import (
    IsrChangeReceived,
    LeaderResigned,
    SleepProposed,
)
from raylog.core.controller.leading.leadership import (
    Standing,
    with_isr,
)
from raylog.core.controller.liveness import Liveness, known_replica
from raylog.core.controller.sessions import ReplicaMember
from raylog.core.partition import PartitionState


class IsrChanges:
    """Commits or refuses the proposals of leaders: another ISR, or another leader."""

    def __init__(self, liveness: Liveness) -> None:
        """``liveness`` commits what is decided, and elects."""
        self._liveness = liveness

    # ------------------------------------------------------------ ISR

    def change_isr(self, event: IsrChangeReceived, decision: ControllerDecision) -> None:
        """Commit a leader's proposal, or refuse it: compare-and-set on the partition epoch, members by incarnation."""
        state = checked_proposal(event, decision)
        proposed = dict(event.isr)
        if len(proposed) != len(event.isr) or not set(proposed) <= set(state.replicas) or event.broker not in proposed:
            raise InvalidRequest(
                f"The ISR of {event.partition} must be a part of its replicas {list(state.replicas)}, with the leader."
            )
        for broker, incarnation in sorted(proposed.items()):
            found = state.place(broker)
            standing = Standing.OFFLINE if found is None else self._liveness.standing_of(state, found)
            stays = broker in state.isr and standing is Standing.AWAITED
            if found is None or found.incarnation != incarnation or not (standing is Standing.ONLINE or stays):
                raise IneligibleReplica(
                    f"Incarnation {incarnation} of broker {broker} does not run as a replica of {event.partition}."
                )
        isr = tuple(broker for broker in state.replicas if broker in proposed)
        minimum, lost = self._liveness.min_insync(state), self._liveness.lost(state)
        after = with_isr(state, isr, min_isr=minimum, lost=lost, drops_eligible=event.drops_eligible)
        self._liveness.commit(state, after, decision)
        settled = decision.image.partition(event.partition)
        decision.require(settled is not None, f"{event.partition} exists")
        if settled is not None:
            decision.skip_state(event.session)
            decision.reply(event.request, [settled.to_wire()])

    def resign(self, event: LeaderResigned, decision: ControllerDecision) -> None:
        """Elect another member of the ISR. The one that resigns leaves the ISR and may rejoin.

        Refused when no other member runs: a leader that can only serve reads is better than none.
        """
        state, place = known_replica(decision.image, event.topic_id, event.partition, event.broker)
        session = decision.sessions.get(event.session)
        member = ReplicaMember(event.topic_id, event.partition, event.broker)
        if event.incarnation != place.incarnation or session is None or session.member != member:
            raise StaleBrokerEpoch(
                f"This life of the replica on broker {event.broker} is not registered; register first."
            )
        if state.leader == event.broker and state.leader_epoch == event.leader_epoch:
            lost = decision.image.lost_logs
            others = [
                place
                for place in state.places
                if place.broker != event.broker
                and place.broker in state.isr
                and (event.partition, place.broker) not in lost
                and self._liveness.standing_of(state, place) is Standing.ONLINE
            ]
            if not others:
                raise IneligibleReplica(f"{event.partition} has no other in-sync replica that runs; keep leading.")
            self._liveness.settle(event.partition, decision, leaving=event.broker)
        decision.reply(event.request, [])


def checked_proposal(event: IsrChangeReceived | SleepProposed, decision: ControllerDecision) -> PartitionState:
    """Return the state of the proposal's partition, if the sender leads it and knows its newest state.

    Otherwise raises StaleBrokerEpoch, FencedLeaderEpoch, NotController, InvalidUpdateVersion or InvalidRequest.
    """
    state, place = known_replica(decision.image, event.topic_id, event.partition, event.broker)
    session = decision.sessions.get(event.session)
    member = ReplicaMember(event.topic_id, event.partition, event.broker)
    if event.incarnation != place.incarnation or session is None or session.member != member:
        raise StaleBrokerEpoch(f"This life of the replica on broker {event.broker} is not registered; register first.")
    if event.leader_epoch < state.leader_epoch:
        raise FencedLeaderEpoch(f"{event.partition} is at leader epoch {state.leader_epoch}.")
    if event.leader_epoch > state.leader_epoch or event.partition_epoch > state.partition_epoch:
        raise NotController(f"{event.partition} is ahead of this controller at its leader; try again.")
    if event.partition_epoch < state.partition_epoch:
        # An answer that came too late for the leader's deadline was the only message with that state.
        decision.send_state(event.session, place.incarnation, state)
        raise InvalidUpdateVersion(f"{event.partition} is at partition epoch {state.partition_epoch}.")
    if state.leader != event.broker:
        raise InvalidRequest(f"Broker {event.broker} does not lead {event.partition}.")
    return state
