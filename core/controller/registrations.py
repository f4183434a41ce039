"""Registration of brokers and replicas: incarnations, feature levels, lost and restored logs. Used by the controller.

Every prefix of the records that one step writes is a safe state, wherever a crash cuts the log: a lost log is noted
before the incarnation without it is placed.
"""

from __future__ import annotations

from collections.abc import Sequence

from raylog.base.errors import (
    DataDirectoryError,
    InconsistentClusterId,
    InvalidRequest,
    NotController,
    NotLeaderOrFollower,
    StaleBrokerEpoch,
    UnsupportedVersion,
)
from raylog.base.features import SUPPORTED, LevelRange, misfit
from raylog.base.ids import NO_INCARNATION, NO_LEADER, BrokerId, Incarnation, TopicPartition
from raylog.core.controller.decision import ControllerDecision
from raylog.core.controller.leadership import (
    Standing,
    with_isr,
    without_eligible,
)
from raylog.core.controller.liveness import Liveness, known_replica
from raylog.core.controller.sessions import BrokerMember, ReplicaMember
from raylog.core.controller.wake_queue import WakeQueue
from raylog.core.metadata.records import BrokerRegistered, FeatureLevelRaised, ReplicaLogLost
from raylog.core.partition import PartitionState, ReplicaPlace
from raylog.core.received import Received
from raylog.protocol.admin import RaiseFeatureLevelRequest
from raylog.protocol.controller import RegisterBrokerRequest, RegisterReplicaRequest

NEWEST = -1
"""Requests the highest level that every broker knows."""


class Registrations:
    """Registers brokers and replicas, each under an incarnation of its own."""

    def __init__(self, liveness: Liveness, wakes: WakeQueue) -> None:
        """``liveness`` settles leadership and ISR; a partition that has lost a log in its sleep enters ``wakes``."""
        self._liveness = liveness
        self._wakes = wakes

    # ------------------------------------------------------------ brokers

    def register_broker(self, event: Received[RegisterBrokerRequest], decision: ControllerDecision) -> None:
        """Register a broker, or resume it after its connection broke. A new directory (-1) is assigned an id."""
        message, session = event.message, event.sender.session
        levels, capacity = LevelRange(message.lowest_level, message.highest_level), tuple(message.capacity)
        _check_level(message, levels, decision)
        broker = self._broker_of(message, decision)
        if message.cluster_id not in ("", decision.image.cluster_id):
            raise InconsistentClusterId(
                f"Broker {broker} has data of cluster {message.cluster_id}, and this is "
                f"{decision.image.cluster_id}; give it another data directory, or start the cluster it belongs to."
            )
        member = BrokerMember(broker)
        held = decision.image.brokers.get(broker)
        if message.incarnation != NO_INCARNATION and (held is None or held.incarnation != message.incarnation):
            raise StaleBrokerEpoch(f"A newer life of broker {broker} is registered; this process has to end.")
        other_directory = held is not None and held.directory_id != message.directory_id
        if held is not None and other_directory and held.online:
            if decision.sessions.of(member) is None:
                raise NotController(f"The directory last known as broker {broker} may still come back; try again.")
            raise DataDirectoryError(
                f"Broker {broker} runs on directory {held.directory_id}; give the directory on node "
                f"{message.node_id} another broker id."
            )
        decision.supersede(session, member)
        if held is not None and other_directory:
            for state in list(decision.image.partitions()):
                if state.place(broker) is not None:
                    self._lose_log(state.partition, broker, decision)
        incarnation = Incarnation(message.incarnation)
        if incarnation == NO_INCARNATION:
            incarnation = Incarnation(decision.image.version + 1)
        record = BrokerRegistered(
            broker=broker,
            incarnation=incarnation,
            node_id=message.node_id,
            host=message.host,
            port=message.port,
            directory_id=message.directory_id,
            lowest_level=levels.lowest,
            highest_level=levels.highest,
            capacity=capacity,
        )
        where = (message.host, message.port, message.node_id, levels, capacity)
        if (
            held is None
            or not held.online
            or held.incarnation != incarnation
            or (held.host, held.port, held.node_id, held.levels, held.capacity) != where
        ):
            decision.write(record)
        decision.sessions.open(session, member, incarnation, decision.now_ms)
        self._liveness.settle_sleepers(decision)
        image = decision.image
        snapshot: list[object] = [found.to_wire() for found in image.to_records()]
        decision.reply(
            event.request,
            [incarnation, image.cluster_id, image.controller_epoch, image.version, snapshot, broker],
        )

    def _broker_of(self, message: RegisterBrokerRequest, decision: ControllerDecision) -> BrokerId:
        """Return the broker's id; a broker without one gets the known id of its directory, or the next free id."""
        if message.broker != NO_LEADER:
            return BrokerId(message.broker)
        brokers = decision.image.brokers
        for known in brokers.values():
            if known.directory_id == message.directory_id:
                return known.broker
        # Voters have their ids before they register.
        voters = [BrokerId(int(number)) for number in decision.image.voters]
        return BrokerId(max([*brokers, *voters], default=0) + 1)

    # ------------------------------------------------------------ replicas

    def register_replica(self, event: Received[RegisterReplicaRequest], decision: ControllerDecision) -> None:
        """Register a replica: a new process gets a new incarnation, the present one keeps its own.

        Raises NotLeaderOrFollower while the partition sleeps: the broker ends the process, or has not started it yet.
        """
        message, session = event.message, event.sender.session
        member = ReplicaMember.of(message)
        partition, broker = member.partition, member.broker
        state, place = known_replica(decision.image, member)
        if state.asleep is not None:
            raise NotLeaderOrFollower(f"{partition} sleeps; its broker ends this process.")
        new_life = message.incarnation == NO_INCARNATION
        if not new_life and message.incarnation != place.incarnation:
            raise StaleBrokerEpoch(
                f"A newer life of the replica of {partition} on broker {broker} is registered; this process has to end."
            )
        standing = self._liveness.standing_of(state, place)
        restored = bool(message.log_id) and decision.image.lost_logs.get((partition, broker)) == message.log_id
        log_lost = new_life and not restored and self._is_log_lost(member, message, decision)
        decision.supersede(session, member)
        led = state.leader == broker
        if new_life and led and standing is Standing.AWAITED and not (log_lost or message.end_cut):
            # Controller and leader restarted together: no session of the leader ended, so its place in the ISR stands,
            # and it leads again, under a new incarnation in a new epoch.
            self._liveness.step_down(state, decision)
        elif new_life and place.port:
            self._liveness.fence(partition, broker, decision)
        if log_lost:
            self._lose_log(partition, broker, decision)
        if new_life and message.end_cut:
            self._leave_to_others(partition, broker, decision)
        if message.unsynced_lost and not log_lost:
            self._not_eligible(partition, broker, decision)
        settled = decision.image.partition(partition)
        decision.require(
            not new_life or (settled is not None and settled.leader != broker),
            f"a new life of {partition} on broker {broker} begins without leading",
        )
        incarnation = Incarnation(decision.image.version + 1) if new_life else place.incarnation
        if (place.incarnation, place.host, place.port) != (incarnation, message.host, message.port) or new_life:
            self._liveness.place(
                partition,
                ReplicaPlace(broker=broker, incarnation=incarnation, host=message.host, port=message.port),
                decision,
                message.log_id,
            )
        decision.sessions.open(session, member, incarnation, decision.now_ms)
        decision.skip_state(session)
        prefer, back = broker if led else None, broker if restored else None
        self._liveness.settle(partition, decision, prefer=prefer, restored=back)
        after = decision.image.partition(partition)
        decision.require(after is not None, f"{partition} exists")
        warning = ""
        if (partition, broker) in decision.image.lost_logs:
            warning = _lost_copy(partition, broker, after.elr if after is not None else ())
        if after is not None:
            image = decision.image
            config, cluster = dict(image.topics[partition.topic].config), dict(image.config)
            row = [incarnation, after.to_wire(), image.controller_epoch, config, cluster]
            decision.reply(event.request, row, warning)

    def _is_log_lost(
        self, member: ReplicaMember, message: RegisterReplicaRequest, decision: ControllerDecision
    ) -> bool:
        """Return whether a new incarnation runs on another log than the previous one.

        Its own report does not suffice where logs have an identity. The incarnation that created the new log may have
        died before it could report. The first registration of a log that is no longer new may have stayed unanswered.
        """
        known = decision.image.log_ids.get((member.partition, member.broker), "")
        return known != message.log_id if known and message.log_id else message.log_lost

    def _lose_log(self, partition: TopicPartition, broker: BrokerId, decision: ControllerDecision) -> None:
        """Note that a replica's log is not the one it had; only ISR and ELR members had committed records to lose."""
        state = decision.image.partition(partition)
        place = state.place(broker) if state is not None else None
        if state is None or place is None or place.incarnation == NO_INCARNATION:
            return
        if state.asleep is not None:
            self._lose_asleep(state, broker, decision)
            return
        if broker not in state.isr:
            self._liveness.commit(state, without_eligible(state, broker), decision)
            return
        if state.leader == broker:
            self._liveness.step_down(state, decision)
        self._note_lost(partition, broker, decision)
        self._liveness.settle(partition, decision)

    def _lose_asleep(self, state: PartitionState, broker: BrokerId, decision: ControllerDecision) -> None:
        """Note the lost log of a sleeping partition's replica, and have the partition woken when there is room.

        Then the log is copied from another replica. A broker without the log leads only if no other can; in that case
        the loss is noted when its replica registers, awake.
        """
        self._liveness.settle(state.partition, decision, leaving=broker)
        settled = decision.image.partition(state.partition)
        if settled is not None and settled.leader != broker and broker in settled.isr:
            self._note_lost(state.partition, broker, decision)
        self._wakes.add(state)

    def _note_lost(self, partition: TopicPartition, broker: BrokerId, decision: ControllerDecision) -> None:
        if (partition, broker) not in decision.image.lost_logs:
            log_id = decision.image.log_ids.get((partition, broker), "")
            decision.write(
                ReplicaLogLost(topic=partition.topic, partition=partition.partition, broker=broker, log_id=log_id)
            )

    def _leave_to_others(self, partition: TopicPartition, broker: BrokerId, decision: ControllerDecision) -> None:
        """Remove a replica whose log's end was cut from the ISR, if other members run or may run: they miss nothing.

        The cut records counted as a torn write. They may have been committed, if they were damaged within seconds
        before a kill. In the ELR the replica stays eligible, unless records are known to be missing.
        """
        state = decision.image.partition(partition)
        if state is None or broker not in state.isr:
            return
        standing, lost = self._liveness.standing(state), self._liveness.lost(state)
        others = [
            member for member in state.isr if member not in (broker, *lost) and standing[member] is not Standing.OFFLINE
        ]
        if others:
            isr = tuple(member for member in state.isr if member != broker)
            after = with_isr(state, isr, min_isr=self._liveness.min_insync(state), lost=lost)
            self._liveness.commit(state, after, decision)

    def _not_eligible(self, partition: TopicPartition, broker: BrokerId, decision: ControllerDecision) -> None:
        """Remove a replica from the ELR; the ISR stays unchanged."""
        state = decision.image.partition(partition)
        if state is not None:
            self._liveness.commit(state, without_eligible(state, broker), decision)


def _check_level(message: RegisterBrokerRequest, levels: LevelRange, decision: ControllerDecision) -> None:
    """Refuse a broker whose release does not know the cluster's level: it could not read the metadata."""
    level = decision.image.feature_level
    if not levels.knows(level):
        whose = f"Broker {message.broker}" if message.broker != NO_LEADER else "The new broker"
        raise UnsupportedVersion(misfit(f"{whose} on node {message.node_id}", levels, level))


def raise_feature_level(event: Received[RaiseFeatureLevelRequest], decision: ControllerDecision) -> None:
    """Raise the level as requested; answers [level, level before].

    Every broker counts that has not been stopped on purpose, whether it runs or not; so does the controller itself. A
    level never falls: what was written under it could not be read under a lower one. Raises InvalidRequest for a lower
    level, and UnsupportedVersion for one that is not known everywhere.
    """
    counted = [broker for _, broker in sorted(decision.image.brokers.items()) if not broker.stopped]
    known = min([SUPPORTED.highest, *(broker.levels.highest for broker in counted)])
    before = decision.image.feature_level
    level = max(before, known) if event.message.level == NEWEST else event.message.level
    if level < before:
        raise InvalidRequest(f"The cluster is at feature level {before}, which cannot fall to {level}.")
    if level > known:
        behind = [str(broker.broker) for broker in counted if broker.levels.highest < level]
        if not behind:
            raise UnsupportedVersion(f"The controller's release knows feature level {SUPPORTED}, not {level}.")
        raise UnsupportedVersion(
            f"Feature level {level} is not known to broker {', '.join(behind)}; upgrade these first, or stop for "
            "good those that do not come back (`raylog stop --broker N`).",
            brokers=behind,
        )
    if level > before:
        decision.write(FeatureLevelRaised(level=level))
    decision.reply(event.request, [level, before])


def _lost_copy(partition: TopicPartition, broker: BrokerId, elr: Sequence[BrokerId]) -> str:
    """Return the warning about a partition whose last ISR member returned without its log."""
    loss = f"{partition} has no leader: broker {broker} held its only in-sync copy and came back without it. "
    if elr:
        return f"{loss}Start a broker that has everything as well ({', '.join(map(str, elr))}), and it leads."
    return (
        f"{loss}Restore that data directory, or go on with what other replicas have: `raylog topic elect "
        f"{partition.topic} --partition {partition.partition} --unclean` (or for good, with "
        "unclean.leader.election.enable=true on the topic)."
    )
