"""Which voter is added or removed next."""

from itertools import product

from raylog.core.quorum import is_single_change, next_members

ALL = {number: f"x{number}" for number in range(1, 6)}


def some(*numbers: int) -> dict[int, str]:
    return {number: ALL[number] for number in numbers}


def walk(members: dict[int, str], ready: set[int], target: set[int]) -> list[list[int]]:
    """Make all changes, one after the other."""
    seen = []
    while (after := next_members(members, ALL, ready, target)) is not None:
        assert is_single_change(members, after)
        members = after
        seen.append(sorted(members))
        assert len(seen) < 12, seen
    return seen


def test_one_voter_grows_to_three_when_both_others_are_up_to_date() -> None:
    assert walk(some(1), {1, 2}, {1, 2, 3}) == []
    assert walk(some(1), {1, 2, 3}, {1, 2, 3}) == [[1, 2], [1, 2, 3]]


def test_the_successor_enters_before_the_lost_voter_leaves() -> None:
    assert walk(some(1, 2, 3), {1, 2}, {1, 2, 4}) == []
    assert walk(some(1, 2, 3), {1, 2, 4}, {1, 2, 4}) == [[1, 2, 3, 4], [1, 2, 4]]


def test_a_change_that_was_interrupted_is_finished_or_taken_back() -> None:
    assert walk(some(1, 2), {1, 2, 3}, {1, 2, 3}) == [[1, 2, 3]]
    assert walk(some(1, 2), {1, 2}, {1}) == [[1]]


def test_a_copy_that_was_lost_leaves_before_its_successor_comes() -> None:
    identities = {**ALL, 2: "new"}
    assert next_members(some(1, 2, 3), identities, {1, 3}, {1, 2, 3}) is None, "it would only count for less"
    assert next_members(some(1, 2, 3), identities, {1, 2, 3}, {1, 2, 3}) == some(1, 3)
    assert next_members(some(1, 3), identities, {1, 2, 3}, {1, 2, 3}) == {**some(1, 3), 2: "new"}


def test_no_configuration_is_entered_that_could_not_commit() -> None:
    assert next_members(some(1, 2, 3), ALL, {1, 4}, {1, 2, 4}) is None
    assert next_members(some(1, 2, 3), ALL, {3}, {1}) is None


def test_every_walk_ends_at_what_is_wanted() -> None:
    numbers = set(ALL)
    for bits in product((0, 1), repeat=10):
        before = {number for number, bit in zip(sorted(numbers), bits[:5], strict=True) if bit}
        target = {number for number, bit in zip(sorted(numbers), bits[5:], strict=True) if bit}
        if before and target:
            seen = walk(some(*before), numbers, target)
            assert (seen or [sorted(before)])[-1] == sorted(target)
