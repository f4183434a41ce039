"""A log under clocks set at random: no record is deleted before its time by the true clock."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.core.clock_guard import BELIEVED_AFTER_MS, JUMP_MS, ClockGuard
from tests.unit.storage.logs import batch, open_log

START = 1_700_000_000_000
HOUR = 3_600_000
RETENTION = 6 * HOUR
steps = st.lists(
    st.tuples(
        st.integers(1, 2 * HOUR),  # time until the next reading
        st.sampled_from([0, 0, 0, 8 * 24 * HOUR, -8 * 24 * HOUR, 2 * HOUR, -2 * HOUR]),  # how far the clock is set
        st.booleans(),  # whether it is set right again at once
    ),
    min_size=1,
    max_size=12,
).filter(lambda drawn: sum(step for step, _, _ in drawn) < BELIEVED_AFTER_MS)

Clock = Callable[[int, int], int]
"""Time since boot and wall clock to the time that deletion uses."""


def guarded(boot: int, wall: int) -> Clock:
    guard = ClockGuard(since_boot_ms=boot, wall_ms=wall)
    return lambda now, time: guard.judge(since_boot_ms=now, wall_ms=time).deleting_ms


def unguarded(_: int, __: int) -> Clock:
    return lambda _, time: time


def run(drawn: list[tuple[int, int, bool]], make: Callable[[int, int], Clock]) -> None:
    """Append a record at each step, run retention, and compare with the true age."""
    boot, off = 1_000, 0
    clock = make(boot, START + boot)
    with tempfile.TemporaryDirectory() as name:
        log = open_log(Path(name) / "t-0", segment_bytes=1, retention_ms=RETENTION)
        born: list[int] = []
        for later, jump, mended in drawn:
            log.append_as_leader(batch(b"x", timestamps=[START + boot]), 1, START + boot + off)
            born.append(boot)
            boot, off = boot + later, off + jump
            log.apply_retention(clock(boot, START + boot + off), log.log_end_offset)
            for offset in range(log.log_start_offset):
                assert boot - born[offset] >= RETENTION - JUMP_MS * len(drawn), f"record {offset} went too early"
            if mended:
                off = 0
        log.close()


@settings(max_examples=100, deadline=None)
@given(steps)
def test_no_jump_of_the_wall_clock_deletes_before_the_time(drawn: list[tuple[int, int, bool]]) -> None:
    run(drawn, guarded)


def test_the_property_notices_a_log_without_a_guard() -> None:
    with pytest.raises(AssertionError, match="too early"):
        run([(HOUR, 8 * 24 * HOUR, True)], unguarded)
