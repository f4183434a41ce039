"""When the passing of time alone requires a tick: shells let a replica rest until then."""

from raylog.core.replication.events import FetchFailed, ProposeIsr, SendFetch
from tests.unit.core.replication.context import ME, SECOND, THIRD, Context, only, partition_state

NEVER = 10**9


def due_in_ms(context: Context) -> int:
    due_ms = context.machine.next_due_ms(context.now_ms, NEVER)
    return NEVER if due_ms == NEVER else due_ms - context.now_ms


def leading() -> Context:
    context = Context()
    context.notified(partition_state())
    return context


def following() -> tuple[Context, SendFetch]:
    context = Context()
    return context, only(SendFetch, context.notified(partition_state(leader=SECOND)).after_sync)


def test_a_replica_without_a_role_and_an_idle_leader_wait_for_nothing() -> None:
    assert due_in_ms(Context()) == NEVER
    assert due_in_ms(leading()) == NEVER


def test_a_leader_waits_for_the_first_deadline_of_those_it_keeps_waiting() -> None:
    context = leading()
    context.produced(deadline_in_ms=1_000)
    context.fetched_by(SECOND, 10, wait_ms=500)
    assert due_in_ms(context) == 500
    context.ticked(500)
    assert due_in_ms(context) == 500, "the fetch was answered, the records still wait"
    context.ticked(500)
    assert due_in_ms(context) == NEVER


def test_a_leader_repeats_a_proposal_that_got_no_answer() -> None:
    context = Context()
    context.notified(partition_state(isr=(ME, SECOND)))
    only(ProposeIsr, context.fetched_by(THIRD, 0, wait_ms=NEVER).now)
    assert 0 < due_in_ms(context) < NEVER
    context.ticked(due_in_ms(context) - 1)
    assert not context.ticked(0).now
    only(ProposeIsr, context.ticked(1).now)


def test_a_follower_waits_for_an_answer_and_retries_a_failure_soon() -> None:
    context, fetch = following()
    patience_ms = due_in_ms(context)
    context.step(FetchFailed(cause="gone", now_ms=context.now_ms, request=fetch.request, error_code=1001))
    assert 0 < due_in_ms(context) < patience_ms
    assert not context.ticked(due_in_ms(context) - 1).after_sync
    only(SendFetch, context.ticked(1).after_sync)
