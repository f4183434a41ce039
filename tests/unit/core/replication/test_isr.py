"""Shrinking and growing the ISR (R2, R3, R4), and proposals whose outcome is unknown."""

import pytest

from raylog.core.replication.events import ProposeIsr
from tests.unit.core.replication.context import ME, SECOND, THIRD, Context, only, partition_state, some


def leading_without_third() -> Context:
    context = Context()
    context.notified(partition_state(isr=(ME, SECOND)))
    context.produced()
    context.fetched_by(SECOND, 10)
    assert context.machine.high_watermark == 10
    return context


def proposal_to_add_third(context: Context) -> ProposeIsr:
    return only(ProposeIsr, context.fetched_by(THIRD, 10).now)


def test_a_member_that_has_lagged_too_long_is_proposed_to_leave() -> None:
    context = Context()
    context.notified(partition_state())
    context.produced()
    context.ticked(20_000)
    context.fetched_by(SECOND, 10)
    assert not some(ProposeIsr, context.ticked(10_000).now)
    proposal = only(ProposeIsr, context.ticked(1).now)
    assert proposal.isr == ((ME, 10), (SECOND, 20))
    assert (proposal.leader_epoch, proposal.partition_epoch) == (1, 1)


def test_a_member_that_has_everything_does_not_lag_however_silent() -> None:
    context = Context()
    context.notified(partition_state(isr=(ME, SECOND), replicas=(ME, SECOND)))
    context.produced()
    context.fetched_by(SECOND, 10)
    assert not some(ProposeIsr, context.ticked(100_000).now)


def test_a_member_caught_up_if_it_reaches_the_end_at_its_last_fetch() -> None:
    context = Context()
    context.notified(partition_state(isr=(ME, SECOND), replicas=(ME, SECOND)))
    for end in range(10, 100, 10):  # always one append behind, never at the very end
        context.produced()
        context.fetched_by(SECOND, end - 10)
        assert not some(ProposeIsr, context.ticked(14_000).now)


def test_a_leaving_member_counts_until_the_controller_agrees() -> None:
    context = Context()
    context.notified(partition_state())
    context.produced()
    context.ticked(20_000)
    context.fetched_by(SECOND, 10)
    proposal = only(ProposeIsr, context.ticked(10_001).now)
    assert context.machine.high_watermark == 0
    context.granted(proposal)
    assert context.machine.isr == (ME, SECOND)
    assert context.machine.high_watermark == 10


def test_a_follower_that_caught_up_is_proposed_with_its_incarnation() -> None:
    proposal = proposal_to_add_third(leading_without_third())
    assert proposal.isr == ((ME, 10), (SECOND, 20), (THIRD, 30))


def test_a_follower_below_the_watermark_may_not_join() -> None:
    assert not some(ProposeIsr, leading_without_third().fetched_by(THIRD, 9).now)


def test_a_follower_below_the_start_of_the_epoch_may_not_join() -> None:
    context = Context(log_end=10, epochs=((0, 0),))
    context.notified(partition_state(isr=(ME, SECOND)))
    assert context.machine.high_watermark == 0
    assert not some(ProposeIsr, context.fetched_by(THIRD, 9, last_epoch=0).now)
    assert some(ProposeIsr, context.fetched_by(THIRD, 10, last_epoch=0).now)


def test_a_follower_registered_as_down_or_as_another_life_may_not_join() -> None:
    context = Context()
    context.notified(partition_state(isr=(ME, SECOND), down=(THIRD,)))
    assert not some(ProposeIsr, context.fetched_by(THIRD, 0).now)
    context.notified(partition_state(isr=(ME, SECOND)))
    assert not some(ProposeIsr, context.fetched_by(THIRD, 0, incarnation=31).now)
    context.notified(partition_state(isr=(ME, SECOND), incarnations={THIRD: 31}))
    assert some(ProposeIsr, context.fetched_by(THIRD, 0, incarnation=31).now)


def test_a_follower_that_goes_on_fetching_stops_counting_as_down() -> None:
    """Found by the simulator: a late copy of a state marked the follower as offline again."""
    context = Context()
    context.notified(partition_state(isr=(ME, SECOND), down=(THIRD,)))
    context.ticked(4_999)
    assert not some(ProposeIsr, context.fetched_by(THIRD, 0).now)
    context.ticked(1)
    assert some(ProposeIsr, context.fetched_by(THIRD, 0).now)


def test_older_places_do_not_bring_back_an_older_life() -> None:
    context = Context()
    context.notified(partition_state(incarnations={THIRD: 31}))
    context.notified(partition_state())
    state = context.machine.state
    assert state is not None
    place = state.place(THIRD)
    assert place is not None
    assert place.incarnation == 31


def test_a_proposed_member_counts_for_the_watermark_at_once() -> None:
    context = leading_without_third()
    proposal_to_add_third(context)
    context.produced()
    context.fetched_by(SECOND, 20)
    assert context.machine.high_watermark == 10
    context.fetched_by(THIRD, 20)
    assert context.machine.high_watermark == 20


def test_only_one_proposal_is_under_way() -> None:
    context = leading_without_third()
    proposal_to_add_third(context)
    context.ticked(31_000)
    assert len(some(ProposeIsr, context.ticked(1).now)) == 0


@pytest.mark.parametrize("error_code", [1001, 7, 41])
def test_a_proposal_of_unknown_outcome_is_repeated_and_keeps_counting(error_code: int) -> None:
    context = leading_without_third()
    proposal = proposal_to_add_third(context)
    context.isr_answered(proposal, error_code)
    assert not some(ProposeIsr, context.ticked(199).now)
    again = only(ProposeIsr, context.ticked(1).now)
    assert again.isr == proposal.isr
    assert again.request != proposal.request
    assert context.machine.maximal_isr == (ME, SECOND, THIRD)


@pytest.mark.parametrize("error_code", [74, 95])
def test_after_a_conflict_the_proposed_member_counts_until_the_next_state(error_code: int) -> None:
    context = leading_without_third()
    context.isr_answered(proposal_to_add_third(context), error_code)
    assert not some(ProposeIsr, context.ticked(1_000).now)
    assert THIRD in context.machine.maximal_isr
    context.notified(partition_state(isr=(ME, SECOND), partition_epoch=2))
    assert THIRD not in context.machine.maximal_isr


def test_an_ineligible_member_counts_until_the_partition_epoch_moved() -> None:
    """An earlier attempt may still be in flight and be accepted later; see InSyncSet.refused."""
    context = leading_without_third()
    context.isr_answered(proposal_to_add_third(context), 107)
    context.produced()
    context.fetched_by(SECOND, 20)
    assert context.machine.high_watermark == 10
    withdrawal = only(ProposeIsr, context.ticked(200).now)
    assert withdrawal.isr == ((ME, 10), (SECOND, 20))
    context.granted(withdrawal)
    assert context.machine.maximal_isr == (ME, SECOND)
    assert context.machine.high_watermark == 20


def test_a_proposal_that_changes_nothing_is_settled_by_its_answer() -> None:
    context = leading_without_third()
    context.isr_answered(proposal_to_add_third(context), 107)
    withdrawal = only(ProposeIsr, context.ticked(200).now)
    context.isr_answered(withdrawal, 0, context.machine.state)
    assert context.machine.maximal_isr == (ME, SECOND)


def test_late_answers_to_earlier_attempts_change_nothing() -> None:
    context = leading_without_third()
    proposal = proposal_to_add_third(context)
    context.isr_answered(proposal, 1001)
    again = only(ProposeIsr, context.ticked(200).now)
    context.isr_answered(proposal, 107)
    assert not some(ProposeIsr, context.ticked(200).now)
    context.granted(again)
    assert context.machine.isr == (ME, SECOND, THIRD)
