"""A member's way from its current assignment to its target, one step for each heartbeat (KIP-848). Pure.

The one rule: a partition goes to its new owner only when no member has it, and the former owner has it until its own
heartbeat no longer lists it. A member that has to give up partitions stays in its epoch until it has; all others
advance. All of them keep reading the partitions that they keep.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from raylog.core.groups.consumer.records import Current, MemberState, Place


def next_current(
    current: Current,
    target: Collection[Place],
    target_epoch: int,
    *,
    owned: Collection[Place] | None,
    owners: Mapping[Place, str],
    shown_epoch: int,
) -> Current:
    """Return the member's next current assignment; the same object if nothing changes.

    ``owned``: the partitions that its heartbeat lists; None = it lists none, which confirms no revocation. ``owners``:
    the member that has each partition, including one that has not confirmed that it gave it up. ``shown_epoch``: the
    epoch in the member's last heartbeat, which it may send again until it has the answer with the new one.
    """
    if current.state is MemberState.STABLE and current.epoch == target_epoch:
        return current
    if current.state is MemberState.UNREVOKED_PARTITIONS and _still_holds(current.revoking, owned):
        return current
    kept = {place: since for place, since in current.assigned.items() if place in target}
    given_up = {place: since for place, since in current.assigned.items() if place not in target}
    if given_up and _still_holds(given_up, owned):
        return replace(current, state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=given_up)
    missing = [place for place in target if place not in kept]
    free = [place for place in missing if owners.get(place, current.member_id) == current.member_id]
    state = MemberState.STABLE if len(free) == len(missing) else MemberState.UNRELEASED_PARTITIONS
    following = Current(
        member_id=current.member_id,
        epoch=target_epoch,
        previous_epoch=current.previous_epoch if current.epoch == target_epoch else shown_epoch,
        state=state,
        assigned=kept | dict.fromkeys(free, target_epoch),
        revoking={},
    )
    return current if following == current else following


def _still_holds(partitions: Collection[Place], owned: Collection[Place] | None) -> bool:
    return owned is None or any(place in owned for place in partitions)
