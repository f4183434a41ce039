"""The arithmetic of the benchmarks: medians, percentiles, ratios."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.report import stats

NUMBERS = st.lists(st.floats(0, 1e9), min_size=1, max_size=50)


def test_a_summary_gives_median_and_range() -> None:
    found = stats.summary([3.0, 1.0, 2.0])
    assert (found.median, found.low, found.high, found.count, found.spread) == (2.0, 1.0, 3.0, 3, 1.0)


def test_the_spread_of_nothing_is_infinite() -> None:
    assert stats.summary([0.0, 0.0]).spread == math.inf


@pytest.mark.parametrize("of_nothing", [lambda: stats.summary([]), lambda: stats.percentile([], 50)])
def test_nothing_has_neither_median_nor_percentiles(of_nothing) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="nothing was measured"):
        of_nothing()


@pytest.mark.parametrize(("percent", "expected"), [(0, 1), (1, 1), (50, 50), (99, 99), (99.9, 100), (100, 100)])
def test_a_percentile_is_the_nearest_rank(percent: float, expected: float) -> None:
    assert stats.percentile(list(range(1, 101)), percent) == expected


def test_a_percentage_lies_between_0_and_100() -> None:
    with pytest.raises(ValueError, match="no percentage"):
        stats.percentile([1.0], 101)


@given(NUMBERS)
def test_percentiles_are_measured_values_in_order(values: list[float]) -> None:
    found = list(stats.percentiles(values).values())
    assert found == sorted(found)
    assert set(found) <= set(values)
    assert found[-1] == max(values)


@pytest.mark.parametrize(
    ("ours", "theirs", "higher", "expected"),
    [(200, 100, True, 2.0), (100, 200, True, 0.5), (1, 10, False, 10.0), (10, 1, False, 0.1), (1, 0, True, math.inf)],
)
def test_a_ratio_above_one_is_better_whichever_way_is_up(
    ours: float, theirs: float, higher: bool, expected: float
) -> None:
    assert stats.ratio(ours, theirs, higher_is_better=higher) == expected


def test_the_longest_gap_is_between_neighbours() -> None:
    assert stats.longest_gap([0.0, 1.0, 5.0, 6.0]) == 4.0
    assert stats.longest_gap([1.0]) == stats.longest_gap([]) == 0.0
