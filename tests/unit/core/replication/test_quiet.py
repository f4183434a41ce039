"""When a replica is at rest, so that its process may be stopped, and how long followers' fetches wait meanwhile."""

from dataclasses import replace

from raylog.core.replication.events import SendFetch
from raylog.core.replication.follower import RESTING_WAIT_MS, USUAL_WAIT_MS
from tests.unit.core.replication.context import ME, SECOND, THIRD, Context, only, partition_state

FAR = 10**9
AFTER_MS = 2_000


def dozing(context: Context, after_ms: int = AFTER_MS) -> Context:
    context.machine.reconfigure(replace(context.machine.settings, doze_after_ms=after_ms))
    return context


def leading() -> Context:
    """A leader whose followers have everything, and wait for more."""
    context = Context()
    context.notified(partition_state())
    context.produced()
    for follower in (SECOND, THIRD):
        context.fetched_by(follower, 10, wait_ms=60_000)
    return context


def following(after_ms: int = AFTER_MS) -> tuple[Context, SendFetch]:
    context = dozing(Context(), after_ms)
    return context, only(SendFetch, context.notified(partition_state(leader=SECOND)).after_sync)


def test_a_replica_without_a_role_is_not_at_rest() -> None:
    assert Context().machine.quiet(FAR) is None


def test_a_leader_rests_until_its_first_deadline_with_its_fetches_parked() -> None:
    context = leading()
    quiet = context.machine.quiet(FAR)
    assert quiet is not None
    assert (quiet.parked, quiet.due_ms) == (2, context.now_ms + 60_000)


def test_a_leader_with_records_under_way_is_not_at_rest() -> None:
    context = leading()
    context.produced(synced=False)
    assert context.machine.quiet(FAR) is None
    context.synced()
    assert context.machine.quiet(FAR) is None, "no follower has them"
    for follower in (SECOND, THIRD):
        context.fetched_by(follower, 20, wait_ms=60_000)
    assert context.machine.quiet(FAR) is not None


def test_a_leader_that_sleeps_soon_rests_until_then() -> None:
    context = leading()
    context.machine.reconfigure(replace(context.machine.settings, sleep_after_ms=5_000))
    quiet = context.machine.quiet(FAR)
    assert quiet is not None
    assert quiet.due_ms == quiet.since_ms + 5_000


def test_stopped_time_is_no_lag_of_followers_that_wait() -> None:
    context = leading()
    context.now_ms += 10 * context.machine.settings.replica_lag_time_max_ms
    context.produced()
    assert not context.ticked().now
    assert set(context.machine.isr) == {ME, SECOND, THIRD}


def test_a_follower_with_nothing_to_fetch_waits_for_long() -> None:
    context, fetch = following()
    assert fetch.max_wait_ms == USUAL_WAIT_MS
    context.now_ms += USUAL_WAIT_MS
    fetch = only(SendFetch, context.answered(fetch).after_sync)
    assert fetch.max_wait_ms == RESTING_WAIT_MS
    quiet = context.machine.quiet(FAR)
    assert quiet is not None
    assert quiet.due_ms > context.now_ms + RESTING_WAIT_MS


def test_a_follower_waits_briefly_for_the_watermark_of_new_records() -> None:
    context, fetch = following(300)
    context.now_ms += 300
    fetch = only(SendFetch, context.answered(fetch).after_sync)
    assert fetch.max_wait_ms == RESTING_WAIT_MS
    fetch = context.copied(fetch, 10, epoch=1)
    assert fetch.max_wait_ms == 300
    assert context.machine.quiet(FAR) is None, "they are not known to be committed"
    context.now_ms += 300
    fetch = only(SendFetch, context.answered(fetch, watermark=10).after_sync)
    assert fetch.max_wait_ms == RESTING_WAIT_MS
    quiet = context.machine.quiet(FAR)
    assert quiet is not None
    assert quiet.since_ms == context.now_ms - 300


def test_followers_that_never_doze_fetch_as_ever() -> None:
    context, fetch = following(-1)
    context.now_ms += 60_000
    assert only(SendFetch, context.answered(fetch).after_sync).max_wait_ms == fetch.max_wait_ms == 0


def test_a_follower_that_is_not_in_sync_repeats_its_fetch_soon() -> None:
    context = dozing(Context())
    out_of_sync = partition_state(leader=SECOND, isr=(SECOND, THIRD))
    fetch = only(SendFetch, context.notified(out_of_sync).after_sync)
    context.now_ms += USUAL_WAIT_MS
    fetch = only(SendFetch, context.answered(fetch).after_sync)
    assert fetch.max_wait_ms == USUAL_WAIT_MS


def test_a_follower_that_leaves_the_isr_gives_up_its_long_fetch() -> None:
    context, fetch = following()
    context.now_ms += USUAL_WAIT_MS
    fetch = only(SendFetch, context.answered(fetch).after_sync)
    assert fetch.max_wait_ms == RESTING_WAIT_MS
    smaller = partition_state(leader=SECOND, partition_epoch=2, isr=(SECOND, THIRD))
    fetch = only(SendFetch, context.notified(smaller).after_sync)
    assert fetch.max_wait_ms == USUAL_WAIT_MS
