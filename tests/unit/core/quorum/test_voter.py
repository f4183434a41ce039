"""Promises, appends and refusals of a voter."""

import pytest

from raylog.base.invariants import InvariantBroken
from raylog.core.outbox import Outbox
from raylog.core.quorum import LogHistory, Span, VoterMachine
from raylog.core.quorum import events as ev
from raylog.core.received import Received
from raylog.protocol.voter import VoterPromiseRequest, VoterReadRequest


def voter(*epochs: int, promised: int = 0, candidate: str = "", trusted: bool = True) -> VoterMachine:
    history = LogHistory()
    history.append([Span(offset, offset + 1, epoch) for offset, epoch in enumerate(epochs)])
    return VoterMachine(history, identity="me", promised=promised, candidate=candidate, trusted=trusted)


def received(
    message: VoterPromiseRequest | VoterReadRequest,
) -> Received[VoterPromiseRequest | VoterReadRequest]:
    return Received(message=message, cause="test", request=1, now_ms=0)


def promise(machine: VoterMachine, epoch: int, candidate: str) -> ev.PromiseReply:
    outbox = machine.step(received(VoterPromiseRequest(epoch, candidate)))
    (reply,) = outbox.after_sync
    assert isinstance(reply, ev.PromiseReply)
    return reply


def append(
    machine: VoterMachine, epoch: int, start: int, previous: int, *spans: Span, committed: int = 0
) -> Outbox[ev.VoterEffect]:
    return machine.step(
        ev.AppendRequested(
            request=1,
            epoch=epoch,
            candidate=f"c{epoch}",
            start=start,
            previous_epoch=previous,
            spans=spans,
            committed=committed,
        )
    )


def matched(outbox: Outbox[ev.VoterEffect]) -> int | None:
    (reply,) = outbox.after_sync
    assert isinstance(reply, ev.AppendReply)
    return reply.matched


def test_one_epoch_is_promised_to_one_candidate_which_may_repeat_it() -> None:
    machine = voter()
    assert promise(machine, 1, "a").granted
    assert not promise(machine, 1, "b").granted
    assert promise(machine, 1, "a").granted
    assert promise(machine, 2, "b").granted
    refusal = promise(machine, 1, "a")
    assert (refusal.granted, refusal.promised) == (False, 2)


def test_a_promise_is_saved_before_its_answer_leaves() -> None:
    outbox = voter().step(received(VoterPromiseRequest(4, "a")))
    assert outbox.now == [ev.SavePromise(epoch=4, candidate="a", trusted=True)]
    assert [type(effect) for effect in outbox.after_sync] == [ev.PromiseReply]


def test_an_append_below_the_promise_changes_nothing() -> None:
    machine = voter(1, promised=5, candidate="c5")
    outbox = append(machine, 4, 1, 1, Span(1, 2, 4))
    assert (outbox.now, matched(outbox), machine.history.end) == ([], None, 1)


def test_an_append_of_a_higher_epoch_is_a_promise_too() -> None:
    machine = voter(1, promised=1, candidate="c1")
    outbox = append(machine, 3, 1, 1, Span(1, 2, 3))
    assert outbox.now == [
        ev.SavePromise(epoch=3, candidate="c3", trusted=True),
        ev.AppendSpans(request=1, first=0),
    ]
    assert matched(outbox) == 2
    assert not promise(machine, 3, "other").granted


def test_batches_that_do_not_follow_are_refused() -> None:
    machine = voter(1, 1, promised=2, candidate="c2")
    assert matched(append(machine, 2, 3, 1, Span(3, 4, 2))) is None
    assert matched(append(machine, 2, 2, 2, Span(2, 3, 2))) is None
    assert machine.history.end == 2


def test_only_what_differs_is_cut() -> None:
    machine = voter(1, 1, 2, 2, promised=2, candidate="c2")
    outbox = append(machine, 3, 1, 1, Span(1, 2, 1), Span(2, 4, 3))
    assert outbox.now[1:] == [ev.TruncateLog(to=2), ev.AppendSpans(request=1, first=1)]
    assert matched(outbox) == 4


def test_a_repeat_or_an_older_request_of_the_epoch_cuts_nothing() -> None:
    machine = voter(1, 1, 1, promised=1, candidate="c1")
    outbox = append(machine, 1, 0, 0, Span(0, 1, 1), Span(1, 2, 1))
    assert (outbox.now, matched(outbox), machine.history.end) == ([], 2, 3)


def test_what_is_committed_is_never_cut() -> None:
    machine = voter(1, 1, promised=1, candidate="c1")
    append(machine, 1, 2, 1, committed=2)
    with pytest.raises(InvariantBroken):
        append(machine, 2, 1, 1, Span(1, 2, 2))


def test_what_a_proposer_writes_first_makes_the_copy_one_that_can_be_lost() -> None:
    machine = voter(trusted=False)
    assert promise(machine, 3, "c3").granted
    assert not machine.trusted
    outbox = append(machine, 3, 0, 0, Span(0, 1, 3))
    assert outbox.now == [
        ev.SavePromise(epoch=3, candidate="c3", trusted=True),
        ev.AppendSpans(request=1, first=0),
    ]
    assert matched(outbox) == 1


def test_only_the_promised_candidate_reads() -> None:
    machine = voter(1, promised=2, candidate="a")
    for epoch, candidate, allowed in ((2, "a", True), (2, "b", False), (1, "a", False), (3, "a", False)):
        (reply,) = machine.step(received(VoterReadRequest(epoch, candidate, 0))).after_sync
        assert isinstance(reply, ev.ReadReply)
        assert reply.allowed is allowed


# ---------------------------------------------------------------- snapshots


def offer(machine: VoterMachine, epoch: int, end: int, end_epoch: int) -> Outbox[ev.VoterEffect]:
    return machine.step(ev.SnapshotOffered(request=1, epoch=epoch, candidate=f"c{epoch}", end=end, end_epoch=end_epoch))


def test_a_snapshot_is_saved_before_the_log_that_it_stands_for_goes() -> None:
    machine = voter(1, 1, 2, promised=2, candidate="c2")
    outbox = offer(machine, 2, 2, 1)
    assert outbox.now == [ev.SaveSnapshot(request=1, end=2, epoch=1), ev.DropPrefix(to=2)]
    assert matched(outbox) == 2
    assert (machine.history.start, machine.history.end) == (2, 3)
    assert matched(append(machine, 2, 3, 2, Span(3, 4, 2))) == 4


def test_a_lagging_or_different_log_continues_behind_the_snapshot() -> None:
    for machine in (voter(1, promised=3), voter(1, 2, 2, promised=3)):
        outbox = offer(machine, 3, 2, 1)
        assert [type(effect) for effect in outbox.now] == [ev.SavePromise, ev.SaveSnapshot, ev.RestartLog]
        assert (machine.history.start, machine.history.end, machine.history.epoch_before(2)) == (2, 2, 1)
        assert matched(append(machine, 3, 2, 1, Span(2, 3, 3))) == 3


def test_an_older_snapshot_changes_nothing() -> None:
    machine = voter(1, 1, 2, promised=2, candidate="c2")
    offer(machine, 2, 2, 1)
    outbox = offer(machine, 2, 1, 1)
    assert (outbox.now, matched(outbox)) == ([], 1)


def test_a_snapshot_is_refused_from_an_older_epoch() -> None:
    outbox = offer(voter(promised=5), 4, 2, 1)
    assert (outbox.now, matched(outbox)) == ([], None)
    assert matched(offer(voter(trusted=False), 4, 2, 1)) == 2


def test_a_snapshot_that_contradicts_what_is_committed_is_a_defect() -> None:
    machine = voter(1, 1, 2, promised=2, candidate="c2")
    append(machine, 2, 3, 2, committed=3)
    with pytest.raises(InvariantBroken):
        offer(machine, 3, 2, 3)


def test_the_answer_to_a_read_has_the_start_of_the_log() -> None:
    machine = voter(1, 1, 2, promised=2, candidate="c2")
    offer(machine, 2, 2, 1)
    outbox = machine.step(received(VoterReadRequest(2, "c2", 0)))
    (reply,) = outbox.after_sync
    assert isinstance(reply, ev.ReadReply)
    assert (reply.allowed, reply.start, reply.end) == (True, 2, 3)
