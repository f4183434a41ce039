"""When a compacted log is cleaned, how far, and into how many segments."""

from __future__ import annotations

import pytest

from raylog.storage.cleaner.rules import Cleanable, Stretch, cleanable, groups, is_due, is_overdue
from raylog.storage.log.config import CompactionRules

NOW_MS = 1_000_000
SEGMENTS = (Stretch(0, 10, 100, NOW_MS - 300), Stretch(10, 20, 200, NOW_MS - 200), Stretch(20, 30, 300, NOW_MS - 100))


def found(*, cleaned_to: int = 0, upper: int = 30, rules: CompactionRules | None = None) -> Cleanable:
    return cleanable(
        SEGMENTS,
        cleaned_to=cleaned_to,
        dirty_since_ms=NOW_MS - 300,
        upper=upper,
        now_ms=NOW_MS,
        rules=rules or CompactionRules(),
    )


def test_what_was_never_cleaned_is_dirty() -> None:
    assert found() == Cleanable(3, 600, 0, NOW_MS - 300)
    assert found().dirty_ratio == 1


def test_the_ratio_counts_bytes_on_both_sides_of_the_last_cleaning() -> None:
    assert found(cleaned_to=20) == Cleanable(3, 300, 300, NOW_MS - 300)
    assert found(cleaned_to=20).dirty_ratio == 0.5
    assert found(cleaned_to=30) == Cleanable(3, 0, 600, 0)


def test_a_segment_that_is_clean_in_part_is_dirty() -> None:
    assert found(cleaned_to=19) == Cleanable(3, 500, 100, NOW_MS - 300)


def test_segments_that_are_not_committed_whole_stay() -> None:
    assert found(upper=29).segments == 2
    assert found(upper=9) == Cleanable(0, 0, 0, 0)


def test_young_records_stay_for_the_minimum_lag() -> None:
    assert found(rules=CompactionRules(min_compaction_lag_ms=150)).segments == 2
    assert found(rules=CompactionRules(min_compaction_lag_ms=301)).segments == 0
    assert found(rules=CompactionRules(min_compaction_lag_ms=0)).segments == 3


@pytest.mark.parametrize(
    ("dirty", "clean", "rules", "due"),
    [
        (0, 0, CompactionRules(), False),
        (0, 100, CompactionRules(min_cleanable_dirty_ratio=0.0), False),
        (49, 51, CompactionRules(), False),
        (50, 50, CompactionRules(), True),
        (1, 99, CompactionRules(max_compaction_lag_ms=300), True),
        (1, 99, CompactionRules(max_compaction_lag_ms=301), False),
    ],
)
def test_a_cleaning_is_due_by_its_share_or_its_age(dirty: int, clean: int, rules: CompactionRules, due: bool) -> None:
    assert is_due(Cleanable(1, dirty, clean, NOW_MS - 300), NOW_MS, rules) == due


def test_nothing_is_overdue_where_there_is_nothing() -> None:
    assert not is_overdue(0, NOW_MS, CompactionRules(max_compaction_lag_ms=1))


def test_neighbours_share_a_segment_while_they_fit() -> None:
    assert groups([(40, 1), (60, 1), (1, 1)], bytes_max=100, offsets_max=9) == [2, 1]
    assert groups([(1, 5), (1, 4), (1, 1)], bytes_max=100, offsets_max=9) == [2, 1]
    assert groups([(500, 1), (1, 1)], bytes_max=100, offsets_max=9) == [1, 1]
    assert groups([], bytes_max=100, offsets_max=9) == []
