"""The end of a producer's transaction at a leader, and what an open transaction keeps it from."""

from dataclasses import replace

import pytest

from raylog.base.errors import (
    FencedLeaderEpoch,
    InvalidProducerEpoch,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    RequestTimedOut,
)
from raylog.base.ids import LATEST
from raylog.core.outbox import Outbox
from raylog.core.replication.consumer_events import (
    AnswerOffset,
    DescribeProducers,
    FetchStillWaits,
    FindTimestamp,
    TryFetch,
)
from raylog.core.replication.events import (
    AnswerMarker,
    AppendFailed,
    AppendMarker,
    Effect,
    ProposeSleep,
    RefuseRequest,
    Tick,
)
from raylog.protocol.replica import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    DescribeProducersRequest,
    WriteTxnMarkersRequest,
)
from tests.unit.core.replication.context import SECOND, THIRD, Context, only, partition_state, some


@pytest.fixture
def context() -> Context:
    """A leader of ten records, whose followers have everything."""
    context = Context()
    context.notified(partition_state())
    context.produced(10)
    followers_fetch(context, 10)
    return context


def followers_fetch(context: Context, offset: int) -> Outbox[Effect]:
    out = context.fetched_by(SECOND, offset)
    out.extend(context.fetched_by(THIRD, offset))
    return out


def requested(context: Context, *, epoch: int = -1) -> Outbox[Effect]:
    """The coordinator wants a marker written."""
    return context.send(WriteTxnMarkersRequest("t1", 0, epoch, 7, 1, 3, True, 1_000))


def appended(context: Context, *, duplicate: bool = False) -> Outbox[Effect]:
    """The marker is in the log, or was before."""
    end = context.machine.log_end_offset
    out = context.appended(end, end if duplicate else end + 1, duplicate=duplicate)
    if not duplicate:
        out.extend(context.synced())
    return out


def test_a_marker_is_answered_when_every_in_sync_replica_has_it(context: Context) -> None:
    wanted = only(AppendMarker, requested(context).now)
    assert (wanted.marker.message.producer_id, wanted.leader_epoch) == (7, 1)
    assert not some(AnswerMarker, appended(context).after_sync)
    assert not some(AnswerMarker, context.fetched_by(SECOND, 11).now)
    answer = only(AnswerMarker, context.fetched_by(THIRD, 11).now)
    assert answer.request == wanted.marker.request


def test_a_marker_written_before_is_answered_when_the_end_is_committed(context: Context) -> None:
    """Where it lies is not known any more: somewhere below the end of the log."""
    context.produced(5)
    requested(context)
    assert not some(AnswerMarker, appended(context, duplicate=True).now)
    assert not some(AnswerMarker, followers_fetch(context, 14).now)
    only(AnswerMarker, followers_fetch(context, 15).now)


def test_a_marker_that_is_committed_already_is_answered_at_once(context: Context) -> None:
    requested(context)
    only(AnswerMarker, appended(context, duplicate=True).now)


def test_a_marker_is_refused_by_a_replica_that_does_not_lead() -> None:
    context = Context()
    context.notified(partition_state(leader=SECOND))
    assert isinstance(only(RefuseRequest, requested(context).now).error, NotLeaderOrFollower)


def test_a_marker_for_an_earlier_leader_is_refused(context: Context) -> None:
    assert isinstance(only(RefuseRequest, requested(context, epoch=0).now).error, FencedLeaderEpoch)


def test_a_marker_is_refused_with_too_few_replicas_in_sync() -> None:
    context = Context(min_insync_replicas=2)
    context.notified(partition_state(isr=(1,)))
    assert isinstance(only(RefuseRequest, requested(context).now).error, NotEnoughReplicas)


@pytest.mark.parametrize(
    ("isr", "error"), [((1, 2, 3), RequestTimedOut), ((1,), NotEnoughReplicasAfterAppend)], ids=["slow", "lost"]
)
def test_a_marker_that_takes_too_long_is_refused(
    context: Context, isr: tuple[int, ...], error: type[Exception]
) -> None:
    requested(context)
    appended(context)
    if len(isr) == 1:
        context.notified(partition_state(isr=isr, partition_epoch=2))
    refused = [each for each in some(RefuseRequest, context.ticked(1_001).now) if each.request == context.last_request]
    assert [type(each.error) for each in refused] == [error]


def test_a_marker_that_waits_is_refused_when_leading_ends(context: Context) -> None:
    requested(context)
    appended(context)
    follows = partition_state(leader=SECOND, leader_epoch=2, partition_epoch=2)
    refused = {each.request: each.error for each in some(RefuseRequest, context.notified(follows).now)}
    assert isinstance(refused[context.last_request], NotLeaderOrFollower)


def test_a_marker_that_the_log_refuses_is_answered_with_its_error(context: Context) -> None:
    requested(context)
    refusal = AppendFailed(
        cause="a", now_ms=context.now_ms, request=context.last_request, error=InvalidProducerEpoch("It is fenced.")
    )
    assert isinstance(only(RefuseRequest, context.step(refusal).now).error, InvalidProducerEpoch)


def test_producers_are_described_by_the_leader_alone(context: Context) -> None:
    wanted = DescribeProducersRequest("t1", 0, -1)
    assert only(DescribeProducers, context.send(wanted).now).request == context.last_request
    context.notified(partition_state(leader=SECOND, leader_epoch=2, partition_epoch=2))
    assert isinstance(only(RefuseRequest, context.send(wanted).now).error, NotLeaderOrFollower)


# ------------------------------------------------------------ open transactions


def passed(context: Context, ms: int, *, in_transaction: bool) -> list[ProposeSleep]:
    """Time passes with a transaction open, or not; the followers go on fetching."""
    found: list[ProposeSleep] = []
    end_ms = context.now_ms + ms
    while context.now_ms < end_ms:
        context.now_ms += 500
        tick = Tick(cause="t", now_ms=context.now_ms, in_transaction=in_transaction)
        found += some(ProposeSleep, context.step(tick).now)
        followers_fetch(context, 10)
    return found


def test_a_partition_does_not_sleep_while_a_transaction_is_open(context: Context) -> None:
    context.machine.reconfigure(replace(context.machine.settings, sleep_after_ms=5_000))
    assert not passed(context, 60_000, in_transaction=True)
    assert passed(context, 1_000, in_transaction=False)


def test_a_marker_is_refused_by_a_leader_whose_partition_falls_asleep(context: Context) -> None:
    context.machine.reconfigure(replace(context.machine.settings, sleep_after_ms=5_000))
    assert passed(context, 10_000, in_transaction=False)
    assert isinstance(only(RefuseRequest, requested(context).now).error, NotLeaderOrFollower)


def test_a_leader_with_an_open_transaction_may_doze_for_long(context: Context) -> None:
    """It will not fall asleep: no time is due for that, which would keep its process from being stopped."""
    context.machine.reconfigure(replace(context.machine.settings, sleep_after_ms=5_000))
    passed(context, 10_000, in_transaction=True)
    quiet = context.machine.quiet(10**9)
    assert quiet is not None
    assert quiet.due_ms > context.now_ms


# ------------------------------------------------------------ readers of committed records


def test_a_fetch_behind_an_open_transaction_waits_for_the_high_watermark(context: Context) -> None:
    """The last stable offset moves with it only: what is behind an open transaction is tried again then."""
    tried = only(TryFetch, context.consumer_fetched(4, wait_ms=60_000, level=READ_COMMITTED).now)
    waits = FetchStillWaits(cause="fetch", now_ms=context.now_ms, fetch=tried.fetch, tried=tried.upper)
    assert not context.step(waits).now
    assert not some(TryFetch, context.ticked(500).now)
    requested(context)
    appended(context)
    assert only(TryFetch, followers_fetch(context, 11).now).upper == 11


def test_the_end_and_a_time_are_looked_up_for_the_readers_isolation_level(context: Context) -> None:
    for level in (READ_UNCOMMITTED, READ_COMMITTED):
        found = [context.looked_up(timestamp, level=level).now for timestamp in (LATEST, 5)]
        assert only(AnswerOffset, found[0]).committed_only == (level == READ_COMMITTED)
        assert only(FindTimestamp, found[1]).message.isolation_level == level
