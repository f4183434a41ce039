"""How many groups a coordinator has, and how much their notes take."""

from typing import Any

from raylog.base.errors import InvalidGroupId, LimitReached, OffsetMetadataTooLarge
from raylog.core.groups.coordinator import GROUP_CHARACTERS_MAX
from raylog.core.groups.settings import GroupSettings
from tests.unit.core.groups.context import GROUP, Groups


def test_a_coordinator_has_so_many_groups() -> None:
    groups = Groups(GroupSettings(groups_max=2))
    (member,) = groups.stable(1)
    assert groups.reply(groups.commit(1, group_id="simple")) == [["flights", 0, 0]]
    for request in (groups.commit(1, group_id="third"), groups.join(group_id="third", group_instance_id="a")):
        assert "group.max.groups" in str(groups.refusals[request])
        assert groups.code(request) == LimitReached.code
    assert groups.reply(groups.commit(2, group_id="simple")) == [["flights", 0, 0]], "those that are there go on"
    assert groups.code(groups.heartbeat(member, 1)) == 0
    groups.delete("simple")
    assert groups.reply(groups.commit(1, group_id="third")) == [["flights", 0, 0]]


def test_an_absurd_group_is_refused(groups: Groups) -> None:
    assert groups.code(groups.commit(1, group_id="g" * (GROUP_CHARACTERS_MAX + 1))) == InvalidGroupId.code
    assert groups.reply(groups.commit(1, group_id="g" * GROUP_CHARACTERS_MAX)) == [["flights", 0, 0]]


def test_the_notes_of_a_group_have_a_bound_together() -> None:
    groups = Groups(GroupSettings(notes_bytes_max=100))

    def committed(partition: int, note: str, group: str = GROUP) -> int:
        rows: Any = groups.reply(groups.commit(5, partition=partition, metadata=note, group_id=group))
        return int(rows[0][2])

    assert committed(0, "n" * 60) == committed(1, "n" * 40) == 0
    assert committed(2, "n") == committed(0, "n" * 61) == OffsetMetadataTooLarge.code
    assert committed(2, "") == 0, "an offset without a note takes none of it"
    assert committed(0, "é" * 30) == committed(0, "n" * 59) == committed(2, "n") == 0
    assert committed(0, "n" * 100, "another") == 0
    again = groups.restarted()
    assert again.reply(again.commit(5, partition=3, metadata="n")) == [["flights", 3, OffsetMetadataTooLarge.code]]
