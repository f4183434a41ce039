"""The owner's clock: it follows small differences slowly, and steps only when most brokers took them."""

from hypothesis import given
from hypothesis import strategies as st

from raylog.core.scheduling.clock import SLEW, STEP_MS, OwnerClock, agreed_ms

HOUR_MS = 3_600_000


def test_a_step_of_an_hour_is_not_followed_alone() -> None:
    clock = OwnerClock(monotonic_ms=0, wall_ms=1_000_000)
    for step_ms in (HOUR_MS, -HOUR_MS):
        assert clock.now_ms(monotonic_ms=10_000, wall_ms=1_010_000 + step_ms) == 1_010_000
        assert clock.step_ms == step_ms
        assert not clock.confirm(None, wall_ms=1_010_000 + step_ms)
        assert not clock.confirm(1_010_000, wall_ms=1_010_000 + step_ms)


def test_a_step_that_most_brokers_took_is_followed() -> None:
    clock = OwnerClock(monotonic_ms=0, wall_ms=0)
    clock.now_ms(monotonic_ms=1_000, wall_ms=1_000 + HOUR_MS)
    assert clock.confirm(HOUR_MS + 1_200, wall_ms=HOUR_MS + 1_000)
    assert clock.now_ms(monotonic_ms=2_000, wall_ms=2_000 + HOUR_MS) == HOUR_MS + 2_000
    assert clock.step_ms == 0


@given(st.lists(st.tuples(st.integers(0, 5_000), st.integers(-2_000, 2_000)), max_size=50))
def test_it_never_goes_back_and_advances_about_as_time_does(readings: list[tuple[int, int]]) -> None:
    clock = OwnerClock(monotonic_ms=0, wall_ms=1_000_000)
    monotonic_ms, before = 0, 1_000_000
    for elapsed_ms, wrong_ms in readings:
        monotonic_ms += elapsed_ms
        now_ms = clock.now_ms(monotonic_ms=monotonic_ms, wall_ms=1_000_000 + monotonic_ms + wrong_ms)
        assert now_ms >= before
        assert now_ms - before <= elapsed_ms * (1 + 1 / SLEW) + STEP_MS / SLEW
        before = now_ms


def test_more_than_half_of_the_brokers_have_to_agree() -> None:
    assert agreed_ms([1_000, 1_010, 900_000], 3) == 1_010
    assert agreed_ms([1_000, 900_000], 3) is None
    assert agreed_ms([1_000], 3) is None
    assert agreed_ms([1_000, 1_001], 3) == 1_001
    assert agreed_ms([5], 1) == 5
    assert agreed_ms([], 1) is None
