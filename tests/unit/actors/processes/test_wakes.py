"""What the measurement of thousands of wakes concludes from its rows."""

import pytest

from tools.wakes import Row, growth, verdict, verdicts


def rows(*kept: int) -> list[Row]:
    """A row each hundred wakes."""
    return [Row(100 * number, {"broker": each}, 1.0) for number, each in enumerate(kept, 1)]


@pytest.mark.parametrize(
    ("kept", "first", "last", "expected"),
    [
        ((1000, 1800, 2600, 2600, 2600, 2600, 2610, 2590, 2600), 8.0, -0.05, "flat"),
        ((1000, 3000, 5000, 5500, 6000, 6100, 6200, 6250, 6300), 20.0, 0.5, "bounded"),
        ((1000, 1200, 1400, 1600, 1800, 2000, 2200, 2400, 2600), 2.0, 2.0, "GROWS"),
        ((1000, 1000, 1000, 1000, 1000, 1000, 1100, 1200, 1300), 0.0, 1.0, "GROWS"),
    ],
)
def test_the_last_third_is_judged_beside_the_first(
    kept: tuple[int, ...], first: float, last: float, expected: str
) -> None:
    found = rows(*kept)
    assert growth(found[:3], "broker") == pytest.approx(first)
    assert growth(found[-3:], "broker") == pytest.approx(last)
    assert verdict(first, last) == expected
    (line,) = verdicts(found)
    assert (line.split()[0], line.split()[-1]) == ("broker", expected)


def test_a_process_that_ends_and_starts_again_is_measured_where_it_was() -> None:
    found = [*rows(10, 20, 30), Row(400, {}, 1.0), Row(500, {"broker": 50}, 1.0)]
    assert growth(found, "broker") == pytest.approx(0.1)
    assert growth(found[3:], "broker") == 0.0
