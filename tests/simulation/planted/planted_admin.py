"""Planted bugs in the deletion of records and in resignations after a disk failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from raylog.core.controller.decision import ControllerDecision
from raylog.core.controller.events import LeaderResigned
from raylog.core.controller.isr_changes import IsrChanges
from raylog.core.ids import BrokerId, Offset, PartitionEpoch
from raylog.core.outbox import Outbox
from raylog.core.replication.deletions import Deletions
from raylog.core.replication.events import AdvanceLogStart, DeleteRecordsReceived, Effect
from raylog.core.replication.leader import Leader
from tests.simulation.planted.bugs import STORY, Planted


def wait_for_nobody(self: Deletions) -> tuple[Offset, list[BrokerId]]:
    """The leader's own log start is the low watermark."""
    return self._log.start, []


def wait_for_the_isr_alone(self: Deletions) -> tuple[Offset, list[BrokerId]]:
    """Eligible replicas do not count for the low watermark."""
    counted = [progress.log_start for broker, progress in self._followers.items() if broker in self._isr.maximal]
    return min([self._log.start, *counted]), []


def join_with_any_start(original: Callable[..., bool]) -> Callable[..., bool]:
    """A follower may join the ISR before it has applied the leader's log start."""

    def may_join(self: Leader, broker: BrokerId, progress: Any, now_ms: int) -> bool:
        return original(self, broker, replace(progress, log_start=self._log.start), now_ms)

    return may_join


def delete_what_is_durable(original: Callable[..., None]) -> Callable[..., None]:
    """The log start moves to the leader's durable end, committed or not."""

    def on_delete(self: Deletions, event: DeleteRecordsReceived, exposed: Offset | None, out: Outbox[Effect]) -> None:
        original(self, event, exposed, out)
        out.now[:] = [
            replace(effect, to=self._log.durable_end) if isinstance(effect, AdvanceLogStart) else effect
            for effect in out.now
        ]

    return on_delete


def delete_a_little_more(original: Callable[..., None]) -> Callable[..., None]:
    """One record more than requested is deleted, if committed."""

    def on_delete(self: Deletions, event: DeleteRecordsReceived, exposed: Offset | None, out: Outbox[Effect]) -> None:
        original(self, event, exposed, out)
        out.now[:] = [
            replace(effect, to=Offset(min(effect.to + 1, self._log.high_watermark)))
            if isinstance(effect, AdvanceLogStart)
            else effect
            for effect in out.now
        ]

    return on_delete


def resign_within_the_isr(original: Callable[..., None]) -> Callable[..., None]:
    """Another replica leads, and the one that resigned still counts as in sync."""

    def resign(self: IsrChanges, event: LeaderResigned, decision: ControllerDecision) -> None:
        before = decision.image.partition(event.partition)
        original(self, event, decision)
        after = decision.image.partition(event.partition)
        if before is not None and after is not None and after is not before:
            isr = tuple(broker for broker in after.replicas if broker in (*after.isr, event.broker))
            epoch = PartitionEpoch(after.partition_epoch + 1)
            self._liveness.commit(after, replace(after, isr=isr, elr=(), partition_epoch=epoch), decision)

    return resign


def resign_from_any_epoch(original: Callable[..., None]) -> Callable[..., None]:
    """A resignation counts even after another replica leads in a later epoch."""

    def resign(self: IsrChanges, event: LeaderResigned, decision: ControllerDecision) -> None:
        state = decision.image.partition(event.partition)
        if state is not None and state.leader_epoch > event.leader_epoch and len(state.isr) > 1:
            self._liveness.settle(event.partition, decision, leaving=event.broker)
        original(self, event, decision)

    return resign


ADMIN_BUGS = (
    Planted(
        "the low watermark does not wait for the ISR",
        "eligible",
        20,
        ("I16",),
        Deletions,
        "_low_watermark",
        wait_for_nobody,
    ),
    Planted(
        "the low watermark does not wait for eligible replicas",
        "eligible",
        40,
        ("I16",),
        Deletions,
        "_low_watermark",
        wait_for_the_isr_alone,
    ),
    Planted(
        "a follower joins the ISR with an older log start",
        STORY,
        1,
        ("I16",),
        Leader,
        "_may_join",
        join_with_any_start(Leader._may_join),
    ),
    Planted(
        "the log start moves beyond the high watermark",
        "retention",
        20,
        ("I16",),
        Deletions,
        "on_request",
        delete_what_is_durable(Deletions.on_request),
    ),
    Planted(
        "more records are deleted than was asked for",
        "retention",
        20,
        ("I16",),
        Deletions,
        "on_request",
        delete_a_little_more(Deletions.on_request),
    ),
    Planted(
        "a leader that resigned stays in the ISR",
        "disk",
        20,
        ("L4",),
        IsrChanges,
        "resign",
        resign_within_the_isr(IsrChanges.resign),
    ),
    Planted(
        "a resignation from an earlier epoch counts",
        STORY,
        1,
        ("L4",),
        IsrChanges,
        "resign",
        resign_from_any_epoch(IsrChanges.resign),
    ),
)
