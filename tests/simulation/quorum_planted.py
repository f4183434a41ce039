"""Parts of the metadata quorum that are wrong on purpose: the checks of the simulation have to notice each of them."""

from __future__ import annotations

from dataclasses import dataclass

from raylog.core.outbox import Outbox
from raylog.core.quorum import Proposer, VoterMachine
from raylog.core.quorum import events as ev
from raylog.core.quorum.election import Choice, Election, majority


@dataclass(frozen=True)
class Planted:
    """Which parts are wrong on purpose."""

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


class CountingProposer(Proposer):
    """Believes entries committed by count alone, whatever their epoch (Raft's figure 8)."""

    def _commit(self) -> None:
        ends = sorted(voter.matched for number, voter in self._voters.items() if self._counts(number, voter))
        if len(ends) >= self._majority and ends[-self._majority] > self.committed:
            self.committed = ends[-self._majority]
            self._outbox.now.append(ev.Committed(end=self.committed))


class EagerProposer(Proposer):
    """Takes snapshots of what is not committed."""

    def _snapshot_taken(self, event: ev.SnapshotTaken) -> None:
        self.history.drop_before(event.end)


class CarelessVoter(VoterMachine):
    """Keeps whatever log reaches behind the snapshot, be it another one."""

    def _put_behind(self, event: ev.SnapshotOffered, outbox: Outbox[ev.VoterEffect]) -> None:
        if self.history.end < event.end:
            super()._put_behind(event, outbox)
            return
        self.history.drop_before(event.end)
        self.history.epochs[0] = (event.end_epoch, event.end - 1)
        outbox.now.append(ev.DropPrefix(to=event.end))


class LongestElection(Election):
    """Adopts the longest log, whatever its epochs."""

    def choice(self) -> Choice | None:
        if len(self.grants) < majority(len(self._voters)):
            return None
        best = max(self.grants.values(), key=lambda grant: (grant.history.end, grant.voter))
        return Choice(best.voter, best.history)

    def confirmed(self, choice: Choice, members: object) -> bool:
        return True
