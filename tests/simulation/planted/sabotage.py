"""The patches behind the planted bugs: each takes the original method and returns one that breaks a rule.

Used by ``planted.py`` only, which names the broken rule and the checker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from raylog.actors.replica.runner import ReplicaRunner
from raylog.core.controller import isr_changes
from raylog.core.controller.decision import ControllerDecision
from raylog.core.controller.events import IsrChangeReceived
from raylog.core.controller.leadership import Standing
from raylog.core.ids import NO_INCARNATION, NO_LEADER, BrokerId, LeaderEpoch, Offset
from raylog.core.outbox import Outbox
from raylog.core.partition import PartitionState, ReplicaPlace
from raylog.core.replication.events import Effect, FetchReceived, SendFetch, Synced, TruncateLog
from raylog.core.replication.follower import Follower
from raylog.core.replication.isr import FollowerProgress, InSyncSet
from raylog.core.replication.leader import Leader
from raylog.core.replication.parked import ParkedProduces
from raylog.core.replication.replica import ReplicaMachine
from tests.simulation.checks.checkers import CommittedOnce, EntryAt
from tests.simulation.partition.disk import VirtualLog
from tests.simulation.partition.replica import ReplicaProcess

_EVERYTHING = Offset(1 << 60)


def watermark_is_log_end_on_election(original: Callable[..., None]) -> Callable[..., None]:
    def lead(self: ReplicaMachine, state: PartitionState, cause: str, now_ms: int, out: Outbox[Effect]) -> None:
        original(self, state, cause, now_ms, out)
        self._log.high_watermark = self._log.durable_end

    return lead


def ack_on_append(original: Callable[..., None]) -> Callable[..., None]:
    def complete(self: ParkedProduces, durable_end: Offset, watermark: Offset, out: Outbox[Effect]) -> None:
        original(self, durable_end, _EVERYTHING, out)

    return complete


def acknowledge_before_sync(original: Callable[..., None]) -> Callable[..., None]:
    def fetch(self: Follower, cause: str, now_ms: int, out: Outbox[Effect]) -> None:
        original(self, cause, now_ms, out)
        out.now.extend(effect for effect in out.after_sync if isinstance(effect, SendFetch))
        out.after_sync.clear()

    return fetch


def truncate_to_watermark(original: Callable[..., None]) -> Callable[..., None]:
    def enter(self: ReplicaMachine, state: PartitionState, cause: str, now_ms: int, out: Outbox[Effect]) -> None:
        if state.leader not in (self.broker, NO_LEADER):
            self._log.truncate(self._log.high_watermark)
            out.now.append(TruncateLog(cause=cause, to=self._log.high_watermark))
        original(self, state, cause, now_ms, out)

    return enter


def count_pending_shrink(self: InSyncSet) -> tuple[BrokerId, ...]:
    if self.pending is None:
        return self.state.isr
    return tuple(sorted(broker for broker, _ in self.pending.members))


def no_compare_and_set(original: Callable[..., None]) -> Callable[..., None]:
    def change(self: isr_changes.IsrChanges, event: IsrChangeReceived, decision: ControllerDecision) -> None:
        state = decision.image.partition(event.partition)
        if state is not None:
            event = replace(event, partition_epoch=state.partition_epoch)
        original(self, event, decision)

    return change


def may_join_below_epoch_start(
    progress: FollowerProgress, place: ReplicaPlace | None, watermark: Offset, epoch_start: Offset
) -> bool:
    end = progress.durable_end
    alive = place is not None and place.port != 0 and place.incarnation == progress.incarnation
    return alive and end is not None and end >= watermark


def start_as_an_earlier_life(original: Callable[..., None]) -> Callable[..., None]:
    """Hole (a): no version floor; a restarted replica applies the first state that arrives."""

    def told(self: ReplicaProcess, incarnation: int, state: PartitionState) -> None:
        if self.machine is None:
            self.registered(incarnation, state)
        else:
            original(self, incarnation, state)

    return told


def ignore_min_insync_replicas(original: Callable[..., Offset]) -> Callable[..., Offset]:
    def committed_end(**known: Any) -> Offset:
        return original(**(known | {"min_insync_replicas": 0, "eligible": False}))

    return committed_end


def expose_at_once(original: Callable[[Leader], None]) -> Callable[[Leader], None]:
    def expose(self: Leader) -> None:
        start, self.epoch_start = self.epoch_start, Offset(0)
        original(self)
        self.epoch_start = start

    return expose


def unclean_election(original: Callable[..., PartitionState]) -> Callable[..., PartitionState]:
    def settle(state: PartitionState, standing: dict[BrokerId, Standing], **options: Any) -> PartitionState:
        settled = original(state, standing, **options)
        online = [broker for broker in state.replicas if standing[broker] is Standing.ONLINE]
        if settled.leader != NO_LEADER or not online:
            return settled
        epoch = LeaderEpoch(state.leader_epoch + 1)
        return replace(
            settled,
            leader=online[0],
            leader_epoch=epoch,
            isr=(online[0],),
            elr=(),
            partition_epoch=type(state.partition_epoch)(state.partition_epoch + 1),
        )

    return settle


def fetches_of_any_epoch(original: Callable[..., Any]) -> Callable[..., Any]:
    """No epoch check on followers' fetches (KIP-320)."""

    def leadership_error(self: ReplicaMachine, leader_epoch: LeaderEpoch, *, is_follower: bool = False) -> Any:
        return original(self, self.leader_epoch if is_follower else leader_epoch)

    return leadership_error


def fetches_of_any_life(original: Callable[..., None]) -> Callable[..., None]:
    """A late fetch of an earlier life counts for the current one."""

    def on_fetch(self: Leader, event: FetchReceived, out: Outbox[Effect]) -> None:
        progress = self.followers.get(event.follower)
        if progress is not None and event.incarnation < progress.incarnation:
            event = replace(event, incarnation=progress.incarnation)
        original(self, event, out)

    return on_fetch


def members_of_any_life(original: Callable[..., None]) -> Callable[..., None]:
    """The controller reads an ISR proposal as if it named the current process on that broker."""

    def change(self: isr_changes.IsrChanges, event: IsrChangeReceived, decision: ControllerDecision) -> None:
        state = decision.image.partition(event.partition)
        if state is not None:
            now = {place.broker: place.incarnation for place in state.places}
            event = replace(event, isr=tuple((broker, now.get(broker, NO_INCARNATION)) for broker, _ in event.isr))
        original(self, event, decision)

    return change


def forget_producers(original: Callable[..., None]) -> Callable[..., None]:
    """A new leader has no producer state."""

    def assign(self: VirtualLog, epoch: int, start: int) -> None:
        original(self, epoch, start)
        self.producers.clear()

    return assign


def report_what_is_written(self: ReplicaRunner) -> None:
    """The shell reports appended entries as durable."""
    end = Offset(self.log.log_end_offset)
    self.feed(Synced(cause="lie", now_ms=self._now_ms(), end_offset=end))


def lost_logs_lead(original: Callable[..., PartitionState]) -> Callable[..., PartitionState]:
    """ISR membership is enough to lead, even after the log was lost."""

    def settle(state: PartitionState, standing: dict[BrokerId, Standing], **options: Any) -> PartitionState:
        return original(state, standing, **(options | {"lost": ()}))

    return settle


def compare_ends_alone(original: Callable[..., bool]) -> Callable[..., bool]:
    """KIP-279: the leader reports where an epoch ends, and not that it knows an earlier epoch only."""

    def answer(self: Leader, event: FetchReceived, out: Outbox[Effect]) -> bool:
        shared = self._log.epochs.end_for(event.last_fetched_epoch, self._log.end)
        return False if shared.end_offset >= event.fetch_offset else original(self, event, out)

    return answer


def ask_for_everything(original: Callable[..., None]) -> Callable[..., None]:
    """The checker requires a new leader to have every committed entry, including those of later epochs."""

    def led(self: CommittedOnce, epoch: int, entry_at: EntryAt, log_start: int) -> None:
        original(self, 1 << 60, entry_at, log_start)

    return led
