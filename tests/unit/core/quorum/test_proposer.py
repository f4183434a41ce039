"""Electing, adopting, leading: a proposer's reactions to the voters' answers."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from raylog.base.invariants import InvariantBroken
from raylog.core.quorum import LogHistory, Proposer, ProposerSettings, Span
from raylog.core.quorum import events as ev

NAMES = {1: "x1", 2: "x2", 3: "x3"}


def log(*epochs: int) -> LogHistory:
    history = LogHistory()
    history.append([Span(offset, offset + 1, epoch) for offset, epoch in enumerate(epochs)])
    return history


class Play:
    """A proposer, and the requests that wait for answers."""

    def __init__(self, founders: tuple[int, ...] = (1, 2, 3)) -> None:
        self.proposer = Proposer(founders, candidate="me", settings=ProposerSettings())
        self.sent: dict[int, ev.RequestPromise | ev.SendAppend | ev.SendSnapshot] = {}
        self.others: list[ev.ProposerEffect] = []
        self.feed(ev.Tick(now_ms=0))

    def feed(self, event: ev.ProposerEvent) -> None:
        for effect in self.proposer.step(event).now:
            if isinstance(effect, (ev.RequestPromise, ev.SendAppend, ev.SendSnapshot)):
                self.sent[effect.voter] = effect
            else:
                self.others.append(effect)

    def promise(
        self,
        voter: int,
        history: LogHistory | None = None,
        *,
        promised: int | None = None,
        identity: str | None = None,
        holds_data: bool = False,
        founder: bool = False,
    ) -> None:
        sent = self.sent.pop(voter)
        assert isinstance(sent, ev.RequestPromise)
        granted = promised is None
        self.feed(
            ev.PromiseAnswered(
                now_ms=1,
                voter=voter,
                request=sent.request,
                granted=granted,
                promised=sent.epoch if granted else promised or 0,
                identity=identity or NAMES.get(voter, f"x{voter}"),
                history=history or LogHistory(),
                holds_data=holds_data,
                founder=founder,
            )
        )

    def read(self, members: Mapping[int, str] = NAMES) -> None:
        effect = self.others.pop()
        assert isinstance(effect, ev.ReadHistory)
        self.feed(ev.HistoryRead(now_ms=1, source=effect.source, members=members))

    def append(self, members: Mapping[int, str] | None = None) -> None:
        end = self.proposer.history.end
        span = Span(end, end + 1, self.proposer.epoch)
        self.feed(ev.Appended(now_ms=1, span=span, members=members))

    def answer(
        self,
        voter: int,
        matched: int | None,
        *,
        promised: int | None = None,
        history: LogHistory | None = None,
        identity: str | None = None,
        now_ms: int = 1,
    ) -> None:
        sent = self.sent.pop(voter)
        assert isinstance(sent, (ev.SendAppend, ev.SendSnapshot))
        self.feed(
            ev.AppendAnswered(
                now_ms=now_ms,
                voter=voter,
                request=sent.request,
                promised=promised or sent.epoch,
                identity=identity or NAMES.get(voter, f"x{voter}"),
                matched=matched,
                history=history or LogHistory(),
            )
        )


def leading(one: LogHistory, two: LogHistory) -> Play:
    """Voters 1 and 2 have promised and hold these logs; the record of the new epoch has been written."""
    play = Play()
    promised = max(one.rank[0], two.rank[0])
    play.promise(1, promised=promised)
    for voter, history in ((1, one), (2, two)):
        play.promise(voter, history)
    play.read()
    assert isinstance(play.others.pop(), ev.Won)
    play.append()
    return play


def test_a_refusal_is_answered_with_a_higher_epoch() -> None:
    play = Play()
    play.promise(1, promised=6)
    assert play.proposer.epoch == 7
    assert {sent.epoch for sent in play.sent.values()} == {7}


def test_the_highest_epoch_is_adopted_before_the_longest_log() -> None:
    play = Play()
    play.promise(3, promised=4)
    play.promise(1, log(1, 1, 1, 1))
    play.promise(2, log(1, 4))
    effect = play.others[-1]
    assert isinstance(effect, ev.ReadHistory)
    assert (effect.source, effect.end) == (2, 2)


def test_older_records_are_committed_only_behind_one_of_the_own_epoch() -> None:
    play = leading(log(1, 1), log(1, 1))
    play.answer(1, 2)
    play.answer(2, 2)
    assert play.proposer.committed == 0, "a majority has them, but they are of an older epoch"
    play.answer(1, 3)
    assert play.proposer.committed == 0
    play.answer(2, 3)
    assert play.others == [ev.Committed(end=3)]


def test_a_leader_is_settled_once_every_voter_has_everything() -> None:
    play = leading(log(1), log(1))
    play.promise(3, log(1))
    play.feed(ev.Tick(now_ms=1))
    for voter in (1, 2, 3):
        assert not play.proposer.is_settled, f"voter {voter} has not answered"
        while voter in play.sent:
            play.answer(voter, play.proposer.history.end)
    assert play.proposer.is_settled
    play.append()
    assert not play.proposer.is_settled, "a record is under way"


def test_a_leader_with_a_silent_voter_is_not_settled() -> None:
    play = leading(log(1), log(1))
    play.promise(3, log(1))
    play.feed(ev.Tick(now_ms=1))
    for voter in (1, 2):
        while voter in play.sent:
            play.answer(voter, play.proposer.history.end)
    play.feed(ev.VoterSilent(now_ms=2, voter=3, request=play.sent[3].request))
    assert not play.proposer.is_settled


def test_a_voter_whose_log_parts_is_sent_what_it_lacks_from_there_on() -> None:
    play = leading(log(1, 2), log(1, 1, 1))
    sent = play.sent[2]
    assert isinstance(sent, ev.SendAppend)
    assert (sent.start, sent.previous_epoch) == (1, 1)


def test_a_higher_epoch_ends_a_leader() -> None:
    play = leading(log(1), log(1))
    play.answer(1, None, promised=9)
    assert play.others == [ev.Fenced(epoch=9, by=1)]
    play.feed(ev.Tick(now_ms=10_000))
    assert play.others == [ev.Fenced(epoch=9, by=1)], "nothing is done any more"


def test_an_answer_to_another_request_is_not_believed() -> None:
    play = leading(log(1), log(1))
    for voter in (1, 2):
        play.feed(
            ev.AppendAnswered(
                now_ms=1,
                voter=voter,
                request=1,
                promised=2,
                identity=NAMES[voter],
                matched=2,
                history=log(1),
            )
        )
    assert play.proposer.committed == 0


def test_a_creation_needs_every_founder_and_begins_with_the_voters() -> None:
    play = Play()
    play.promise(1, founder=True)
    play.promise(2, founder=True)
    assert not play.others
    play.promise(3, founder=True)
    play.read({})
    assert play.others.pop() == ev.Won(epoch=1, members=NAMES)
    play.append(members=NAMES)
    assert set(play.sent) == {1, 2, 3}
    play.answer(1, 1)
    assert not play.others
    play.answer(2, 1)
    assert play.others == [ev.Committed(end=1)]


def test_a_directory_that_was_lost_founds_nothing() -> None:
    play = Play(founders=(1,))
    play.promise(1)
    play.feed(ev.Tick(now_ms=1_000))
    assert not play.others, "others may hold the log"
    play.feed(ev.BrokersFound(now_ms=1_000, brokers=frozenset({2, 3})))
    play.feed(ev.Tick(now_ms=1_100))
    play.promise(2, log(1), promised=1)
    play.promise(2, log(1))
    play.read()
    assert not play.others
    play.promise(3, log(1))
    assert play.others == [ev.Won(epoch=2, members={})]


def test_nothing_is_founded_where_any_broker_shows_a_log() -> None:
    play = Play(founders=(1,))
    play.feed(ev.BrokersFound(now_ms=0, brokers=frozenset({2})))
    play.feed(ev.Tick(now_ms=1))
    play.promise(2, log(1), promised=4)
    play.promise(2, log(1))
    assert isinstance(play.others.pop(), ev.ReadHistory)
    play.promise(1, founder=True)
    assert not any(isinstance(effect, ev.Won) for effect in play.others)


def test_a_majority_of_lost_logs_is_hopeless_without_another_broker() -> None:
    play = Play()
    play.promise(1, log(1), promised=1)
    play.promise(1, log(1))
    play.read()
    play.promise(2, identity="new")
    play.promise(3, identity="newer")
    play.feed(ev.Tick(now_ms=2_000))
    assert not play.others, "a broker that was not found yet may have a better log"
    play.feed(ev.Tick(now_ms=4_000))
    effect = play.others[-1]
    assert isinstance(effect, ev.Hopeless)
    assert "brokers 2, 3" in effect.reason


def test_partitions_without_any_metadata_are_hopeless() -> None:
    play = Play()
    for voter in (1, 2, 3):
        play.promise(voter, founder=True, holds_data=voter == 2)
    play.feed(ev.Tick(now_ms=4_000))
    assert isinstance(play.others[-1], ev.Hopeless)


# ---------------------------------------------------------------- changes of the voters


def settled() -> Play:
    """Voters 1, 2 and 3 have all records, and these are committed."""
    play = leading(log(1), log(1))
    play.promise(3, log(1))
    for voter in (1, 2, 3):
        play.answer(voter, 2, history=log(1, 2))
    play.others.clear()
    return play


def changes(play: Play) -> list[Mapping[int, str]]:
    return [effect.members for effect in play.others if isinstance(effect, ev.EnterVoters)]


def test_a_lost_copy_is_replaced_once_the_new_one_has_everything() -> None:
    play = leading(log(1), log(1))
    play.promise(3, identity="new")
    for voter in (1, 2):
        play.answer(voter, 2, history=log(1, 2))
    assert not changes(play)
    play.answer(3, 2, identity="new", history=log(1, 2))
    assert changes(play) == [{1: "x1", 2: "x2"}]
    play.append(members={1: "x1", 2: "x2"})
    play.answer(1, 3)
    assert len(changes(play)) == 1, "the first change is not committed yet"
    play.answer(2, 3)
    play.feed(ev.VotersWanted(now_ms=2, voters=frozenset({1, 2, 3})))
    play.feed(ev.Tick(now_ms=1_000))
    play.answer(3, 3, identity="new", history=log(1, 2, 2))
    assert changes(play)[1:] == [{1: "x1", 2: "x2", 3: "new"}]


def test_a_learner_is_brought_up_to_date_before_it_counts() -> None:
    play = settled()
    play.feed(ev.VotersWanted(now_ms=2, voters=frozenset({1, 2, 4})))
    play.feed(ev.Tick(now_ms=3))
    sent = play.sent[4]
    assert isinstance(sent, ev.SendAppend)
    assert sent.start == 0
    assert not changes(play)
    play.answer(4, 2, history=log(1, 2))
    assert changes(play) == [{**NAMES, 4: "x4"}]
    play.append(members={**NAMES, 4: "x4"})
    play.feed(ev.Tick(now_ms=1_000))
    play.answer(1, 3)
    play.answer(2, 3)
    assert play.proposer.committed == 2, "two of four are no majority"
    play.answer(4, 3, history=log(1, 2, 2))
    assert play.proposer.committed == 3
    assert changes(play)[1:] == [{1: "x1", 2: "x2", 4: "x4"}]


def test_a_removed_voter_neither_counts_nor_unseats_the_leader() -> None:
    play = settled()
    play.feed(ev.VotersWanted(now_ms=2, voters=frozenset({1, 2, 4})))
    play.feed(ev.Tick(now_ms=3))
    play.answer(4, None, promised=99)
    assert not any(isinstance(effect, ev.Fenced) for effect in play.others)
    assert play.proposer.phase == "leading"


def test_a_broker_to_vote_that_refuses_for_long_unseats_the_leader() -> None:
    play = settled()
    play.feed(ev.VotersWanted(now_ms=2, voters=frozenset({1, 2, 4})))
    for now_ms in (3, 1_000, 2_999):
        play.feed(ev.Tick(now_ms=now_ms))
        play.answer(4, None, promised=99, now_ms=now_ms)
        assert play.proposer.phase == "leading"
    play.feed(ev.Tick(now_ms=3_500))
    play.answer(4, None, promised=99, now_ms=3_500)
    assert play.others[-1] == ev.Fenced(epoch=99, by=4)


@pytest.mark.parametrize("change", ["another copy", "not wanted for a while"])
def test_what_another_copy_refused_or_one_not_wanted_does_not_count(change: str) -> None:
    play = settled()
    wanted = ev.VotersWanted(now_ms=2, voters=frozenset({1, 2, 4}))
    play.feed(wanted)
    play.feed(ev.Tick(now_ms=3))
    play.answer(4, None, promised=99, now_ms=3)
    if change == "not wanted for a while":
        play.feed(ev.VotersWanted(now_ms=1_000, voters=frozenset({1, 2})))
        play.feed(replace(wanted, now_ms=1_001))
    play.feed(ev.Tick(now_ms=3_500))
    play.answer(4, None, promised=99, now_ms=3_500, identity="y4" if change == "another copy" else "x4")
    assert play.proposer.phase == "leading"


def test_no_voter_changes_before_a_record_of_this_epoch_is_committed() -> None:
    play = leading(log(1), log(1))
    play.feed(ev.VotersWanted(now_ms=2, voters=frozenset({1, 2})))
    assert not changes(play)
    with pytest.raises(InvariantBroken):
        play.append(members={1: "x1", 2: "x2"})


def test_the_last_configuration_in_the_log_says_whose_promises_are_needed() -> None:
    play = Play(founders=(1,))
    play.promise(1, log(1), promised=1)
    play.promise(1, log(1))
    play.read({2: "x2", 3: "x3", 4: "x4"})
    assert not play.others
    play.feed(ev.Tick(now_ms=1_000))
    play.promise(2, log(1))
    assert not play.others
    play.promise(4, log(1))
    assert play.others == [ev.Won(epoch=2, members={})]


def test_another_log_may_do_where_the_best_one_needs_voters_that_are_away() -> None:
    play = Play()
    play.promise(1, log(1, 2), promised=2)
    play.promise(1, log(1, 2))
    play.read({1: "x1", 4: "x4", 5: "x5"})
    play.promise(2, log(1, 1))
    play.read()
    assert not any(isinstance(effect, ev.Won) for effect in play.others), "1 holds a better log"
    play.promise(3, log(1, 1))
    assert isinstance(play.others[-1], ev.Won)
    assert play.proposer.history.rank == (1, 2)


def test_promises_of_identities_unknown_to_the_adopted_log_do_not_count() -> None:
    play = Play()
    play.promise(1, log(1), promised=1)
    play.promise(1, log(1))
    play.promise(2, log(1))
    play.read({1: "x1", 2: "another", 3: "x3"})
    assert not any(isinstance(effect, ev.Won) for effect in play.others)
    play.promise(3, log(1))
    assert isinstance(play.others[-1], ev.Won)


def test_what_a_voter_was_in_an_epoch_that_was_given_up_is_not_entered() -> None:
    play = Play()
    play.promise(3, log(1), identity="old")
    play.promise(1, promised=5)
    play.promise(1, log(1))
    play.promise(2, log(1))
    play.read({1: "x1", 2: "x2", 3: "new"})
    play.append()
    assert not any(isinstance(effect, ev.EnterVoters) for effect in play.others)


def test_a_late_answer_about_the_adopted_log_does_not_unseat_a_leader() -> None:
    play = leading(log(1), log(1))
    play.feed(ev.HistoryUnreadable(now_ms=2, source=2, promised=9))
    play.feed(ev.HistoryRead(now_ms=2, source=2, members={}))
    play.append()
    assert (play.proposer.phase, play.proposer.history.end) == ("leading", 3)
    assert not play.others


# ---------------------------------------------------------------- snapshots


def behind(start: int, *epochs: int) -> LogHistory:
    """A log of one-record batches whose first ``start`` records are in a snapshot."""
    history = log(*epochs)
    history.drop_before(start)
    return history


def test_the_snapshot_is_read_with_the_log_and_what_is_in_it_is_committed() -> None:
    play = Play()
    play.promise(1, promised=1)
    play.promise(1, behind(2, 1, 1, 1))
    play.promise(2, log(1))
    effect = play.others[-1]
    assert isinstance(effect, ev.ReadHistory)
    assert (effect.source, effect.start, effect.start_epoch, effect.end) == (1, 2, 1, 3)
    play.read()
    assert play.proposer.committed == 2


def test_a_voter_that_lags_behind_the_snapshot_gets_it_and_then_the_tail() -> None:
    play = leading(behind(2, 1, 1, 1), log(1))
    sent = play.sent[2]
    assert isinstance(sent, ev.SendSnapshot)
    assert (sent.end, sent.end_epoch) == (2, 1)
    play.answer(2, 2, history=behind(2, 1, 1))
    sent = play.sent[2]
    assert isinstance(sent, ev.SendAppend)
    assert (sent.start, sent.previous_epoch) == (2, 1)
    play.answer(2, 4, history=behind(2, 1, 1, 1, 2))
    play.answer(1, 4, history=behind(2, 1, 1, 1, 2))
    assert play.others == [ev.Committed(end=4)]


def test_a_snapshot_is_sent_to_voters_with_the_log_that_it_lets_them_drop() -> None:
    play = leading(log(1, 1), log(1, 1))
    for voter in (1, 2):
        play.answer(voter, 3, history=log(1, 1, 2))
    play.feed(ev.SnapshotTaken(now_ms=2, end=3))
    for voter in (1, 2):
        assert isinstance(play.sent[voter], ev.SendSnapshot)
        play.answer(voter, 3, history=behind(3, 1, 1, 2))
    assert not {1, 2} & set(play.sent), "they have everything"
    play.append()
    sent = play.sent[1]
    assert isinstance(sent, ev.SendAppend)
    assert sent.start == 3


def test_a_voter_that_had_more_than_the_snapshot_is_not_sent_it_all_again() -> None:
    play = leading(log(1, 1), log(1, 1))
    play.answer(1, 3, history=log(1, 1, 2))
    play.answer(2, 3, history=log(1, 1, 2))
    play.append()
    play.answer(1, 4, history=log(1, 1, 2, 2))
    play.feed(ev.SnapshotTaken(now_ms=2, end=3))
    play.answer(1, 3, history=behind(3, 1, 1, 2, 2))
    play.append()
    sent = play.sent[1]
    assert isinstance(sent, ev.SendAppend)
    assert sent.start == 4


def test_a_snapshot_of_what_is_not_committed_is_a_defect() -> None:
    play = leading(log(1, 1), log(1, 1))
    play.answer(1, 3)
    with pytest.raises(InvariantBroken):
        play.feed(ev.SnapshotTaken(now_ms=2, end=3))


def test_a_broker_that_never_answered_is_not_sent_the_snapshot_at_once() -> None:
    play = leading(behind(1, 1, 1), log(1))
    play.feed(ev.VoterSilent(now_ms=1, voter=3, request=play.sent.pop(3).request))
    play.feed(ev.Tick(now_ms=1_000))
    first = play.sent[3]
    assert isinstance(first, ev.SendAppend)
    play.answer(3, None, identity="new")
    second = play.sent[3]
    assert isinstance(second, ev.SendSnapshot)
