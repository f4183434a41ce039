"""Who leads a partition and who stays in its ISR, given how each replica stands. Pure; called by the controller.

Rules, in order: a leader that is online, or may still be, stays. An offline member leaves the ISR as soon as another
member is online; a member that lost its log leaves as soon as another one has not. An empty place is taken by the first
of ``replicas`` that is in the ISR, online and in possession of its log; outside the ISR only where the topic allows
unclean elections, and only when no ISR member can still be hoped for. Otherwise nobody leads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from enum import Enum

from raylog.core.ids import NO_LEADER, BrokerId, LeaderEpoch, PartitionEpoch
from raylog.core.replication.state import PartitionState


class Standing(Enum):
    """How the controller sees one replica."""

    ONLINE = "it has a session"
    AWAITED = "it has none, but it is too early to give it up: neither elected nor removed from the ISR"
    OFFLINE = "it has none"


def settle(
    state: PartitionState,
    standing: Mapping[BrokerId, Standing],
    *,
    lost: Collection[BrokerId] = (),
    unclean: bool = False,
    prefer: BrokerId | None = None,
) -> PartitionState:
    """Return the state the partition should be in; the same object when nothing has to change.

    ``lost`` are ISR members without their log; ``prefer`` comes before the order of ``replicas`` in an election.
    """
    isr = _settled_isr(state.isr, standing, lost)
    leader = state.leader
    if leader != NO_LEADER and (leader not in isr or leader in lost or standing[leader] is Standing.OFFLINE):
        leader = NO_LEADER
    if leader != NO_LEADER:
        return _changed(state, leader, state.leader_epoch, isr)
    preferred = state.replicas[0]
    if state.leader_epoch == 0 and preferred in isr and standing[preferred] is Standing.AWAITED:
        # A new topic: its leaders would all sit where the first process happened to come up.
        return _changed(state, NO_LEADER, state.leader_epoch, isr)
    order = [prefer] if prefer is not None else []
    order += [broker for broker in state.replicas if broker != prefer]
    online = [broker for broker in order if standing[broker] is Standing.ONLINE]
    clean = [broker for broker in online if broker in isr and broker not in lost]
    if clean:
        return _changed(state, clean[0], LeaderEpoch(state.leader_epoch + 1), isr)
    hopeless = all(standing[broker] is not Standing.AWAITED for broker in isr)
    if unclean and hopeless and online:
        # Somebody with an older log before somebody with none.
        chosen = min(online, key=lambda broker: broker in lost)
        return _changed(state, chosen, LeaderEpoch(state.leader_epoch + 1), (chosen,))
    return _changed(state, NO_LEADER, state.leader_epoch, isr)


def with_isr(state: PartitionState, isr: tuple[BrokerId, ...]) -> PartitionState:
    """Return the state with another ISR, one partition epoch later; the same object when it is the same ISR."""
    return _changed(state, state.leader, state.leader_epoch, isr)


def without_leader(state: PartitionState) -> PartitionState:
    """Return the state with nobody leading, one partition epoch later; the next election raises the leader epoch."""
    return _changed(state, NO_LEADER, state.leader_epoch, state.isr)


def _settled_isr(
    isr: tuple[BrokerId, ...], standing: Mapping[BrokerId, Standing], lost: Collection[BrokerId]
) -> tuple[BrokerId, ...]:
    with_log = tuple(broker for broker in isr if broker not in lost)
    # The last member stays even without its log: the ISR says who would have to have the committed records.
    isr = with_log or isr
    present = tuple(broker for broker in isr if standing[broker] is not Standing.OFFLINE)
    online = any(standing[broker] is Standing.ONLINE and broker not in lost for broker in isr)
    return present if online else isr


def _changed(
    state: PartitionState, leader: BrokerId, leader_epoch: LeaderEpoch, isr: tuple[BrokerId, ...]
) -> PartitionState:
    if (leader, leader_epoch, isr) == (state.leader, state.leader_epoch, state.isr):
        return state
    return replace(
        state,
        leader=leader,
        leader_epoch=leader_epoch,
        isr=isr,
        partition_epoch=PartitionEpoch(state.partition_epoch + 1),
    )
