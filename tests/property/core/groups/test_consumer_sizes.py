"""No record of a consumer-protocol group is larger than its log takes, at any sizes of topics and names."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.core.coordinators.sizes import row_bytes
from raylog.core.groups.events import TopicsSeen
from raylog.core.groups.settings import GroupSettings
from tests.unit.core.groups.context import Groups
from tests.unit.core.groups.test_consumer_groups import Member

LIMIT = 6_000
NAMES = ["a", "b" * 60, "c" * 249, "d" * 120]
BEATS = st.tuples(st.just("beat"), st.integers(0, 3), st.integers(0, 2))
JOINS = st.tuples(st.just("join"), st.integers(0, 3), st.sets(st.sampled_from(NAMES), min_size=1))
LEAVES = st.tuples(st.just("leave"), st.integers(0, 3), st.none())
SEEN = st.tuples(st.just("seen"), st.sampled_from(NAMES), st.sampled_from([0, 1, 2, 3, 40, 170, 330, 600]))
STEPS = st.lists(st.one_of(BEATS, JOINS, LEAVES, SEEN), max_size=60)


@settings(max_examples=150)
@given(steps=STEPS, name_bytes=st.sampled_from([1, 300, 1_400, 3_000]))
def test_no_record_is_larger_than_its_log_takes(steps: list[tuple[str, object, object]], name_bytes: int) -> None:
    groups = Groups(GroupSettings(record_bytes_max=LIMIT))
    members = [Member(groups, f"m{number}", instance=None if number % 2 else "i" * name_bytes) for number in range(4)]
    for what, place, how in steps:
        if what == "seen":
            groups.now_ms += 200
            topics = {str(place): (f"id-{place}", int(str(how)))} if how else {}
            groups.notice(TopicsSeen, requested=[str(place)], topics=topics)
        else:
            member = members[int(str(place))]
            if what == "join":
                member.topics = tuple(sorted(how))  # type: ignore[call-overload]
                member.beat(epoch=0)
            elif what == "leave":
                member.beat(epoch=-1)
            else:
                member.beat(owned=[], max_wait_ms=0)
                groups.now_ms += 100 * int(str(how))
        assert all(row_bytes(key, value) <= LIMIT for key, value in groups.log), what
