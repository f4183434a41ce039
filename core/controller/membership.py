"""Brokers and replicas: registration, fencing, elections and ISR changes. Called by the controller's step.

Sessions tell who is there; the image tells who was placed. A replica that is placed but has no session is *awaited* for
a time after the controller's own start, and down afterwards. Every prefix of the records that one step writes is a safe
state, so that it does not matter where a crash cuts the log: leadership ends before a place is given up, a lost log is
noted before the life without it is placed.
"""

from __future__ import annotations

from dataclasses import replace

from raylog.core.controller.election import (
    Standing,
    min_insync,
    settle,
    with_isr,
    without_eligible,
    without_leader,
)
from raylog.core.controller.events import (
    BrokerRegistrationReceived,
    IsrChangeReceived,
    LeaderResigned,
    ReplicaRegistrationReceived,
    Warn,
)
from raylog.core.controller.image import partition_changed, replica_placed
from raylog.core.controller.ledger import ControllerSettings, Ledger
from raylog.core.controller.records import BrokerOffline, BrokerRegistered, ReplicaLogLost
from raylog.core.controller.sessions import BrokerMember, ReplicaMember
from raylog.core.controller.warnings import lost_copy, unclean_election
from raylog.core.errors import (
    DataDirectoryError,
    FencedLeaderEpoch,
    InconsistentClusterId,
    IneligibleReplica,
    InvalidRequest,
    InvalidUpdateVersion,
    NotController,
    StaleBrokerEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from raylog.core.ids import NO_INCARNATION, NO_LEADER, BrokerId, Incarnation, TopicPartition
from raylog.core.invariants import require
from raylog.core.replication.state import PartitionState, ReplicaPlace


class Membership:
    """Decides who is there, who leads and who is in sync."""

    def __init__(self, ledger: Ledger, settings: ControllerSettings) -> None:
        """Work on the controller's ledger."""
        self._ledger = ledger
        self._settings = settings
        self._grace_until_ms: int | None = ledger.now_ms + settings.registration_grace_ms
        self._first_wait_until_ms: dict[TopicPartition, int] = {}

    @property
    def in_grace(self) -> bool:
        """Tell whether it is too early to believe that absent members are gone."""
        return self._grace_until_ms is not None

    # ------------------------------------------------------------ time

    def started(self) -> None:
        """Begin the grace period and the waits for replicas that have never run."""
        self._grace_until_ms = self._ledger.now_ms + self._settings.registration_grace_ms
        for state in self._ledger.image.partitions():
            self.expect(state)

    def expect(self, state: PartitionState) -> None:
        """Wait for those replicas of a partition that have never run, before others are preferred to them."""
        if any(place.incarnation == NO_INCARNATION for place in state.places):
            self._first_wait_until_ms[state.partition] = self._ledger.now_ms + self._settings.initial_leader_wait_ms

    def forget(self, partition: TopicPartition) -> None:
        """Stop waiting for a deleted partition."""
        self._first_wait_until_ms.pop(partition, None)

    def time_passed(self) -> None:
        """Give up those for whom the time to wait is over."""
        now = self._ledger.now_ms
        if self._grace_until_ms is not None and now >= self._grace_until_ms:
            self._grace_until_ms = None
            self._end_grace()
        due = sorted(partition for partition, until in self._first_wait_until_ms.items() if now >= until)
        for partition in due:
            del self._first_wait_until_ms[partition]
            self.settle(partition)

    def _end_grace(self) -> None:
        ledger = self._ledger
        for broker in ledger.image.online_brokers():
            if ledger.sessions.of(BrokerMember(broker.broker)) is None:
                ledger.write(BrokerOffline(broker=broker.broker))
        for state in list(ledger.image.partitions()):
            for place in state.places:
                if (
                    place.port
                    and ledger.sessions.of(ReplicaMember(state.topic_id, state.partition, place.broker)) is None
                ):
                    self._fence(state.partition, place.broker)
            self.settle(state.partition)

    def able_brokers(self, needed: int) -> dict[BrokerId, str]:
        """Return the brokers that can be given replicas now, with their nodes.

        During the grace period those that have registered with this controller, when there are ``needed``: it does not
        know yet whether the others still run.
        """
        ledger = self._ledger
        able = {broker.broker: broker.node_id for broker in ledger.image.online_brokers() if not broker.stopped}
        present = {
            broker: node for broker, node in able.items() if ledger.sessions.of(BrokerMember(broker)) is not None
        }
        return present if len(present) >= needed else able

    def awaited(self) -> dict[tuple[str, int], BrokerId]:
        """Return the endpoints of replicas that are placed and have no session, with their brokers."""
        return {
            (place.host, place.port): place.broker
            for state in self._ledger.image.partitions()
            for place in state.places
            if place.port and self._standing(state, place) is Standing.AWAITED
        }

    def places_gone(self, endpoints: frozenset[tuple[str, int]]) -> None:
        """Give up replicas before their time, where all others of the ISR, at least half of it, are there to go on.

        Where more are missing, the whole cluster may be starting, and the ISR is worth more than a few seconds.
        """
        for state in list(self._ledger.image.partitions()):
            standing = {place.broker: self._standing(state, place) for place in state.places}
            gone = [
                place.broker
                for place in state.places
                if place.port and standing[place.broker] is Standing.AWAITED and (place.host, place.port) in endpoints
            ]
            rest = [broker for broker in state.isr if broker not in gone]
            if 2 * len(rest) >= len(state.isr) and all(standing[broker] is Standing.ONLINE for broker in rest):
                for broker in gone:
                    self._fence(state.partition, broker)

    # ------------------------------------------------------------ brokers

    def register_broker(self, event: BrokerRegistrationReceived) -> None:
        """Enter a broker, or take it up again after its connection broke. A new directory (-1) is given an id."""
        ledger = self._ledger
        event = replace(event, broker=self._broker_of(event))
        if event.cluster_id not in ("", ledger.image.cluster_id):
            raise InconsistentClusterId(
                f"Broker {event.broker} has data of cluster {event.cluster_id}, and this is {ledger.image.cluster_id}; "
                "give it another data directory, or start the cluster it belongs to."
            )
        member = BrokerMember(event.broker)
        held = ledger.image.brokers.get(event.broker)
        if event.incarnation != NO_INCARNATION and (held is None or held.incarnation != event.incarnation):
            raise StaleBrokerEpoch(f"A newer life of broker {event.broker} is registered; this process has to end.")
        other_directory = held is not None and held.directory_id != event.directory_id
        if held is not None and other_directory and held.online:
            if ledger.sessions.of(member) is None:
                raise NotController(
                    f"The directory last known as broker {event.broker} may still come back; try again."
                )
            raise DataDirectoryError(
                f"Broker {event.broker} runs on directory {held.directory_id}; give the directory on node "
                f"{event.node_id} another broker id."
            )
        ledger.supersede(event.session, member)
        if held is not None and other_directory:
            for state in list(ledger.image.partitions()):
                if state.place(event.broker) is not None:
                    self._lose_log(state.partition, event.broker)
        incarnation = event.incarnation
        if incarnation == NO_INCARNATION:
            incarnation = Incarnation(ledger.image.version + 1)
        record = BrokerRegistered(
            broker=event.broker,
            incarnation=incarnation,
            node_id=event.node_id,
            host=event.host,
            port=event.port,
            directory_id=event.directory_id,
            lowest_level=event.levels.lowest,
            highest_level=event.levels.highest,
        )
        where = (event.host, event.port, event.node_id, event.levels)
        if (
            held is None
            or not held.online
            or held.incarnation != incarnation
            or (held.host, held.port, held.node_id, held.levels) != where
        ):
            ledger.write(record)
        ledger.sessions.open(event.session, member, incarnation, ledger.now_ms)
        image = ledger.image
        snapshot: list[object] = [found.to_wire() for found in image.to_records()]
        ledger.reply(
            event.request,
            [incarnation, image.cluster_id, image.controller_epoch, image.version, snapshot, event.broker],
        )

    def _broker_of(self, event: BrokerRegistrationReceived) -> BrokerId:
        """Return the broker's id; one that has none gets that of its directory, or the next that is free."""
        if event.broker != NO_LEADER:
            return event.broker
        brokers = self._ledger.image.brokers
        for known in brokers.values():
            if known.directory_id == event.directory_id:
                return known.broker
        # Voters have their ids before they register.
        voters = [BrokerId(int(number)) for number in self._ledger.image.voters]
        return BrokerId(max([*brokers, *voters], default=0) + 1)

    # ------------------------------------------------------------ replicas

    def register_replica(self, event: ReplicaRegistrationReceived) -> None:
        """Enter a replica: a new life gets a new incarnation, the present one is taken up again."""
        ledger = self._ledger
        state, place = self._known_replica(event.topic_id, event.partition, event.broker)
        member = ReplicaMember(event.topic_id, event.partition, event.broker)
        new_life = event.incarnation == NO_INCARNATION
        if not new_life and event.incarnation != place.incarnation:
            raise StaleBrokerEpoch(
                f"A newer life of the replica of {event.partition} on broker {event.broker} is registered; "
                "this process has to end."
            )
        standing = self._standing(state, place)
        restored = bool(event.log_id) and ledger.image.lost_logs.get((event.partition, event.broker)) == event.log_id
        log_lost = new_life and not restored and self._is_log_lost(event)
        ledger.supersede(event.session, member)
        led = state.leader == event.broker
        if new_life and led and standing is Standing.AWAITED and not log_lost:
            # Controller and leader restarted together: nobody saw the leader fail, so its place in the ISR stands,
            # and it leads again, as a new life in a new epoch.
            self._step_down(state)
        elif new_life and place.port:
            self._fence(event.partition, event.broker)
        if log_lost:
            self._lose_log(event.partition, event.broker)
        elif event.unsynced_lost:
            self._not_eligible(event.partition, event.broker)
        settled = ledger.image.partition(event.partition)
        require(
            not new_life or (settled is not None and settled.leader != event.broker),
            f"a new life of {event.partition} on broker {event.broker} begins without leading",
            ledger.story,
        )
        incarnation = Incarnation(ledger.image.version + 1) if new_life else place.incarnation
        if (place.incarnation, place.host, place.port) != (incarnation, event.host, event.port) or new_life:
            self._place(
                event.partition,
                ReplicaPlace(broker=event.broker, incarnation=incarnation, host=event.host, port=event.port),
                event.log_id,
            )
        ledger.sessions.open(event.session, member, incarnation, ledger.now_ms)
        ledger.told(event.session)
        self.settle(event.partition, prefer=event.broker if led else None, restored=event.broker if restored else None)
        after = ledger.image.partition(event.partition)
        require(after is not None, f"{event.partition} exists", ledger.story)
        warning = ""
        if (event.partition, event.broker) in ledger.image.lost_logs:
            warning = lost_copy(event.partition, event.broker, after.elr if after is not None else ())
        if after is not None:
            ledger.reply(event.request, [incarnation, after.to_wire()], warning)

    def _is_log_lost(self, event: ReplicaRegistrationReceived) -> bool:
        """Tell whether a new life runs on another log than the life before it.

        Its own word is not enough where logs have an identity: the life that made the new log may have died before it
        could tell, and the first registration of a log that is not new any more may just not have been answered.
        """
        known = self._ledger.image.log_ids.get((event.partition, event.broker), "")
        return known != event.log_id if known and event.log_id else event.log_lost

    def replica_lost(self, member: ReplicaMember) -> None:
        """Fence a replica whose session is over."""
        self._fence(member.partition, member.broker)

    def broker_lost(self, member: BrokerMember) -> None:
        """Note that a broker's session is over; nobody waits any longer for replicas that it was yet to start."""
        self._ledger.write(BrokerOffline(broker=member.broker))
        for partition in sorted(self._first_wait_until_ms):
            state = self._ledger.image.partition(partition)
            place = state.place(member.broker) if state is not None else None
            if place is not None and place.incarnation == NO_INCARNATION:
                self.settle(partition)

    # ------------------------------------------------------------ ISR

    def change_isr(self, event: IsrChangeReceived) -> None:
        """Commit a leader's proposal, or refuse it: compare-and-set on the partition epoch, members by incarnation."""
        ledger = self._ledger
        state, place = self._known_replica(event.topic_id, event.partition, event.broker)
        session = ledger.sessions.get(event.session)
        member = ReplicaMember(event.topic_id, event.partition, event.broker)
        if event.incarnation != place.incarnation or session is None or session.member != member:
            raise StaleBrokerEpoch(
                f"This life of the replica on broker {event.broker} is not registered; register first."
            )
        if event.leader_epoch < state.leader_epoch:
            raise FencedLeaderEpoch(f"{event.partition} is at leader epoch {state.leader_epoch}.")
        if event.leader_epoch > state.leader_epoch or event.partition_epoch > state.partition_epoch:
            raise NotController(f"{event.partition} is ahead of this controller at its leader; try again.")
        if event.partition_epoch < state.partition_epoch:
            raise InvalidUpdateVersion(f"{event.partition} is at partition epoch {state.partition_epoch}.")
        if state.leader != event.broker:
            raise InvalidRequest(f"Broker {event.broker} does not lead {event.partition}.")
        proposed = dict(event.isr)
        if len(proposed) != len(event.isr) or not set(proposed) <= set(state.replicas) or event.broker not in proposed:
            raise InvalidRequest(
                f"The ISR of {event.partition} must be a part of its replicas {list(state.replicas)}, with the leader."
            )
        for broker, incarnation in sorted(proposed.items()):
            found = state.place(broker)
            standing = Standing.OFFLINE if found is None else self._standing(state, found)
            stays = broker in state.isr and standing is Standing.AWAITED
            if found is None or found.incarnation != incarnation or not (standing is Standing.ONLINE or stays):
                raise IneligibleReplica(
                    f"Incarnation {incarnation} of broker {broker} does not run as a replica of {event.partition}."
                )
        isr = tuple(broker for broker in state.replicas if broker in proposed)
        minimum, lost = self._min_insync(state), self._lost(state)
        after = with_isr(state, isr, min_isr=minimum, lost=lost, drops_eligible=event.drops_eligible)
        self._commit(state, after)
        settled = ledger.image.partition(event.partition)
        require(settled is not None, f"{event.partition} exists", ledger.story)
        if settled is not None:
            ledger.told(event.session)
            ledger.reply(event.request, [settled.to_wire()])

    def resign(self, event: LeaderResigned) -> None:
        """Let another member of the ISR lead, without the one that resigns; it may earn its place again.

        Refused when no other member runs: then a leader that can only read is better than none.
        """
        ledger = self._ledger
        state, place = self._known_replica(event.topic_id, event.partition, event.broker)
        session = ledger.sessions.get(event.session)
        member = ReplicaMember(event.topic_id, event.partition, event.broker)
        if event.incarnation != place.incarnation or session is None or session.member != member:
            raise StaleBrokerEpoch(
                f"This life of the replica on broker {event.broker} is not registered; register first."
            )
        if state.leader == event.broker and state.leader_epoch == event.leader_epoch:
            lost = ledger.image.lost_logs
            others = [
                one
                for one in state.places
                if one.broker != event.broker
                and one.broker in state.isr
                and (event.partition, one.broker) not in lost
                and self._standing(state, one) is Standing.ONLINE
            ]
            if not others:
                raise IneligibleReplica(f"{event.partition} has no other in-sync replica that runs; keep leading.")
            self.settle(event.partition, gone=event.broker)
        ledger.reply(event.request, [])

    # ------------------------------------------------------------ decisions

    def settle(
        self,
        partition: TopicPartition,
        *,
        gone: BrokerId | None = None,
        prefer: BrokerId | None = None,
        restored: BrokerId | None = None,
        unclean: bool = False,
    ) -> None:
        """Bring a partition into the state it should be in, given who is there.

        ``gone`` is about to be down; ``restored`` has its lost log again; ``unclean`` allows for this once what the
        topic may allow for good.
        """
        ledger = self._ledger
        state = ledger.image.partition(partition)
        if state is None:
            return
        standing = self.standing(state)
        if gone is not None:
            standing[gone] = Standing.OFFLINE
        lost = [broker for broker in self._lost(state) if broker != restored]
        config = ledger.image.topics[partition.topic].config
        allowed = unclean or config.get("unclean.leader.election.enable", "false") == "true"
        min_isr = min_insync(state, config)
        after = settle(state, standing, lost=lost, unclean=allowed, prefer=prefer, min_isr=min_isr)
        self._commit(state, after)
        self._stop_waiting(after)
        if after.unclean_leader_epoch > state.unclean_leader_epoch:
            ledger.do(
                Warn(
                    cause=ledger.cause,
                    warning=unclean_election(state, after),
                )
            )

    def _stop_waiting(self, state: PartitionState) -> None:
        """Go on without replicas that have never run as soon as a new partition can serve: they join when they come.

        Writes with ``acks=all`` would wait for the last process of a topic to start. A majority is always waited for,
        however low ``min.insync.replicas`` is: the members that are there are what keeps the first records.
        """
        if state.partition not in self._first_wait_until_ms or state.leader == NO_LEADER:
            return
        standing = self.standing(state)
        present = sum(standing[broker] is Standing.ONLINE for broker in state.isr)
        enough = max(self._min_insync(state), state.replication_factor // 2 + 1)
        if standing[state.leader] is Standing.ONLINE and present >= enough:
            del self._first_wait_until_ms[state.partition]
            self.settle(state.partition)

    def standing(self, state: PartitionState) -> dict[BrokerId, Standing]:
        """Return how each replica of a partition stands."""
        return {place.broker: self._standing(state, place) for place in state.places}

    def _lost(self, state: PartitionState) -> list[BrokerId]:
        return [broker for broker in state.isr if (state.partition, broker) in self._ledger.image.lost_logs]

    def _min_insync(self, state: PartitionState) -> int:
        return min_insync(state, self._ledger.image.topics[state.partition.topic].config)

    def _commit(self, before: PartitionState, after: PartitionState) -> None:
        if after is not before:
            self._ledger.write(partition_changed(after))

    def _step_down(self, state: PartitionState) -> None:
        self._commit(state, without_leader(state))

    def _fence(self, partition: TopicPartition, broker: BrokerId) -> None:
        """Count a replica as down. Leadership and ISR first: no prefix of the log shows a leader that does not run."""
        self.settle(partition, gone=broker)
        state = self._ledger.image.partition(partition)
        place = state.place(broker) if state is not None else None
        if place is not None and place.port:
            self._place(partition, ReplicaPlace(broker=broker, incarnation=place.incarnation))

    def _lose_log(self, partition: TopicPartition, broker: BrokerId) -> None:
        """Note that a replica's log is not the one it had; only ISR members and eligible ones had anything to lose."""
        ledger = self._ledger
        state = ledger.image.partition(partition)
        place = state.place(broker) if state is not None else None
        if state is None or place is None or place.incarnation == NO_INCARNATION:
            return
        if broker not in state.isr:
            self._commit(state, without_eligible(state, broker))
            return
        if state.leader == broker:
            self._step_down(state)
        if (partition, broker) not in ledger.image.lost_logs:
            log_id = ledger.image.log_ids.get((partition, broker), "")
            ledger.write(
                ReplicaLogLost(topic=partition.topic, partition=partition.partition, broker=broker, log_id=log_id)
            )
        self.settle(partition)

    def _not_eligible(self, partition: TopicPartition, broker: BrokerId) -> None:
        """Take from a replica what it was trusted with outside the ISR; an ISR member's standing is another matter."""
        state = self._ledger.image.partition(partition)
        if state is not None:
            self._commit(state, without_eligible(state, broker))

    def _place(self, partition: TopicPartition, place: ReplicaPlace, log_id: str = "") -> None:
        self._ledger.write(replica_placed(partition, place, log_id))

    def _standing(self, state: PartitionState, place: ReplicaPlace) -> Standing:
        if self._ledger.image.is_stopped(place.broker):
            return Standing.OFFLINE
        session = self._ledger.sessions.of(ReplicaMember(state.topic_id, state.partition, place.broker))
        if session is not None and session.life == place.incarnation and place.port:
            return Standing.ONLINE
        if place.incarnation == NO_INCARNATION:
            broker = self._ledger.image.brokers.get(place.broker)
            may_start = broker is not None and broker.online and state.partition in self._first_wait_until_ms
            return Standing.AWAITED if may_start else Standing.OFFLINE
        return Standing.AWAITED if place.port and self.in_grace and session is None else Standing.OFFLINE

    def _known_replica(
        self, topic_id: str, partition: TopicPartition, broker: BrokerId
    ) -> tuple[PartitionState, ReplicaPlace]:
        if self._ledger.image.topic(partition.topic, topic_id) is None:
            raise UnknownTopicId(f"Topic {partition.topic!r} with id {topic_id} does not exist; it was deleted.")
        state = self._ledger.image.partition(partition, topic_id)
        place = state.place(broker) if state is not None else None
        if state is None or place is None:
            raise UnknownTopicOrPartition(f"Broker {broker} holds no replica of {partition}.")
        return state, place
