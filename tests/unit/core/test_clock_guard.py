"""The time of day that deletion may use."""

from raylog.core.clock_guard import BELIEVED_AFTER_MS, JUMP_MS, REPORT_MS, ClockGuard, ClockReading

START = 1_700_000_000_000
DAY = 24 * 3_600_000
MINUTE = 60_000


class Clocks:
    """A guard, and two clocks that the test moves."""

    def __init__(self) -> None:
        self.boot, self.ahead = 5_000, START
        self.guard = ClockGuard(since_boot_ms=self.boot, wall_ms=self.wall)

    @property
    def wall(self) -> int:
        return self.boot + self.ahead

    def look(self, *, after: int = 5 * MINUTE, jump: int = 0) -> ClockReading:
        self.boot += after
        self.ahead += jump
        return self.guard.judge(since_boot_ms=self.boot, wall_ms=self.wall)


def test_a_clock_that_runs_is_believed() -> None:
    clocks = Clocks()
    for _ in range(1000):
        assert clocks.look(jump=100) == ClockReading(
            deleting_ms=clocks.wall, jump_ms=0, going_ms=clocks.wall, report=False
        )


def test_a_step_of_a_minute_is_no_jump() -> None:
    clocks = Clocks()
    assert clocks.look(jump=JUMP_MS).jump_ms == 0
    assert clocks.look(jump=-JUMP_MS).jump_ms == 0


def test_a_clock_that_is_days_ahead_for_a_moment_deletes_nothing_early() -> None:
    clocks = Clocks()
    right = clocks.wall + 5 * MINUTE
    found = clocks.look(jump=8 * DAY)
    assert (found.deleting_ms, found.jump_ms, found.report) == (right, 8 * DAY, True)
    assert found.going_ms == right
    assert clocks.look(jump=-8 * DAY) == ClockReading(
        deleting_ms=clocks.wall, jump_ms=0, going_ms=clocks.wall, report=False
    )


def test_a_clock_that_was_set_back_deletes_by_itself() -> None:
    clocks = Clocks()
    before = clocks.wall
    found = clocks.look(jump=-8 * DAY)
    assert (found.deleting_ms, found.jump_ms) == (clocks.wall, -8 * DAY)
    assert found.going_ms == before + 5 * MINUTE, "what ends by it goes on as before"


def test_while_a_clock_is_doubted_the_other_counts_and_reports_are_hourly() -> None:
    clocks = Clocks()
    first = clocks.look(jump=8 * DAY)
    reports = 0
    for step in range(1, 100):
        found = clocks.look()
        reports += found.report
        assert found.deleting_ms == first.deleting_ms + step * 5 * MINUTE
    assert reports == 99 * 5 * MINUTE // REPORT_MS


def test_a_clock_that_keeps_going_for_a_day_is_believed() -> None:
    clocks = Clocks()
    clocks.look(jump=8 * DAY)
    assert clocks.look(after=BELIEVED_AFTER_MS - 1).jump_ms == 8 * DAY
    assert clocks.look(after=1) == ClockReading(deleting_ms=clocks.wall, jump_ms=0, going_ms=clocks.wall, report=False)


def test_a_clock_that_jumps_again_has_to_wait_again() -> None:
    clocks = Clocks()
    clocks.look(jump=8 * DAY)
    clocks.look(after=BELIEVED_AFTER_MS - 1)
    assert clocks.look(after=1, jump=DAY).jump_ms == 9 * DAY
