"""Which replicas are online, and what follows for leadership and ISR: fencing, elections, the grace period.

Sessions show which members are connected; the image shows which were placed. A replica that is placed but has no
session is *awaited* for a time after the controller's own start, and down afterwards. Every prefix of the records that
one step writes is a safe state, wherever a crash cuts the log: leadership ends before a place is given up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from raylog.base.errors import (
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from raylog.base.ids import NO_INCARNATION, NO_LEADER, BrokerId, Incarnation, TopicPartition
from raylog.core.controller.decision import ControllerDecision, ControllerSettings
from raylog.core.controller.events import (
    Warn,
)
from raylog.core.controller.leadership import (
    Standing,
    min_insync,
    settle,
    without_leader,
    woken,
)
from raylog.core.controller.sessions import BrokerMember, ReplicaMember, Sessions
from raylog.core.metadata.image import MetadataImage, partition_changed, replica_placed
from raylog.core.metadata.records import BrokerOffline
from raylog.core.partition import PartitionState, ReplicaPlace

WOKEN_LEADER_WAIT_MS = 5_000
"""A partition that wakes waits this long for the replica that led it; then another one of its ISR may lead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """The awaited start of the replicas of a partition that is new, or wakes."""

    until_ms: int
    """After this time, replicas that have not started count as offline."""
    leader: BrokerId
    """The replica that is to lead."""
    lives: Mapping[BrokerId, Incarnation]
    """The incarnations that the awaited replicas had before the start; one with a later incarnation has run since."""


class Liveness:
    """Tracks which replicas are online, and updates leadership and ISR of their partitions."""

    def __init__(self, image: MetadataImage, sessions: Sessions, settings: ControllerSettings) -> None:
        """Read ``image`` and ``sessions``; only a step's decision changes them."""
        self._image = image
        self._sessions = sessions
        self._settings = settings
        self._grace_until_ms: int | None = 0
        """End of the grace period, once :meth:`started`; None = it is over."""
        self._starts: dict[TopicPartition, _Start] = {}

    @property
    def in_grace(self) -> bool:
        """Return whether the grace period is still running, so that absent members do not count as dead."""
        return self._grace_until_ms is not None

    # ------------------------------------------------------------ time

    def started(self, decision: ControllerDecision) -> None:
        """Begin the grace period and the waits for replicas that have never run."""
        self._grace_until_ms = decision.now_ms + self._settings.registration_grace_ms
        for state in decision.image.partitions():
            self.expect(state, decision)

    def expect(self, state: PartitionState, decision: ControllerDecision) -> None:
        """Wait for the replicas of a partition that have never run; the preferred one is to lead."""
        new = [place for place in state.places if place.incarnation == NO_INCARNATION]
        if state.asleep is None and new:
            self._await_start(state, new, state.replicas[0], self._settings.initial_leader_wait_ms, decision)

    def wake(self, partition: TopicPartition, decision: ControllerDecision) -> None:
        """End a partition's sleep; no effect on one that is awake. Its brokers start its replicas."""
        state = decision.image.partition(partition)
        if state is None or state.asleep is None:
            return
        self.commit(state, woken(state), decision)
        self.expect_woken(partition, state.leader, decision)

    def expect_woken(self, partition: TopicPartition, leader: BrokerId, decision: ControllerDecision) -> None:
        """Wait for the replicas of a partition that has just been woken; ``leader`` led it in its sleep.

        Replicas that have not ended since it fell asleep register again: the controller has noted them as ended.
        """
        state = decision.image.partition(partition)
        if state is None:
            return
        self._await_start(state, state.places, leader, WOKEN_LEADER_WAIT_MS, decision)
        for broker in state.replicas:
            session = decision.sessions.of(ReplicaMember(state.topic_id, partition, broker))
            if session is not None:
                decision.close(session.number, f"{partition} wakes; register again")
        self.settle(partition, decision)

    def _await_start(
        self,
        state: PartitionState,
        places: Iterable[ReplicaPlace],
        leader: BrokerId,
        wait_ms: int,
        decision: ControllerDecision,
    ) -> None:
        lives = {place.broker: place.incarnation for place in places}
        self._starts[state.partition] = _Start(until_ms=decision.now_ms + wait_ms, leader=leader, lives=lives)

    def starting(self) -> Counter[BrokerId]:
        """Return, by broker, how many new or waking partitions wait for its replica to start."""
        return Counter(broker for start in self._starts.values() for broker in start.lives)

    def forget(self, partition: TopicPartition) -> None:
        """Stop waiting for a deleted partition."""
        self._starts.pop(partition, None)

    def time_passed(self, decision: ControllerDecision) -> None:
        """End the grace period and the waits for starts that are due: what is still missing counts as offline."""
        now = decision.now_ms
        if self._grace_until_ms is not None and now >= self._grace_until_ms:
            self._grace_until_ms = None
            self._end_grace(decision)
        due = sorted(partition for partition, start in self._starts.items() if now >= start.until_ms)
        for partition in due:
            del self._starts[partition]
            self.settle(partition, decision)

    def _end_grace(self, decision: ControllerDecision) -> None:
        for broker in decision.image.online_brokers():
            if decision.sessions.of(BrokerMember(broker.broker)) is None:
                decision.write(BrokerOffline(broker=broker.broker))
        for state in list(decision.image.partitions()):
            for place in state.places:
                if (
                    place.port
                    and decision.sessions.of(ReplicaMember(state.topic_id, state.partition, place.broker)) is None
                ):
                    self.fence(state.partition, place.broker, decision)
            self.settle(state.partition, decision)

    def able_brokers(self, needed: int) -> dict[BrokerId, str]:
        """Return the brokers that can host replicas now, with their nodes.

        During the grace period only brokers that have registered with this controller count, if there are ``needed`` of
        them: the others may not run any more.
        """
        able = {broker.broker: broker.node_id for broker in self._image.online_brokers() if not broker.stopped}
        present = {broker: node for broker, node in able.items() if self._sessions.of(BrokerMember(broker)) is not None}
        return present if len(present) >= needed else able

    def awaited(self) -> dict[tuple[str, int], BrokerId]:
        """Return the endpoints of replicas that are placed and have no session, with their brokers."""
        return {
            (place.host, place.port): place.broker
            for state in self._image.partitions()
            for place in state.places
            if place.port and self.standing_of(state, place) is Standing.AWAITED
        }

    def endpoints_dead(self, endpoints: frozenset[tuple[str, int]], decision: ControllerDecision) -> None:
        """Fence awaited replicas early, if the rest of the ISR is at least half of it, and all of the rest is online.

        If more are missing, the whole cluster may be starting, and the ISR is worth a few seconds of waiting.
        """
        for state in list(decision.image.partitions()):
            standing = {place.broker: self.standing_of(state, place) for place in state.places}
            dead = [
                place.broker
                for place in state.places
                if place.port and standing[place.broker] is Standing.AWAITED and (place.host, place.port) in endpoints
            ]
            rest = [broker for broker in state.isr if broker not in dead]
            if 2 * len(rest) >= len(state.isr) and all(standing[broker] is Standing.ONLINE for broker in rest):
                for broker in dead:
                    self.fence(state.partition, broker, decision)

    def replica_lost(self, member: ReplicaMember, decision: ControllerDecision) -> None:
        """Fence a replica whose session is over; a replica of a sleeping partition has ended on purpose."""
        state = decision.image.partition(member.partition, member.topic_id)
        if state is not None and state.asleep is None:
            self.fence(member.partition, member.broker, decision)

    def broker_lost(self, member: BrokerMember, decision: ControllerDecision) -> None:
        """Note that a broker's session is over.

        Other brokers lead its sleeping partitions, and replicas that it has not started yet are awaited no longer.
        """
        decision.write(BrokerOffline(broker=member.broker))
        for partition in sorted(self._starts):
            state = decision.image.partition(partition)
            place = state.place(member.broker) if state is not None else None
            if place is not None and not place.port:
                self.settle(partition, decision)
        self.settle_sleepers(decision)

    def settle_sleepers(self, decision: ControllerDecision) -> None:
        """Move the leaderships of sleeping partitions whose leader's broker is offline to brokers that are online."""
        for state in list(decision.image.partitions()):
            if state.asleep is not None and self._broker_standing(state.leader) is Standing.OFFLINE:
                self.settle(state.partition, decision)

    # ------------------------------------------------------------ decisions

    def settle(
        self,
        partition: TopicPartition,
        decision: ControllerDecision,
        *,
        leaving: BrokerId | None = None,
        prefer: BrokerId | None = None,
        restored: BrokerId | None = None,
        unclean: bool = False,
    ) -> None:
        """Bring a partition into the state that its online replicas require.

        ``leaving`` is about to go offline; ``prefer`` is elected before the others if it can lead; ``restored`` has its
        lost log again; ``unclean`` allows an unclean election for this call, as the topic's configuration may do
        permanently.
        """
        state = decision.image.partition(partition)
        if state is None:
            return
        standing = self.standing(state)
        if leaving is not None:
            standing[leaving] = Standing.OFFLINE
        lost = [broker for broker in self.lost(state) if broker != restored]
        config = decision.image.topics[partition.topic].config
        allowed = unclean or config.get("unclean.leader.election.enable", "false") == "true"
        min_isr = min_insync(state, config)
        start = self._starts.get(partition)
        expected = state.replicas[0] if state.leader_epoch == 0 else None if start is None else start.leader
        prefer = expected if prefer is None else prefer
        after = settle(state, standing, lost=lost, unclean=allowed, prefer=prefer, min_isr=min_isr, expected=expected)
        self.commit(state, after, decision)
        self._stop_waiting(after, decision)
        if after.unclean_leader_epoch > state.unclean_leader_epoch:
            decision.after_sync.append(
                Warn(
                    cause=decision.cause,
                    warning=_unclean_election(state, after),
                )
            )

    def _stop_waiting(self, state: PartitionState, decision: ControllerDecision) -> None:
        """Stop waiting for a partition's replicas to start once it can serve; the others join when they start.

        Otherwise writes with ``acks=all`` would wait for the last process of a topic to start. A majority is always
        required, however low ``min.insync.replicas`` is: only the online members hold the first records.
        """
        if state.partition not in self._starts or state.asleep is not None or state.leader == NO_LEADER:
            return
        standing = self.standing(state)
        present = sum(standing[broker] is Standing.ONLINE for broker in state.isr)
        enough = max(self.min_insync(state), state.replication_factor // 2 + 1)
        if standing[state.leader] is Standing.ONLINE and present >= enough:
            del self._starts[state.partition]
            self.settle(state.partition, decision)

    def standing(self, state: PartitionState) -> dict[BrokerId, Standing]:
        """Return the standing of each replica of a partition."""
        return {place.broker: self.standing_of(state, place) for place in state.places}

    def lost(self, state: PartitionState) -> list[BrokerId]:
        return [broker for broker in state.isr if (state.partition, broker) in self._image.lost_logs]

    def min_insync(self, state: PartitionState) -> int:
        return min_insync(state, self._image.topics[state.partition.topic].config)

    def commit(self, before: PartitionState, after: PartitionState, decision: ControllerDecision) -> None:
        if after is not before:
            decision.write(partition_changed(after))

    def step_down(self, state: PartitionState, decision: ControllerDecision) -> None:
        self.commit(state, without_leader(state), decision)

    def fence(self, partition: TopicPartition, broker: BrokerId, decision: ControllerDecision) -> None:
        """Mark a replica as offline. Leadership and ISR first: no prefix of the log shows a leader that is offline."""
        self.settle(partition, decision, leaving=broker)
        state = decision.image.partition(partition)
        place = state.place(broker) if state is not None else None
        if place is not None and place.port:
            self.place(partition, ReplicaPlace(broker=broker, incarnation=place.incarnation), decision)

    def place(
        self, partition: TopicPartition, place: ReplicaPlace, decision: ControllerDecision, log_id: str = ""
    ) -> None:
        decision.write(replica_placed(partition, place, log_id))

    def standing_of(self, state: PartitionState, place: ReplicaPlace) -> Standing:
        if state.asleep is not None:
            return self._broker_standing(place.broker)
        if self._image.is_stopped(place.broker):
            return Standing.OFFLINE
        session = self._sessions.of(ReplicaMember(state.topic_id, state.partition, place.broker))
        if session is not None and session.life == place.incarnation and place.port:
            return Standing.ONLINE
        if not place.port:
            broker, start = self._image.brokers.get(place.broker), self._starts.get(state.partition)
            is_due = start is not None and start.lives.get(place.broker, NO_INCARNATION) == place.incarnation
            return Standing.AWAITED if is_due and broker is not None and broker.online else Standing.OFFLINE
        return Standing.AWAITED if self.in_grace and session is None else Standing.OFFLINE

    def _broker_standing(self, broker: BrokerId) -> Standing:
        """Return the standing of a broker, which stands for its replicas of sleeping partitions."""
        found = self._image.brokers.get(broker)
        if found is None or found.stopped or not found.online:
            return Standing.OFFLINE
        if self._sessions.of(BrokerMember(broker)) is not None:
            return Standing.ONLINE
        return Standing.AWAITED if self.in_grace else Standing.OFFLINE


def known_replica(image: MetadataImage, member: ReplicaMember) -> tuple[PartitionState, ReplicaPlace]:
    """Return a replica's partition and place; raises UnknownTopicId and UnknownTopicOrPartition."""
    topic_id, partition, broker = member.topic_id, member.partition, member.broker
    if image.topic(partition.topic, topic_id) is None:
        raise UnknownTopicId(f"Topic {partition.topic!r} with id {topic_id} does not exist; it was deleted.")
    state = image.partition(partition, topic_id)
    place = state.place(broker) if state is not None else None
    if state is None or place is None:
        raise UnknownTopicOrPartition(f"Broker {broker} holds no replica of {partition}.")
    return state, place


def _unclean_election(before: PartitionState, after: PartitionState) -> str:
    """Return the warning about a leader from outside the ISR and the eligible replicas."""
    return (
        f"Unclean election: broker {after.leader} leads {after.partition} from epoch {after.leader_epoch} on, from "
        f"outside its ISR {list(before.isr)} and its eligible replicas {list(before.elr)}. Acknowledged records at the "
        "end of the partition may be missing."
    )
