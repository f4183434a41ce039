"""A member's state machine alone: the requests it makes, and the effect of each error."""

from __future__ import annotations

import pytest

from raylog.base import errors
from raylog.base.ids import TopicPartition
from raylog.client.group.membership import NO_GENERATION, REACTIONS, GroupRequest, Membership, reaction_to
from raylog.protocol.groups import JoinGroupMember, JoinGroupReply, LeaveGroupRequest, LeavingMember, SyncGroupRequest

COUNTS = {"flights": 4}


def member(**options: str) -> Membership:
    return Membership("board", client_id="c", **options)  # type: ignore[arg-type]


def stable(generation: int = 3, **options: str) -> Membership:
    """A member that leads a group of its own and owns everything."""
    made = member(**options)
    metadata = made.join_request(["flights"]).protocols[0].metadata
    rows = made.joined(JoinGroupReply(generation, "range", "c-1", "c-1", [JoinGroupMember("c-1", None, metadata)]))
    assignments = made.sync_request(made.subscriptions(rows), COUNTS).assignments
    made.synced(assignments[0].assignment)
    return made


def test_a_new_member_has_to_join_and_has_no_identity_to_commit_with() -> None:
    new = member()
    assert new.rejoin_reason is not None
    assert new.commit_identity == (NO_GENERATION, "")
    assert new.leave_request() is None


def test_the_leader_assigns_for_all_members_and_a_follower_for_none() -> None:
    leader = stable()
    assert leader.owned == tuple(TopicPartition("flights", number) for number in range(4))
    assert leader.commit_identity == (3, "c-1")
    assert leader.rejoin_reason is None
    follower = member()
    follower.join_request(["flights"])
    assert follower.joined(JoinGroupReply(4, "range", "c-1", "c-2", [])) == []
    assert follower.sync_request({}, COUNTS) == SyncGroupRequest("board", 4, "c-2", None, [])
    assert follower.synced(b"") == ()


def test_a_leader_that_is_to_skip_assigns_nothing() -> None:
    returned = member(instance_id="one")
    rows = [JoinGroupMember("c-9", "one", b"")]
    assert returned.joined(JoinGroupReply(5, "range", "c-9", "c-9", rows, skip_assignment=True)) == []
    assert returned.sync_request({}, COUNTS).assignments == []


def test_the_id_that_is_handed_out_is_used_in_the_next_join() -> None:
    new = member()
    error = errors.MemberIdRequired("join again", member_id="c-7")
    assert not new.failed(GroupRequest.JOIN, error, generation=NO_GENERATION).fatal
    assert new.join_request(["flights"]).member_id == "c-7"


@pytest.mark.parametrize("call", [GroupRequest.HEARTBEAT, GroupRequest.COMMIT])
@pytest.mark.parametrize(
    ("error", "keeps_id", "keeps_generation"),
    [
        (errors.RebalanceInProgress, True, True),
        (errors.IllegalGeneration, True, False),
        (errors.UnknownMemberId, False, False),
        (errors.FencedInstanceId, False, False),
    ],
)
def test_each_refusal_takes_away_what_it_says_and_no_more(
    call: GroupRequest, error: type[errors.RaylogError], keeps_id: bool, keeps_generation: bool
) -> None:
    one = stable()
    reaction = one.failed(call, error(), generation=3)
    assert reaction.fatal is (error is errors.FencedInstanceId)
    assert one.rejoin_reason is not None
    assert one.member_id == ("c-1" if keeps_id else "")
    assert one.generation == (3 if keeps_generation else NO_GENERATION)
    assert one.lost is not keeps_generation
    assert one.is_stable is keeps_generation
    assert bool(one.owned) is keeps_generation


def test_an_answer_to_an_earlier_generation_changes_nothing() -> None:
    one = stable()
    for error in (errors.IllegalGeneration(), errors.UnknownMemberId(), errors.RebalanceInProgress()):
        for call in (GroupRequest.HEARTBEAT, GroupRequest.COMMIT):
            reaction = one.failed(call, error, generation=2)
            assert not reaction.rejoin
            assert one.commit_identity == (3, "c-1")
            assert one.rejoin_reason is None


@pytest.mark.parametrize("call", list(GroupRequest))
def test_an_error_outside_the_table_is_repeated_or_raised_by_its_flag(call: GroupRequest) -> None:
    listed = {kind for known, kind in REACTIONS if known is call}
    for kind in (errors.ConnectionFailed, errors.NotCoordinator, errors.CoordinatorLoadInProgress):
        assert reaction_to(call, kind()).retry
    for final in (errors.InconsistentGroupProtocol, errors.InvalidSessionTimeout, errors.GroupMaxSizeReached):
        assert final not in listed
        assert reaction_to(call, final()).fatal


def test_a_static_member_only_pauses_and_a_dynamic_one_says_goodbye() -> None:
    assert stable(instance_id="one").leave_request() is None
    dynamic = stable()
    assert dynamic.leave_request() == LeaveGroupRequest("board", [LeavingMember("c-1", None)])
    dynamic.lose("it has left", member_too=True)
    assert dynamic.commit_identity == (NO_GENERATION, "")
