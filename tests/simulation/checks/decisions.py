"""The decisions of a controller, held against the rules of elections, fencing, placement and notification.

Watches one controller from outside its machine: events, effects, the image, and which members are connected. What is
checked here shows in no log of a partition: a leader that should not have been elected is often a good leader too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from raylog.base.ids import NO_INCARNATION, NO_LEADER, BrokerId, TopicPartition
from raylog.core.controller import events as ctl
from raylog.core.controller.controller import ControllerMachine
from raylog.core.controller.sessions import BrokerMember, ReplicaMember
from raylog.core.decision import Reply
from raylog.core.metadata.records import MetadataRecord, PartitionChanged, PartitionsAdded, ReplicaPlaced, TopicCreated
from raylog.core.outbox import Outbox
from raylog.core.partition import PartitionState, ReplicaPlace
from raylog.core.received import Received
from tests.simulation.checks.duties import Duties, has_port, is_able
from tests.simulation.checks.signs import Signs, session_of
from tests.simulation.world import Violation

Step = Outbox[ctl.Effect]


class WatchedMachine(ControllerMachine):
    """A controller whose decisions are checked."""

    _decisions: Decisions | None = None

    def step(self, event: ctl.Event) -> Step:
        """Take a step, and check it."""
        if self._decisions is None:
            self._decisions = Decisions(self)
        return self._decisions.stepped(event, super().step(event))


class Decisions:
    """The rules for each step of one controller."""

    RULE = "controller"

    def __init__(self, machine: ControllerMachine) -> None:
        """Watch a controller that has started and not yet taken a step."""
        self._machine = machine
        self._version = machine.image.version
        self._states = {state.partition: state for state in machine.image.partitions()}
        self._duties = Duties(machine)
        self._signs = Signs(machine)

    def stepped(self, event: ctl.Event, out: Step) -> Step:
        """Check a step and return its effects."""
        records = [record for effect in out.now if isinstance(effect, ctl.WriteRecords) for record in effect.records]
        self._signs.stepped(event, out)
        if records:
            self._changed(event, records, out)
        if isinstance(event, ctl.Tick):
            self._duties.ticked(event.now_ms)
        return out

    # ------------------------------------------------------------ records

    def _changed(self, event: ctl.Event, records: Sequence[MetadataRecord], out: Step) -> None:
        image = self._machine.image
        self._are_published(event, records, out)
        for record in records:
            if isinstance(record, TopicCreated | PartitionsAdded):
                self._are_placed(event, record)
        touched = {
            TopicPartition(record.topic, record.partition)
            for record in records
            if isinstance(record, PartitionChanged | ReplicaPlaced)
        }
        for partition in sorted(touched):
            before, after = self._states.get(partition), image.partition(partition)
            if after is None or before is None or before.topic_id != after.topic_id:
                continue
            line: list[PartitionState | PartitionChanged] = [before]
            for record in records:
                if isinstance(record, PartitionChanged) and (record.topic, record.partition) == partition:
                    self._elected(line[-1], record, after)
                    line.append(record)
            self._are_notified(event, after, out)
        self._states = {state.partition: state for state in image.partitions()}
        for partition in touched:
            self._settled(partition)

    def _elected(
        self, before: PartitionState | PartitionChanged, after: PartitionChanged, state: PartitionState
    ) -> None:
        """A leader is the first replica of the assignment that may lead; the former leader may stay one.

        ``state`` is the one at the end of the step, and shows which replicas run.
        """
        leader = after.leader
        is_unclean = after.unclean_leader_epoch != before.unclean_leader_epoch
        if leader in (NO_LEADER, before.leader) or after.leader_epoch == before.leader_epoch or is_unclean:
            return
        first = after.replicas[: after.replicas.index(leader)]
        pool = after.isr if leader in before.isr else before.elr
        better = [broker for broker in first if broker in pool and self._is_able(state, broker)]
        if leader not in before.isr:  # a member of the ISR that may return has more than the eligible replicas
            better += [broker for broker in before.isr if self._is_awaited(state, broker)]
        if better and leader != self._states[state.partition].leader:
            raise Violation(self.RULE, f"{better} come first, and {leader} is elected: {before}, then {after}")

    def _settled(self, partition: TopicPartition) -> None:
        """A partition has a leader if a member of its ISR may lead, and then no member that is offline."""
        image = self._machine.image
        state = image.partition(partition)
        if state is None:
            return
        able = [broker for broker in state.isr if self._is_able(state, broker)]
        if not able:
            return
        first = state.place(state.replicas[0])
        is_new = state.leader_epoch == 0 and first is not None and first.incarnation == NO_INCARNATION
        if state.leader == NO_LEADER and not is_new:
            raise Violation(self.RULE, f"no replica leads {partition}, and {able} may lead: {state}")
        offline = [broker for broker in state.isr if self._is_offline(state, broker)]
        if offline:
            raise Violation(self.RULE, f"{offline} are offline and in the ISR with {able}: {state}")

    # ------------------------------------------------------------ effects

    def _are_published(self, event: ctl.Event, records: Sequence[MetadataRecord], out: Step) -> None:
        """Every broker that was connected before gets all records."""
        image = self._machine.image
        sent = [effect for effect in out.after_sync if isinstance(effect, ctl.PublishMetadata)]
        reached = {session for effect in sent for session in effect.sessions}
        for effect in sent:
            if effect.from_version != self._version or list(effect.records) != list(records):
                raise Violation(self.RULE, f"{records} follow version {self._version}, and {effect} is sent")
        self._version = image.version
        requested_by = session_of(event)
        for session in self._machine._sessions:
            is_new = session.number == requested_by
            if isinstance(session.member, BrokerMember) and not is_new and session.number not in reached:
                raise Violation(self.RULE, f"{session.member} does not get {records}")

    def _are_notified(self, event: ctl.Event, state: PartitionState, out: Step) -> None:
        """Every replica that is connected learns its partition's state, by a notification or in its answer."""
        notified = {
            effect.session: effect.state for effect in out.after_sync if isinstance(effect, ctl.SendPartitionState)
        }
        answers = [effect.result for effect in out.after_sync if isinstance(effect, Reply)]
        requested_by = session_of(event)
        for place in state.places:
            session = self._machine._sessions.of(ReplicaMember(state.topic_id, state.partition, place.broker))
            if session is None or notified.get(session.number) == state:
                continue
            is_answered = any(isinstance(found, list) and state.to_wire() in found for found in answers)
            if session.number != requested_by or not is_answered:
                raise Violation(self.RULE, f"the replica on broker {place.broker} is not notified {state}")

    def _are_placed(self, event: ctl.Event, record: TopicCreated | PartitionsAdded) -> None:
        """New partitions lie on brokers that run, on as many nodes as there are, and lead on all of them in turn."""
        if isinstance(event, Received) and getattr(event.message, "assignments", None) is not None:
            return
        image = self._machine.image
        able = {broker.broker: broker.node_id for broker in image.online_brokers() if not broker.stopped}
        present = {broker for broker in able if self._machine.is_present(BrokerMember(broker))}
        used = {broker for replicas in record.partitions for broker in replicas}
        factor = len(record.partitions[0])
        free = present if len(present) >= factor else set(able)
        if not used <= free:
            raise Violation(self.RULE, f"{record} is placed on {sorted(used - free)}, which do not run")
        nodes = min(factor, len({able[broker] for broker in free}))
        if any(len({able[broker] for broker in replicas}) != nodes for replicas in record.partitions):
            raise Violation(self.RULE, f"{record} uses fewer nodes than the {nodes} there are: {able}")
        leads = Counter(replicas[0] for replicas in record.partitions)
        if max(leads.values()) - min(leads[broker] for broker in free) > 1:
            raise Violation(self.RULE, f"{record} has leaders on some of the brokers {sorted(free)} only")

    # ------------------------------------------------------------ standing

    def _is_able(self, state: PartitionState, broker: BrokerId) -> bool:
        return is_able(self._machine, state, broker)

    def _is_awaited(self, state: PartitionState, broker: BrokerId) -> bool:
        """The controller has started a moment ago, and the replica has not connected to it yet."""
        member = ReplicaMember(state.topic_id, state.partition, broker)
        stopped = self._machine.image.is_stopped(broker)
        in_grace = self._machine.awaited() is not None
        return in_grace and has_port(state, broker) and not stopped and not self._machine.is_present(member)

    def _is_offline(self, state: PartitionState, broker: BrokerId) -> bool:
        place: ReplicaPlace | None = state.place(broker)
        if place is None or place.incarnation == NO_INCARNATION:
            return False
        is_present = self._machine.is_present(ReplicaMember(state.topic_id, state.partition, broker))
        if self._machine.image.is_stopped(broker):
            return True
        return not is_present and (not place.port or self._machine.awaited() is None)
