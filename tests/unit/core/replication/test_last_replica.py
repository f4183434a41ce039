"""Below ``min.insync.replicas``: the records that a leader may expose at the start of its epoch (ADR 0025)."""

from dataclasses import replace

from raylog.base.errors import NotEnoughReplicasAfterAppend
from raylog.base.ids import BrokerId, PartitionEpoch
from raylog.core.partition import PartitionState
from raylog.core.replication.events import (
    AnswerProduce,
    ProposeIsr,
    RefuseRequest,
)
from tests.unit.core.replication.context import ME, SECOND, THIRD, Context, only, partition_state, some


def alone(*, elr: tuple[int, ...] = (SECOND, THIRD), partition_epoch: int = 1) -> PartitionState:
    return partition_state(isr=(ME,), elr=elr, leader_epoch=2, down=(SECOND, THIRD), partition_epoch=partition_epoch)


def test_a_kept_watermark_at_the_log_end_is_shown_without_a_claim() -> None:
    context = Context(log_end=100, kept=100)
    out = context.notified(alone())
    assert context.machine.exposed_high_watermark == 100
    assert context.machine.exposed_high_watermark == 100
    assert not some(ProposeIsr, out.now)


def test_the_last_replica_claims_sole_eligibility_and_shows_its_log() -> None:
    context = Context(log_end=100, kept=90)
    out = context.notified(alone())
    assert context.machine.exposed_high_watermark is None
    assert context.machine.high_watermark == 90
    proposal = only(ProposeIsr, out.now)
    assert (proposal.isr, proposal.drops_eligible) == (((ME, 10),), True)
    context.isr_answered(proposal, state=alone(elr=(), partition_epoch=2))
    shown: int | None = context.machine.exposed_high_watermark
    assert shown == 100


def test_nothing_is_shown_while_others_may_still_be_elected() -> None:
    context = Context(log_end=100)
    proposal = only(ProposeIsr, context.notified(alone()).now)
    context.isr_answered(proposal, error_code=41)
    assert context.machine.exposed_high_watermark is None
    again = only(ProposeIsr, context.ticked(1_000).now)
    assert again.drops_eligible, "a refused claim is made again as what it was"
    context.notified(alone(elr=(THIRD,), partition_epoch=2))
    assert context.machine.exposed_high_watermark is None
    assert context.machine.high_watermark == 0


def test_a_claim_made_outdated_by_a_newer_state_is_sent_again() -> None:
    context = Context(log_end=100)
    context.notified(alone())
    out = context.notified(alone(partition_epoch=2))
    assert only(ProposeIsr, out.now).partition_epoch == 2


def test_what_comes_in_below_the_minimum_is_not_committed() -> None:
    context = Context(log_end=100)
    context.notified(alone(elr=()))
    assert context.machine.exposed_high_watermark == 100
    context.produced(5, acks=1)
    assert context.machine.high_watermark == 100
    assert context.machine.exposed_high_watermark == 100


def test_every_member_of_the_isr_has_to_have_what_is_shown() -> None:
    context = Context(min_insync_replicas=3, log_end=100, epochs=((1, 0),))
    state = partition_state(isr=(ME, SECOND), elr=(), leader_epoch=2, down=(THIRD,))
    context.notified(state)
    assert context.machine.exposed_high_watermark is None
    context.fetched_by(SECOND, 40, epoch=2, last_epoch=1)
    assert context.machine.high_watermark == 40
    assert context.machine.exposed_high_watermark is None
    context.fetched_by(SECOND, 100, epoch=2, last_epoch=1)
    assert context.machine.exposed_high_watermark == 100


def test_a_repeated_old_batch_is_not_acknowledged_below_the_minimum() -> None:
    context = Context(log_end=100, epochs=((1, 0),))
    context.notified(partition_state(isr=(ME, SECOND), leader_epoch=2, down=(THIRD,)))
    context.produce_requested(deadline_in_ms=500)
    context.appended(90, 100, duplicate=True)
    out = context.notified(alone(elr=(SECOND,), partition_epoch=2))
    out = context.isr_answered(only(ProposeIsr, out.now), state=alone(elr=(), partition_epoch=3))
    assert context.machine.exposed_high_watermark == 100
    assert not some(AnswerProduce, out.now), "one replica does not fulfil acks=all"
    assert isinstance(only(RefuseRequest, context.ticked(500).now).error, NotEnoughReplicasAfterAppend)


def test_it_is_acknowledged_once_enough_replicas_are_in_sync_again() -> None:
    context = Context(log_end=100, epochs=((1, 0),))
    context.notified(partition_state(isr=(ME, SECOND), leader_epoch=2, down=(THIRD,)))
    context.produce_requested(deadline_in_ms=9_000)
    context.appended(90, 100, duplicate=True)
    context.notified(alone(elr=(), partition_epoch=2))
    state = partition_state(isr=(ME,), leader_epoch=2, partition_epoch=2)
    context.notified(state)
    joining = only(ProposeIsr, context.fetched_by(SECOND, 100, epoch=2, last_epoch=1).now)
    whole = replace(state, isr=(BrokerId(ME), BrokerId(SECOND)), partition_epoch=PartitionEpoch(3))
    out = context.isr_answered(joining, state=whole)
    assert only(AnswerProduce, out.now).first_offset == 90


def test_a_kept_watermark_is_bounded_by_the_log() -> None:
    assert Context(log_end=50, kept=80).machine.high_watermark == 50
    assert Context(log_start=40, log_end=50, kept=10).machine.high_watermark == 40
