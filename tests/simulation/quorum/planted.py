"""Planted bugs in parts of the metadata quorum: the checks of the simulation must notice each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raylog.actors.metadata.quorum_runner import QuorumRunner, _Reading
from raylog.actors.metadata.snapshot import MetadataSnapshot
from raylog.core.ids import LeaderEpoch, Offset
from raylog.core.metadata.records import VotersEntered
from raylog.core.outbox import Outbox
from raylog.core.quorum import Proposer, VoterMachine, majority
from raylog.core.quorum import events as ev
from raylog.core.quorum.election import Choice, Election
from raylog.core.quorum.proposer import ProposerDecision


@dataclass(frozen=True)
class Planted:
    """The parts to plant bugs in."""

    old_entries_by_count: bool = False
    promise_forgotten: bool = False
    longest_log: bool = False
    answer_before_sync: bool = False
    lost_voter_counts: bool = False
    snapshot_of_uncommitted: bool = False
    dropped_before_durable: bool = False
    any_tail_kept: bool = False
    open_without_epoch: bool = False
    start_moved_first: bool = False
    change_before_own_epoch: bool = False
    change_while_pending: bool = False
    two_changes_at_once: bool = False
    old_majority: bool = False
    learner_counts: bool = False
    removed_voter_counts: bool = False
    added_before_caught_up: bool = False
    snapshot_without_members: bool = False
    founders_alone_asked: bool = False
    any_identity_elects: bool = False
    removed_voter_unseats: bool = False
    founder_for_ever: bool = False
    own_end_confirmed: bool = False
    earlier_promises_count: bool = False
    append_promises_nothing: bool = False
    late_read_replaces: bool = False


class CountingProposer(Proposer):
    """Counts entries as committed by number of copies alone, in any epoch (Raft's figure 8)."""

    def _commit(self, decision: ProposerDecision) -> None:
        ends = sorted(self._voters[number].matched for number in self.members)
        needed = majority(len(self.members))
        if len(ends) >= needed and ends[-needed] > self.committed:
            self.committed = ends[-needed]
            decision.now.append(ev.Committed(end=self.committed))


class EagerProposer(Proposer):
    """Takes snapshots of uncommitted records."""

    def _snapshot_taken(self, event: ev.SnapshotTaken, decision: ProposerDecision) -> None:
        self.history.drop_before(event.end)


class Unchecked(Proposer):
    """Enters any configuration at any time; the world must notice."""

    def _enter(self, members: Mapping[int, str], end: int, decision: ProposerDecision) -> None:
        self.before = dict(self.members)
        self.members, self._members_end, self._is_entering = dict(members), end, False


class HastyProposer(Unchecked):
    """Changes the voters before a record of its own epoch is committed (Raft's bug of 2015)."""

    def _may_change(self) -> bool:
        return bool(self._own_end) and self._members_end <= max(self.committed, self._own_end)


class OverlappingProposer(Unchecked):
    """Begins a change while another one is pending."""

    def _may_change(self) -> bool:
        return 0 < self._own_end <= self.committed


class LeapingProposer(Unchecked):
    """Enters all configured voters in one configuration."""

    def _change(self, decision: ProposerDecision) -> None:
        wanted = self._wanted or frozenset()
        ready = {number: self._voters[number].identity for number in wanted if self._is_ready(self._voters[number])}
        free = self.phase == "leading" and self._may_change() and not self._is_entering
        if free and ready and ready != self.members and len(ready) == len(wanted):
            self._is_entering = True
            decision.now.append(ev.EnterVoters(members=ready))


class NostalgicProposer(Unchecked):
    """Commits a change by a majority of the voters before it."""

    def _commit(self, decision: ProposerDecision) -> None:
        entered = self.members
        if self._members_end > self.committed and getattr(self, "before", None):
            self.members = self.before
        super()._commit(decision)
        self.members = entered


class LooseProposer(Unchecked):
    """Counts any broker with the log, whether it votes or not."""

    def _commit(self, decision: ProposerDecision) -> None:
        ends = sorted(voter.matched for voter in self._voters.values() if voter.identity)
        needed = majority(len(self.members))
        if len(ends) >= needed:
            end = ends[-needed]
            if end > self.committed and self.history.epoch_before(end) == self.epoch:
                self.committed = end
                decision.now.append(ev.Committed(end=end))


class GratefulProposer(Unchecked):
    """Continues to send to removed voters, and counts their answers."""

    def _enter(self, members: Mapping[int, str], end: int, decision: ProposerDecision) -> None:
        self.gone = {**getattr(self, "gone", {}), **self.members}
        super()._enter(members, end, decision)

    def _served(self) -> frozenset[int]:
        return super()._served() | frozenset(getattr(self, "gone", {}))

    def _commit(self, decision: ProposerDecision) -> None:
        counted = {**getattr(self, "gone", {}), **self.members}
        needed = majority(len(self.members))
        ends = sorted(self._voters[number].matched for number in counted)
        if len(ends) >= needed:
            end = ends[-needed]
            if end > self.committed and self.history.epoch_before(end) == self.epoch:
                self.committed = end
                decision.now.append(ev.Committed(end=end))


class TrustingProposer(Unchecked):
    """Considers every voter that has answered up to date."""

    def _is_ready(self, voter: object) -> bool:
        return bool(getattr(voter, "identity", ""))


class TouchyProposer(Proposer):
    """Ends when any broker, voter or not, has promised a higher epoch."""

    def _refused(self, number: int, promised: int, decision: ProposerDecision) -> None:
        self.phase = "ended"
        decision.now.append(ev.Fenced(epoch=promised, by=number))


class CarelessVoter(VoterMachine):
    """Keeps a log that reaches behind the snapshot, even if it differs from it."""

    def _put_behind(self, event: ev.SnapshotOffered, outbox: Outbox[ev.VoterEffect]) -> None:
        if self.history.end < event.end:
            super()._put_behind(event, outbox)
            return
        self.history.drop_before(event.end)
        self.history.epochs[0] = (LeaderEpoch(event.end_epoch), Offset(event.end - 1))
        outbox.now.append(ev.DropPrefix(to=event.end))


class BoastfulVoter(VoterMachine):
    """Confirms its whole log, not just the part equal to the proposer's."""

    def _take(self, event: ev.AppendRequested, outbox: Outbox[ev.VoterEffect]) -> int:
        super()._take(event, outbox)
        return self.history.end


class UnboundVoter(VoterMachine):
    """Accepts batches of a higher epoch and can still accept those of lower ones."""

    def _is_from_leader(self, event: ev.AppendRequested | ev.SnapshotOffered, outbox: Outbox[ev.VoterEffect]) -> bool:
        self.trusted = True
        return event.epoch >= self.promised


class StaleElection(Election):
    """Counts promises for epochs of earlier attempts."""

    def new_epoch(self) -> None:
        self.configurations.clear()


class LongestElection(Election):
    """Adopts the longest log, ignoring its epochs."""

    def choice(self) -> Choice | None:
        if self.creates or len(self.grants) < majority(len(self._founders)):
            return super().choice()
        best = max(self.grants.values(), key=lambda grant: (grant.history.end, grant.voter))
        return Choice(best.voter, best.history)

    def confirmed(self, choice: Choice, members: Mapping[int, str]) -> bool:
        counted = [number for number in self.grants if members.get(number) == self.grants[number].identity]
        return self.creates or len(counted) >= majority(len(members))


class FoundersElection(Election):
    """Accepts a majority of the cluster's founders, ignoring the configuration in the log."""

    def confirmed(self, choice: Choice, members: Mapping[int, str]) -> bool:
        counted = [number for number in self._founders if number in self.grants]
        return self.creates or len(counted) >= majority(len(self._founders))


class NumbersElection(Election):
    """Counts a promise by the broker's number, including one of a lost copy."""

    def confirmed(self, choice: Choice, members: Mapping[int, str]) -> bool:
        counted = [number for number in members if number in self.grants]
        return self.creates or len(counted) >= majority(len(members))


def proposer_of(planted: Planted) -> type[Proposer]:
    """Return the proposer, with its planted bug if any."""
    kinds: dict[str, type[Proposer]] = {
        "old_entries_by_count": CountingProposer,
        "snapshot_of_uncommitted": EagerProposer,
        "change_before_own_epoch": HastyProposer,
        "change_while_pending": OverlappingProposer,
        "two_changes_at_once": LeapingProposer,
        "old_majority": NostalgicProposer,
        "learner_counts": LooseProposer,
        "removed_voter_counts": GratefulProposer,
        "added_before_caught_up": TrustingProposer,
        "removed_voter_unseats": TouchyProposer,
    }
    return next((kind for name, kind in kinds.items() if getattr(planted, name)), Proposer)


def election_of(planted: Planted, founders: tuple[int, ...]) -> Election:
    """Return the election, with its planted bug if any."""
    if planted.longest_log:
        return LongestElection(founders)
    if planted.founders_alone_asked:
        return FoundersElection(founders)
    if planted.any_identity_elects:
        return NumbersElection(founders)
    if planted.earlier_promises_count:
        return StaleElection(founders)
    return Election(founders)


class EagerRunner(QuorumRunner):
    """Lets a snapshot replace uncommitted records."""

    def _may_use(self, taken: MetadataSnapshot) -> bool:
        return self.proposer.phase == "leading"


class ForgetfulRunner(QuorumRunner):
    """Reads a snapshot without its configuration."""

    def _finish_reading(self, reading: _Reading) -> None:
        whole = reading.snapshot
        if whole is not None:
            records = [record for record in whole.image().to_records() if not isinstance(record, VotersEntered)]
            reading.snapshot = MetadataSnapshot.of(records, whole.end, whole.epoch, 0)
        super()._finish_reading(reading)


class LateRunner(QuorumRunner):
    """Continues to read a log after it leads with another, and keeps the result."""

    def _won(self, effect: ev.Won) -> None:
        reading = self._reading
        super()._won(effect)
        self._reading = reading


def runner_of(planted: Planted) -> type[QuorumRunner]:
    """Return the runner, with its planted bug if any."""
    kinds: dict[str, type[QuorumRunner]] = {
        "snapshot_of_uncommitted": EagerRunner,
        "snapshot_without_members": ForgetfulRunner,
        "late_read_replaces": LateRunner,
    }
    return next((kind for name, kind in kinds.items() if getattr(planted, name)), QuorumRunner)


def voter_of(planted: Planted) -> type[VoterMachine]:
    """Return the voter, with its planted bug if any."""
    kinds: dict[str, type[VoterMachine]] = {
        "any_tail_kept": CarelessVoter,
        "own_end_confirmed": BoastfulVoter,
        "append_promises_nothing": UnboundVoter,
    }
    return next((kind for name, kind in kinds.items() if getattr(planted, name)), VoterMachine)
