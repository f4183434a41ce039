"""Stopping a broker on purpose: it gives its leaderships away before its processes end. Called by the controller.

A stopped broker counts as offline, whether its processes run or not: it is in no ISR that has other members, leads no
partition, and gets no new replicas. The mark is part of the metadata and ends by command only.
"""

from __future__ import annotations

from raylog.base.errors import InvalidRequest, StopRefused
from raylog.base.ids import BrokerId
from raylog.core.controller.decision import ControllerDecision
from raylog.core.controller.leadership import Standing, min_insync
from raylog.core.controller.liveness import Liveness
from raylog.core.metadata.records import BrokerResumed, BrokerStopped
from raylog.core.partition import PartitionState
from raylog.core.received import Received
from raylog.protocol.admin import ResumeBrokerRequest, StopBrokerRequest

NAMED_MAX = 10
"""Partitions that a message names before it ends with "and n more"."""


class Shutdown:
    """Decides whether a broker may stop, and moves its leaderships to other replicas."""

    def __init__(self, liveness: Liveness) -> None:
        """``liveness`` moves the leaders."""
        self._liveness = liveness

    def stop(self, event: Received[StopBrokerRequest], decision: ControllerDecision) -> None:
        """Mark a broker as stopped and move its leaders.

        Answers [number of partitions that it led, partitions without a leader, partitions that refuse ``acks=all``].
        Raises StopRefused when partitions would have no leader or refuse writes (unless forced), and when the metadata
        would lose its majority (always).
        """
        broker = self._known(BrokerId(event.message.broker), decision)
        self._check_majority(broker, decision)  # also when it is stopped already: its processes may not have ended
        if decision.image.is_stopped(broker):
            decision.reply(event.request, [0, [], []])
            return
        leaderless, below = self._costs(broker, decision)
        if (leaderless or below) and not event.message.force:
            raise StopRefused(
                f"Broker {broker} was not stopped. {_sentences(leaderless, below)}Add replicas first, wait until "
                "others are in sync, or force it (--force).",
                leaderless=[str(state.partition) for state in leaderless],
                below_minimum=[str(state.partition) for state in below],
            )
        led = sum(state.leader == broker for state in decision.image.partitions())
        decision.write(BrokerStopped(broker=broker))
        for state in list(decision.image.partitions()):
            if broker in state.replicas:
                self._liveness.settle(state.partition, decision)
        decision.reply(
            event.request,
            [led, [str(state.partition) for state in leaderless], [str(state.partition) for state in below]],
        )

    def resume(self, event: Received[ResumeBrokerRequest], decision: ControllerDecision) -> None:
        """Resume a broker; no effect on one that was not stopped."""
        broker = self._known(BrokerId(event.message.broker), decision)
        if decision.image.is_stopped(broker):
            decision.write(BrokerResumed(broker=broker))
            for state in list(decision.image.partitions()):
                if broker in state.replicas:
                    self._liveness.settle(state.partition, decision)
        decision.reply(event.request, [])

    def _known(self, broker: BrokerId, decision: ControllerDecision) -> BrokerId:
        known = decision.image.brokers
        if broker not in known:
            listed = ", ".join(str(number) for number in sorted(known)) or "none"
            raise InvalidRequest(f"There is no broker {broker}; the brokers of this cluster are: {listed}.")
        return broker

    def _check_majority(self, broker: BrokerId, decision: ControllerDecision) -> None:
        image = decision.image
        voters = [BrokerId(int(number)) for number in image.voters]
        running = {broker.broker for broker in image.online_brokers() if not broker.stopped}
        left = [voter for voter in voters if voter in running and voter != broker]
        if broker in voters and len(left) < len(voters) // 2 + 1:
            raise StopRefused(
                f"Broker {broker} was not stopped: it keeps a copy of the metadata log, and without it only "
                f"{len(left)} of the {len(voters)} copies would run, which is no majority. Start the others first, or "
                "stop the whole cluster."
            )

    def _costs(
        self, broker: BrokerId, decision: ControllerDecision
    ) -> tuple[list[PartitionState], list[PartitionState]]:
        """Return the partitions that would have no leader without this broker, and those that would refuse acks=all."""
        leaderless, below = [], []
        for state in decision.image.partitions():
            if broker not in state.isr:
                continue
            standing = self._liveness.standing(state)
            others = [
                other
                for other in (*state.isr, *state.elr)
                if other != broker
                and standing[other] is Standing.ONLINE
                and (state.partition, other) not in decision.image.lost_logs
            ]
            minimum = min_insync(state, decision.image.topics[state.partition.topic].config)
            if not others:
                leaderless.append(state)
            elif len(others) < minimum <= len(state.isr):
                below.append(state)
        return leaderless, below


def _sentences(leaderless: list[PartitionState], below: list[PartitionState]) -> str:
    sentences = ""
    if leaderless:
        sentences += f"Without it no replica could lead {_named(leaderless)}. "
    if below:
        sentences += f"Without it too few replicas would be in sync for writes with acks=all to {_named(below)}. "
    return sentences


def _named(states: list[PartitionState]) -> str:
    named = ", ".join(str(state.partition) for state in states[:NAMED_MAX])
    more = len(states) - NAMED_MAX
    return f"{named} and {more} more" if more > 0 else named
