"""Feeds the checkers from a running simulation with events observed outside the machines."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from raylog.base.ids import NO_LEADER
from raylog.core.partition import PartitionState
from raylog.core.replication.events import Event, IsrChangeAnswered, RoleChanged, SendFetch, StateReceived
from raylog.core.replication.replica import ReplicaMachine
from tests.simulation.checks.checkers import (
    AckedIsKept,
    CommittedOnce,
    LogMatching,
    MetadataLine,
    NoCutBelow,
    OneLeader,
    WatermarkEarned,
    WatermarkMonotone,
)
from tests.simulation.checks.checkers_admin import DeletedStaysDeleted, ResigningSettles
from tests.simulation.checks.checkers_disk import GivesWay
from tests.simulation.checks.checkers_service import AnswersInTime, TakesWrites
from tests.simulation.partition.disk import NO_PRODUCER_ID, Entry, VirtualLog, chained
from tests.simulation.partition.replica import ReplicaProcess
from tests.simulation.partition.requests import ProduceRequest
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.partition.simulation import Simulation


class Checks:
    """All checkers of one run, and the points at which each is called."""

    def __init__(self, simulation: Simulation) -> None:
        """Begin with empty books."""
        self.simulation = simulation
        self.acked = AckedIsKept()
        self.committed = CommittedOnce()
        self.monotone = WatermarkMonotone()
        self.earned = WatermarkEarned(simulation.faults.min_insync_replicas)
        self.one_leader = OneLeader()
        self.matching = LogMatching()
        self.no_cut = NoCutBelow()
        faults = simulation.faults
        self.metadata = MetadataLine(faults.topic_min_insync_replicas or faults.min_insync_replicas)
        self.deleted = DeletedStaysDeleted()
        self.resigning = ResigningSettles()
        self.giving_way = GivesWay()
        self.answering = AnswersInTime()
        self.taking_writes = TakesWrites()
        self.elections = 0

    def recovered(self, process: ReplicaProcess) -> None:
        """A life begins with the high watermark that an earlier one persisted."""
        machine, log = process.machine, process.log
        if machine is None or machine.high_watermark <= log.start:
            return
        if machine.high_watermark > log.durable_end:
            raise Violation("I4", f"broker {process.broker} kept {machine.high_watermark}, it has {log.durable_end}")
        self.committed.kept(f"broker {process.broker}", machine.high_watermark, log.start, log.entry)

    # ------------------------------------------------------------ after every step of a replica

    def stepped(self, process: ReplicaProcess, machine: ReplicaMachine, event: Event, before: int) -> None:
        """A machine took a step; its effects have not been carried out yet."""
        after = machine.high_watermark
        has_state = isinstance(event, StateReceived | IsrChangeAnswered)
        if after == before and not has_state:
            return
        if machine.role == "leader":
            self.earned.leads(machine.leader_epoch, process.log.end)
            exposed = machine.exposed_high_watermark
            if exposed is not None:
                self.monotone.shown(machine.leader_epoch, exposed)
        if after != before:
            self._watermark_moved(process, machine, before, after)
        if has_state and machine.state is not None:
            self.metadata.applied(process.broker, machine.leader_epoch, machine.state.partition_epoch)

    def _watermark_moved(self, process: ReplicaProcess, machine: ReplicaMachine, before: int, after: int) -> None:
        self.monotone.holds(process.broker, machine.incarnation, machine.leader_epoch, after)
        replica = f"broker {process.broker} ({machine.role} in epoch {machine.leader_epoch})"
        # A restarted log counts everything below its new start as committed; its old entries are about to be dropped.
        known = max(before, machine.log_start_offset)
        self.committed.advanced(replica, machine.leader_epoch, known, after, process.log.entry)
        if machine.role == "leader":
            # A leader learns of a lost log only from the controller, with the life that follows.
            places = machine.state.places if machine.state is not None else ()
            logs = self.simulation.logs
            durable = {int(place.broker): logs[place.broker].promised_end(place.incarnation) for place in places}
            self.earned.advanced(
                machine.leader_epoch, process.broker, len(machine.isr), machine.maximal_isr, after, durable
            )
            state = self.simulation.controller.state
            if state is not None and state.leader_epoch == machine.leader_epoch:
                missing = sorted({*state.isr, *state.elr} - set(machine.maximal_isr))
                if missing:
                    raise Violation("I7", f"{replica} does not count the committed ISR and ELR members {missing}")
                self._members_hold(state)

    def _members_hold(self, state: PartitionState) -> None:
        end = self.committed.end
        for broker in (*state.isr, *state.elr):
            process = self.simulation.processes.get(broker)
            lost = (state.partition, broker) in self.simulation.controller.public.lost_logs
            if process is not None and process.alive and process.machine is not None and not lost:
                log = process.log
                self.committed.member(broker, end, log.start, log.entry)
                if log.durable_end < end:
                    raise Violation(
                        "I7", f"ISR or ELR member {broker} has {log.durable_end} on disk, {end} is committed"
                    )

    def looked(self, process: ReplicaProcess) -> None:
        """A replica has finished its tick."""
        self.giving_way.looked(self.simulation, process)
        self.answering.looked(process)
        self.taking_writes.looked(self.simulation, process)

    # ------------------------------------------------------------ at effects

    def role_changed(self, process: ReplicaProcess, effect: RoleChanged) -> None:
        """A replica leads, follows or rests."""
        if not effect.leading or process.machine is None:
            return
        self.elections += 1
        log = process.log
        self.one_leader.leads(effect.leader_epoch, process.broker, process.machine.incarnation)
        self.committed.led(effect.leader_epoch, log.entry, log.start)
        self.acked.led(effect.leader_epoch, log.start, log.entry)
        self.deleted.holds(f"leader {process.broker}", effect.leader_epoch, log.start)

    def chain_before(self, log: VirtualLog, offset: int) -> int:
        """Return the chain hash that precedes a new entry of a leader's log."""
        previous = log.chain_before(offset)
        # Where a deletion emptied the log, earlier entries are committed, and other replicas may still have them.
        return self.committed.chain_before(offset) if previous is None else previous

    def appended(self, process: ReplicaProcess, offset: int, entries: Sequence[Entry]) -> None:
        """A replica stored entries; their chain is recomputed over its own log."""
        log = process.log
        previous = log.chain_before(offset)
        for at, entry in enumerate(entries, offset):
            chain = entry.chain if previous is None else chained(previous, entry.epoch, entry.value)
            self.matching.stored(process.broker, at, entry, chain)
            previous = chain

    def truncating(self, process: ReplicaProcess, to: int) -> None:
        """A replica is about to truncate its log."""
        machine, log = process.machine, process.log
        if machine is None:
            return
        state = self.simulation.controller.state
        current = state is not None and state.leader_epoch == machine.leader_epoch
        leader = self.simulation.processes.get(machine.state.leader if machine.state else NO_LEADER)
        same_epoch = leader is not None and leader.machine is not None and leader.alive
        if same_epoch and leader is not None and leader.machine is not None:
            same_epoch = leader.machine.role == "leader" and leader.machine.leader_epoch == machine.leader_epoch
        self.no_cut.truncating(
            process.broker,
            to,
            log.end,
            log.entry(to),
            leader.log.entry(to) if same_epoch and leader is not None else None,
            in_isr=current and state is not None and process.broker in state.isr,
            committed=self.committed.end,
        )
        self.simulation.world.log("r{} cuts [{}, {}) in epoch {}", process.broker, to, log.end, machine.leader_epoch)

    def acknowledged(self, process: ReplicaProcess, request: ProduceRequest, offset: int) -> None:
        """A leader acknowledges a batch to its producer."""
        machine = process.machine
        if machine is None:
            return
        if request.acks == 1:
            if process.log.durable_end <= offset:
                raise Violation("I1", f"acks=1 for offset {offset}, {process.log.durable_end} is durable")
            return
        idempotent = request.producer != NO_PRODUCER_ID
        forgotten = self.committed.forgotten_below
        self.acked.acknowledged(
            machine.leader_epoch, offset, request.value, idempotent=idempotent, forgotten_below=forgotten
        )
        for other in self.simulation.processes.values():
            if other.alive and other.machine is not None and other.machine.role == "leader":
                epoch = other.machine.leader_epoch
                found = other.log.entry(offset)
                if (
                    epoch > machine.leader_epoch
                    and offset >= other.log.start
                    and (found is None or found.value != request.value)
                ):
                    raise Violation("I1", f"value {request.value} is acknowledged, and epoch {epoch} is led without it")

    def deletion_answered(self, process: ReplicaProcess, requested: int, low_watermark: int) -> None:
        """A leader reports to a client that everything below a low watermark is deleted."""
        machine, state = process.machine, self.simulation.controller.state
        if machine is None:
            return
        self.simulation.deletions += 1
        self.deleted.answered(machine.leader_epoch, requested, low_watermark, self.committed.end)
        if state is not None:
            self._deleted_everywhere(state)

    def _deleted_everywhere(self, state: PartitionState) -> None:
        """No electable replica has records reported as deleted, as far as it still has its log."""
        for broker in (*state.isr, *state.elr):
            log = self.simulation.logs[broker]
            place = state.place(broker)
            lost = (state.partition, broker) in self.simulation.controller.public.lost_logs
            if place is not None and place.incarnation >= 0 and log.incarnation == place.incarnation and not lost:
                self.deleted.holds(f"ISR or ELR member {broker}", state.leader_epoch, log.start)

    def fetching(self, process: ReplicaProcess, effect: SendFetch) -> None:
        """A follower sends a fetch, which acknowledges everything before its offset."""
        if process.log.durable_end >= effect.fetch_offset:
            self.earned.reported(effect.leader_epoch, process.broker, effect.fetch_offset)

    # ------------------------------------------------------------ elsewhere

    def answered(self, process: ReplicaProcess, shown: int, offset: int, entries: Sequence[Entry]) -> None:
        """A leader answers a consumer: uncommitted records are not visible, and deleted records are not served."""
        end = self.committed.end
        if shown > end or offset + len(entries) > end:
            seen = max(shown, offset + len(entries))
            raise Violation("I3", f"broker {process.broker} shows a consumer {seen}, {end} is committed")
        if process.machine is not None and entries:
            self.deleted.holds("a reader's leader", process.machine.leader_epoch, offset)

    def consumed(self, client: int, leader_epoch: int, offset: int, entries: Sequence[Entry]) -> None:
        """A consumer got records."""
        self.committed.seen(f"consumer {client} in epoch {leader_epoch}", offset, entries)

    def metadata_changed(self, before: PartitionState, after: PartitionState, lost: Collection[int]) -> None:
        """The partition's durable state changed; ``lost`` were replicas without their logs."""
        self.simulation.world.log(
            "controller: leader {} epoch {} isr {} partition epoch {}",
            after.leader,
            after.leader_epoch,
            after.isr,
            after.partition_epoch,
        )
        self.metadata.changed(before, after, lost)
        self.resigning.elected(after)
        self._members_hold(after)
        self._deleted_everywhere(after)

    def finish_without_leader(self) -> None:
        """At the end of a run that lost the only in-sync copy: the loss is real, and the partition has no leader."""
        state = self.simulation.controller.state
        leaders = [process for process in self.simulation.processes.values() if process.leads(state)]
        log = self.simulation.logs[state.isr[0]] if state is not None else None
        if log is None or leaders or log.lost is None:
            raise Violation("L2", f"the log of {state} is given up for lost, and it is not")
        end = self.committed.end
        found = log.entry(end - 1) if end else None
        if (
            state is not None
            and self.simulation.controller.public.lost_logs.get((state.partition, state.isr[0])) == log.identity
        ):
            raise Violation("L2", f"the log of {state} is there again, and unnoticed")
        if not log.restored and found is not None and found.chain == self.committed.entries[end - 1].chain:
            raise Violation("L2", f"the log of {state} is given up for lost, and has all that is committed")

    def finish(self) -> None:
        """At the end, after the heal: the full read contains every acknowledged batch."""
        process = self.simulation.leader()
        if process is None:
            raise Violation("L2", "no replica leads at the end")
        log = process.log
        self.committed.seen("the final read", log.start, log.entries)
        self.acked.finally_read(log.start, log.entries)
        self.deleted.holds("the final read", process.machine.leader_epoch if process.machine else 0, log.start)
        if log.start > self.deleted.wanted:
            raise Violation("I16", f"the log starts at {log.start} in the end, {self.deleted.wanted} was requested")
