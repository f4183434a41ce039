"""A replica that is being added stays within its fetch rate; an in-sync replica is never throttled. Virtual clock."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylog.base.ids import LeaderEpoch, Offset, PartitionEpoch
from raylog.core.partition import PartitionState
from raylog.core.replication.events import FetchAnswered, FollowerAppended, SendFetch
from raylog.core.replication.replica import ReplicationSettings
from raylog.core.replication.throttle import MIN_FETCH_BYTES, Throttle
from tests.unit.core.replication.context import ME, SECOND, THIRD, Context, partition_state, some

BACKLOG = 10_000_000
RATE = 1_000_000


def led_by_second(*, adding: bool, in_sync: bool = False, partition_epoch: int = 1) -> PartitionState:
    isr = (ME, SECOND, THIRD) if in_sync else (SECOND, THIRD)
    state = partition_state(leader=SECOND, isr=isr, partition_epoch=partition_epoch)
    return replace(state, adding=(ME,) if adding else ())


def throttled(state: PartitionState, *, rate: int = RATE) -> tuple[Context, SendFetch]:
    context = Context()
    context.machine.reconfigure(ReplicationSettings(min_insync_replicas=2, catch_up_bytes_per_s=rate))
    [fetch] = some(SendFetch, context.notified(state).after_sync)
    return context, fetch


def answered(context: Context, fetch: SendFetch, size: int) -> list[SendFetch]:
    """The leader answers with one record of ``size`` bytes, which is stored; returns the fetches that follow."""
    end = Offset(fetch.fetch_offset + 1)
    out = context.step(
        FetchAnswered(
            cause="fa",
            now_ms=context.now_ms,
            request=fetch.request,
            leader_epoch=fetch.leader_epoch,
            high_watermark=Offset(0),
            log_start_offset=Offset(0),
            end_offset=end,
            size_bytes=size,
        )
    )
    epochs = ((LeaderEpoch(1), fetch.fetch_offset),) if fetch.fetch_offset == 0 else ()
    appended = FollowerAppended(cause="a", now_ms=context.now_ms, request=fetch.request, end_offset=end, epochs=epochs)
    out.extend(context.step(appended))
    context.synced()
    return some(SendFetch, out.after_sync)


def copied_within(context: Context, fetch: SendFetch, seconds: int) -> int:
    """A leader with a long backlog answers every fetch at once; returns the bytes received."""
    copied, fetches = 0, [fetch]
    for _ in range(seconds * 20):
        while fetches and copied < BACKLOG:
            size = min(fetches[0].max_bytes or BACKLOG, BACKLOG)
            copied += size
            fetches = answered(context, fetches[0], size)
        fetches += some(SendFetch, context.ticked(50).after_sync)
    return copied


def test_an_added_replica_copies_no_faster_than_it_may() -> None:
    context, fetch = throttled(led_by_second(adding=True))
    assert 5 * RATE <= copied_within(context, fetch, 5) <= 6 * RATE


@pytest.mark.parametrize(
    "state",
    [led_by_second(adding=False), led_by_second(adding=True, in_sync=True), led_by_second(adding=False, in_sync=True)],
    ids=["one that only lags", "one that has caught up", "one in sync"],
)
def test_other_replicas_are_never_slowed_down(state: PartitionState) -> None:
    context, fetch = throttled(state)
    assert fetch.max_bytes == 0
    assert copied_within(context, fetch, 1) == BACKLOG


def test_fetches_are_not_delayed_without_a_rate() -> None:
    context = Context()
    [fetch] = some(SendFetch, context.notified(led_by_second(adding=True)).after_sync)
    assert copied_within(context, fetch, 1) == BACKLOG


def test_the_throttle_ends_with_joining_the_isr() -> None:
    context, fetch = throttled(led_by_second(adding=True))
    assert not answered(context, fetch, 1_000_000), "it has to wait for a second"
    context.notified(led_by_second(adding=True, in_sync=True, partition_epoch=PartitionEpoch(2)))
    [fetch] = some(SendFetch, context.ticked(1_000).after_sync)
    assert fetch.max_bytes == 0
    assert answered(context, fetch, 5_000_000), "the next fetch follows at once"


def test_a_slow_rate_makes_fetches_rare_rather_than_tiny() -> None:
    context, fetch = throttled(led_by_second(adding=True), rate=1_000)
    assert fetch.max_bytes == MIN_FETCH_BYTES
    assert not answered(context, fetch, MIN_FETCH_BYTES)
    assert not some(SendFetch, context.ticked(65_000).after_sync)
    assert some(SendFetch, context.ticked(1_000).after_sync)


def test_a_new_rate_counts_soon() -> None:
    context, fetch = throttled(led_by_second(adding=True), rate=1_000)
    assert not answered(context, fetch, 1_000_000), "it has to wait for a quarter of an hour"
    context.machine.reconfigure(ReplicationSettings(min_insync_replicas=2, catch_up_bytes_per_s=RATE))
    assert some(SendFetch, context.ticked(500).after_sync)


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 5_000)), max_size=50), st.integers(1, 10**7))
def test_over_any_time_input_stays_within_the_rate_and_one_answer(answers: list[tuple[int, int]], rate: int) -> None:
    throttle, now, total, last = Throttle(), 0, 0, 0
    for size, pause_ms in answers:
        now += pause_ms + throttle.wait_ms(now + pause_ms)
        total, last = total + size, size
        assert total - last <= rate * now / 1000
        throttle.spend(size, rate, now)
