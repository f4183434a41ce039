"""The table of the classic protocol, cell by cell: each request of a known member in each state of its group."""

from collections.abc import Callable

import pytest

from raylog.base.errors import IllegalGeneration, RebalanceInProgress, UnknownMemberId
from raylog.core.groups.states import LEGAL_PREDECESSORS, GroupState, is_legal_move
from tests.unit.core.groups.context import Groups

PARKED = None
Situation = tuple[Groups, str, int]


def empty() -> Situation:
    groups = Groups()
    member = groups.emptied()
    return groups, member, 2


def preparing() -> Situation:
    """Both members of a stable generation 1; the other one has begun a new round."""
    groups = Groups()
    leader, follower = groups.stable()
    groups.join(leader)
    assert groups.state == "PreparingRebalance"
    return groups, follower, 1


def completing() -> Situation:
    groups = Groups()
    _, follower = groups.completing()
    return groups, follower, 1


def stable() -> Situation:
    groups = Groups()
    _, follower = groups.stable()
    return groups, follower, 1


def deleted() -> Situation:
    groups = Groups()
    member = groups.emptied()
    assert groups.code(groups.delete()) == 0
    return groups, member, 2


def join(groups: Groups, member: str, generation: int) -> int:
    return groups.join(member)


def join_with_other_metadata(groups: Groups, member: str, generation: int) -> int:
    return groups.join(member, protocols=[("range", b"other topics")])


def sync(groups: Groups, member: str, generation: int) -> int:
    return groups.sync(member, generation)


def heartbeat(groups: Groups, member: str, generation: int) -> int:
    return groups.heartbeat(member, generation)


def commit(groups: Groups, member: str, generation: int) -> int:
    return groups.commit(5, member_id=member, generation=generation)


def simple_commit(groups: Groups, member: str, generation: int) -> int:
    return groups.commit(5)


@pytest.mark.parametrize(
    ("situation", "request_of", "code"),
    [
        (empty, join, UnknownMemberId.code),
        (preparing, join, 0),  # the last one missing: its join ends the round
        (completing, join, 0),
        (completing, join_with_other_metadata, PARKED),
        (stable, join, 0),
        (stable, join_with_other_metadata, PARKED),
        (deleted, join, UnknownMemberId.code),
        (empty, sync, UnknownMemberId.code),
        (preparing, sync, RebalanceInProgress.code),
        (completing, sync, PARKED),
        (stable, sync, 0),
        (deleted, sync, UnknownMemberId.code),
        (empty, heartbeat, UnknownMemberId.code),
        (preparing, heartbeat, RebalanceInProgress.code),
        (completing, heartbeat, 0),
        (stable, heartbeat, 0),
        (deleted, heartbeat, UnknownMemberId.code),
        (empty, commit, UnknownMemberId.code),
        (empty, simple_commit, 0),
        (preparing, commit, 0),
        (preparing, simple_commit, UnknownMemberId.code),
        (completing, commit, RebalanceInProgress.code),
        (completing, simple_commit, UnknownMemberId.code),
        (stable, commit, 0),
        (stable, simple_commit, UnknownMemberId.code),
        (deleted, commit, IllegalGeneration.code),
        (deleted, simple_commit, 0),
    ],
)
def test_a_known_member_meets_kafkas_answer(
    situation: Callable[[], Situation], request_of: Callable[[Groups, str, int], int], code: int | None
) -> None:
    groups, member, generation = situation()
    assert groups.code(request_of(groups, member, generation)) == code


@pytest.mark.parametrize("situation", [completing, stable])
@pytest.mark.parametrize("request_of", [sync, heartbeat, commit])
def test_another_generation_is_illegal(
    situation: Callable[[], Situation], request_of: Callable[[Groups, str, int], int]
) -> None:
    groups, member, generation = situation()
    for other in (generation - 1, generation + 1):
        assert groups.code(request_of(groups, member, other)) == IllegalGeneration.code


@pytest.mark.parametrize("situation", [empty, preparing, completing, stable, deleted])
@pytest.mark.parametrize("request_of", [join, sync, heartbeat])
def test_an_unknown_member_is_refused(
    situation: Callable[[], Situation], request_of: Callable[[Groups, str, int], int]
) -> None:
    groups, _, generation = situation()
    assert groups.code(request_of(groups, "nobody", generation)) == UnknownMemberId.code


def test_the_leader_rejoining_a_stable_group_always_begins_a_round(groups: Groups) -> None:
    leader, follower = groups.stable()
    assert groups.code(groups.join(leader)) is PARKED
    assert groups.code(groups.heartbeat(follower, 1)) == RebalanceInProgress.code


def test_moves_between_states_are_those_of_the_table() -> None:
    legal = {
        (before.value, after.value) for before in GroupState for after in GroupState if is_legal_move(before, after)
    }
    assert {move for move in legal if move[1] != "Dead"} == {
        ("Empty", "PreparingRebalance"),
        ("CompletingRebalance", "PreparingRebalance"),
        ("Stable", "PreparingRebalance"),
        ("PreparingRebalance", "CompletingRebalance"),
        ("CompletingRebalance", "Stable"),
        ("PreparingRebalance", "Empty"),
    }
    assert set(LEGAL_PREDECESSORS) == set(GroupState)
