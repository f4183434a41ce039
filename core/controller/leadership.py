"""Election rules: the leader, the ISR and the eligible replicas of a partition. Pure; called by the controller.

Rules, in order, for a partition that is awake: a leader that is online, or may still be, stays. An offline member
leaves the ISR as soon as another member is online; a member that lost its log leaves as soon as another member has its
log. A replica that leaves an ISR that is then below ``min.insync.replicas`` becomes an eligible leader replica (ELR):
no record is committed from then on, so it has all committed records. A partition without a leader elects the first of
``replicas`` that is in the ISR, online and in possession of its log. Next come eligible replicas, when no member of the
ISR is awaited. Replicas outside both are elected only where unclean elections are allowed. Otherwise the partition has
no leader.

A partition that sleeps has no replica to elect: the brokers stand for their replicas. Its leadership moves only when
the leader's broker is offline and that of another ISR member is online and has its log. Its ISR stays: nothing is
written to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from enum import Enum

from raylog.base.ids import NO_LEADER, BrokerId, LeaderEpoch, PartitionEpoch
from raylog.core.configuration.config import TopicConfig
from raylog.core.partition import PartitionState


class Standing(Enum):
    """Status of one replica, as the controller knows it."""

    ONLINE = "it has a session"
    AWAITED = "it has none, but it is too early to give it up: neither elected nor removed from the ISR"
    OFFLINE = "it has none, or its broker is being stopped"


def min_insync(state: PartitionState, config: Mapping[str, str]) -> int:
    """Return ``min.insync.replicas`` of a partition whose topic has this configuration.

    A reassignment under way does not raise the majority that is the default. The leader uses the same number.
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
    expected: BrokerId | None = None,
) -> PartitionState:
    """Return the state the partition should be in; the same object when no change is needed.

    ``lost`` are ISR members without their log; ``prefer`` comes before the order of ``replicas`` in an election.
    ``expected`` is the replica that leads once it runs: that of a partition that wakes, the preferred one of a new one.
    No other is elected while it is awaited.
    """
    if state.asleep is not None:
        return _settled_asleep(state, standing, lost)
    isr = _settled_isr(state.isr, standing, lost)
    leader = state.leader
    if leader != NO_LEADER and (leader not in isr or leader in lost or standing[leader] is Standing.OFFLINE):
        leader = NO_LEADER
    if leader != NO_LEADER:
        return _changed(state, leader, state.leader_epoch, isr, eligible(state, isr, min_isr, lost))
    if expected is not None and expected in isr and standing[expected] is Standing.AWAITED:
        # Otherwise the leaders of a new topic would all be on the broker whose process started first.
        return _changed(state, NO_LEADER, state.leader_epoch, isr, eligible(state, isr, min_isr, lost))
    order = [prefer] if prefer is not None else []
    order += [broker for broker in state.replicas if broker != prefer]
    online = [broker for broker in order if standing[broker] is Standing.ONLINE]
    following = LeaderEpoch(state.leader_epoch + 1)
    clean = [broker for broker in online if broker in isr and broker not in lost]
    if clean:
        return _changed(state, clean[0], following, isr, eligible(state, isr, min_isr, lost))
    # An ISR member may have acks=1 records beyond those of the eligible ones: it is awaited.
    hopeless = all(standing[broker] is not Standing.AWAITED for broker in isr)
    complete = [broker for broker in online if broker in state.elr]
    if complete and hopeless:
        isr = (complete[0],)
        return _changed(state, complete[0], following, isr, eligible(state, isr, min_isr, lost))
    if unclean and hopeless and online:
        # A replica with an older log is preferred to one without. Records on other replicas leave the history.
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

    ``drops_eligible``: clears the ELR, as the leader exposes records beyond the high watermark it knew.
    """
    elr = () if drops_eligible else eligible(state, isr, min_isr, lost)
    return _changed(state, state.leader, state.leader_epoch, isr, elr)


def without_leader(state: PartitionState) -> PartitionState:
    """Return the state without a leader, one partition epoch later; the next election raises the leader epoch."""
    return _changed(state, NO_LEADER, state.leader_epoch, state.isr, state.elr)


def without_eligible(state: PartitionState, broker: BrokerId) -> PartitionState:
    """Return the state without that replica in the ELR; the same object when it is not in it."""
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
    """Return the eligible leader replicas beside a new ISR: none while it is large enough to commit."""
    members = set(isr)
    if len(members) >= min_isr:
        return ()
    complete = {*state.isr, *state.elr} - members - set(lost)
    return tuple(broker for broker in state.replicas if broker in complete)


def woken(state: PartitionState) -> PartitionState:
    """Return the state of a sleeping partition once it is woken, before its replicas run: without a leader."""
    return replace(state, asleep=None, leader=NO_LEADER, partition_epoch=PartitionEpoch(state.partition_epoch + 1))


def _settled_asleep(
    state: PartitionState, standing: Mapping[BrokerId, Standing], lost: Collection[BrokerId]
) -> PartitionState:
    if standing[state.leader] is not Standing.OFFLINE:
        return state
    for broker in state.replicas:
        if broker in state.isr and broker not in lost and standing[broker] is Standing.ONLINE:
            return _changed(state, broker, LeaderEpoch(state.leader_epoch + 1), state.isr, state.elr)
    return state


def _settled_isr(
    isr: tuple[BrokerId, ...], standing: Mapping[BrokerId, Standing], lost: Collection[BrokerId]
) -> tuple[BrokerId, ...]:
    with_log = tuple(broker for broker in isr if broker not in lost)
    # The last member stays even without its log: the ISR names the replicas that should have the committed records.
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
