"""A record that the log would refuse is refused to its sender, before it is decided."""

from raylog.base.errors import InvalidGroupId, RecordTooLarge
from raylog.core.coordinators.sizes import row_bytes
from raylog.core.groups.coordinator import GroupSettings
from tests.unit.core.groups.context import Groups

LIMIT = 2_000
SMALL = GroupSettings(record_bytes_max=LIMIT)


def sizes(groups: Groups) -> list[int]:
    return [row_bytes(key, value) for key, value in groups.log]


def test_a_member_that_does_not_fit_into_a_generation_is_refused_alone() -> None:
    groups = Groups(SMALL)
    first, second = groups.stable()
    large = groups.new_id()
    request = groups.join(large, protocols=[("range", bytes(LIMIT))])
    assert groups.code(request) == RecordTooLarge.code
    assert "max.message.bytes of __consumer_offsets" in groups.refusals[request].message
    assert groups.code(groups.heartbeat(first, 1)) == groups.code(groups.heartbeat(second, 1)) == 0


def test_members_are_refused_from_the_first_that_does_not_fit() -> None:
    groups = Groups(SMALL)
    codes = [
        groups.code(groups.join(group_instance_id=f"i{number}", protocols=[("range", bytes(300))]))
        for number in range(9)
    ]
    taken = codes.count(None)
    assert codes == [None] * taken + [RecordTooLarge.code] * (9 - taken)
    assert 3 <= taken <= 6
    groups.end_first_round()
    assert groups.state == "CompletingRebalance"
    assert max(sizes(groups)) <= LIMIT


def test_a_member_that_comes_back_larger_is_refused() -> None:
    groups = Groups(SMALL)
    first, second = groups.stable()
    assert groups.code(groups.join(first, protocols=[("range", bytes(LIMIT))])) == RecordTooLarge.code
    assert groups.code(groups.heartbeat(second, 1)) == 0
    assert groups.code(groups.join(first, protocols=[("range", bytes(100))])) is None


def test_a_static_member_that_is_replaced_by_a_larger_one_keeps_its_place() -> None:
    groups = Groups(SMALL)
    request = groups.join(group_instance_id="a")
    groups.end_first_round()
    member = str(groups.reply(request)[3])
    groups.sync(member, 1, {member: bytes(1_000)}, group_instance_id="a")
    assert groups.code(groups.join(group_instance_id="a", protocols=[("range", bytes(900))])) == RecordTooLarge.code
    assert groups.code(groups.heartbeat(member, 1, group_instance_id="a")) == 0
    assert groups.code(groups.join(group_instance_id="a", protocols=[("range", bytes(300))])) == 0
    assert max(sizes(groups)) <= LIMIT


def test_assignments_that_do_not_fit_are_refused_and_may_be_retried() -> None:
    groups = Groups(SMALL)
    leader, other = groups.completing()
    waiting = groups.sync(other, 1)
    assert groups.code(groups.sync(leader, 1, {leader: bytes(LIMIT), other: b""})) == RecordTooLarge.code
    assert groups.code(waiting) is None
    assert groups.code(groups.sync(leader, 1, {leader: bytes(200), other: b"1"})) == 0
    assert groups.reply(waiting) == [b"1"]


def test_an_offset_under_an_absurd_name_is_refused_alone() -> None:
    groups = Groups(SMALL)
    assert groups.reply(groups.commit(5, topic="t" * LIMIT)) == [["t" * LIMIT, 0, RecordTooLarge.code]]
    assert groups.reply(groups.commit(5)) == [["flights", 0, 0]]
    assert groups.code(groups.join(group_id="g" * LIMIT, group_instance_id="a")) == InvalidGroupId.code
