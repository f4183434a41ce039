"""The proposer: writes the metadata log through a majority of voters, as one controller in one epoch.

electing: promises for an epoch from a majority; adopting: the best log among them is read; admitting: at a creation
alone, a majority gets its say before anything is written; leading: what is appended
goes to every voter, and is committed when a majority has it on disk. Entries of earlier epochs are committed only when
one of this epoch behind them is (R6). It has no disk of its own, so all its effects are in ``now``.
A snapshot stands for the log's committed beginning; a voter whose log begins earlier, or ends before it, is sent it.
Driven by the controller's shell and by the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from raylog.core.invariants import require
from raylog.core.outbox import Outbox
from raylog.core.quorum.election import Choice, Election, majority
from raylog.core.quorum.events import (
    AppendAnswered,
    Appended,
    AskPromise,
    Committed,
    EnterVoters,
    Fenced,
    HistoryRead,
    HistoryUnreadable,
    Hopeless,
    PromiseAnswered,
    ProposerEffect,
    ProposerEvent,
    ReadHistory,
    SendAppend,
    SendSnapshot,
    SnapshotTaken,
    Tick,
    VoterSilent,
    Won,
)
from raylog.core.quorum.history import LogHistory


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposerSettings:
    """Times in milliseconds."""

    retry_ms: int = 100
    """Pause before a voter that did not answer, or a higher epoch, is tried again."""
    heartbeat_ms: int = 500
    """How often a voter hears from its leader, and so how soon a fenced leader learns of it."""


@dataclass(slots=True)
class _Voter:
    """What the proposer knows of one voter. One request at a time is under way; other answers are not believed."""

    request: int = 0
    """0 = none is under way."""
    due_ms: int = 0
    start: int = 0
    matched: int = -1
    """End of what is on its disk and equal to ours; -1 = unknown."""
    held: int = 0
    """Where its log begins, behind its snapshot."""
    identity: str = ""
    admitted: bool = False


class Proposer:
    """One life of a proposer."""

    def __init__(
        self,
        voters: tuple[int, ...],
        *,
        candidate: str,
        settings: ProposerSettings,
        floor: LogHistory | None = None,
        jitter_ms: int = 0,
    ) -> None:
        """``candidate`` is a name that no other life has; ``floor`` an older log that the cluster is taken over from.

        ``jitter_ms`` keeps two candidates from outbidding one another in step.
        """
        require(len(voters) % 2 == 1, "the number of voters is odd")
        self.epoch = 1 if floor is None else floor.rank[0] + 1
        self.phase = "electing"
        self.history = LogHistory()
        self.committed = 0
        self._voters = {voter: _Voter() for voter in voters}
        self._majority = majority(len(voters))
        self._candidate = candidate
        self._settings = settings
        self._jitter_ms = jitter_ms
        self._election = Election(voters, floor)
        self._reading: Choice | None = None
        self._tried_epochs = 1
        self._last_request = 0
        self._trusted: dict[int, str] = {}
        """Identities that count from the start: those that the adopted log has, or at a creation those that joined."""
        self._recorded: dict[int, str] = {}
        """Identities as the log has them now; a new one counts when its record, which ends at ..., is committed."""
        self._recorded_end: dict[int, int] = {}
        self._wanted: dict[int, str] = {}
        """Identities as the log shall have them: all in one record, so that the log never has some without others."""
        self._own_end = 0
        self._outbox: Outbox[ProposerEffect] = Outbox()

    def step(self, event: ProposerEvent) -> Outbox[ProposerEffect]:
        """Take one event in and return what is to be done about it."""
        self._outbox = Outbox()
        if self.phase == "ended":
            return self._outbox
        match event:
            case Tick():
                self._tick(event.now_ms)
            case PromiseAnswered():
                self._promise_answered(event)
            case AppendAnswered():
                self._append_answered(event)
            case VoterSilent():
                voter = self._voters[event.voter]
                if voter.request == event.request:
                    voter.request = 0
                    voter.due_ms = event.now_ms + self._settings.retry_ms
            case HistoryRead():
                self._history_read(event)
            case HistoryUnreadable():
                self._history_unreadable(event)
            case Appended():
                self._appended(event)
            case SnapshotTaken():
                self._snapshot_taken(event)
            case _:
                assert_never(event)
        return self._outbox

    # ------------------------------------------------------------ electing and adopting

    def _tick(self, now_ms: int) -> None:
        for number, voter in self._voters.items():
            if voter.request == 0 and voter.due_ms <= now_ms:
                if self.phase == "leading" or (self.phase == "admitting" and not voter.admitted):
                    self._send(number, voter, now_ms)
                elif self.phase != "admitting" and number not in self._election.grants:
                    self._ask(number, voter)

    def _ask(self, number: int, voter: _Voter) -> None:
        voter.request = self._new_request()
        self._outbox.now.append(
            AskPromise(
                voter=number,
                request=voter.request,
                epoch=self.epoch,
                candidate=self._candidate,
            )
        )

    def _promise_answered(self, event: PromiseAnswered) -> None:
        voter = self._voters[event.voter]
        if voter.request != event.request:
            return
        voter.request = 0
        voter.due_ms = event.now_ms + self._settings.retry_ms
        voter.identity, voter.admitted, voter.held = event.identity, event.admitted, event.history.start
        if self.phase == "leading":
            if event.promised > self.epoch:
                self._fenced(event.promised, event.voter)
            else:
                self._enter_new()
                voter.start = self.history.common_end(event.history)
                self._send(event.voter, voter, event.now_ms)
            return
        election = self._election
        if event.granted:
            election.grants[event.voter] = event
        highest = max(event.promised, event.history.rank[0])
        if not event.granted and highest >= self.epoch:
            # With a majority of promises in hand, a minority that promised the same epoch to another is no matter.
            if self._reading is None or highest > self.epoch:
                self._outbid(highest, event.now_ms)
            return
        if election.hopeless:
            self.phase = "ended"
            self._outbox.now.append(Hopeless(reason=election.hopeless))
            return
        self._adopt()

    def _outbid(self, highest: int, now_ms: int) -> None:
        """Try a higher epoch: at once the first time (voters remember earlier controllers), then with pauses."""
        self.epoch = highest + 1
        self._election.new_epoch()
        self._reading, self.phase = None, "electing"
        pause_ms = 0 if self._tried_epochs == 1 else self._settings.retry_ms + self._jitter_ms
        self._tried_epochs += 1
        for voter in self._voters.values():
            voter.request, voter.due_ms = 0, now_ms + pause_ms
            # Who it was belongs to the epoch that is given up: by now it may be another, and the log may say so.
            voter.identity, voter.admitted = "", False
        self._tick(now_ms)

    def _adopt(self) -> None:
        choice = self._election.choice()
        if choice is None or (self._reading is not None and self._reading == choice):
            return
        self._reading, self.phase = choice, "adopting"
        history = choice.history
        self._outbox.now.append(
            ReadHistory(
                source=choice.source,
                epoch=self.epoch,
                candidate=self._candidate,
                end=history.end,
                start=history.start,
                start_epoch=history.epoch_before(history.start),
            )
        )

    def _history_unreadable(self, event: HistoryUnreadable) -> None:
        if self.phase != "adopting" or self._reading is None or self._reading.source != event.source:
            return
        if event.promised > self.epoch:
            self._outbid(event.promised, event.now_ms)
            return
        # Another majority will do, and so will this voter when it is there again.
        self._reading, self.phase = None, "electing"
        del self._election.grants[event.source]
        self._voters[event.source].due_ms = event.now_ms + self._settings.retry_ms
        self._adopt()

    def _history_read(self, event: HistoryRead) -> None:
        choice = self._reading
        if self.phase != "adopting" or choice is None or choice.source != event.source:
            return
        if not self._election.confirmed(choice, event.members):
            # Some of the promises came from voters that do not count any more: the next promise decides.
            self._reading, self.phase = None, "electing"
            return
        self.history = choice.history.copy()
        self.committed = self.history.start
        self._recorded = dict(event.members)
        self._trusted = dict(event.members) or self._election.identities()
        self._wanted = dict(event.members)
        for number, voter in self._voters.items():
            known = self._election.grants.get(number)
            voter.start = self.history.end if known is None else self.history.common_end(known.history)
            voter.due_ms = event.now_ms
        if self._election.creates:
            self.phase = "admitting"
            self._tick(event.now_ms)
        else:
            self._win()

    def _win(self) -> None:
        self.phase = "leading"
        self._outbox.now.append(Won(epoch=self.epoch))

    def _admission_answered(self, event: AppendAnswered, voter: _Voter) -> None:
        """Nothing is written before a majority has its say, so that a creation that ends halfway can begin again."""
        voter.due_ms = event.now_ms + self._settings.retry_ms
        if event.promised > self.epoch:
            self._outbid(event.promised, event.now_ms)
            return
        if event.identity == self._trusted.get(event.voter):
            voter.identity, voter.admitted = event.identity, event.admitted
        if sum(one.admitted for one in self._voters.values()) >= self._majority:
            self._win()

    # ------------------------------------------------------------ leading

    def _appended(self, event: Appended) -> None:
        require(self.phase == "leading", "only a leader appends")
        require(event.span.epoch == self.epoch and event.span.start == self.history.end, f"{event.span} follows")
        self.history.append([event.span])
        if self._own_end == 0:
            self._own_end = event.span.end
        if event.members is not None:
            self._changed_members(event.members, event.span.end)
        for number, voter in self._voters.items():
            if voter.request == 0:
                self._send(number, voter, event.now_ms)
        self._enter_new()

    def _changed_members(self, members: Mapping[int, str], end: int) -> None:
        for number, identity in members.items():
            if self._recorded.get(number) != identity:
                self._recorded_end[number] = end
                if self._trusted.get(number) != identity:
                    self._trusted.pop(number, None)
        self._recorded = dict(members)

    def _send(self, number: int, voter: _Voter, now_ms: int) -> None:
        if self._own_end == 0 and self.phase == "leading":
            return  # the first record of this epoch is on its way
        voter.request = self._new_request()
        voter.due_ms = now_ms + self._settings.heartbeat_ms
        admit = voter.identity if self._may_admit(number, voter) else ""
        base = self.history.start
        if (voter.admitted or admit) and min(voter.held, voter.start) < base:
            self._outbox.now.append(
                SendSnapshot(
                    voter=number,
                    request=voter.request,
                    epoch=self.epoch,
                    candidate=self._candidate,
                    end=base,
                    end_epoch=self.history.epoch_before(base),
                    admit=admit,
                )
            )
            return
        start = max(voter.start, base)
        self._outbox.now.append(
            SendAppend(
                voter=number,
                request=voter.request,
                epoch=self.epoch,
                candidate=self._candidate,
                start=start,
                previous_epoch=self.history.epoch_before(start),
                committed=self.committed,
                admit=admit,
            )
        )

    def _snapshot_taken(self, event: SnapshotTaken) -> None:
        require(self.phase == "leading", "only a leader takes snapshots")
        require(event.end <= self.committed, f"{event} has only what is committed, which ends at {self.committed}")
        self.history.drop_before(event.end)
        for number, voter in self._voters.items():
            if voter.request == 0:
                self._send(number, voter, event.now_ms)

    def _may_admit(self, number: int, voter: _Voter) -> bool:
        """A voter gets its say when the record that names its identity, and with it all before, is committed."""
        if self.phase == "admitting":
            return self._trusted.get(number) == voter.identity
        end = max(self._own_end, self._recorded_end.get(number, 0))
        return self._recorded.get(number) == voter.identity and self.committed >= end

    def _append_answered(self, event: AppendAnswered) -> None:
        voter = self._voters[event.voter]
        if voter.request != event.request or self.phase not in ("admitting", "leading"):
            return
        voter.request = 0
        if self.phase == "admitting":
            self._admission_answered(event, voter)
            return
        if event.promised > self.epoch:
            self._fenced(event.promised, event.voter)
            return
        if voter.identity != event.identity:
            voter.identity, voter.matched = event.identity, -1
        voter.admitted, voter.held = event.admitted, event.history.start
        self._enter_new()
        if event.matched is None:
            at, voter.start = voter.start, self.history.common_end(event.history)
            if event.admitted and voter.start != at:
                self._send(event.voter, voter, event.now_ms)
            else:
                voter.due_ms = event.now_ms + self._settings.retry_ms
            return
        voter.start = voter.matched = max(voter.matched, event.matched)
        self._commit()
        if voter.start < self.history.end or voter.held < self.history.start:
            self._send(event.voter, voter, event.now_ms)

    def _enter_new(self) -> None:
        """Have the log say who counts, whenever a voter shows up with an identity that it does not have."""
        shown = {number: voter.identity for number, voter in self._voters.items() if voter.identity}
        wanted = {**self._wanted, **shown}
        if self._own_end and wanted != self._wanted:
            self._wanted = wanted
            self._outbox.now.append(EnterVoters(members=wanted))

    def _counts(self, number: int, voter: _Voter) -> bool:
        if not voter.admitted or not voter.identity:
            return False
        return self._trusted.get(number) == voter.identity or self._may_admit(number, voter)

    def _commit(self) -> None:
        ends = sorted((voter.matched for number, voter in self._voters.items() if self._counts(number, voter)))
        if len(ends) < self._majority:
            return
        end = ends[-self._majority]
        if end > self.committed and self.history.epoch_before(end) == self.epoch:
            self.committed = end
            self._outbox.now.append(Committed(end=end))

    def _fenced(self, epoch: int, by: int) -> None:
        self.phase = "ended"
        self._outbox.now.append(Fenced(epoch=epoch, by=by))

    def _new_request(self) -> int:
        self._last_request += 1
        return self._last_request
