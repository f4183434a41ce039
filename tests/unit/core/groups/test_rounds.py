"""Rounds of a dynamic group: members awaited and dropped, the leader, the state that survives."""

import pytest

from raylog.base.errors import (
    GroupMaxSizeReached,
    InconsistentGroupProtocol,
    InvalidGroupId,
    InvalidSessionTimeout,
    RebalanceInProgress,
    UnknownMemberId,
)
from raylog.core.groups.coordinator import GroupSettings
from raylog.core.groups.events import AppendRecords
from tests.unit.core.groups.context import REBALANCE_MS, Groups


def test_a_first_join_gets_an_id_and_has_to_come_back_with_it(groups: Groups) -> None:
    member = groups.new_id()
    request = groups.join(member)
    assert groups.code(request) is None
    groups.tick(300)
    assert groups.reply(request) == [1, "range", member, member, [[member, None, b"topics"]], False]


def test_an_id_not_used_within_the_session_timeout_is_forgotten(groups: Groups) -> None:
    member = groups.new_id(session_ms=2_000)
    groups.tick(2_000)
    assert groups.code(groups.join(member)) == UnknownMemberId.code
    assert groups.state == "Dead"


def test_only_the_leader_gets_everybodys_metadata(groups: Groups) -> None:
    first, second = groups.preparing()
    groups.end_first_round()
    leader_row, follower_row = groups.reply(3), groups.reply(4)
    assert leader_row[:4] == [1, "range", first, first]
    assert leader_row[4] == [[first, None, b"topics"], [second, None, b"topics"]]
    assert follower_row == [1, "range", first, second, [], False]


def test_new_members_extend_the_first_round_up_to_the_rebalance_timeout() -> None:
    groups = Groups(GroupSettings(initial_rebalance_delay_ms=300))
    members = [groups.new_id() for _ in range(5)]
    requests = [groups.join(members[0], rebalance_ms=1_000)]
    for member in members[1:]:
        groups.tick(299)
        requests.append(groups.join(member, rebalance_ms=1_000))
        groups.tick(1)
    # 300 + 300 + 300 + 100 ms: the round ended at the rebalance timeout, before the last newcomer.
    assert [groups.code(request) for request in requests] == [0, 0, 0, 0, None]


def test_without_newcomers_the_first_round_ends_after_its_delay(groups: Groups) -> None:
    (member,) = groups.preparing(1)
    groups.tick(299)
    assert groups.state == "PreparingRebalance"
    groups.tick(1)
    assert groups.code(groups.heartbeat(member, 1)) == 0


def test_an_assignment_is_written_before_any_member_gets_it(groups: Groups) -> None:
    first, second = groups.completing()
    parked = groups.sync(second, 1)
    assert groups.code(parked) is None
    answered = groups.sync(first, 1, {first: b"a", second: b"b"})
    assert isinstance(groups.last.now[0], AppendRecords)
    assert len(groups.last.after_sync) == 2
    assert (groups.reply(answered), groups.reply(parked)) == ([b"a"], [b"b"])


def test_a_member_the_leader_forgot_gets_an_empty_assignment(groups: Groups) -> None:
    first, second = groups.completing()
    parked = groups.sync(second, 1)
    groups.sync(first, 1, {first: b"a", "stranger": b"x"})
    assert groups.reply(parked) == [b""]


def test_a_new_member_begins_a_round_that_ends_when_all_have_joined(groups: Groups) -> None:
    first, second = groups.stable()
    third = groups.new_id()
    joins = [groups.join(third)]
    assert groups.code(groups.heartbeat(first, 1)) == RebalanceInProgress.code
    joins.append(groups.join(first))
    assert groups.code(joins[-1]) is None
    joins.append(groups.join(second))
    assert [groups.reply(request)[0] for request in joins] == [2, 2, 2]
    assert {groups.reply(request)[2] for request in joins} == {first}


def test_a_handed_out_id_keeps_the_round_open_until_it_joins(groups: Groups) -> None:
    first, second = groups.stable()
    waiting = groups.join(first)
    newcomer = groups.new_id()
    other = groups.join(second)
    assert (groups.code(waiting), groups.code(other)) == (None, None)
    last = groups.join(newcomer)
    assert [groups.code(request) for request in (waiting, other, last)] == [0, 0, 0]


def test_a_member_that_does_not_rejoin_in_time_is_dropped(groups: Groups) -> None:
    first, second = groups.stable()
    request = groups.join(first)
    for _ in range(3):
        groups.tick(6_000)
        groups.heartbeat(second, 1)  # alive, but does not join
    groups.tick(2_000)
    row = groups.reply(request)
    assert row[0] == 2
    assert row[4] == [[first, None, b"topics"]]
    assert groups.code(groups.heartbeat(second, 1)) == UnknownMemberId.code


def test_a_member_that_does_not_sync_in_time_is_dropped_in_a_new_round(groups: Groups) -> None:
    first, second = groups.completing()
    groups.sync(first, 1, {first: b"a", second: b"b"})
    for _ in range(4):
        assert groups.code(groups.heartbeat(first, 1)) == 0
        assert groups.code(groups.heartbeat(second, 1)) == 0
        groups.tick(5_000)
    assert groups.code(groups.heartbeat(second, 1)) == UnknownMemberId.code
    assert groups.code(groups.heartbeat(first, 1)) == RebalanceInProgress.code


def test_a_leader_that_never_syncs_is_dropped_and_the_others_rejoin(groups: Groups) -> None:
    first, second = groups.completing()
    parked = groups.sync(second, 1)
    groups.tick(10_000)  # the leader's session ends first
    assert groups.code(parked) == RebalanceInProgress.code
    request = groups.join(second)
    assert groups.reply(request)[2] == second
    assert groups.code(groups.heartbeat(first, 1)) == UnknownMemberId.code


def test_heartbeats_keep_a_member_and_silence_loses_it(groups: Groups) -> None:
    first, second = groups.stable()
    for _ in range(3):
        groups.tick(9_000)
        assert groups.code(groups.heartbeat(first, 1)) in (0, RebalanceInProgress.code)
    assert groups.code(groups.heartbeat(second, 1)) == UnknownMemberId.code


def test_a_heartbeat_during_a_round_keeps_the_member_alive(groups: Groups) -> None:
    first, second = groups.stable()
    groups.join(first)
    groups.tick(9_000)
    assert groups.code(groups.heartbeat(second, 1)) == RebalanceInProgress.code
    groups.tick(9_000)
    assert groups.code(groups.heartbeat(second, 1)) == RebalanceInProgress.code


def test_a_commit_counts_as_a_sign_of_life(groups: Groups) -> None:
    first, _ = groups.stable()
    groups.tick(9_000)
    groups.commit(1, member_id=first, generation=1)
    groups.tick(9_000)
    # The other member has left, this one stays.
    assert groups.code(groups.heartbeat(first, 1)) == RebalanceInProgress.code


def test_leaving_hands_the_work_over_at_once(groups: Groups) -> None:
    first, second = groups.stable()
    assert groups.reply(groups.leave((first, None))) == [[first, None, 0]]
    request = groups.join(second)
    assert groups.reply(request)[:4] == [2, "range", second, second]


def test_leaving_returns_each_member_its_own_result(groups: Groups) -> None:
    first, _ = groups.stable()
    rows = groups.reply(groups.leave((first, None), ("nobody", None), ("", "no-instance")))
    assert rows == [[first, None, 0], ["nobody", None, UnknownMemberId.code], ["", "no-instance", UnknownMemberId.code]]


def test_the_last_member_leaving_empties_the_group_in_a_new_generation(groups: Groups) -> None:
    groups.emptied()
    described = groups.described()
    assert (described["state"], described["generation"], described["members"]) == ("Empty", 2, [])


def test_a_dropped_request_leaves_the_member_its_session_to_come_back(groups: Groups) -> None:
    first, second = groups.stable()
    lost = groups.join(first)
    groups.drop(lost)
    other = groups.join(second)
    assert groups.code(other) is None
    again = groups.join(first)
    assert (groups.code(lost), groups.code(other), groups.code(again)) == (None, 0, 0)


def test_a_member_whose_parked_join_was_dropped_expires_with_its_session(groups: Groups) -> None:
    first, second = groups.stable()
    groups.drop(groups.join(first))
    other = groups.join(second)
    groups.tick(10_000)
    assert groups.reply(other)[4] == [[second, None, b"topics"]]


def test_a_dropped_sync_can_be_sent_again(groups: Groups) -> None:
    first, second = groups.completing()
    groups.drop(groups.sync(second, 1))
    groups.sync(first, 1, {first: b"a", second: b"b"})
    assert groups.reply(groups.sync(second, 1)) == [b"b"]


def test_a_repeated_join_replaces_the_one_that_waits(groups: Groups) -> None:
    first, second = groups.stable()
    old = groups.join(first)
    new = groups.join(first)
    groups.join(second)
    assert (groups.code(old), groups.code(new)) == (RebalanceInProgress.code, 0)


def test_the_assignor_with_the_most_votes_wins(groups: Groups) -> None:
    wishes = [["range", "sticky", "roundrobin"], ["sticky", "range"], ["sticky", "range"]]
    requests = []
    for wish in wishes:
        protocols = [(name, name.encode()) for name in wish]
        requests.append(groups.join(groups.new_id(protocols=protocols), protocols=protocols))
    groups.end_first_round()
    rows = [groups.reply(request) for request in requests]
    assert {row[1] for row in rows} == {"sticky"}
    metadata = [member[2] for member in rows[0][4]]  # type: ignore[attr-defined]
    assert metadata == [b"sticky"] * 3


def test_on_a_tie_the_leaders_first_choice_wins(groups: Groups) -> None:
    requests = []
    for wish in (["roundrobin", "range"], ["range", "roundrobin"]):
        protocols = [(name, b"") for name in wish]
        requests.append(groups.join(groups.new_id(protocols=protocols), protocols=protocols))
    groups.end_first_round()
    assert groups.reply(requests[0])[1] == "roundrobin"


@pytest.mark.parametrize(
    ("protocols", "protocol_type"), [([("sticky", b"")], "consumer"), ([("range", b"")], "connect")]
)
def test_a_member_with_nothing_in_common_is_refused(
    groups: Groups, protocols: list[tuple[str, bytes]], protocol_type: str
) -> None:
    groups.stable()
    assert groups.code(groups.join(protocols=protocols, protocol_type=protocol_type)) == InconsistentGroupProtocol.code


def test_a_full_group_takes_no_other_member() -> None:
    groups = Groups(GroupSettings(group_max_size=2))
    _, follower = groups.stable()
    assert groups.code(groups.join()) == GroupMaxSizeReached.code
    assert groups.code(groups.join(follower)) == 0


def test_an_id_assigned_before_the_group_filled_up_is_refused_afterwards() -> None:
    groups = Groups(GroupSettings(group_max_size=1))
    early, late = groups.new_id(client_id="early"), groups.join(client_id="late")
    assert groups.code(late) == GroupMaxSizeReached.code
    groups.join(early)
    groups.tick(300)
    assert groups.code(groups.join()) == GroupMaxSizeReached.code


def test_handed_out_ids_are_bounded() -> None:
    groups = Groups(GroupSettings(group_max_size=2))
    groups.new_id()
    groups.new_id()
    assert groups.code(groups.join()) == GroupMaxSizeReached.code


def test_a_member_that_rejoins_late_has_lost_its_place_to_a_newcomer() -> None:
    groups = Groups(GroupSettings(group_max_size=2))
    leader, follower = groups.stable()
    groups.join(leader)
    newcomer = groups.new_id()
    assert groups.code(groups.join(newcomer)) is None
    assert groups.code(groups.join(follower)) == GroupMaxSizeReached.code
    assert groups.code(groups.join(newcomer)) is None, "it has its place"
    groups.tick(REBALANCE_MS)
    assert groups.code(groups.heartbeat(newcomer, 2)) == 0
    assert groups.code(groups.heartbeat(follower, 2)) == UnknownMemberId.code


def test_static_members_keep_their_places_while_they_are_away() -> None:
    groups = Groups(GroupSettings(group_max_size=2))
    for instance in ("a", "b"):
        groups.join(group_instance_id=instance)
    groups.end_first_round()
    leader = groups.join(group_instance_id="a")
    assert groups.code(groups.join(group_instance_id="c")) == GroupMaxSizeReached.code
    assert groups.code(groups.join(group_instance_id="b")) == 0
    assert groups.code(leader) == 0


@pytest.mark.parametrize("session_ms", [999, 1_800_001])
def test_a_session_timeout_out_of_range_is_refused(groups: Groups, session_ms: int) -> None:
    assert groups.code(groups.join(session_ms=session_ms)) == InvalidSessionTimeout.code


def test_an_empty_group_id_and_an_empty_list_of_assignors_are_refused(groups: Groups) -> None:
    assert groups.code(groups.join(group_id="")) == InvalidGroupId.code
    assert groups.code(groups.join(protocols=[])) == InconsistentGroupProtocol.code
    assert groups.code(groups.join(protocol_type="")) == InconsistentGroupProtocol.code


def test_a_refused_first_join_leaves_no_group_behind(groups: Groups) -> None:
    groups.join(protocols=[])
    groups.commit(-1)
    assert groups.reply(groups.list_groups()) == []


def test_a_restarted_coordinator_lets_members_of_a_stable_group_go_on(groups: Groups) -> None:
    first, second = groups.stable()
    after = groups.restarted(now_ms=5)
    assert after.code(after.heartbeat(first, 1)) == 0
    assert after.reply(after.sync(second, 1)) == [b"1"]
    after.tick(9_999)
    assert after.code(after.heartbeat(second, 1)) == 0


def test_a_restart_between_join_and_sync_keeps_the_generation(groups: Groups) -> None:
    first, second = groups.completing()
    groups.sync(second, 1)
    after = groups.restarted()
    parked = after.sync(second, 1)
    after.sync(first, 1, {first: b"a", second: b"b"})
    assert after.reply(parked) == [b"b"]


def test_members_that_do_not_come_back_after_a_restart_are_dropped(groups: Groups) -> None:
    groups.stable()
    after = groups.restarted()
    after.tick(10_000)
    after.tick(0)
    assert after.state == "Empty"
