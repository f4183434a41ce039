"""Bugs on purpose: each breaks one rule of the protocol by patching one method, and names who has to catch it.

A checker that has never fired, or a profile that finds none of these, proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from raylog.core.controller import election, membership
from raylog.core.controller.election import Standing
from raylog.core.controller.events import IsrChangeReceived
from raylog.core.ids import NO_LEADER, BrokerId, LeaderEpoch, Offset
from raylog.core.outbox import Outbox
from raylog.core.replication import leader as leader_module
from raylog.core.replication import watermark as watermark_module
from raylog.core.replication.events import Effect, SendFetch, TruncateLog
from raylog.core.replication.follower import Follower
from raylog.core.replication.isr import FollowerProgress, InSyncSet
from raylog.core.replication.leader import Leader
from raylog.core.replication.parked import ParkedProduces
from raylog.core.replication.replica import ReplicaMachine
from raylog.core.replication.state import PartitionState, ReplicaPlace
from tests.simulation.disk import VirtualLog
from tests.simulation.replica import ReplicaProcess

_EVERYTHING = Offset(1 << 60)


@dataclass(frozen=True, slots=True)
class Planted:
    """One bug: what is replaced by what, the profile that catches it, within how many seeds, and by which rules."""

    name: str
    profile: str
    seeds: int
    rules: tuple[str, ...]
    target: Any
    attribute: str
    substitute: Any

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Have the bug while the block runs."""
        with patch.object(self.target, self.attribute, self.substitute):
            yield


def _watermark_is_log_end_on_election(original: Callable[..., None]) -> Callable[..., None]:
    def lead(self: ReplicaMachine, state: PartitionState, cause: str, now_ms: int, out: Outbox[Effect]) -> None:
        original(self, state, cause, now_ms, out)
        self._log.high_watermark = self._log.durable_end

    return lead


def _ack_on_append(original: Callable[..., None]) -> Callable[..., None]:
    def complete(self: ParkedProduces, durable_end: Offset, watermark: Offset, out: Outbox[Effect]) -> None:
        original(self, durable_end, _EVERYTHING, out)

    return complete


def _acknowledge_before_sync(original: Callable[..., None]) -> Callable[..., None]:
    def fetch(self: Follower, cause: str, now_ms: int, out: Outbox[Effect]) -> None:
        original(self, cause, now_ms, out)
        out.now.extend(effect for effect in out.after_sync if isinstance(effect, SendFetch))
        out.after_sync.clear()

    return fetch


def _truncate_to_watermark(original: Callable[..., None]) -> Callable[..., None]:
    def enter(self: ReplicaMachine, state: PartitionState, cause: str, now_ms: int, out: Outbox[Effect]) -> None:
        if state.leader not in (self.broker, NO_LEADER):
            self._log.truncate(self._log.high_watermark)
            out.now.append(TruncateLog(cause=cause, to=self._log.high_watermark))
        original(self, state, cause, now_ms, out)

    return enter


def _count_pending_shrink(self: InSyncSet) -> tuple[BrokerId, ...]:
    if self.pending is None:
        return self.state.isr
    return tuple(sorted(broker for broker, _ in self.pending.members))


def _no_compare_and_set(original: Callable[..., None]) -> Callable[..., None]:
    def change(self: membership.Membership, event: IsrChangeReceived) -> None:
        state = self._ledger.image.partition(event.partition)
        if state is not None:
            event = replace(event, partition_epoch=state.partition_epoch)
        original(self, event)

    return change


def _may_join_below_epoch_start(
    progress: FollowerProgress, place: ReplicaPlace | None, watermark: Offset, epoch_start: Offset
) -> bool:
    end = progress.durable_end
    alive = place is not None and place.port != 0 and place.incarnation == progress.incarnation
    return alive and end is not None and end >= watermark


def _start_as_an_earlier_life(original: Callable[..., None]) -> Callable[..., None]:
    """Hole (a): no version floor; a restarted replica takes the first state that comes for its own."""

    def told(self: ReplicaProcess, incarnation: int, state: PartitionState) -> None:
        if self.machine is None:
            self.registered(incarnation, state)
        else:
            original(self, incarnation, state)

    return told


def _ignore_min_insync_replicas(original: Callable[..., Offset]) -> Callable[..., Offset]:
    def committed_end(**known: Any) -> Offset:
        return original(**(known | {"min_insync_replicas": 0}))

    return committed_end


def _expose_at_once(original: Callable[..., None]) -> Callable[..., None]:
    def expose(self: Leader, cause: str, out: Outbox[Effect]) -> None:
        start, self.epoch_start = self.epoch_start, Offset(0)
        original(self, cause, out)
        self.epoch_start = start

    return expose


def _unclean_election(original: Callable[..., PartitionState]) -> Callable[..., PartitionState]:
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
            partition_epoch=type(state.partition_epoch)(state.partition_epoch + 1),
        )

    return settle


PLANTED = (
    Planted(
        "high watermark is the log end on election",
        "swarm",
        20,
        ("I2", "I4", "I7"),
        ReplicaMachine,
        "_lead",
        _watermark_is_log_end_on_election(ReplicaMachine._lead),
    ),
    Planted(
        "acks=all is answered on append",
        "swarm",
        20,
        ("I1",),
        ParkedProduces,
        "complete",
        _ack_on_append(ParkedProduces.complete),
    ),
    Planted(
        "a follower acknowledges before its sync",
        "reboot",
        20,
        ("I4",),
        Follower,
        "fetch",
        _acknowledge_before_sync(Follower.fetch),
    ),
    Planted(
        "a new follower truncates to its high watermark",
        "swarm",
        20,
        ("I4", "I9", "I1", "I7"),
        ReplicaMachine,
        "_enter",
        _truncate_to_watermark(ReplicaMachine._enter),
    ),
    Planted(
        "the high watermark counts the ISR, not the maximal ISR",
        "controller",
        40,
        ("I4", "I7"),
        InSyncSet,
        "maximal",
        property(lambda self: self.state.isr),
    ),
    Planted(
        "a leaving member stops counting when it is proposed",
        "last-man",
        40,
        ("I4", "I7"),
        InSyncSet,
        "maximal",
        property(_count_pending_shrink),
    ),
    Planted(
        "the controller changes the ISR without compare-and-set",
        "stale",
        60,
        ("I10", "I7"),
        membership.Membership,
        "change_isr",
        _no_compare_and_set(membership.Membership.change_isr),
    ),
    Planted(
        "a follower joins the ISR below the start of the epoch",
        "sticky-lag",
        40,
        ("I7",),
        leader_module,
        "may_join",
        _may_join_below_epoch_start,
    ),
    Planted(
        "fetch answers are not matched to the request",
        "stale",
        40,
        ("I8", "I9", "machine"),
        Follower,
        "_expects",
        lambda self, request: True,
    ),
    Planted(
        "a replica obeys what was told to its earlier lives",
        "reboot",
        40,
        ("I5", "I10", "machine"),
        ReplicaProcess,
        "told",
        _start_as_an_earlier_life(ReplicaProcess.told),
    ),
    Planted(
        "records are committed below min.insync.replicas",
        "last-man",
        20,
        ("I4",),
        leader_module,
        "committed_end",
        _ignore_min_insync_replicas(watermark_module.committed_end),
    ),
    Planted(
        "the high watermark is shown before it reaches the epoch's start",
        "swarm",
        40,
        ("I3",),
        Leader,
        "_expose",
        _expose_at_once(Leader._expose),
    ),
    Planted(
        "anybody may lead when no ISR member is there",
        "last-man",
        20,
        ("I1", "I2", "I6", "I7"),
        membership,
        "settle",
        _unclean_election(election.settle),
    ),
    Planted(
        "producer state is forgotten",
        "swarm",
        20,
        ("I11",),
        VirtualLog,
        "check_producer",
        lambda self, producer, sequence: None,
    ),
)

COMPARES_WHAT_RETENTION_DROPPED = Planted(
    "histories are compared beyond what retention left",
    "retention",
    1,
    ("I1", "I2", "I6", "I7", "I8"),
    Leader,
    "_cannot_compare",
    lambda self, event: False,
)
"""Too rare for a profile (1 seed in about 30 of *retention*): test_stories plays it out."""
