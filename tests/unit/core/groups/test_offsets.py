"""Committed offsets: ownership, conditions of a commit, expiry; and the group commands."""

import pytest

from raylog.base.errors import GroupIdNotFound, InvalidRequest, LimitReached, NonEmptyGroup, OffsetMetadataTooLarge
from raylog.core.coordinators.share import EVERY_KEY
from raylog.core.groups.coordinator import GroupCoordinatorMachine, GroupSettings
from raylog.core.groups.events import StoreProof, Tick
from raylog.core.groups.records import GROUP_ROWS
from raylog.core.received import Received, Sender
from raylog.protocol.groups import OffsetCommitRequest
from tests.unit.core.groups.context import GROUP, Groups, message_of

DAY_MS = 24 * 3_600_000


def test_a_committed_offset_is_fetched(groups: Groups) -> None:
    groups.commit(42, metadata="note")
    assert groups.reply(groups.fetch(("id1", "flights", 0))) == [["id1", "flights", 0, 42, 3, "note"]]


def test_a_topic_created_again_starts_without_offsets(groups: Groups) -> None:
    groups.commit(42)
    assert groups.reply(groups.fetch(("id2", "flights", 0))) == [["id2", "flights", 0, -1, -1, ""]]


def test_all_offsets_come_in_order_and_only_the_groups_own(groups: Groups) -> None:
    groups.commit(3, partition=10)
    groups.commit(2, partition=9)
    groups.commit(1, group_id="other")
    assert groups.reply(groups.fetch()) == [["id1", "flights", 9, 2, 3, ""], ["id1", "flights", 10, 3, 3, ""]]
    assert groups.reply(groups.fetch(group_id="nobody")) == []


def test_a_commit_is_written_and_survives_a_restart(groups: Groups) -> None:
    groups.commit(42)
    groups.commit(43)
    assert [value[1] for _, value in groups.log if value is not None] == [42, 43]
    after = groups.restarted()
    assert after.reply(after.fetch())[0] == ["id1", "flights", 0, 43, 3, ""]


def test_a_bad_offset_or_long_note_is_refused_for_its_partition_alone(groups: Groups) -> None:
    offsets = [("i", "t", 0, -1, 0, ""), ("i", "t", 1, 5, 0, "x" * 4097), ("i", "t", 2, 5, 0, "x" * 4096)]
    request = groups.send(OffsetCommitRequest, generation_id=-1, member_id="", offsets=offsets)
    assert groups.reply(request) == [["t", 0, InvalidRequest.code], ["t", 1, OffsetMetadataTooLarge.code], ["t", 2, 0]]
    assert groups.reply(groups.fetch()) == [["i", "t", 2, 5, 0, "x" * 4096]]


def test_offsets_of_another_kind_of_group_are_deleted_without_members(groups: Groups) -> None:
    member = groups.new_id(protocol_type="connect")
    groups.join(member, protocol_type="connect")
    groups.end_first_round()
    groups.sync(member, 1, {})
    groups.commit(1, member_id=member, generation=1)
    groups.commit(2, member_id=member, generation=1, partition=1)
    assert groups.code(groups.delete_offsets(("id1", "flights", 0))) == NonEmptyGroup.code
    groups.leave((member, None))
    assert groups.reply(groups.delete_offsets(("id1", "flights", 0), ("id1", "none", 7))) == [
        ["flights", 0, 0],
        ["none", 7, 0],
    ]
    assert groups.reply(groups.fetch()) == [["id1", "flights", 1, 2, 3, ""]]


def test_a_simple_group_goes_with_its_last_offset(groups: Groups) -> None:
    groups.commit(1)
    assert groups.state == "Empty"
    groups.delete_offsets(("id1", "flights", 0))
    assert groups.state == "Dead"


def test_an_empty_group_is_deleted_with_all_its_offsets(groups: Groups) -> None:
    (member,) = groups.stable(1)
    groups.commit(1, member_id=member, generation=1)
    assert groups.code(groups.delete()) == NonEmptyGroup.code
    groups.leave((member, None))
    assert groups.code(groups.delete()) == 0
    assert groups.code(groups.delete()) == GroupIdNotFound.code
    assert groups.reply(groups.fetch()) == []
    assert groups.restarted().machine.hard_state() == [[], []]


def test_groups_are_listed_in_order_of_their_names(groups: Groups) -> None:
    groups.stable()
    groups.commit(1, group_id="archive")
    assert groups.reply(groups.list_groups()) == [
        ["archive", "", "Empty", "classic"],
        [GROUP, "consumer", "Stable", "classic"],
    ]


def test_a_group_is_described_with_members_assignments_and_offsets(groups: Groups) -> None:
    first, second = groups.stable()
    groups.commit(7, member_id=first, generation=1)
    described = groups.described()
    members = described.pop("members")
    assert described == {
        "group": GROUP,
        "state": "Stable",
        "protocol_type": "consumer",
        "protocol": "range",
        "generation": 1,
        "leader": first,
        "offsets": [["id1", "flights", 0, 7, 3, ""]],
        "pending_offsets": [],
    }
    assert [(row["member_id"], row["assignment"]) for row in members] == [(first, b"0"), (second, b"1")]
    assert groups.code(groups.describe("nobody")) == GroupIdNotFound.code


def test_a_description_leaves_out_what_its_reader_may_not_see(groups: Groups) -> None:
    first, _ = groups.stable()
    groups.commit(7, member_id=first, generation=1)
    for sees, offsets in ((lambda *_: False, []), (lambda *at: at == (GROUP, "id1", "flights", 0), [7])):
        assert [row[3] for row in groups.described(sender=Sender(sees_offset=sees))["offsets"]] == offsets


def test_offsets_of_an_empty_group_expire_after_the_retention(groups: Groups) -> None:
    (member,) = groups.stable(1)
    groups.commit(1, member_id=member, generation=1)
    for _ in range(16):  # half a day each, alive
        groups.now_ms += DAY_MS // 2
        groups.heartbeat(member, 1)
        groups.tick()
    assert len(groups.reply(groups.fetch())) == 1
    groups.leave((member, None))
    groups.tick(7 * DAY_MS - 1)
    assert len(groups.reply(groups.fetch())) == 1
    groups.tick(600_000)
    assert groups.reply(groups.fetch()) == []
    assert groups.state == "Dead"
    assert groups.restarted().machine.hard_state() == [[], []]


def test_a_commit_into_a_long_empty_group_counts_from_the_commit(groups: Groups) -> None:
    groups.emptied()
    groups.tick(1)
    groups.commit(1)
    groups.tick(6 * DAY_MS)
    groups.commit(2, partition=1)
    groups.tick(2 * DAY_MS)
    assert groups.reply(groups.fetch()) == [["id1", "flights", 1, 2, 3, ""]]


def test_a_simple_groups_offsets_expire_one_by_one_from_their_commits(groups: Groups) -> None:
    groups.commit(1)
    groups.now_ms += DAY_MS
    groups.commit(2, partition=1)
    groups.tick(6 * DAY_MS)
    assert groups.reply(groups.fetch()) == [["id1", "flights", 1, 2, 3, ""]]
    groups.tick(DAY_MS)
    assert groups.state == "Dead"


def test_an_empty_group_without_offsets_goes_at_the_next_look(groups: Groups) -> None:
    groups.emptied()
    groups.tick(600_000)
    assert groups.state == "Dead"


def test_expiry_is_spread_over_ticks() -> None:
    groups = Groups(GroupSettings(offsets_retention_ms=1_000, offsets_retention_check_ms=1_000))
    for partition in range(1_500):
        groups.commit(1, partition=partition)
    written = len(groups.log)
    groups.tick(1_000)
    assert len(groups.log) - written == 1_000
    groups.tick(50)
    assert groups.reply(groups.fetch()) == []


def test_retention_follows_the_time_of_day_across_machine_restarts(groups: Groups) -> None:
    groups.commit(1)
    after = GroupCoordinatorMachine(settings=GroupSettings(), share=EVERY_KEY, new_member_id=str)
    for key, value in groups.log:
        after.replay(key, value)
    uptime_ms = 90 * DAY_MS
    after.loaded(uptime_ms, wall_ms=1_700_000_000_000 + DAY_MS)
    after.step(Tick(cause="test", now_ms=uptime_ms + DAY_MS))
    assert after.hard_state() == groups.machine.hard_state()


def test_without_a_time_of_day_nothing_expires() -> None:
    after = GroupCoordinatorMachine(settings=GroupSettings(), share=EVERY_KEY, new_member_id=str)
    after.loaded(0)
    after.step(
        Received(
            message=message_of(OffsetCommitRequest, generation_id=-1, member_id="", offsets=[("i", "t", 0, 1, 0, "")]),
            cause="test",
            request=1,
            now_ms=0,
        )
    )
    before = after.hard_state()
    after.step(Tick(cause="test", now_ms=90 * DAY_MS))
    assert after.hard_state() == before


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (["unknown", "g"], [1]),
        (["group", "g"], [2, 1]),
        (["offset", "g", "i", "t", 0], [9, 1, 1, "", 0]),
    ],
)
def test_a_record_of_a_newer_release_stops_the_load(key: list[object], value: list[object]) -> None:
    with pytest.raises(ValueError, match="newer release"):
        GROUP_ROWS.read(key, value)


def test_replies_that_show_hard_state_wait_for_the_log_in_any_case(groups: Groups) -> None:
    groups.commit(1)
    groups.fetch()
    assert [type(effect) for effect in groups.last.now] == [StoreProof]
    assert len(groups.last.after_sync) == 1


def test_a_full_group_takes_no_further_offsets_and_moves_its_own() -> None:
    groups = Groups(GroupSettings(offsets_max=2))
    for partition in (0, 1):
        assert groups.reply(groups.commit(7, partition=partition)) == [["flights", partition, 0]]
    assert groups.reply(groups.commit(7, partition=2)) == [["flights", 2, LimitReached.code]]
    assert groups.reply(groups.commit(8, partition=1)) == [["flights", 1, 0]]
    assert groups.reply(groups.commit(7, partition=2, group_id="other")) == [["flights", 2, 0]]


def test_offsets_of_transactions_count_as_well() -> None:
    groups = Groups(GroupSettings(offsets_max=2))
    groups.commit(7, partition=0)
    assert groups.reply(groups.txn_commit(8, partition=0)) == [["flights", 0, 0]]
    assert groups.reply(groups.txn_commit(8, partition=1)) == [["flights", 1, LimitReached.code]]
    groups = Groups(GroupSettings(offsets_max=2))
    for partition, code in ((0, 0), (1, 0), (2, LimitReached.code), (1, 0)):
        assert groups.reply(groups.txn_commit(8, partition=partition)) == [["flights", partition, code]]
