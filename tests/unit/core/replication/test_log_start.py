"""Deleting records (KIP-107): the leader moves its log start, others follow, the low watermark shows when all have."""

from raylog.base.errors import (
    FencedLeaderEpoch,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    RequestTimedOut,
)
from raylog.base.ids import Offset
from raylog.core.outbox import Outbox
from raylog.core.replication.events import (
    AdvanceLogStart,
    AnswerDeleteRecords,
    AnswerFetch,
    Effect,
    FetchAnswered,
    LogStartAdvanced,
    ProposeIsr,
    RefuseRequest,
    RequestDropped,
    SendFetch,
)
from tests.unit.core.replication.context import ME, SECOND, THIRD, Context, only, partition_state, some


def leading(records: int = 10, *, isr: tuple[int, ...] = (ME, SECOND, THIRD), down: tuple[int, ...] = ()) -> Context:
    """A leader of this many committed records."""
    context = Context()
    context.notified(partition_state(isr=isr, down=down))
    context.produced(records)
    for follower in (SECOND, THIRD):
        if follower not in down:
            fetched(context, follower, records)
    assert context.machine.high_watermark == records
    return context


def fetched(context: Context, follower: int, offset: int, log_start: int = 0) -> Outbox[Effect]:
    """A follower fetches with its log start."""
    return context.fetched_by(follower, offset, last_epoch=1, log_start_offset=Offset(log_start))


def delete_before(context: Context, before: int, *, epoch: int = -1, deadline_in_ms: int = 1_000) -> Outbox[Effect]:
    """A client sends DeleteRecords; the log start moves as the leader's effects require."""
    out = context.deletion_requested(before, epoch=epoch, deadline_in_ms=deadline_in_ms)
    for effect in some(AdvanceLogStart, out.now):
        assert effect.request == context.last_request
        out.extend(moved(context, effect.to))
    return out


def moved(context: Context, to: int) -> Outbox[Effect]:
    return context.notice(LogStartAdvanced, log_start_offset=Offset(to))


def refusal(out: Outbox[Effect]) -> object:
    return only(RefuseRequest, out.now).error


def test_the_call_is_answered_when_the_last_replica_has_followed() -> None:
    context = leading()
    out = delete_before(context, 6)
    request = context.last_request
    assert context.machine.log_start_offset == 6
    assert len(some(AnswerFetch, out.now)) == 2, "the followers that wait learn it at once"
    assert {answer.log_start_offset for answer in some(AnswerFetch, out.now)} == {6}
    assert not some(AnswerDeleteRecords, fetched(context, SECOND, 10, 6).now)
    answer = only(AnswerDeleteRecords, fetched(context, THIRD, 10, 8).now)
    assert (answer.request, answer.low_watermark) == (request, 6)


def test_minus_one_deletes_all_that_is_committed() -> None:
    context = leading()
    context.produced(5)
    delete_before(context, -1)
    assert context.machine.log_start_offset == 10


def test_only_committed_records_can_be_deleted_and_the_refusal_names_them() -> None:
    context = leading()
    context.produced(5)
    for before in (11, 15, -2):
        error = refusal(delete_before(context, before))
        assert isinstance(error, OffsetOutOfRange)
        assert "starts at 0 and is committed up to 10" in error.message
    assert context.machine.log_start_offset == 0


def test_what_is_deleted_already_needs_nothing_but_the_others() -> None:
    context = leading()
    delete_before(context, 6)
    assert not some(AdvanceLogStart, delete_before(context, 3).now)
    fetched(context, SECOND, 10, 6)
    assert len(some(AnswerDeleteRecords, fetched(context, THIRD, 10, 6).now)) == 2
    assert only(AnswerDeleteRecords, delete_before(context, 6).now).low_watermark == 6


def test_a_replica_that_is_down_is_not_waited_for_unless_it_is_in_the_isr() -> None:
    context = leading(isr=(ME, SECOND), down=(THIRD,))
    delete_before(context, 6)
    assert some(AnswerDeleteRecords, fetched(context, SECOND, 10, 6).now)
    context = leading()
    context.notified(partition_state(down=(THIRD,)))
    delete_before(context, 6)
    assert not some(AnswerDeleteRecords, fetched(context, SECOND, 10, 6).now), "broker 3 could still be elected"
    out = context.notified(partition_state(isr=(ME, SECOND), partition_epoch=2, down=(THIRD,)))
    out.extend(context.ticked())
    assert some(AnswerDeleteRecords, out.now)


def test_a_new_life_of_a_follower_has_to_say_again_where_its_log_begins() -> None:
    context = leading()
    fetched(context, SECOND, 10, 6)
    context.notified(partition_state(partition_epoch=2, incarnations={2: 21}))
    delete_before(context, 6)
    assert not some(AnswerDeleteRecords, fetched(context, THIRD, 10, 6).now)


def test_a_replica_joins_the_isr_only_with_our_log_start() -> None:
    context = leading(isr=(ME, SECOND), down=(THIRD,))
    context.notified(partition_state(isr=(ME, SECOND), partition_epoch=2))
    delete_before(context, 6)
    assert not some(ProposeIsr, fetched(context, THIRD, 10, 5).now)
    assert some(ProposeIsr, fetched(context, THIRD, 10, 6).now)


def test_the_deadline_names_the_replicas_behind() -> None:
    context = leading()
    delete_before(context, 6)
    fetched(context, SECOND, 10, 6)
    error = refusal(context.ticked(1_000))
    assert isinstance(error, RequestTimedOut)
    assert "brokers [3]" in error.message
    assert error.details["low_watermark"] == 0
    assert not some(AnswerDeleteRecords, fetched(context, THIRD, 10, 6).now), "answered once"


def test_only_the_current_leader_deletes_once_it_has_a_watermark() -> None:
    context = Context(log_end=10, epochs=((1, 0),))
    assert isinstance(refusal(delete_before(context, 5)), NotLeaderOrFollower)
    context.notified(partition_state(leader_epoch=2))
    assert isinstance(refusal(delete_before(context, 5, epoch=1)), FencedLeaderEpoch)
    assert isinstance(refusal(delete_before(context, 5)), OffsetNotAvailable)


def test_a_request_parked_when_leadership_ends_is_sent_to_the_next_leader() -> None:
    context = leading()
    delete_before(context, 6)
    request = context.last_request
    out = context.notified(partition_state(leader=SECOND, leader_epoch=2, partition_epoch=2))
    assert [item.request for item in some(RefuseRequest, out.now) if isinstance(item.error, NotLeaderOrFollower)] == [
        request
    ]
    context = leading()
    delete_before(context, 6)
    context.step(RequestDropped(cause="gone", now_ms=1, request=context.last_request))
    assert not some(RefuseRequest, context.ticked(2_000).now)


# ---------------------------------------------------------------- followers


def following(log_end: int = 10) -> tuple[Context, SendFetch]:
    context = Context(log_end=log_end, epochs=((1, 0),))
    state = partition_state(leader=SECOND)
    return context, only(SendFetch, context.notified(state).after_sync)


def answered(context: Context, fetch: SendFetch, log_start: int) -> Outbox[Effect]:
    return context.step(
        FetchAnswered(
            cause="a",
            now_ms=context.now_ms,
            request=fetch.request,
            leader_epoch=fetch.leader_epoch,
            high_watermark=Offset(10),
            log_start_offset=Offset(log_start),
            end_offset=fetch.fetch_offset,
        )
    )


def test_a_follower_moves_its_log_start_and_reports_it_in_the_next_fetch() -> None:
    context, fetch = following()
    assert fetch.log_start_offset == 0
    out = answered(context, fetch, 6)
    assert only(AdvanceLogStart, out.now).to == 6
    assert not out.after_sync, "the next fetch must not report what is not durable"
    assert only(SendFetch, moved(context, 6).after_sync).log_start_offset == 6
    assert context.machine.log_start_offset == 6


def test_a_follower_whose_disk_refuses_tries_again() -> None:
    context, fetch = following()
    answered(context, fetch, 6)
    fetch = only(SendFetch, context.ticked(20).after_sync)
    assert fetch.log_start_offset == 0
    assert only(AdvanceLogStart, answered(context, fetch, 6).now).to == 6


def test_a_leader_whose_log_begins_earlier_changes_nothing() -> None:
    context, fetch = following()
    moved(context, 7)
    out = answered(context, fetch, 6)
    assert not out.now
    assert only(SendFetch, out.after_sync).log_start_offset == 7
