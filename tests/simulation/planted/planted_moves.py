"""Planted bugs in reassignments, eligible leader replicas and elections by command."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from raylog.core.controller import leadership as election
from raylog.core.controller import registrations
from raylog.core.ids import BrokerId
from raylog.core.partition import PartitionState
from raylog.core.reassignment import moves
from raylog.core.reassignment import requests as reassignment
from raylog.core.replication.leader import Leader
from tests.simulation.partition.hosts import Hosts
from tests.simulation.planted.bugs import Planted


def complete_at_the_first(
    state: PartitionState, ready: Collection[BrokerId], lost: Collection[BrokerId] = ()
) -> PartitionState | None:
    """The old replicas are removed as soon as one of the new ones is in sync."""
    in_sync = [broker for broker in state.target if broker in state.isr and broker not in lost]
    if not reassignment.is_moving(state) or not in_sync:
        return None
    return reassignment._reshaped(state, state.target, (), (), ready)


def forget_the_isr(original: Callable[..., PartitionState | None]) -> Callable[..., PartitionState | None]:
    """Every target replica counts as in sync."""

    def reshaped(state: PartitionState, replicas: tuple[BrokerId, ...], *rest: Any) -> PartitionState | None:
        after = original(replace(state, isr=replicas), replicas, *rest)
        return state if after is not None and after.replicas == state.replicas and not rest[0] else after

    return reshaped


def commit_beside_eligible(original: Callable[..., Any]) -> Callable[..., Any]:
    """The leader applies its own minimum alone, and ignores other replicas that are eligible to lead."""

    def advance(self: Leader, *rest: Any) -> Any:
        state = self.isr.state
        self.isr.state = replace(state, elr=())
        try:
            return original(self, *rest)
        finally:
            if self.isr.state.partition_epoch == state.partition_epoch:
                self.isr.state = replace(self.isr.state, elr=state.elr)

    return advance


def always_eligible(original: Callable[..., tuple[BrokerId, ...]]) -> Callable[..., tuple[BrokerId, ...]]:
    """A replica that leaves the ISR stays eligible, though records are committed without it."""

    def eligible(state: PartitionState, isr: Any, min_isr: int, lost: Collection[BrokerId] = ()) -> Any:
        return original(state, isr, 99, lost)

    return eligible


def remove_at_once(self: Hosts, broker: int) -> None:
    """The broker's own metadata counts as the newest."""
    self._newest[broker] = -1
    self._conclude(broker)


MOVE_BUGS = (
    Planted(
        "a move is complete before the whole target is in the ISR",
        "reassign",
        20,
        ("I10",),
        moves,
        "completed",
        complete_at_the_first,
    ),
    Planted(
        "a replica that is added counts as in sync",
        "reassign",
        20,
        ("I1", "I4", "I6", "I7", "I10"),
        reassignment,
        "_reshaped",
        forget_the_isr(reassignment._reshaped),
    ),
    Planted(
        "a folder is removed on the word of old metadata",
        "reassign",
        40,
        ("I7",),
        Hosts,
        "_ask",
        remove_at_once,
    ),
    Planted(
        "an eligible replica leads though it lost its log",
        "eligible",
        40,
        ("I1", "I2", "I6", "I7"),
        registrations,
        "without_eligible",
        lambda state, broker: state,
    ),
    Planted(
        "a replica stays eligible while records are committed without it",
        "eligible",
        20,
        ("I7",),
        election,
        "eligible",
        always_eligible(election.eligible),
    ),
    Planted(
        "records are committed beside eligible replicas",
        "eligible",
        40,
        ("I1", "I2", "I6", "I7"),
        Leader,
        "advance",
        commit_beside_eligible(Leader.advance),
    ),
)
