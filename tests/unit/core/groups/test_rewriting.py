"""The coordinator's log stays short: live rows are written again at its end, and the beginning is deleted."""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.core.groups.coordinator import GroupSettings
from tests.unit.core.groups.context import Groups

SHORT = GroupSettings(rewrite_floor_bytes=2_000, rewrite_chunk_bytes=200, trim_retry_ms=1_000)


def until(groups: Groups, condition: Callable[[], bool]) -> None:
    for _ in range(200):
        if condition():
            return
        groups.tick_with_log()
    raise AssertionError("it did not come to it within 200 ticks")


def with_garbage(groups: Groups, commits: int = 100) -> Groups:
    for number in range(commits):
        groups.commit(number, partition=number % 3)
    return groups


def test_a_log_of_outdated_records_is_cut_below_the_rewritten_ones() -> None:
    groups = with_garbage(Groups(SHORT))
    end = len(groups.log)
    until(groups, lambda: bool(groups.trims))
    assert groups.trims == [end]
    assert len(groups.log) == end + 3
    after = Groups(SHORT, groups.log[end:])
    assert after.machine.hard_state() == groups.machine.hard_state()


def test_a_group_is_written_again_as_its_log_has_it_whatever_it_is_doing() -> None:
    groups = Groups(SHORT)
    first, _ = groups.stable()
    groups.join(first, protocols=[("range", b"more")])
    assert groups.state == "PreparingRebalance"
    for number in range(100):
        groups.commit(number, member_id=first, generation=1)
    end = len(groups.log)
    until(groups, lambda: bool(groups.trims))
    assert groups.state == "PreparingRebalance"
    assert Groups(SHORT, groups.log[end:]).machine.hard_state() == groups.machine.hard_state()


def test_a_short_log_and_one_that_mostly_holds_are_left_alone() -> None:
    groups = with_garbage(Groups(SHORT), 5)
    for _ in range(20):
        groups.tick_with_log()
    assert (len(groups.log), groups.trims) == (5, [])
    for number in range(100):
        groups.commit(number, partition=number)
    for _ in range(20):
        groups.tick_with_log()
    assert (len(groups.log), groups.trims) == (105, [])


def test_an_unanswered_deletion_is_repeated_before_the_next_round() -> None:
    groups = with_garbage(Groups(SHORT))
    until(groups, lambda: bool(groups.trims))
    with_garbage(groups)
    groups.tick_with_log(500)
    assert len(groups.trims) == 1
    groups.tick_with_log(500)
    assert groups.trims == [groups.trims[0]] * 2
    groups.trimmed(groups.trims[0])
    until(groups, lambda: len(groups.trims) == 3)
    assert groups.trims[2] > groups.trims[1]


def test_live_traffic_between_the_chunks_counts() -> None:
    tiny = GroupSettings(rewrite_floor_bytes=2_000, rewrite_chunk_bytes=1)
    groups = with_garbage(Groups(tiny))
    groups.tick_with_log()
    groups.commit(1_000, partition=0)
    groups.commit(2_000, partition=9)
    groups.delete_offsets(("id1", "flights", 1))
    until(groups, lambda: bool(groups.trims))
    after = Groups(tiny, groups.log[groups.trims[0] :])
    assert after.machine.hard_state() == groups.machine.hard_state()
    assert after.reply(after.fetch(("id1", "flights", 0), ("id1", "flights", 1)))[0][3] == 1_000  # type: ignore[index]


def test_the_next_coordinator_shortens_the_log_of_an_unfinished_round() -> None:
    groups = with_garbage(Groups(SHORT, now_ms=0))
    groups.tick_with_log()
    assert len(groups.log) > 100
    after = groups.restarted()
    assert after.machine.hard_state() == groups.machine.hard_state()
    until(after, lambda: bool(after.trims))
    assert Groups(SHORT, after.log[after.trims[0] :]).machine.hard_state() == after.machine.hard_state()


STEPS = st.lists(
    st.tuples(st.sampled_from(["commit", "commit", "commit", "delete", "tick", "tick", "restart"]), st.integers(0, 5)),
    min_size=20,
    max_size=120,
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_whatever_happens_the_log_above_a_deletion_says_the_same(steps: list[tuple[str, int]]) -> None:
    rules = GroupSettings(rewrite_floor_bytes=300, rewrite_chunk_bytes=100, rewrite_factor=1, trim_retry_ms=200)
    groups = Groups(rules)
    for number, (step, place) in enumerate(steps):
        if step == "commit":
            groups.commit(number, partition=place)
        elif step == "delete":
            groups.delete_offsets(("id1", "flights", place))
        elif step == "restart":
            groups = groups.restarted()
        else:
            groups.tick_with_log()
        if groups.trims:
            before = groups.trims.pop()
            assert Groups(rules, groups.log[before:]).machine.hard_state() == groups.machine.hard_state()
            if place % 2:
                groups.trimmed(before)
