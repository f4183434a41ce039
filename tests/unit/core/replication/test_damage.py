"""Damage in a replica's log: what is reported, which replica leads, and when the log is copied again."""

from raylog.base.errors import CorruptMessage, KafkaStorageError
from raylog.base.ids import Offset
from raylog.core.outbox import Outbox
from raylog.core.replication.damage import DamageFound, RebuildLog
from raylog.core.replication.events import Effect, LogStartAdvanced, RefuseRequest, ResignLeadership
from tests.unit.core.replication.context import ME, SECOND, THIRD, Context, only, partition_state, some


def leading(*, isr: tuple[int, ...] = (ME, SECOND, THIRD), down: tuple[int, ...] = ()) -> Context:
    context = Context(log_end=100, epochs=((0, 0),))
    context.notified(partition_state(isr=isr, down=down))
    return context


def following(*, down: tuple[int, ...] = ()) -> Context:
    context = Context(log_end=100, epochs=((0, 0),))
    context.notified(partition_state(leader=SECOND, down=down))
    return context


def found(context: Context, *, offset: int = 10, next_offset: int = 12, request: int | None = 7) -> Outbox[Effect]:
    return context.step(
        DamageFound(
            cause="damage",
            now_ms=context.now_ms,
            offset=Offset(offset),
            next_offset=Offset(next_offset),
            reason="its CRC is wrong",
            request=request,
        )
    )


def damaged_at(context: Context) -> int | None:
    return context.machine.damaged_at


def test_a_leader_lets_another_in_sync_replica_lead_and_readers_retry() -> None:
    context = leading()
    out = found(context)
    assert isinstance(only(RefuseRequest, out.now).error, KafkaStorageError)
    assert "offset 10" in only(ResignLeadership, out.now).reason
    assert not some(RebuildLog, out.now), "not before another leads"
    assert some(ResignLeadership, context.ticked(1_000).now), "until the controller says otherwise"
    out = context.notified(partition_state(leader=SECOND, leader_epoch=2, partition_epoch=2, isr=(SECOND, THIRD)))
    assert only(RebuildLog, out.now).offset == 10
    assert not some(RebuildLog, context.ticked().now), "once"


def test_a_leader_without_another_in_sync_says_where_to_go_on() -> None:
    for context in (leading(isr=(ME,)), leading(isr=(ME, SECOND), down=(SECOND,))):
        out = found(context)
        error = only(RefuseRequest, out.now).error
        assert isinstance(error, CorruptMessage)
        assert not isinstance(error, KafkaStorageError)
        assert (error.details["offset"], error.details["next_offset"]) == (10, 12)
        assert not some(ResignLeadership, out.now)
        assert damaged_at(context) == 10
        assert context.machine.role == "leader"
        again = partition_state(partition_epoch=2, isr=(ME, SECOND))
        context.notified(again)
        assert some(ResignLeadership, context.ticked().now), "as soon as another replica is in sync"


def test_a_follower_gives_its_log_up_while_its_leader_runs() -> None:
    context = following()
    assert only(RebuildLog, found(context, request=None).now).offset == 10
    context = following(down=(SECOND,))
    assert not some(RebuildLog, found(context, request=None).now)
    out = context.notified(partition_state(leader=SECOND, leader_epoch=2, partition_epoch=2))
    assert some(RebuildLog, out.now)


def test_damage_that_the_log_does_not_hold_any_more_is_forgotten() -> None:
    context = leading(isr=(ME,))
    found(context)
    start = LogStartAdvanced(cause="retention", now_ms=context.now_ms, log_start_offset=Offset(11))
    context.step(start)
    assert damaged_at(context) == 10
    context.step(LogStartAdvanced(cause="retention", now_ms=context.now_ms, log_start_offset=Offset(12)))
    assert damaged_at(context) is None
    found(context, offset=10)
    assert damaged_at(context) is None, "it lies below the log's start"


def test_a_replica_with_damage_does_not_rest() -> None:
    context = leading(isr=(ME,))
    found(context)
    assert context.machine.quiet(10**6) is None


def test_damage_in_the_batch_in_which_the_log_starts_counts() -> None:
    context = leading()
    start = Offset(11)
    context.step(LogStartAdvanced(cause="test", now_ms=context.now_ms, log_start_offset=start))
    out = found(context, offset=10, next_offset=12)
    assert some(ResignLeadership, out.now), "its second record can be read, and is damaged"
    assert damaged_at(context) == 10
