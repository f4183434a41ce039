"""Static membership (KIP-345): an instance id keeps its place and its assignment through a restart of its process."""

from typing import Any

from raylog.base.errors import FencedInstanceId, RebalanceInProgress, UnknownMemberId
from tests.unit.core.groups.context import RANGE, Groups


def joined(groups: Groups, **options: Any) -> tuple[str, str]:
    """Let the static members "a" and "b" join, with options of `Groups.join`; their ids."""
    joins = [groups.join(group_instance_id=instance, **options) for instance in ("a", "b")]
    groups.end_first_round()
    leader, follower = (str(groups.reply(request)[3]) for request in joins)
    return leader, follower


def static_pair() -> tuple[Groups, str, str]:
    """A stable group of two static members: "a" leads and has b"0", "b" has b"1"."""
    groups = Groups()
    leader, follower = joined(groups)
    parked = groups.sync(follower, 1, group_instance_id="b")
    groups.sync(leader, 1, {leader: b"0", follower: b"1"}, group_instance_id="a")
    assert groups.reply(parked) == [b"1"]
    return groups, leader, follower


def test_a_first_static_join_needs_no_second_one(groups: Groups) -> None:
    assert groups.code(groups.join(group_instance_id="a")) is None


def test_a_restarted_member_takes_over_its_assignment_without_a_round() -> None:
    groups, leader, old = static_pair()
    row = groups.reply(groups.join(group_instance_id="b"))
    new = str(row[3])
    assert new != old
    assert row == [1, "range", leader, new, [], False]
    assert groups.reply(groups.sync(new, 1, group_instance_id="b")) == [b"1"]
    assert groups.code(groups.heartbeat(leader, 1, group_instance_id="a")) == 0


def test_a_restarted_leader_skips_the_assignment() -> None:
    groups, old, follower = static_pair()
    row = groups.reply(groups.join(group_instance_id="a"))
    new = str(row[3])
    assert (row[0], row[2], row[5]) == (1, new, True)
    assert row[4] == [[new, "a", b"topics"], [follower, "b", b"topics"]]
    assert groups.code(groups.heartbeat(old, 1)) == UnknownMemberId.code


def test_the_old_process_is_fenced() -> None:
    groups, _, old = static_pair()
    groups.join(group_instance_id="b")
    assert groups.code(groups.heartbeat(old, 1, group_instance_id="b")) == FencedInstanceId.code
    assert groups.code(groups.sync(old, 1, group_instance_id="b")) == FencedInstanceId.code
    assert groups.code(groups.join(old, group_instance_id="b")) == FencedInstanceId.code
    assert groups.reply(groups.leave((old, "b"))) == [[old, "b", FencedInstanceId.code]]


def test_a_commit_of_the_replaced_process_is_fenced() -> None:
    groups, _, old = static_pair()
    new = str(groups.reply(groups.join(group_instance_id="b"))[3])
    late = groups.commit(5, member_id=old, generation=1, group_instance_id="b")
    assert groups.code(late) == FencedInstanceId.code, "an unknown member would join again, and replace its successor"
    assert groups.code(groups.commit(5, member_id=new, generation=1, group_instance_id="b")) == 0
    assert groups.code(groups.commit(6, member_id=new, generation=1)) == 0, (
        "as a client that does not send its instance id"
    )
    assert groups.code(groups.commit(7, member_id=new, generation=1, group_instance_id="z")) == UnknownMemberId.code


def test_the_old_process_is_fenced_while_it_waits(groups: Groups) -> None:
    waiting = groups.join(group_instance_id="a")
    groups.join(group_instance_id="a")
    assert groups.code(waiting) == FencedInstanceId.code


def test_the_replacement_survives_a_restart_of_the_coordinator() -> None:
    groups, _, _ = static_pair()
    new = str(groups.reply(groups.join(group_instance_id="b"))[3])
    after = groups.restarted()
    assert after.reply(after.sync(new, 1, group_instance_id="b")) == [b"1"]


def test_a_restart_that_changes_the_chosen_assignor_begins_a_round(groups: Groups) -> None:
    leader, follower = joined(groups, protocols=[("range", b""), ("sticky", b"")])
    groups.sync(leader, 1, {leader: b"0", follower: b"1"})
    groups.sync(follower, 1)
    assert groups.code(groups.join(group_instance_id="b", protocols=[("sticky", b"")])) is None
    assert groups.code(groups.heartbeat(leader, 1)) == RebalanceInProgress.code


def test_a_restart_while_the_others_sync_begins_a_round(groups: Groups) -> None:
    leader, _ = joined(groups)
    assert groups.code(groups.join(group_instance_id="b")) is None
    assert groups.code(groups.heartbeat(leader, 1)) == RebalanceInProgress.code


def test_an_absent_static_member_keeps_its_place_in_the_next_generation() -> None:
    groups, leader, away = static_pair()
    request = groups.join(leader, group_instance_id="a")
    for _ in range(3):
        groups.tick(6_000)
        groups.heartbeat(away, 1, group_instance_id="b")
    groups.tick(2_000)
    row = groups.reply(request)
    assert row[0] == 2
    assert row[4] == [[leader, "a", b"topics"], [away, "b", b"topics"]]


def test_a_static_member_goes_by_its_session_timeout() -> None:
    groups, leader, _ = static_pair()
    groups.tick(9_000)
    groups.heartbeat(leader, 1)
    groups.tick(1_000)
    request = groups.join(leader, group_instance_id="a")
    assert groups.reply(request)[4] == [[leader, "a", b"topics"]]


def test_a_round_of_absent_static_members_alone_waits_for_one_of_them(groups: Groups) -> None:
    leader, follower = joined(groups, session_ms=60_000)
    groups.sync(leader, 1, {leader: b"0", follower: b"1"})
    groups.sync(follower, 1)
    groups.drop(groups.join(leader, group_instance_id="a", session_ms=60_000))
    groups.tick(20_000)
    assert groups.state == "PreparingRebalance"
    request = groups.join(group_instance_id="b", session_ms=60_000)
    groups.tick(20_000)
    assert groups.reply(request)[0] == 2
    assert groups.reply(request)[2] == groups.reply(request)[3]  # the member that returned leads


def test_an_administrator_removes_a_static_member_by_its_instance() -> None:
    groups, leader, follower = static_pair()
    assert groups.reply(groups.leave(("", "b"))) == [["", "b", 0]]
    assert groups.code(groups.heartbeat(follower, 1)) == UnknownMemberId.code
    assert groups.code(groups.heartbeat(leader, 1)) == RebalanceInProgress.code


def test_an_unknown_instance_is_refused() -> None:
    groups, leader, _ = static_pair()
    assert groups.code(groups.heartbeat(leader, 1, group_instance_id="z")) == UnknownMemberId.code


def test_the_next_round_shows_the_new_metadata_of_a_restarted_member() -> None:
    groups, leader, _ = static_pair()
    groups.join(group_instance_id="b", protocols=[("range", b"more topics")])
    groups.join(leader, group_instance_id="a", protocols=RANGE)
    assert groups.state == "PreparingRebalance"
