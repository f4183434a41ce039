"""A disk that keeps refusing appends: the leader resigns, the follower does not delay acks=all."""

from raylog.base.errors import OutOfOrderSequence
from raylog.base.ids import Offset
from raylog.core.outbox import Outbox
from raylog.core.replication.disk import DOUBT_MS, PATIENCE_MS, DiskHealth
from raylog.core.replication.events import (
    AppendFailed,
    Effect,
    FollowerAppended,
    ProposeIsr,
    ResignLeadership,
    SendFetch,
    Tick,
)
from tests.unit.core.replication.context import ME, SECOND, THIRD, Context, only, partition_state, some


def leading(*, isr: tuple[int, ...] = (ME, SECOND, THIRD), down: tuple[int, ...] = ()) -> Context:
    context = Context()
    context.notified(partition_state(isr=isr, down=down))
    return context


def failed(context: Context, *, error: OutOfOrderSequence | None = None) -> None:
    context.produce_requested()
    context.step(AppendFailed(cause="x", now_ms=context.now_ms, request=context.last_request, error=error))


def failing(context: Context, ms: int = PATIENCE_MS) -> Outbox[Effect]:
    """The disk refuses for this long."""
    failed(context)
    out = context.ticked(ms)
    failed(context)
    out.extend(context.ticked())
    return out


def flagged(context: Context, follower: int, disk_failing: bool) -> Outbox[Effect]:
    return context.fetched_by(follower, 0, disk_failing=disk_failing)


def test_one_failure_is_no_reason_and_a_success_forgets_all() -> None:
    context = leading()
    assert not some(ResignLeadership, failing(context, PATIENCE_MS - 1).now)
    context.produced(acks=1)
    assert not some(ResignLeadership, failing(context, PATIENCE_MS - 1).now)


def test_a_leader_with_a_failing_disk_resigns_again_after_a_pause() -> None:
    context = leading()
    assert only(ResignLeadership, failing(context).now).leader_epoch == 1
    assert not some(ResignLeadership, context.ticked(500).now)
    assert some(ResignLeadership, context.ticked(500).now)
    assert context.machine.role == "leader", "until the controller says otherwise"


def test_a_leader_without_an_in_sync_follower_leads_on() -> None:
    assert not some(ResignLeadership, failing(leading(isr=(ME,))).now)
    assert not some(ResignLeadership, failing(leading(isr=(ME, SECOND), down=(SECOND,))).now)
    context = leading(isr=(ME, SECOND))
    flagged(context, SECOND, True)
    assert not some(ResignLeadership, failing(context).now), "the other disk is no better"


def test_a_producers_mistake_is_not_the_disks() -> None:
    context = leading()
    failed(context, error=OutOfOrderSequence())
    context.ticked(PATIENCE_MS)
    failed(context, error=OutOfOrderSequence())
    assert not some(ResignLeadership, context.ticked().now)


def test_the_doubt_ends_after_a_quiet_while_and_returns_with_a_failure() -> None:
    disk = DiskHealth()
    disk.append_failed(0)
    disk.append_failed(PATIENCE_MS)
    assert disk.is_failing(PATIENCE_MS)
    assert not disk.is_failing(PATIENCE_MS + DOUBT_MS)
    disk.append_failed(60_000)
    assert disk.is_failing(60_000)
    disk.append_succeeded()
    assert not disk.is_failing(60_000)


def test_a_follower_leaves_the_isr_while_its_disk_fails() -> None:
    context = leading()
    proposal = only(ProposeIsr, flagged(context, SECOND, True).now)
    assert [broker for broker, _ in proposal.isr] == [ME, THIRD]
    context.granted(proposal)
    assert not some(ProposeIsr, flagged(context, SECOND, True).now)
    assert some(ProposeIsr, flagged(context, SECOND, False).now)


def test_a_follower_says_that_its_disk_fails_until_an_append_succeeds() -> None:
    context = Context()
    fetch = only(SendFetch, context.notified(partition_state(leader=SECOND)).after_sync)
    until_ms = context.now_ms + PATIENCE_MS
    while context.now_ms <= until_ms:
        assert not fetch.disk_failing
        context.answered(fetch, end=10)
        context.step(AppendFailed(cause="x", now_ms=context.now_ms, request=fetch.request))
        fetch = only(SendFetch, context.ticked(20).after_sync)
    assert fetch.disk_failing
    context.answered(fetch, end=10)
    out = context.step(FollowerAppended(cause="c", now_ms=context.now_ms, request=fetch.request, end_offset=Offset(10)))
    assert not only(SendFetch, out.after_sync).disk_failing


LIMIT_MS = 10_000


def synced_since(context: Context, since_ms: int, ms: int) -> Outbox[Effect]:
    """Time passes tick by tick while a sync does not end; returns the effects."""
    out: Outbox[Effect] = Outbox()
    for _ in range(ms // 500):
        context.now_ms += 500
        out.extend(context.step(Tick(cause="t", now_ms=context.now_ms, sync_since_ms=since_ms)))
    return out


def test_a_leader_with_a_hanging_sync_resigns_again_while_it_leads() -> None:
    context = leading()
    since_ms = context.now_ms
    assert not some(ResignLeadership, synced_since(context, since_ms, LIMIT_MS - 500).now)
    assert only(ResignLeadership, synced_since(context, since_ms, 500).now).leader_epoch == 1
    assert some(ResignLeadership, synced_since(context, since_ms, 1_500).now)
    assert context.machine.disk_hanging_ms >= LIMIT_MS


def test_a_leader_whose_disk_hangs_leads_on_when_no_other_can() -> None:
    context = leading(isr=(ME,), down=(SECOND, THIRD))
    assert not some(ResignLeadership, synced_since(context, context.now_ms, 2 * LIMIT_MS).now)
    assert context.machine.disk_hanging_ms >= LIMIT_MS


def test_syncs_that_end_are_no_trouble_however_many_there_are() -> None:
    context = leading()
    for _ in range(6):
        assert not some(ResignLeadership, synced_since(context, context.now_ms, LIMIT_MS // 2).now)
    context.ticked()
    assert context.machine.disk_hanging_ms == 0


def test_a_process_that_stood_still_does_not_blame_its_disk() -> None:
    """SIGSTOP, a debugger, a suspended machine: the sync has ended, and its report is still in flight."""
    context = leading()
    since_ms = context.now_ms
    synced_since(context, since_ms, 1_000)
    context.now_ms += 60_000
    out = context.step(Tick(cause="t", now_ms=context.now_ms, sync_since_ms=since_ms))
    assert not some(ResignLeadership, out.now)
    assert some(ResignLeadership, synced_since(context, since_ms, LIMIT_MS).now), "unless it hangs on"


def test_a_follower_whose_sync_does_not_end_waits_for_nothing_else() -> None:
    context = Context()
    context.notified(partition_state(leader=SECOND))
    assert not some(ResignLeadership, synced_since(context, context.now_ms, 2 * LIMIT_MS).now)
