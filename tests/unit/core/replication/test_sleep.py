"""A leader proposes that its partition sleeps when nothing is used and every replica has everything on disk."""

from dataclasses import replace

import pytest

from raylog.base.errors import IneligibleReplica, NotLeaderOrFollower
from raylog.base.ids import LATEST, LeaderEpoch, Offset, PartitionEpoch
from raylog.core.outbox import Outbox
from raylog.core.partition import PartitionState, ReplicaPlace, SleepPoint
from raylog.core.replication.consumer_events import TryFetch
from raylog.core.replication.events import (
    AppendBatches,
    Effect,
    ProposeIsr,
    ProposeSleep,
    RefuseRequest,
    RoleChanged,
    SendFetch,
    SleepAnswered,
)
from raylog.core.replication.idleness import LINK_BROKEN
from tests.unit.core.replication.context import ME, SECOND, THIRD, Context, only, partition_state, some

AFTER_MS = 60_000
POINT = SleepPoint(
    log_start_offset=Offset(0), end_offset=Offset(10), last_epoch=LeaderEpoch(1), oldest_ms=5, size_bytes=100
)


def sleepy(after_ms: int = AFTER_MS) -> Context:
    """A replica of a partition that sleeps after a time without use."""
    context = Context()
    context.machine.reconfigure(replace(context.machine._settings, sleep_after_ms=after_ms))
    return context


def settled(after_ms: int = AFTER_MS) -> Context:
    """A leader with ten records, which all three replicas have on disk."""
    context = sleepy(after_ms)
    context.notified(partition_state())
    context.produced(10)
    followers_fetch(context)
    return context


def followers_fetch(context: Context, offset: int = 10, *followers: int) -> None:
    for follower in followers or (SECOND, THIRD):
        context.fetched_by(follower, offset, wait_ms=10)


def after(context: Context, ms: int, *, step_ms: int = 500) -> list[ProposeSleep]:
    """Time passes, while the followers go on fetching; returns the proposals to sleep."""
    found = []
    end_ms = context.now_ms + ms
    while context.now_ms < end_ms:
        found += some(ProposeSleep, context.ticked(min(step_ms, end_ms - context.now_ms)).now)
        followers_fetch(context)
    return found


def proposing() -> tuple[Context, ProposeSleep]:
    context = settled()
    [proposal] = after(context, AFTER_MS)
    return context, proposal


def answer(
    context: Context, proposal: ProposeSleep, error_code: int, state: PartitionState | None = None
) -> Outbox[Effect]:
    return context.step(
        SleepAnswered(cause="sa", now_ms=context.now_ms, request=proposal.request, error_code=error_code, state=state)
    )


def asleep(context: Context) -> PartitionState:
    held = context.machine.state
    assert held is not None
    places = tuple(ReplicaPlace(broker=place.broker, incarnation=place.incarnation) for place in held.places)
    epoch = PartitionEpoch(held.partition_epoch + 1)
    return replace(held, asleep=POINT, places=places, partition_epoch=epoch)


def is_writable(context: Context) -> bool:
    return bool(some(AppendBatches, context.produce_requested().now))


# ---------------------------------------------------------------- when it proposes


def test_a_leader_proposes_to_sleep_after_the_time_without_use() -> None:
    context = settled()
    assert after(context, AFTER_MS - 1) == []
    [proposal] = after(context, 1)
    assert (proposal.leader_epoch, proposal.partition_epoch) == (1, 1)
    assert (proposal.log_start_offset, proposal.end_offset, proposal.last_epoch) == (0, 10, 1)


def test_an_empty_log_sleeps_too_and_has_no_last_epoch() -> None:
    context = sleepy()
    context.notified(partition_state())
    followers_fetch(context, 0)
    context.ticked(AFTER_MS - 500)
    followers_fetch(context, 0)
    proposal = only(ProposeSleep, context.ticked(500).now)
    assert (proposal.end_offset, proposal.last_epoch) == (0, -1)


def test_a_follower_never_proposes_nor_a_leader_that_never_sleeps() -> None:
    assert after(settled(-1), 2 * AFTER_MS) == []
    context = sleepy()
    fetch = only(SendFetch, context.notified(partition_state(leader=SECOND)).after_sync)
    assert fetch.leader == SECOND
    assert some(ProposeSleep, context.ticked(2 * AFTER_MS).now) == []


def test_a_record_begins_the_time_again() -> None:
    context = settled()
    after(context, AFTER_MS - 1_000)
    context.produced(0)
    assert after(context, AFTER_MS - 1) == []
    assert len(after(context, 1)) == 1


def test_reading_begins_the_time_again_and_waiting_at_the_end_does_not() -> None:
    context = settled()
    after(context, AFTER_MS - 1_000)
    context.consumer_fetched(10)
    assert len(after(context, 1_000)) == 1
    context = settled()
    after(context, AFTER_MS - 1_000)
    context.consumer_fetched(9)
    assert after(context, AFTER_MS - 1) == []


def test_looking_for_a_time_is_use_and_looking_for_the_end_is_not() -> None:
    context = settled()
    after(context, AFTER_MS - 1_000)
    context.looked_up(LATEST)
    assert len(after(context, 1_000)) == 1
    context = settled()
    after(context, AFTER_MS - 1_000)
    context.looked_up(5)
    assert after(context, AFTER_MS - 1) == []


def test_no_leader_proposes_while_a_replica_is_out_of_sync() -> None:
    context = settled()
    context.notified(partition_state(isr=(ME, SECOND), partition_epoch=2))
    context.ticked(2 * AFTER_MS)
    assert some(ProposeSleep, context.ticked(500).now) == []


def test_no_leader_proposes_while_a_follower_lacks_a_record() -> None:
    context = settled()
    context.produced(1)
    followers_fetch(context, 11, SECOND)
    followers_fetch(context, 10, THIRD)
    assert after(context, 500) == []
    quiet = settled()
    quiet.produced(1, synced=False)
    followers_fetch(quiet, 11)
    assert some(ProposeSleep, quiet.ticked(AFTER_MS).now) == [], "nor while its own disk does"


def test_no_leader_proposes_while_an_isr_change_is_under_way() -> None:
    context = sleepy(1_000)
    context.notified(partition_state(isr=(ME, SECOND)))
    followers_fetch(context, 0, SECOND)
    only(ProposeIsr, context.fetched_by(THIRD, 0).now)
    assert some(ProposeSleep, context.ticked(1_500).now) == []


def test_no_leader_proposes_while_a_reassignment_moves_it() -> None:
    context = sleepy(1_000)
    context.notified(replace(partition_state(), removing=(THIRD,)))
    followers_fetch(context, 0)
    assert some(ProposeSleep, context.ticked(1_500).now) == []


# ---------------------------------------------------------------- while a proposal is under way


def test_no_record_is_taken_while_a_proposal_is_under_way() -> None:
    context, _ = proposing()
    out = context.produce_requested()
    assert not some(AppendBatches, out.now)
    assert isinstance(only(RefuseRequest, out.now).error, NotLeaderOrFollower)
    assert not context.produce_requested(acks=0).now, "such a client awaits no answer"


def test_no_record_is_deleted_while_a_proposal_is_under_way() -> None:
    context, _ = proposing()
    assert isinstance(only(RefuseRequest, context.deletion_requested(5).now).error, NotLeaderOrFollower)


def test_records_are_read_while_a_proposal_is_under_way() -> None:
    context, _ = proposing()
    only(TryFetch, context.consumer_fetched(0).now)


def test_a_proposal_is_repeated_until_it_is_answered() -> None:
    context, proposal = proposing()
    assert after(context, 2 * context.machine._settings.fetch_timeout_ms)[0] == proposal


def test_a_refused_leader_takes_records_again() -> None:
    context, proposal = proposing()
    answer(context, proposal, IneligibleReplica.code)
    assert is_writable(context)


@pytest.mark.parametrize("code", [LINK_BROKEN, 74])
def test_a_leader_of_unknown_outcome_takes_none_and_proposes_again(code: int) -> None:
    context, proposal = proposing()
    answer(context, proposal, code)
    assert not is_writable(context)
    assert proposal in after(context, 1_000)


def test_a_proposal_that_another_state_has_overtaken_is_dropped() -> None:
    context, _ = proposing()
    context.notified(partition_state(partition_epoch=2))
    assert is_writable(context)


def test_a_state_that_only_places_a_replica_overtakes_nothing() -> None:
    """The places are no part of the condition: the controller may still agree."""
    context, _ = proposing()
    context.notified(partition_state(incarnations={THIRD: 31}))
    assert not is_writable(context)


# ---------------------------------------------------------------- asleep


@pytest.mark.parametrize("is_answer", [True, False])
def test_the_role_ends_with_the_state_that_sleeps(is_answer: bool) -> None:
    context, proposal = proposing()
    state = asleep(context)
    out = answer(context, proposal, 0, state) if is_answer else context.notified(state)
    assert not only(RoleChanged, out.now).leading
    assert isinstance(only(RefuseRequest, context.produce_requested().now).error, NotLeaderOrFollower)
    assert some(ProposeSleep, context.ticked(2 * AFTER_MS).now) == []


def test_a_fetch_that_waits_at_the_end_is_refused_when_it_falls_asleep() -> None:
    """Its consumer looks for the leader, and waits at the broker from then on."""
    context, _ = proposing()
    context.consumer_fetched(10)
    out = context.notified(asleep(context))
    assert context.last_request in [refused.request for refused in some(RefuseRequest, out.now)]


def test_a_follower_that_learns_that_it_sleeps_fetches_no_more() -> None:
    context = sleepy()
    context.notified(partition_state(leader=SECOND))
    out = context.notified(replace(partition_state(leader=SECOND, partition_epoch=2, down=(1, 2, 3)), asleep=POINT))
    assert not only(RoleChanged, out.now).leading
    assert some(SendFetch, context.ticked(60_000).after_sync) == []


def test_a_replica_that_has_not_ended_leads_in_the_next_epoch() -> None:
    context, proposal = proposing()
    answer(context, proposal, 0, asleep(context))
    out = context.notified(partition_state(leader_epoch=2, partition_epoch=4))
    assert only(RoleChanged, out.now).leading
    assert is_writable(context)
