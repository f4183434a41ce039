"""The leader's rules, one test each (R1 to R5 of the protocol rules; Kafka's produce and fetch semantics)."""

import pytest

from raylog.base.errors import (
    FencedLeaderEpoch,
    KafkaStorageError,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    OutOfOrderSequence,
    RaylogError,
    RecordTooLarge,
    RequestTimedOut,
    StaleBrokerEpoch,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
)
from raylog.base.ids import LeaderEpoch, Offset
from raylog.base.invariants import InvariantBroken
from raylog.core.replication.events import (
    AnswerDiverging,
    AnswerFetch,
    AnswerProduce,
    AppendBatches,
    AppendFailed,
    AssignLeaderEpoch,
    LogStartAdvanced,
    ProposeIsr,
    RefuseRequest,
    RequestDropped,
    RoleChanged,
)
from tests.unit.core.replication.context import ME, NO_LEADER, SECOND, THIRD, Context, only, partition_state, some


def leading(*, min_insync_replicas: int = 2, log_end: int = 0, epochs: tuple[tuple[int, int], ...] = ()) -> Context:
    context = Context(min_insync_replicas=min_insync_replicas, log_end=log_end, epochs=epochs)
    context.notified(partition_state())
    return context


@pytest.fixture
def context() -> Context:
    return leading()


def test_a_new_leader_writes_its_epoch_before_anything_else() -> None:
    context = Context(log_end=7)
    out = context.notified(partition_state(leader_epoch=3))
    assert out.now[0] == AssignLeaderEpoch(cause="test", leader_epoch=LeaderEpoch(3), start_offset=Offset(7))
    assert only(RoleChanged, out.now).leading
    assert context.machine.role == "leader"


def test_a_life_may_not_lead_an_epoch_that_its_log_knows_already() -> None:
    context = Context(log_end=7, epochs=((3, 5),))
    with pytest.raises(InvariantBroken, match="begun by an earlier life"):
        context.notified(partition_state(leader_epoch=3))


def test_acks_all_is_answered_when_every_member_has_it_on_disk(context: Context) -> None:
    context.produced()
    assert not some(AnswerProduce, context.fetched_by(SECOND, 10).now)
    out = context.fetched_by(THIRD, 10)
    assert only(AnswerProduce, out.now).first_offset == 0
    assert context.machine.exposed_high_watermark == 10


def test_nothing_is_committed_beside_eligible_replicas_with_any_minimum() -> None:
    context = leading(min_insync_replicas=1)
    context.notified(partition_state(isr=(ME,), elr=(SECOND,), partition_epoch=2))
    out = context.produced()
    assert not some(AnswerProduce, out.now)
    assert context.machine.high_watermark == 0
    out = context.notified(partition_state(isr=(ME,), partition_epoch=3))
    assert only(AnswerProduce, out.now).first_offset == 0


def test_acks_all_also_waits_for_the_leaders_own_disk(context: Context) -> None:
    context.produced(synced=False)
    context.fetched_by(SECOND, 10)
    assert not some(AnswerProduce, context.fetched_by(THIRD, 10).now)
    assert context.machine.high_watermark == 0
    assert some(AnswerProduce, context.synced().now)


def test_acks_one_is_answered_when_the_leader_has_it_on_disk(context: Context) -> None:
    assert not some(AnswerProduce, context.produced(acks=1, synced=False).now)
    assert some(AnswerProduce, context.synced().now)


def test_acks_zero_is_never_answered(context: Context) -> None:
    assert not some(AnswerProduce, context.produced(acks=0).now)
    idle = Context()
    assert not idle.produce_requested(acks=0).now


def test_a_single_replica_commits_with_its_own_disk() -> None:
    context = Context(min_insync_replicas=1)
    context.notified(partition_state(replicas=(1,), isr=(1,)))
    assert some(AnswerProduce, context.produced().now)


def test_where_writing_is_enough_no_sync_is_waited_for(context: Context) -> None:
    out = context.produced(acks=1, durable=True)
    assert some(AnswerProduce, out.now)
    assert context.machine.durable_end_offset == 10
    context.fetched_by(SECOND, 10)
    context.fetched_by(THIRD, 10)
    assert context.machine.high_watermark == 10


def test_produce_is_refused_where_it_does_not_lead() -> None:
    context = Context()
    assert isinstance(only(RefuseRequest, context.produce_requested().now).error, NotLeaderOrFollower)
    context.notified(partition_state(leader=SECOND))
    assert isinstance(only(RefuseRequest, context.produce_requested().now).error, NotLeaderOrFollower)


def test_produce_is_refused_for_an_older_and_for_a_newer_leader_epoch() -> None:
    context = Context()
    context.notified(partition_state(leader_epoch=5))
    assert isinstance(only(RefuseRequest, context.produce_requested(epoch=4).now).error, FencedLeaderEpoch)
    assert isinstance(only(RefuseRequest, context.produce_requested(epoch=6).now).error, UnknownLeaderEpoch)
    assert some(AppendBatches, context.produce_requested(epoch=5).now)


def test_acks_all_is_refused_before_the_append_below_min_insync_replicas() -> None:
    context = Context(min_insync_replicas=2)
    context.notified(partition_state(isr=(1,)))
    assert isinstance(only(RefuseRequest, context.produce_requested().now).error, NotEnoughReplicas)
    assert some(AppendBatches, context.produce_requested(acks=1).now)


def test_the_watermark_rests_below_min_insync_replicas() -> None:
    context = Context(min_insync_replicas=2)
    context.notified(partition_state(isr=(1,)))
    context.produced(acks=1)
    assert context.machine.high_watermark == 0


def test_an_overdue_request_is_refused_with_the_cause(context: Context) -> None:
    context.produced(deadline_in_ms=100)
    assert isinstance(only(RefuseRequest, context.ticked(100).now).error, RequestTimedOut)
    context.produced(deadline_in_ms=100)
    context.notified(partition_state(isr=(1,), partition_epoch=2))
    assert isinstance(only(RefuseRequest, context.ticked(100).now).error, NotEnoughReplicasAfterAppend)


def test_a_duplicate_waits_for_the_watermark_like_its_first_copy(context: Context) -> None:
    context.produced()
    context.produce_requested()
    assert not some(AnswerProduce, context.appended(0, 10, duplicate=True).now)
    context.fetched_by(SECOND, 10)
    assert len(some(AnswerProduce, context.fetched_by(THIRD, 10).now)) == 2
    assert context.machine.log_end_offset == 10


def test_a_duplicate_below_the_watermark_is_answered_at_once(context: Context) -> None:
    context.produced()
    context.fetched_by(SECOND, 10)
    context.fetched_by(THIRD, 10)
    context.produce_requested()
    assert only(AnswerProduce, context.appended(0, 10, duplicate=True).now).first_offset == 0


def test_a_failed_append_is_refused_with_its_reason(context: Context) -> None:
    context.produce_requested()
    failed = AppendFailed(cause="x", now_ms=1, request=context.last_request)
    assert isinstance(only(RefuseRequest, context.step(failed).now).error, KafkaStorageError)


def refusal(context: Context, error: RaylogError) -> RaylogError:
    context.produce_requested()
    failed = AppendFailed(cause="x", now_ms=1, request=context.last_request, error=error)
    return only(RefuseRequest, context.step(failed).now).error


@pytest.mark.parametrize("error", [OutOfOrderSequence("a hole"), RecordTooLarge("900 bytes")])
def test_a_refusal_is_final_only_when_no_other_log_may_hold_the_batch(context: Context, error: RaylogError) -> None:
    first = refusal(context, error)
    assert isinstance(first, NotEnoughReplicas)
    assert error.message in first.message
    context.fetched_by(SECOND, 0)
    assert isinstance(refusal(context, error), NotEnoughReplicas), "the third may hold it, and lead next"
    context.fetched_by(THIRD, 0)
    assert refusal(context, error) is error


def test_a_replica_that_came_back_may_hold_what_a_leader_refuses(context: Context) -> None:
    for follower in (SECOND, THIRD):
        context.fetched_by(follower, 0)
    context.notified(partition_state(partition_epoch=1, incarnations={SECOND: 10 * SECOND + 1}))
    assert isinstance(refusal(context, OutOfOrderSequence("a hole")), NotEnoughReplicas)


def test_losing_the_leadership_refuses_everything_parked(context: Context) -> None:
    context.produced()
    context.fetched_by(SECOND, 10)
    out = context.notified(partition_state(leader=SECOND, leader_epoch=2, partition_epoch=2))
    refused = some(RefuseRequest, out.now)
    assert len(refused) == 2
    assert all(isinstance(refusal.error, NotLeaderOrFollower) for refusal in refused)


def test_a_partition_without_a_leader_makes_it_idle_in_the_same_epoch(context: Context) -> None:
    context.notified(partition_state(leader=NO_LEADER, partition_epoch=2))
    assert context.machine.role == "idle"
    context.notified(partition_state(partition_epoch=1))
    assert context.machine.role == "idle"


def test_the_watermark_counts_only_reports_of_this_epoch(context: Context) -> None:
    context.produced()
    context.fetched_by(SECOND, 10)
    context.notified(partition_state(leader_epoch=2, partition_epoch=2))
    context.fetched_by(THIRD, 10, epoch=2, last_epoch=1)
    assert context.machine.high_watermark == 0
    context.fetched_by(SECOND, 10, epoch=2, last_epoch=1)
    assert context.machine.high_watermark == 10


def test_the_watermark_is_hidden_until_it_reaches_the_epoch_start() -> None:
    context = leading(log_end=10, epochs=((0, 0),))
    assert context.machine.exposed_high_watermark is None
    context.fetched_by(SECOND, 10, last_epoch=0)
    context.fetched_by(THIRD, 5, last_epoch=0)
    assert context.machine.high_watermark == 5
    assert context.machine.exposed_high_watermark is None
    context.fetched_by(THIRD, 10, last_epoch=0)
    assert context.machine.exposed_high_watermark == 10


def test_late_copies_of_a_fetch_take_nothing_back(context: Context) -> None:
    context.produced()
    context.fetched_by(SECOND, 10)
    context.fetched_by(SECOND, 4)
    context.fetched_by(THIRD, 10)
    assert context.machine.high_watermark == 10


def test_fetches_of_another_epoch_are_refused_and_move_nothing() -> None:
    context = Context()
    context.notified(partition_state(leader_epoch=5))
    context.produced()
    assert isinstance(only(RefuseRequest, context.fetched_by(SECOND, 10, epoch=4).now).error, FencedLeaderEpoch)
    assert isinstance(only(RefuseRequest, context.fetched_by(THIRD, 10, epoch=6).now).error, UnknownLeaderEpoch)
    assert context.machine.high_watermark == 0


def test_fetches_of_an_older_life_are_refused(context: Context) -> None:
    context.fetched_by(SECOND, 0, incarnation=25)
    assert isinstance(only(RefuseRequest, context.fetched_by(SECOND, 0).now).error, StaleBrokerEpoch)
    assert isinstance(only(RefuseRequest, context.fetched_by(THIRD, 0, incarnation=29).now).error, StaleBrokerEpoch)


def test_a_newer_incarnation_begins_without_progress(context: Context) -> None:
    context.produced()
    context.fetched_by(SECOND, 10)
    context.fetched_by(SECOND, 0, incarnation=25)
    context.fetched_by(THIRD, 10)
    assert context.machine.high_watermark == 0


def test_a_broker_without_a_replica_is_refused() -> None:
    error = only(RefuseRequest, leading().fetched_by(9, 0).now).error
    assert isinstance(error, UnknownTopicOrPartition)


def test_a_fetch_below_the_log_start_learns_where_the_log_starts() -> None:
    context = Context(log_end=20, log_start=5, epochs=((0, 5),))
    context.notified(partition_state())
    error = only(RefuseRequest, context.fetched_by(SECOND, 3, last_epoch=0).now).error
    assert isinstance(error, OffsetOutOfRange)
    assert error.details["log_start_offset"] == 5


def test_a_follower_with_epochs_dropped_here_restarts_at_the_log_start() -> None:
    """Found by the simulator: cut to the log start, the follower's unacknowledged records counted as the leader's."""
    context = Context(log_end=20, log_start=5, epochs=((3, 5),))
    context.notified(partition_state(leader_epoch=5))
    for offset in (5, 8):
        error = only(RefuseRequest, context.fetched_by(SECOND, offset, epoch=5, last_epoch=1).now).error
        assert isinstance(error, OffsetOutOfRange)
    assert not some(RefuseRequest, context.fetched_by(SECOND, 5, epoch=5, last_epoch=3).now)


def test_a_diverging_fetch_gets_the_divergence_and_acknowledges_nothing() -> None:
    context = Context(log_end=20, epochs=((1, 0), (3, 12)))
    context.notified(partition_state(leader_epoch=5))
    context.fetched_by(THIRD, 20, epoch=5, last_epoch=3)
    answer = only(AnswerDiverging, context.fetched_by(SECOND, 15, epoch=5, last_epoch=2).now)
    assert (answer.epoch, answer.end_offset) == (1, 12)
    answer = only(AnswerDiverging, context.fetched_by(SECOND, 15, epoch=5, last_epoch=1).now)
    assert (answer.epoch, answer.end_offset) == (1, 12)
    assert context.machine.high_watermark == 0


def test_a_fetch_at_the_end_waits_for_records(context: Context) -> None:
    assert not some(AnswerFetch, context.fetched_by(SECOND, 0).now)
    answer = only(AnswerFetch, context.produced().now)
    assert (answer.fetch_offset, answer.upper) == (0, 10)


def test_a_fetch_at_the_end_is_answered_empty_at_its_deadline(context: Context) -> None:
    context.fetched_by(SECOND, 0, wait_ms=100)
    assert not context.ticked(99).now
    answer = only(AnswerFetch, context.ticked(1).now)
    assert answer.upper == answer.fetch_offset == 0


def test_a_newer_fetch_of_a_follower_replaces_the_parked_one(context: Context) -> None:
    context.fetched_by(SECOND, 0)
    older = context.last_request
    assert only(AnswerFetch, context.fetched_by(SECOND, 0).now).request == older


def test_dropped_requests_are_not_answered(context: Context) -> None:
    context.produced()
    context.step(RequestDropped(cause="d", now_ms=1, request=context.last_request))
    context.fetched_by(SECOND, 10)
    context.step(RequestDropped(cause="d", now_ms=1, request=context.last_request))
    out = context.fetched_by(THIRD, 10)
    assert not some(AnswerProduce, out.now)
    assert not some(AnswerFetch, context.ticked(600).now[:-1])


def test_consumers_are_sent_to_the_leader_of_the_right_epoch() -> None:
    context = Context()
    assert isinstance(context.machine.leadership_error(), NotLeaderOrFollower)
    context.notified(partition_state(leader_epoch=5))
    assert context.machine.leadership_error() is None
    assert context.machine.leadership_error(LeaderEpoch(5)) is None
    assert isinstance(context.machine.leadership_error(LeaderEpoch(4)), FencedLeaderEpoch)
    assert isinstance(context.machine.leadership_error(LeaderEpoch(6)), UnknownLeaderEpoch)


def test_retention_moves_the_log_start() -> None:
    context = leading(min_insync_replicas=1)
    context.produced(acks=1)
    context.fetched_by(SECOND, 10)
    context.fetched_by(THIRD, 10)
    context.step(LogStartAdvanced(cause="r", now_ms=1, log_start_offset=Offset(6)))
    assert context.machine.log_start_offset == 6
    assert context.machine.epochs == ((1, 6),)


def test_a_sync_beyond_the_log_end_is_a_bug_and_carries_the_story(context: Context) -> None:
    with pytest.raises(InvariantBroken, match="orders-0 on 1") as broken:
        context.synced(5)
    assert any("StateReceived" in str(line) for line in broken.value.story)


def test_a_replica_removed_and_added_unseen_loses_its_progress() -> None:
    # Both happened between two states from the controller. A removal ends the leader epoch, so earlier progress,
    # fetches and proposals are void, even if the leader missed states in between.
    context = leading()
    context.fetched_by(SECOND, 0)
    context.fetched_by(THIRD, 0)
    context.produced(10)
    context.fetched_by(THIRD, 10)
    added_again = partition_state(
        leader_epoch=2, partition_epoch=5, isr=(ME, SECOND), incarnations={THIRD: -1}, down=(THIRD,)
    )
    context.notified(added_again)
    out = context.fetched_by(THIRD, 10, incarnation=30, epoch=1)
    assert isinstance(only(RefuseRequest, out.now).error, FencedLeaderEpoch)
    context.fetched_by(THIRD, 10, incarnation=30, epoch=2)
    assert context.machine.high_watermark == 0, "the earlier life is no member"
    assert not some(ProposeIsr, context.ticked(1_000).now), "and cannot become one"
