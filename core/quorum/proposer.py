"""The proposer: writes the metadata log through a majority of voters, as one controller in one epoch.

Phases:

- electing: every known broker is sent a promise request.
- adopting: the best log among the promises is read; its last configuration names the voters whose promises count.
- leading: appended batches go to every voter and learner. They are committed when a majority of the configuration has
  them on disk; records of earlier epochs only together with a later record of this epoch (R6).
- ended: fenced, or hopeless.

Leadership is confirmed by a majority (R9): an answer counts for a question if its request was sent after the question.
A configuration is in force once it is in the log; the next one follows only when it, and a record of this epoch, are
committed. A snapshot replaces the log's committed beginning; it is sent to a voter whose log begins earlier, or ends
before the snapshot's end. The proposer has no disk, so all its effects are in ``now``. Driven by the controller's shell
and by the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import assert_never

from raylog.core.decision import Decision, Story
from raylog.core.outbox import Outbox
from raylog.core.quorum.changes import is_single_change, majority, next_members
from raylog.core.quorum.election import Choice, Election
from raylog.core.quorum.events import (
    AppendAnswered,
    Appended,
    BrokersFound,
    Committed,
    Confirmed,
    EnterVoters,
    Fenced,
    HistoryRead,
    HistoryUnreadable,
    Hopeless,
    LeadershipQuestioned,
    PromiseAnswered,
    ProposerEffect,
    ProposerEvent,
    ReadHistory,
    RequestPromise,
    SendAppend,
    SendSnapshot,
    SnapshotTaken,
    Tick,
    VoterSilent,
    VotersWanted,
    Won,
)
from raylog.core.quorum.history import LogHistory


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposerSettings:
    """Times in milliseconds."""

    retry_ms: int = 100
    """Pause before a voter that did not answer, or a higher epoch, is tried again."""
    heartbeat_ms: int = 500
    """Heartbeat interval to a voter, and so how soon a fenced leader learns of its fencing."""
    hopeless_ms: int = 3_000
    """How long a candidate waits for brokers before it concludes that too many copies are lost."""


@dataclass(slots=True)
class _Voter:
    """The proposer's view of one voter. One request is in flight at a time; other answers are ignored."""

    request: int = 0
    """Number of the request in flight; 0 = none is."""
    due_ms: int = 0
    """When the next request is due."""
    start: int = 0
    """First offset to send it next."""
    matched: int = -1
    """End of what is on its disk and equal to this proposer's log; -1 = unknown."""
    held: int = 0
    """Start offset of its log, which is the end of its snapshot."""
    identity: str = ""
    """Empty = no answer in this epoch."""
    is_silent: bool = False
    """Whether its last request was not answered."""
    refuses_since_ms: int | None = None
    """Since when all its answers to appends have shown a promise of a higher epoch; None = the last one did not."""
    questioned: int = 0
    """Number of the newest leadership question when the last request was sent."""
    confirmed: int = 0
    """Number of the newest leadership question that it has confirmed: it had promised no higher epoch."""

    def answered(self, identity: str, held: int) -> None:
        """Note an answer. What is known of an earlier copy under the same number does not hold for another copy."""
        if self.identity != identity:
            self.identity, self.matched, self.refuses_since_ms, self.confirmed = identity, -1, None, 0
        self.held, self.is_silent = held, False


ProposerDecision = Decision[ProposerEffect]


class Proposer:
    """One incarnation of a proposer."""

    def __init__(
        self,
        founders: tuple[int, ...],
        *,
        candidate: str,
        settings: ProposerSettings,
        jitter_ms: int = 0,
    ) -> None:
        """``founders`` get the first requests, and form the first configuration of a new cluster.

        ``candidate`` is a name that no other incarnation has. ``jitter_ms`` keeps two candidates from outbidding one
        another in step.
        """
        self.epoch = 1
        self.phase = "electing"
        self.history = LogHistory()
        self.committed = 0
        self.confirmed = 0
        """Number of the newest leadership question that a majority has confirmed."""
        self._question = 0
        self.members: dict[int, str] = {}
        """The configuration in force: the last one in the log. Not empty once this incarnation has written a batch."""
        self._members_end = 0
        """End of the batch with that configuration, if this incarnation wrote it."""
        self._is_entering = False
        """Whether a configuration change was requested and is not written yet."""
        self._wanted: frozenset[int] | None = None
        """The target voters; None = not known yet."""
        self._voters = {voter: _Voter() for voter in founders}
        self._candidate = candidate
        self._settings = settings
        self._jitter_ms = jitter_ms
        self._election = Election(founders)
        self._reading: Choice | None = None
        """The log that the shell is reading."""
        self._adopted: tuple[Choice, Mapping[int, str]] | None = None
        """The log that the shell has read, and its last configuration."""
        self._is_contested = False
        """Whether a voter has promised this epoch to another candidate: without a majority, retry, do not wait."""
        self._tried_epochs = 1
        self._began_ms: int | None = None
        self._last_request = 0
        self._own_end = 0
        """End of the first batch of this incarnation; 0 = it has written none."""
        self.story = Story()
        """The last events, ticks aside."""

    def step(self, event: ProposerEvent) -> Outbox[ProposerEffect]:
        """Handle one event and return its effects."""
        decision = ProposerDecision(type(event).__name__, event.now_ms, self.story)
        if self.phase == "ended":
            return decision
        if not isinstance(event, Tick):
            self.story.append(event)
        match event:
            case Tick():
                self._tick(decision)
            case PromiseAnswered():
                self._promise_answered(event, decision)
            case AppendAnswered():
                self._append_answered(event, decision)
            case VoterSilent():
                voter = self._voters[event.voter]
                if voter.request == event.request:
                    voter.request, voter.is_silent = 0, True
                    voter.due_ms = decision.now_ms + self._settings.retry_ms
            case HistoryRead():
                self._history_read(event, decision)
            case HistoryUnreadable():
                self._history_unreadable(event, decision)
            case Appended():
                self._appended(event, decision)
            case SnapshotTaken():
                self._snapshot_taken(event, decision)
            case BrokersFound():
                for number in event.brokers - set(self._voters):
                    self._voters[number] = _Voter(due_ms=decision.now_ms)
            case VotersWanted():
                self._wanted = event.voters
                for number in set(self._voters) - event.voters:
                    self._voters[number].refuses_since_ms = None
                for number in event.voters - set(self._voters):
                    self._voters[number] = _Voter(due_ms=decision.now_ms)
                self._change(decision)
            case LeadershipQuestioned():
                self._question = event.question
                for number in sorted(self.members):
                    if self.phase == "leading" and self._voters[number].request == 0:
                        self._send(number, self._voters[number], decision)
            case _:
                assert_never(event)
        return decision

    @property
    def expected(self) -> frozenset[int]:
        """The voters that the log read last names; empty until one was read."""
        return frozenset() if self._adopted is None else frozenset(self._adopted[1])

    @property
    def is_settled(self) -> bool:
        """Whether a leader has nothing under way: every voter and learner has the whole log, and all is committed."""
        return (
            self.phase == "leading"
            and self.committed == self.history.end
            and all(
                voter.request == 0 and not voter.is_silent and voter.matched == self.history.end
                for voter in map(self._voters.__getitem__, self._served())
            )
        )

    # ------------------------------------------------------------ electing and adopting

    def _tick(self, decision: ProposerDecision) -> None:
        self._began_ms = decision.now_ms if self._began_ms is None else self._began_ms
        served = self._served()
        for number, voter in self._voters.items():
            if voter.request == 0 and voter.due_ms <= decision.now_ms:
                if self.phase != "leading" and number not in self._election.grants:
                    self._request_promise(number, voter, decision)
                elif self.phase == "leading" and number in served:
                    self._send(number, voter, decision)
        if self.phase == "electing" and decision.now_ms - self._began_ms >= self._settings.hopeless_ms:
            reason = self._election.hopeless(self._voters)
            if reason:
                self.phase = "ended"
                decision.now.append(Hopeless(reason=reason))

    def _served(self) -> frozenset[int]:
        """Return the voters and the learners."""
        return frozenset(self.members) | (self._wanted or frozenset())

    def _request_promise(self, number: int, voter: _Voter, decision: ProposerDecision) -> None:
        voter.request = self._new_request()
        decision.now.append(
            RequestPromise(
                voter=number,
                request=voter.request,
                epoch=self.epoch,
                candidate=self._candidate,
            )
        )

    def _promise_answered(self, event: PromiseAnswered, decision: ProposerDecision) -> None:
        voter = self._voters[event.voter]
        if voter.request != event.request:
            return
        voter.request = 0
        voter.due_ms = decision.now_ms + self._settings.retry_ms
        voter.answered(event.identity, event.history.start)
        if self.phase == "leading":
            if event.promised > self.epoch:
                self._refused(event.voter, event.promised, decision)
            elif event.voter in self._served():
                voter.start = self.history.common_end(event.history)
                self._send(event.voter, voter, decision)
            return
        if event.granted:
            self._election.grants[event.voter] = event
        highest = max(event.promised, event.history.rank[0])
        if not event.granted and highest >= self.epoch:
            # A minority that promised the same epoch to another candidate does not matter to a majority of promises.
            self._is_contested = True
            if highest > self.epoch or (self._reading is None and self._adopted is None):
                self._outbid(highest, decision)
                return
        self._adopt(decision)

    def _outbid(self, highest: int, decision: ProposerDecision) -> None:
        """Try a higher epoch: at once the first time (voters remember earlier controllers), then with pauses."""
        self.epoch = highest + 1
        self._election.new_epoch()
        self._reading, self._adopted, self._is_contested, self.phase = None, None, False, "electing"
        pause_ms = 0 if self._tried_epochs == 1 else self._settings.retry_ms + self._jitter_ms
        self._tried_epochs += 1
        for voter in self._voters.values():
            voter.request, voter.due_ms = 0, decision.now_ms + pause_ms
            # The identity belongs to the abandoned epoch: the voter may have another one by now.
            voter.identity = ""
        self._tick(decision)

    def _adopt(self, decision: ProposerDecision) -> None:
        """Lead when enough voters have promised; else read the log that may decide, or wait."""
        choice = self._election.choice()
        if choice is None:
            if self._is_contested and self._reading is None:
                self._outbid(self.epoch, decision)
            return
        if self._reading is not None and self._reading.history.rank == choice.history.rank:
            return
        held = self._adopted
        if held is not None and held[0].history.rank == choice.history.rank:
            self._win(*held, decision)
            return
        self._reading, self.phase = choice, "adopting"
        history = choice.history
        decision.now.append(
            ReadHistory(
                source=choice.source,
                epoch=self.epoch,
                candidate=self._candidate,
                end=history.end,
                start=history.start,
                start_epoch=history.epoch_before(history.start),
            )
        )

    def _history_unreadable(self, event: HistoryUnreadable, decision: ProposerDecision) -> None:
        if self.phase != "adopting" or self._reading is None or self._reading.source != event.source:
            return
        if event.promised > self.epoch:
            self._outbid(event.promised, decision)
            return
        # Another majority suffices, and so does this voter once it returns.
        self._reading, self.phase = None, "electing"
        del self._election.grants[event.source]
        self._voters[event.source].due_ms = decision.now_ms + self._settings.retry_ms
        self._adopt(decision)

    def _history_read(self, event: HistoryRead, decision: ProposerDecision) -> None:
        choice = self._reading
        if self.phase != "adopting" or choice is None or choice.source != event.source:
            return
        self._reading, self.phase = None, "electing"
        for number in event.members:
            self._voters.setdefault(number, _Voter(due_ms=decision.now_ms))
        self._adopted = (choice, dict(event.members))
        self._election.configurations[choice.history.rank] = event.members
        self._adopt(decision)

    def _win(self, choice: Choice, members: Mapping[int, str], decision: ProposerDecision) -> None:
        self.history = choice.history.copy()
        self.committed = self.history.start
        self.members = dict(members)
        for number, voter in self._voters.items():
            known = self._election.grants.get(number)
            voter.start = self.history.end if known is None else self.history.common_end(known.history)
            voter.due_ms = decision.now_ms
        self.phase = "leading"
        decision.now.append(Won(epoch=self.epoch, members={} if members else self._election.founding()))

    # ------------------------------------------------------------ leading

    def _appended(self, event: Appended, decision: ProposerDecision) -> None:
        decision.require(self.phase == "leading", "only a leader appends")
        decision.require(
            event.span.epoch == self.epoch and event.span.start == self.history.end, f"{event.span} follows"
        )
        self.history.append([event.span])
        if event.members is not None:
            self._enter(event.members, event.span.end, decision)
        decision.require(bool(self.members), "the first batch of a cluster has its configuration")
        if self._own_end == 0:
            self._own_end = event.span.end
        for number in sorted(self._served()):
            if self._voters[number].request == 0:
                self._send(number, self._voters[number], decision)

    def _enter(self, members: Mapping[int, str], end: int, decision: ProposerDecision) -> None:
        if self.members:
            decision.require(self._may_change(), f"{dict(members)} follows what is committed")
            decision.require(
                is_single_change(self.members, members), f"{dict(members)} is one change of {self.members}"
            )
        self.members, self._members_end, self._is_entering = dict(members), end, False

    def _send(self, number: int, voter: _Voter, decision: ProposerDecision) -> None:
        if self._own_end == 0:
            return  # the first record of this epoch is in flight
        voter.request, voter.questioned = self._new_request(), self._question
        voter.due_ms = decision.now_ms + self._settings.heartbeat_ms
        base = self.history.start
        if voter.identity and min(voter.held, voter.start) < base:
            decision.now.append(
                SendSnapshot(
                    voter=number,
                    request=voter.request,
                    epoch=self.epoch,
                    candidate=self._candidate,
                    end=base,
                    end_epoch=self.history.epoch_before(base),
                )
            )
            return
        start = max(voter.start, base)
        decision.now.append(
            SendAppend(
                voter=number,
                request=voter.request,
                epoch=self.epoch,
                candidate=self._candidate,
                start=start,
                previous_epoch=self.history.epoch_before(start),
                committed=self.committed,
            )
        )

    def _snapshot_taken(self, event: SnapshotTaken, decision: ProposerDecision) -> None:
        decision.require(self.phase == "leading", "only a leader takes snapshots")
        decision.require(
            event.end <= self.committed, f"{event} has only what is committed, which ends at {self.committed}"
        )
        self.history.drop_before(event.end)
        for number in sorted(self._served()):
            if self._voters[number].request == 0:
                self._send(number, self._voters[number], decision)

    def _append_answered(self, event: AppendAnswered, decision: ProposerDecision) -> None:
        voter = self._voters[event.voter]
        if voter.request != event.request or self.phase != "leading":
            return
        voter.request = 0
        voter.answered(event.identity, event.history.start)
        if event.promised > self.epoch:
            voter.due_ms = decision.now_ms + self._settings.heartbeat_ms
            self._refused(event.voter, event.promised, decision)
            return
        voter.refuses_since_ms, voter.confirmed = None, voter.questioned
        self._confirm(decision)
        if event.matched is None:
            at, voter.start = voter.start, self.history.common_end(event.history)
            if voter.start != at or min(voter.held, voter.start) < self.history.start:
                self._send(event.voter, voter, decision)
            else:  # the same append again would be refused again
                voter.due_ms = decision.now_ms + self._settings.retry_ms
            return
        voter.start = voter.matched = max(voter.matched, event.matched)
        self._commit(decision)
        self._change(decision)
        lags = voter.start < self.history.end or voter.held < self.history.start
        if event.voter in self._served() and (lags or voter.confirmed < self._question):
            self._send(event.voter, voter, decision)

    def _refused(self, number: int, promised: int, decision: ProposerDecision) -> None:
        """End when a voter of the configuration has promised a higher epoch.

        Another broker cannot unseat a leader, except a target voter that has refused for ``hopeless_ms``: it takes no
        record of this epoch, so it would never become a voter.
        """
        voter = self._voters[number]
        if self.members.get(number) != voter.identity:
            if self._wanted is None or number not in self._wanted:
                return
            if voter.refuses_since_ms is None:
                voter.refuses_since_ms = decision.now_ms
            if decision.now_ms - voter.refuses_since_ms < self._settings.hopeless_ms:
                return
        self.phase = "ended"
        decision.now.append(Fenced(epoch=promised, by=number))

    def _of_a_majority(self, fact: Callable[[_Voter], int]) -> int:
        """Return the highest value that a majority of the configuration has reached; -1 = too few have answered."""
        found = sorted(
            fact(self._voters[number])
            for number, identity in self.members.items()
            if self._voters[number].identity == identity
        )
        needed = majority(len(self.members))
        return found[-needed] if len(found) >= needed else -1

    def _confirm(self, decision: ProposerDecision) -> None:
        question = self._of_a_majority(lambda voter: voter.confirmed)
        if question > self.confirmed:
            self.confirmed = question
            decision.now.append(Confirmed(question=question))

    def _commit(self, decision: ProposerDecision) -> None:
        end = self._of_a_majority(lambda voter: voter.matched)
        if end > self.committed and self.history.epoch_before(end) == self.epoch:
            self.committed = end
            decision.now.append(Committed(end=end))

    # ------------------------------------------------------------ changes of the configuration

    def _may_change(self) -> bool:
        """No change is pending: a record of this epoch is committed (R6), and so is the last configuration."""
        return 0 < self._own_end <= self.committed and self._members_end <= self.committed

    def _is_ready(self, voter: _Voter) -> bool:
        return bool(voter.identity) and not voter.is_silent and voter.matched >= self.committed

    def _change(self, decision: ProposerDecision) -> None:
        """Request the next configuration, if one is due."""
        if self._is_entering or self.phase != "leading" or not self._may_change():
            return
        members = next_members(
            self.members,
            {number: voter.identity for number, voter in self._voters.items() if voter.identity},
            {number for number, voter in self._voters.items() if self._is_ready(voter)},
            frozenset(self.members) if self._wanted is None else self._wanted,
        )
        if members is not None:
            self._is_entering = True
            decision.now.append(EnterVoters(members=members))

    def _new_request(self) -> int:
        self._last_request += 1
        return self._last_request
