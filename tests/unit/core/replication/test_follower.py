"""The follower's rules: copy, acknowledge only durable records, truncate only on its own leader's answer (R1)."""

import pytest

from raylog.base.ids import LeaderEpoch, Offset
from raylog.base.invariants import InvariantBroken
from raylog.core.partition import PartitionState
from raylog.core.replication.events import (
    AppendFailed,
    AppendFetched,
    FetchFailed,
    FollowerAppended,
    ResetLog,
    SendFetch,
    TruncateLog,
)
from tests.unit.core.replication.context import NO_LEADER, SECOND, THIRD, Context, only, partition_state, some


def led_by_second(epoch: int = 1, partition_epoch: int = 1) -> PartitionState:
    return partition_state(leader=SECOND, leader_epoch=epoch, partition_epoch=partition_epoch)


def following(
    *, log_end: int = 0, log_start: int = 0, epochs: tuple[tuple[int, int], ...] = (), epoch: int = 1
) -> tuple[Context, SendFetch]:
    context = Context(log_end=log_end, log_start=log_start, epochs=epochs)
    return context, only(SendFetch, context.notified(led_by_second(epoch)).after_sync)


def test_a_replica_is_deaf_until_its_own_life_is_addressed() -> None:
    context = Context()
    assert not context.notified(led_by_second(), incarnation=9).after_sync
    assert context.machine.role == "idle"
    context.notified(partition_state(leader=SECOND, incarnations={1: 11}))
    assert context.machine.role == "idle"
    assert some(SendFetch, context.notified(led_by_second()).after_sync)


def test_old_states_are_ignored() -> None:
    context = Context()
    context.notified(led_by_second(epoch=4, partition_epoch=9))
    context.notified(partition_state(leader=THIRD, leader_epoch=3, partition_epoch=10))
    context.notified(partition_state(leader=THIRD, leader_epoch=5, partition_epoch=9))
    assert context.machine.leader_epoch == 4


def test_the_first_fetch_reports_the_held_log() -> None:
    _, fetch = following(log_end=12, epochs=((1, 0), (3, 8)), epoch=4)
    assert (fetch.leader, fetch.leader_epoch, fetch.incarnation) == (SECOND, 4, 10)
    assert (fetch.fetch_offset, fetch.last_fetched_epoch) == (12, 3)


def test_records_are_appended_and_acknowledged_only_after_the_sync() -> None:
    context, fetch = following()
    out = context.answered(fetch, end=10, watermark=10)
    assert only(AppendFetched, out.now).request == fetch.request
    out = context.step(
        FollowerAppended(
            cause="c",
            now_ms=1,
            request=fetch.request,
            end_offset=Offset(10),
            epochs=((LeaderEpoch(1), Offset(0)),),
        )
    )
    assert not out.now
    assert only(SendFetch, out.after_sync).fetch_offset == 10
    assert context.machine.high_watermark == 0
    context.synced()
    assert context.machine.high_watermark == 10


def test_where_writing_is_enough_the_watermark_follows_with_the_append() -> None:
    context, fetch = following()
    context.answered(fetch, end=10, watermark=10)
    out = context.step(
        FollowerAppended(cause="c", now_ms=1, request=fetch.request, end_offset=Offset(10), durable=True)
    )
    assert only(SendFetch, out.after_sync).fetch_offset == 10
    assert context.machine.high_watermark == 10


def test_the_watermark_follows_the_leaders_as_far_as_the_own_log_goes() -> None:
    context, fetch = following()
    fetch = context.copied(fetch, 10, epoch=1, watermark=4)
    assert context.machine.high_watermark == 4
    context.answered(fetch, watermark=50)
    assert context.machine.high_watermark == 10


def test_the_watermark_never_falls_with_a_leader_that_knows_less() -> None:
    context, fetch = following()
    fetch = context.copied(fetch, 10, epoch=1, watermark=8)
    context.answered(fetch, watermark=2)
    assert context.machine.high_watermark == 8


def test_answers_to_other_fetches_or_of_other_epochs_are_dropped() -> None:
    """Hole (b): a late copy of a divergence answer cut committed records after the follower had fetched them again."""
    context, first = following(log_end=12, epochs=((1, 0),), epoch=2)
    second = only(SendFetch, context.answered(first, diverging=(1, 8)).after_sync)
    assert context.machine.log_end_offset == 8
    third = context.copied(second, 12, epoch=2)
    out = context.answered(first, diverging=(1, 8))
    assert not out.now
    assert not out.after_sync
    context.answered(third, diverging=(1, 8), epoch=1)
    assert context.machine.log_end_offset == 12


@pytest.mark.parametrize(
    ("epochs", "diverging", "cut"),
    [
        (((1, 0), (2, 10)), (1, 6), 6),  # the leader's epoch 1 is shorter than the follower's
        (((1, 0), (2, 10)), (1, 15), 10),  # the follower's is the shorter one
        (((1, 0), (3, 10)), (2, 14), 10),  # the follower lacks epoch 2: cut to the end of the epoch below it
        (((3, 0),), (1, 7), 0),  # no epoch in common
    ],
)
def test_a_diverging_log_is_cut_where_the_histories_part(
    epochs: tuple[tuple[int, int], ...], diverging: tuple[int, int], cut: int
) -> None:
    context, fetch = following(log_end=20, epochs=epochs, epoch=5)
    out = context.answered(fetch, diverging=diverging)
    assert only(TruncateLog, out.now).to == cut
    assert only(SendFetch, out.after_sync).fetch_offset == cut
    assert context.machine.log_end_offset == context.machine.durable_end_offset == cut


def test_an_epoch_that_wrote_nothing_is_forgotten_by_the_cut() -> None:
    context, fetch = following(log_end=10, epochs=((1, 0), (2, 10)), epoch=3)
    out = context.answered(fetch, diverging=(1, 10))
    assert only(SendFetch, out.after_sync).last_fetched_epoch == 1


def test_histories_that_part_before_the_log_start_throw_the_log_away() -> None:
    context, fetch = following(log_end=20, log_start=10, epochs=((3, 10),), epoch=5)
    out = context.answered(fetch, diverging=(1, 7))
    assert only(ResetLog, out.now).start_offset == 7
    assert context.machine.log_start_offset == 7


def test_cutting_below_the_watermark_is_marked_in_the_story() -> None:
    context, fetch = following()
    context.copied(fetch, 10, epoch=1, watermark=10)
    again = only(SendFetch, context.notified(led_by_second(2, 2)).after_sync)
    context.answered(again, diverging=(1, 5))
    assert context.machine.high_watermark == 5
    assert any("truncated_below_hw" in line for line in context.machine.story)


def test_what_the_leader_no_longer_has_resets_the_log() -> None:
    context, fetch = following(log_end=5, epochs=((1, 0),))
    out = context.step(
        FetchFailed(cause="x", now_ms=1, request=fetch.request, error_code=1, log_start_offset=Offset(30))
    )
    assert only(ResetLog, out.now).start_offset == 30
    again = only(SendFetch, out.after_sync)
    assert (again.fetch_offset, again.last_fetched_epoch) == (30, -1)


def test_a_failed_fetch_is_sent_again_after_a_pause_with_a_new_id() -> None:
    context, fetch = following()
    context.step(FetchFailed(cause="x", now_ms=context.now_ms, request=fetch.request, error_code=1001))
    assert not some(SendFetch, context.ticked(19).after_sync)
    assert only(SendFetch, context.ticked(1).after_sync).request != fetch.request


@pytest.mark.parametrize("error_code", [74, 77])
def test_a_fenced_fetch_waits_for_the_controllers_word(error_code: int) -> None:
    context, fetch = following()
    context.step(FetchFailed(cause="x", now_ms=context.now_ms, request=fetch.request, error_code=error_code))
    assert not some(SendFetch, context.ticked(1_000).after_sync)
    assert some(SendFetch, context.notified(led_by_second(2, 2)).after_sync)


def test_an_unanswered_fetch_is_given_up() -> None:
    context, fetch = following()
    assert not some(SendFetch, context.ticked(4_999).after_sync)
    assert some(SendFetch, context.ticked(1).after_sync)
    assert not context.answered(fetch, end=10).now


def test_a_failed_append_is_fetched_again() -> None:
    context, fetch = following()
    context.answered(fetch, end=10)
    context.step(AppendFailed(cause="x", now_ms=context.now_ms, request=fetch.request))
    assert only(SendFetch, context.ticked(20).after_sync).fetch_offset == 0


def test_a_partition_without_a_leader_stops_the_fetching() -> None:
    context, fetch = following()
    context.notified(partition_state(leader=NO_LEADER, partition_epoch=2))
    assert context.machine.role == "idle"
    assert not context.ticked(10_000).after_sync
    assert not context.answered(fetch, end=10).now


def test_a_follower_becomes_leader_with_what_it_has() -> None:
    context, fetch = following()
    context.copied(fetch, 10, epoch=1, watermark=5)
    context.notified(partition_state(leader_epoch=2, partition_epoch=2))
    assert context.machine.role == "leader"
    assert context.machine.epochs == ((1, 0), (2, 10))
    assert context.machine.high_watermark == 5
    assert context.machine.exposed_high_watermark is None


def test_an_append_that_was_not_requested_is_a_bug() -> None:
    context, _ = following()
    with pytest.raises(InvariantBroken, match="was not requested"):
        context.step(FollowerAppended(cause="c", now_ms=1, request=99, end_offset=Offset(3)))


def test_a_leader_may_not_change_within_a_leader_epoch() -> None:
    context, _ = following()
    with pytest.raises(InvariantBroken, match="leader 3 in the leader epoch 1 of 2"):
        context.notified(partition_state(leader=THIRD, partition_epoch=2))
