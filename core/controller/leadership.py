"""Who leads a partition, who stays in its ISR and who stays eligible outside it. Pure; called by the controller.

Rules, in order: a leader that is online, or may still be, stays. An offline member leaves the ISR as soon as another
member is online; a member that lost its log leaves as soon as another one has not. Whoever leaves an ISR that is then
below ``min.insync.replicas`` becomes an eligible leader replica (ELR): nothing is committed from then on, so it has all
that ever was. An empty place is taken by the first of ``replicas`` that is in the ISR, online and in possession of its
log; then by one that is eligible, when no ISR member can be hoped for; outside both only where unclean elections are
allowed. Otherwise nobody leads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from enum import Enum

from raylog.core.config import TopicConfig
from raylog.core.ids import NO_LEADER, BrokerId, LeaderEpoch, PartitionEpoch
from raylog.core.partition import PartitionState


class Standing(Enum):
    """How the controller sees one replica."""

    ONLINE = "it has a session"
    AWAITED = "it has none, but it is too early to give it up: neither elected nor removed from the ISR"
    OFFLINE = "it has none, or its broker was asked to stop"


def min_insync(state: PartitionState, config: Mapping[str, str]) -> int:
    """Return ``min.insync.replicas`` of a partition whose topic has this configuration.

    A reassignment under way does not raise the majority that is the default. The leader goes by the same number.
    """
    return TopicConfig.from_dict(config).min_insync(state.replication_factor)


def settle(
    state: PartitionState,
    standing: Mapping[BrokerId, Standing],
    *,
    lost: Collection[BrokerId] = (),
    unclean: bool = False,
    prefer: BrokerId | None = None,
    min_isr: int = 1,
) -> PartitionState:
    """Return the state the partition should be in; the same object when nothing has to change.

    ``lost`` are ISR members without their log; ``prefer`` comes before the order of ``replicas`` in an election.
    """
    isr = _settled_isr(state.isr, standing, lost)
    leader = state.leader
    if leader != NO_LEADER and (leader not in isr or leader in lost or standing[leader] is Standing.OFFLINE):
        leader = NO_LEADER
    if leader != NO_LEADER:
        return _changed(state, leader, state.leader_epoch, isr, eligible(state, isr, min_isr, lost))
    preferred = state.replicas[0]
    if state.leader_epoch == 0 and preferred in isr and standing[preferred] is Standing.AWAITED:
        # A new topic: its leaders would all sit where the first process happened to come up.
        return _changed(state, NO_LEADER, state.leader_epoch, isr, eligible(state, isr, min_isr, lost))
    order = [prefer] if prefer is not None else []
    order += [broker for broker in state.replicas if broker != prefer]
    online = [broker for broker in order if standing[broker] is Standing.ONLINE]
    following = LeaderEpoch(state.leader_epoch + 1)
    clean = [broker for broker in online if broker in isr and broker not in lost]
    if clean:
        return _changed(state, clean[0], following, isr, eligible(state, isr, min_isr, lost))
    # An ISR member may have records beyond those of the eligible ones, which acks=1 promised: it is waited for.
    hopeless = all(standing[broker] is not Standing.AWAITED for broker in isr)
    complete = [broker for broker in online if broker in state.elr]
    if complete and hopeless:
        isr = (complete[0],)
        return _changed(state, complete[0], following, isr, eligible(state, isr, min_isr, lost))
    if unclean and hopeless and online:
        # Somebody with an older log before somebody with none. What others have is no part of the history any more.
        chosen = min(online, key=lambda broker: broker in lost or broker in state.adding)
        elected = _changed(state, chosen, following, (chosen,), ())
        return replace(elected, unclean_leader_epoch=following)
    return _changed(state, NO_LEADER, state.leader_epoch, isr, eligible(state, isr, min_isr, lost))


def with_isr(
    state: PartitionState,
    isr: tuple[BrokerId, ...],
    *,
    min_isr: int = 1,
    lost: Collection[BrokerId] = (),
    drops_eligible: bool = False,
) -> PartitionState:
    """Return the state with another ISR, one partition epoch later; the same object when nothing changes.

    ``drops_eligible``: nobody else is to be elected, as the leader shows what it has beyond the high watermark it knew.
    """
    elr = () if drops_eligible else eligible(state, isr, min_isr, lost)
    return _changed(state, state.leader, state.leader_epoch, isr, elr)


def without_leader(state: PartitionState) -> PartitionState:
    """Return the state with nobody leading, one partition epoch later; the next election raises the leader epoch."""
    return _changed(state, NO_LEADER, state.leader_epoch, state.isr, state.elr)


def without_eligible(state: PartitionState, broker: BrokerId) -> PartitionState:
    """Return the state in which that replica may not lead from outside the ISR; the same object when it might not."""
    elr = tuple(member for member in state.elr if member != broker)
    return _changed(state, state.leader, state.leader_epoch, state.isr, elr)


def led_by_preferred(
    state: PartitionState, standing: Mapping[BrokerId, Standing], lost: Collection[BrokerId] = ()
) -> PartitionState:
    """Return the state led by the first of ``replicas``; the same object when it leads already or cannot lead now."""
    preferred = state.replicas[0]
    able = preferred in state.isr and preferred not in lost and standing[preferred] is Standing.ONLINE
    if not able or state.leader == preferred:
        return state
    return _changed(state, preferred, LeaderEpoch(state.leader_epoch + 1), state.isr, state.elr)


def eligible(
    state: PartitionState, isr: Iterable[BrokerId], min_isr: int, lost: Collection[BrokerId] = ()
) -> tuple[BrokerId, ...]:
    """Return the eligible leader replicas beside a new ISR: none while it is large enough to commit anything."""
    members = set(isr)
    if len(members) >= min_isr:
        return ()
    complete = {*state.isr, *state.elr} - members - set(lost)
    return tuple(broker for broker in state.replicas if broker in complete)


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
    state: PartitionState,
    leader: BrokerId,
    leader_epoch: LeaderEpoch,
    isr: tuple[BrokerId, ...],
    elr: tuple[BrokerId, ...],
) -> PartitionState:
    if (leader, leader_epoch, isr, elr) == (state.leader, state.leader_epoch, state.isr, state.elr):
        return state
    return replace(
        state,
        leader=leader,
        leader_epoch=leader_epoch,
        isr=isr,
        elr=elr,
        partition_epoch=PartitionEpoch(state.partition_epoch + 1),
    )
