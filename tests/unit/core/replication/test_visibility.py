"""Visibility of a leader's log to consumers, and when a parked fetch is answered."""

from raylog.base.errors import NotLeaderOrFollower, OffsetNotAvailable, OffsetOutOfRange, UnknownLeaderEpoch
from raylog.base.ids import EARLIEST, LATEST, MAX_TIMESTAMP
from raylog.core.outbox import Outbox
from raylog.core.replication.consumer_events import (
    AnswerEpochEnd,
    AnswerOffset,
    FetchStillWaits,
    FetchTurnBegan,
    FindTimestamp,
    TryFetch,
)
from raylog.core.replication.events import Effect, RefuseRequest, RequestDropped
from raylog.protocol.replica import OffsetForLeaderEpochRequest
from tests.unit.core.replication.context import ME, SECOND, THIRD, Context, only, partition_state, some


def still_waits(context: Context, tried: TryFetch, *, is_blocked: bool = False) -> Outbox[Effect]:
    return context.step(
        FetchStillWaits(
            cause="fetch", now_ms=context.now_ms, fetch=tried.fetch, tried=tried.upper, is_blocked=is_blocked
        )
    )


def leading(committed: int = 10, end: int = 20) -> Context:
    """A leader of three replicas: all have the records up to ``committed``, only the leader has the rest."""
    context = Context()
    context.notified(partition_state())
    context.produced(committed)
    context.fetched_by(SECOND, committed)
    context.fetched_by(THIRD, committed)
    context.produced(end - committed)
    return context


def refusal(out: Outbox[Effect]) -> type[Exception]:
    return type(only(RefuseRequest, out.now).error)


def test_a_fetch_reads_below_the_high_watermark_only() -> None:
    tried = only(TryFetch, leading().consumer_fetched(4).now)
    assert (tried.upper, tried.exposed, tried.is_last) == (10, 10, False)


def test_blocked_fetches_are_tried_in_their_order_when_their_turn_begins() -> None:
    context = leading()
    tried = [
        only(TryFetch, context.consumer_fetched(offset, wait_ms=wait_ms).now) for offset, wait_ms in ((4, 500), (2, 0))
    ]
    context.consumer_fetched(10)
    for each in tried:
        assert not still_waits(context, each, is_blocked=True).now
    again = some(TryFetch, context.step(FetchTurnBegan(cause="fetch", now_ms=context.now_ms)).now)
    assert [(each.fetch.message.fetch_offset, each.is_last) for each in again] == [(4, False), (2, True)]


def test_a_fetch_at_the_high_watermark_waits_until_that_moves() -> None:
    context = leading()
    assert not context.consumer_fetched(10).now
    context.fetched_by(SECOND, 20)
    tried = only(TryFetch, context.fetched_by(THIRD, 20).now)
    assert tried.upper == 20


def test_a_fetch_that_gets_too_little_is_not_tried_again_for_the_same() -> None:
    context = leading()
    still_waits(context, only(TryFetch, context.consumer_fetched(4).now))
    assert not some(TryFetch, context.ticked(10).now)
    assert only(TryFetch, context.ticked(500).now).is_last


def test_a_fetch_of_a_consumer_that_is_behind_is_tried_at_each_tick() -> None:
    context = leading()
    still_waits(context, only(TryFetch, context.consumer_fetched(4).now), is_blocked=True)
    assert context.machine.next_due_ms(context.now_ms, context.now_ms + 500) == context.now_ms
    assert only(TryFetch, context.ticked(1).now).upper == 10


def test_a_fetch_that_waits_is_refused_when_leading_ends() -> None:
    context = leading()
    context.consumer_fetched(10)
    tried = only(TryFetch, context.consumer_fetched(4).now)
    follows = partition_state(leader=SECOND, leader_epoch=2, partition_epoch=2)
    refused = [effect.request for effect in some(RefuseRequest, context.notified(follows).now)]
    assert tried.fetch.request - 1 in refused
    assert tried.fetch.request not in refused, "the shell has it, and comes back with it"
    assert refusal(still_waits(context, tried)) is NotLeaderOrFollower


def test_a_fetch_is_dropped_with_its_connection() -> None:
    context = leading()
    context.consumer_fetched(10)
    context.step(RequestDropped(cause="gone", now_ms=context.now_ms, request=context.last_request))
    assert context.machine.parked_consumer_fetches == 0


def test_an_offset_outside_the_log_is_refused_with_its_ends() -> None:
    error = only(RefuseRequest, leading().consumer_fetched(21).now).error
    assert isinstance(error, OffsetOutOfRange)
    assert error.details == {"start": 0, "end": 20}


def test_a_request_to_another_leader_epoch_is_refused() -> None:
    assert refusal(leading().consumer_fetched(4, epoch=2)) is UnknownLeaderEpoch


def test_offsets_are_answered_by_what_is_committed() -> None:
    context = leading()
    assert only(AnswerOffset, context.looked_up(EARLIEST).now).offset == 0
    assert only(AnswerOffset, context.looked_up(LATEST).now).offset == 10
    assert only(FindTimestamp, context.looked_up(MAX_TIMESTAMP).now).upper == 10


def test_the_end_is_not_known_before_the_watermark_reaches_this_epoch() -> None:
    context = Context(log_end=10, epochs=((1, 0),), kept=5)
    context.notified(partition_state(leader_epoch=2))
    assert refusal(context.looked_up(LATEST)) is OffsetNotAvailable
    assert only(TryFetch, context.consumer_fetched(0).now).exposed == -1
    assert only(AnswerOffset, context.looked_up(EARLIEST).now).offset == 0


def test_the_end_of_an_epoch_is_answered() -> None:
    context = Context(log_end=10, epochs=((1, 0),))
    context.notified(partition_state(leader_epoch=4, isr=(ME,)))
    answer = only(AnswerEpochEnd, context.send(OffsetForLeaderEpochRequest("t1", 0, 4, 2)).now)
    assert (answer.epoch, answer.end_offset) == (1, 10)
