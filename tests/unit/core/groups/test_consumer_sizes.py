"""Every record of a consumer-protocol group fits its log, whatever members call themselves and subscribe to."""

from __future__ import annotations

from raylog.base.errors import InvalidGroupId, InvalidRequest, RecordTooLarge
from raylog.core.coordinators.sizes import row_bytes
from raylog.core.groups.events import TopicsSeen
from raylog.core.groups.settings import GroupSettings
from tests.unit.core.groups.context import Groups
from tests.unit.core.groups.test_consumer_groups import Member

LIMIT = 8_000
SMALL = GroupSettings(record_bytes_max=LIMIT)


def largest(groups: Groups) -> int:
    return max((row_bytes(key, value) for key, value in groups.log), default=0)


def seen(groups: Groups, **partitions: int) -> None:
    groups.now_ms += 200
    topics = {name: (f"id-{name}", count) for name, count in partitions.items() if count}
    groups.notice(TopicsSeen, requested=sorted(partitions), topics=topics)


def test_names_of_topics_that_do_not_exist_count() -> None:
    groups = Groups(SMALL)
    names = tuple(f"no-such-topic-{number}" for number in range(1_000))
    member = Member(groups, "m1", topics=names)
    assert groups.code(member.beat()) == RecordTooLarge.code
    assert groups.log == []
    member.topics = names[:100]
    assert groups.code(member.beat()) == 0
    assert largest(groups) <= LIMIT


def test_a_member_with_an_absurd_name_is_refused() -> None:
    groups = Groups(SMALL)
    long = "n" * LIMIT
    assert groups.code(Member(groups, "m1").beat(client_id=long)) == InvalidRequest.code
    assert groups.code(Member(groups, "m1").beat(group_instance_id=long)) == InvalidRequest.code
    assert groups.code(Member(groups, "m1").beat(group_id=long)) == InvalidGroupId.code
    assert groups.code(Member(groups, "m" * LIMIT).beat()) == InvalidRequest.code
    assert groups.log == []


def test_topics_that_grow_too_large_leave_the_group_as_it_was() -> None:
    groups = Groups(SMALL)
    first, second = Member(groups, "m1", topics=("a", "b")), Member(groups, "m2", topics=("a", "b"))
    first.beat()
    second.beat()
    seen(groups, a=4, b=4)
    seen(groups, a=4, b=4_000)
    second.beat(epoch=-1)
    groups.now_ms += 1_000
    first.beat(owned=[])
    assert largest(groups) <= LIMIT
    (row,) = groups.described()["members"]
    assert row["target"] == [["id-a", "a", [0, 1, 2, 3]], ["id-b", "b", [0, 1, 2, 3]]]


def test_partitions_that_came_one_by_one_fit_like_those_of_one_time() -> None:
    groups = Groups(SMALL)
    topics = ("t" * 200,)
    member = Member(groups, "m1", topics=topics)
    member.beat()
    for count in range(1, 121):
        seen(groups, **{topics[0]: count})
        member.beat(owned=member.assigned)
    assert len(member.assigned) == 120
    assert largest(groups) <= LIMIT
