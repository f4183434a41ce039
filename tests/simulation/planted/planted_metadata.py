"""Planted bugs in the metadata: in voters, proposers, the controller's topics and moves, and the runners of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from raylog.actors.controller.runner import _Committed
from raylog.actors.metadata.quorum_runner import QuorumRunner
from raylog.actors.metadata.snapshot import MetadataSnapshot
from raylog.core.controller import events as ctl
from raylog.core.controller import leadership as election
from raylog.core.controller import liveness
from raylog.core.controller.decision import ControllerDecision
from raylog.core.controller.topics import Topics
from raylog.core.metadata.records import CoordinatorPlaced, ProducerIdsAllocated, TopicConfigured
from raylog.core.quorum import LogHistory, VoterMachine, proposer
from raylog.core.quorum import events as ev
from raylog.core.reassignment import moves
from tests.simulation.planted import sabotage
from tests.simulation.planted.bugs import Planted

VOTERS = "voters"
METADATA = "metadata"


def promise_to_anybody(original: Callable[..., None]) -> Callable[..., None]:
    """An epoch that is promised to one candidate is promised to the next one too."""

    def promise(self: VoterMachine, event: ev.PromiseRequested, outbox: Any) -> None:
        if event.epoch == self.promised:
            self.candidate = event.candidate
        original(self, event, outbox)

    return promise


def forgotten_in_snapshots(kind: type) -> Callable[..., Any]:
    """A snapshot leaves one kind of record out."""
    original = MetadataSnapshot.of.__func__  # type: ignore[attr-defined]

    def of(cls: Any, records: Any, *more: Any) -> Any:
        return original(cls, [record for record in records if not isinstance(record, kind)], *more)

    return of


def unwritten(kind: type) -> Callable[..., None]:
    """A record is acknowledged and not written."""
    original = ControllerDecision.write

    def write(self: ControllerDecision, record: Any) -> None:
        if not isinstance(record, kind):
            original(self, record)

    return write


def delete_nothing(self: Topics, event: ctl.DeleteTopicReceived, decision: ControllerDecision) -> None:
    decision.reply(event.request, [])


def move_elsewhere(original: Callable[..., Any]) -> Callable[..., Any]:
    """A move ends one replica short of its target."""

    def begun(self: moves.Moves, state: Any, target: Any, decision: Any) -> Any:
        return original(self, state, target[:-1] if len(target) > 1 else target, decision)

    return begun


def complete_at_once(state: Any, ready: Any, lost: Any = ()) -> Any:
    """A move is complete as soon as any replica of its target runs."""
    heirs = [broker for broker in state.target if broker in ready]
    if not (state.adding or state.removing) or not heirs:
        return None
    return replace(
        state,
        replicas=state.target,
        adding=(),
        removing=(),
        isr=(heirs[0],),
        elr=(),
        leader=heirs[0],
        leader_epoch=type(state.leader_epoch)(state.leader_epoch + 1),
        partition_epoch=type(state.partition_epoch)(state.partition_epoch + 1),
    )


METADATA_BUGS = (
    Planted(
        "half of the voters are a majority",
        VOTERS,
        20,
        ("I5 or I10",),
        proposer,
        "majority",
        lambda count: max(1, count // 2),
    ),
    Planted(
        "a voter promises an epoch to two candidates",
        VOTERS,
        60,
        ("I5 or I10",),
        VoterMachine,
        "_promise",
        promise_to_anybody(VoterMachine._promise),
    ),
    Planted(
        "the log of the lowest epoch is adopted",
        VOTERS,
        20,
        ("I5 or I10",),
        LogHistory,
        "rank",
        property(lambda self: (-self.epoch_before(self.end) if self.end else 0, self.end)),
    ),
    Planted(
        "a snapshot is announced and not kept",
        VOTERS,
        60,
        ("I5 or I10",),
        QuorumRunner,
        "_replace_beginning",
        lambda self: None,
    ),
    Planted(
        "the controller answers before its records are committed",
        METADATA,
        10,
        ("metadata",),
        _Committed,
        "durable_end",
        lambda self: self._log.log_end_offset,
    ),
    Planted(
        "producer ids are handed out without being written",
        METADATA,
        10,
        ("metadata",),
        ControllerDecision,
        "write",
        unwritten(ProducerIdsAllocated),
    ),
    Planted(
        "a topic's configuration is acknowledged and not written",
        METADATA,
        10,
        ("metadata",),
        ControllerDecision,
        "write",
        unwritten(TopicConfigured),
    ),
    Planted(
        "a coordinator's epoch is not written",
        METADATA,
        10,
        ("metadata",),
        ControllerDecision,
        "write",
        unwritten(CoordinatorPlaced),
    ),
    Planted(
        "a snapshot forgets the producer ids",
        METADATA,
        10,
        ("metadata",),
        MetadataSnapshot,
        "of",
        classmethod(forgotten_in_snapshots(ProducerIdsAllocated)),
    ),
    Planted("a deletion is acknowledged and not done", METADATA, 10, ("metadata",), Topics, "delete", delete_nothing),
    Planted(
        "a move ends elsewhere", METADATA, 10, ("metadata",), moves.Moves, "_begun", move_elsewhere(moves.Moves._begun)
    ),
    Planted(
        "a move is complete before its target is in sync",
        METADATA,
        10,
        ("metadata",),
        moves,
        "completed",
        complete_at_once,
    ),
    Planted(
        "an election is unclean though nobody allowed it",
        METADATA,
        10,
        ("metadata",),
        liveness,
        "settle",
        sabotage.unclean_election(election.settle),
    ),
)
