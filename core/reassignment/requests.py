"""How a partition moves to other brokers (KIP-455): the states it goes through. Pure; used by the controller.

While a partition moves, its replicas are the target, followed by those that will be removed; ``adding`` and
``removing`` name the new and the leaving ones. The move is complete when the ISR has the whole target. Removing a
replica always ends the leader epoch, with an election or without a leader: a leader that missed the change can then
neither commit nor credit a later incarnation of that replica with the progress of the earlier one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from raylog.base.ids import NO_LEADER, BrokerId, LeaderEpoch, PartitionEpoch
from raylog.core.partition import PartitionState


def is_moving(state: PartitionState) -> bool:
    """Return whether a reassignment of the partition is under way."""
    return bool(state.adding or state.removing)


def begun(state: PartitionState, target: Sequence[BrokerId], ready: Collection[BrokerId]) -> PartitionState | None:
    """Return the state that begins the move to ``target``; it replaces a move that is under way.

    ``ready``: the replicas that may lead, which are online and have their logs. None = the ISR would be empty; the same
    object = no change.
    """
    original = state.original
    adding = tuple(broker for broker in target if broker not in original)
    removing = tuple(broker for broker in original if broker not in target)
    return _reshaped(state, (*target, *removing), adding, removing, ready)


def cancelled(state: PartitionState, ready: Collection[BrokerId]) -> PartitionState | None:
    """Return the state without the replicas that were to be added; None = the ISR would be empty."""
    return _reshaped(state, state.original, (), (), ready)


def completed(
    state: PartitionState, ready: Collection[BrokerId], lost: Collection[BrokerId] = ()
) -> PartitionState | None:
    """Return the state without the replicas that were to be removed; None = it is too early.

    The whole target has to be in the ISR and have its logs (``lost``: brokers that lost theirs), and one of its members
    has to be able to lead. A partition without a leader waits for its election first.
    """
    target = state.target
    if not is_moving(state) or state.leader == NO_LEADER or not set(target) <= set(state.isr) - set(lost):
        return None
    after = _reshaped(state, target, (), (), ready)
    return None if after is None or after.leader == NO_LEADER else after


def _reshaped(
    state: PartitionState,
    replicas: tuple[BrokerId, ...],
    adding: tuple[BrokerId, ...],
    removing: tuple[BrokerId, ...],
    ready: Collection[BrokerId],
) -> PartitionState | None:
    if (replicas, adding, removing) == (state.replicas, state.adding, state.removing):
        return state
    isr = tuple(broker for broker in replicas if broker in state.isr)
    if not isr:
        return None
    leader, leader_epoch = state.leader, state.leader_epoch
    if leader != NO_LEADER and set(state.replicas) - set(replicas):
        heirs = [leader] if leader in replicas else [broker for broker in isr if broker in ready]
        leader = heirs[0] if heirs else NO_LEADER
        leader_epoch = LeaderEpoch(leader_epoch + 1) if heirs else leader_epoch
    return replace(
        state,
        replicas=replicas,
        adding=adding,
        removing=removing,
        isr=isr,
        elr=tuple(broker for broker in replicas if broker in state.elr),
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=PartitionEpoch(state.partition_epoch + 1),
    )
