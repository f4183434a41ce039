"""What is scrubbed next, and at which rate."""

import random

from raylog.storage.scrub.plan import (
    AHEAD_MAX_MS,
    FUTURE_MS,
    SLICE_BYTES,
    Passes,
    Place,
    Stretch,
    behind,
    slice_bytes,
    take_turn,
)

WEEK_MS = 7 * 86_400_000
LOG = [Stretch(0, 10, 6 << 20), Stretch(10, 30, 1 << 20), Stretch(30, 30, 0)]


def test_a_pass_goes_through_all_segments_in_slices() -> None:
    passes, read = Passes(), []
    while (place := passes.next_place(LOG)) is not None:
        size = slice_bytes(place, LOG)
        read.append((place.base, place.position, size))
        stretch = next(each for each in LOG if each.base == place.base)
        position = place.position + size
        passes = passes.read_to(Place(place.base, position, stretch.end if position == stretch.size_bytes else 7))
    assert read == [(0, 0, SLICE_BYTES), (0, SLICE_BYTES, 2 << 20), (10, 0, 1 << 20)]
    assert passes.ended(5) == Passes(last_ms=5)


def test_a_pass_is_due_when_none_ended_lately() -> None:
    assert Passes().is_due(0, WEEK_MS)
    ended = Passes(last_ms=1_000)
    assert not ended.is_due(999 + WEEK_MS, WEEK_MS)
    assert ended.is_due(1_000 + WEEK_MS, WEEK_MS)
    assert ended.read_to(Place(0, 0, 0)).is_due(1_001, WEEK_MS), "one that runs goes on"


def test_a_pass_that_ended_in_the_future_does_not_put_the_next_one_off() -> None:
    assert Passes(last_ms=1_000 + FUTURE_MS + 1).is_due(1_000, WEEK_MS)
    assert not Passes(last_ms=1_000 + FUTURE_MS).is_due(1_000, WEEK_MS), "a clock may be set back a little"


def test_segments_that_were_removed_or_joined_meanwhile_are_no_obstacle() -> None:
    passes = Passes(place=Place(10, 500, 20))
    assert passes.next_place([Stretch(30, 40, 900)]) == Place(30, 0, 30), "retention was faster"
    assert passes.next_place([Stretch(0, 30, 900), Stretch(30, 40, 900)]) == Place(30, 0, 30), "cleaned into the first"
    assert passes.next_place([Stretch(10, 15, 400)]) is None, "the log was cut below"


def test_behind_damage_the_next_segment_follows() -> None:
    after = behind(Place(0, 100, 3), LOG)
    assert Passes(place=after).next_place(LOG) == Place(10, 0, 10)


def test_turns_of_any_number_of_replicas_keep_to_the_rate() -> None:
    dice, free_ms, rate = random.Random(1), 0, 1 << 20
    begun: list[tuple[int, int]] = []
    for now_ms in sorted(dice.randrange(60_000) for _ in range(100)):
        size = dice.randrange(1, SLICE_BYTES)
        at_ms, free_ms = take_turn(now_ms, free_ms, size, rate)
        assert at_ms >= now_ms
        begun.append((at_ms, size))
    for first in range(100):
        for last in range(first, 100):
            took = sum(size for _, size in begun[first:last])
            assert took <= rate * (begun[last][0] - begun[first][0]) / 1000 + 1, "between the begins of two slices"


def test_turns_of_an_earlier_start_of_the_machine_are_forgotten() -> None:
    assert take_turn(5_000, 5_001 + AHEAD_MAX_MS, 1_000, 1_000) == (5_000, 6_000)
    assert take_turn(5_000, 5_000 + AHEAD_MAX_MS, 1_000, 1_000)[0] == 5_000 + AHEAD_MAX_MS
