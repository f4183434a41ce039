"""The next voter to add or remove. Pure; called by a leading proposer when no change is pending.

Single-server changes as in Raft (Ongaro's thesis, section 4.1): two consecutive configurations differ in one copy, so
every majority of the one shares a voter with every majority of the other. A voter that has lost its copy returns with
another copy under the same number: the lost one is removed first, then the new one is added.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

Members = Mapping[int, str]
"""A configuration of the quorum: the identity of each voter's copy, by broker id."""


def majority(voters: int) -> int:
    """Return the smallest number of voters that is more than half of them."""
    return voters // 2 + 1


def is_single_change(before: Members, after: Members) -> bool:
    """Return whether the change adds or removes exactly one copy."""
    return len(set(before.items()) ^ set(after.items())) == 1 and bool(after)


def next_members(
    members: Members, identities: Members, ready: Collection[int], target: Collection[int]
) -> dict[int, str] | None:
    """Return the next configuration, None while no change is needed or possible.

    ``identities`` are those that brokers answered with; ``ready`` are the brokers that hold everything committed;
    ``target`` are the target voters. A configuration without a majority of ready voters is never entered.
    """
    after = _after(members, identities, ready, target)
    if after is None or sum(number in ready for number in after) < majority(len(after)):
        return None
    return after


def _after(
    members: Members, identities: Members, ready: Collection[int], target: Collection[int]
) -> dict[int, str] | None:
    for number, identity in sorted(members.items()):
        is_lost = identities.get(number, identity) != identity
        if is_lost and len(members) > 1 and (number in ready or number not in target):
            return _without(members, number)
    absent = sorted(set(target) - set(members))
    joining = [number for number in absent if number in ready]
    # An even number of voters tolerates no more losses than the odd one below, so two join, one right after the other.
    grows_by_two = len(members) % 2 == 1 and len(target) - len(members) >= 2
    if len(joining) >= (2 if grows_by_two else 1):
        return {**members, joining[0]: identities[joining[0]]}
    leaving = sorted(set(members) - set(target), key=lambda number: (number in ready, -number))
    return _without(members, leaving[0]) if leaving and not absent else None


def _without(members: Members, removed: int) -> dict[int, str]:
    return {number: identity for number, identity in members.items() if number != removed}
