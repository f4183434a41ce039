"""What waits for long is in the log, once a minute; what waits for a moment is not."""

from __future__ import annotations

from raylog.actors.roles.late import LATE_MS, WARN_MS, LateWarnings


def test_a_target_that_is_back_soon_is_not_logged() -> None:
    late = LateWarnings()
    assert not late.is_due("a", 0, 100)
    assert not late.is_due("a", 0, LATE_MS - 1)


def test_one_that_is_not_is_logged_once_a_minute() -> None:
    late = LateWarnings()
    logged = [at_ms for at_ms in range(0, 200_000, 1_000) if late.is_due("a", 0, at_ms)]
    assert logged == [LATE_MS, LATE_MS + WARN_MS, LATE_MS + 2 * WARN_MS, LATE_MS + 3 * WARN_MS]


def test_each_target_counts_for_itself_and_begins_again() -> None:
    late = LateWarnings()
    assert late.is_due("a", 0, LATE_MS)
    assert not late.is_due("b", LATE_MS, LATE_MS)
    late.over("a")
    assert not late.is_due("a", LATE_MS + 1, LATE_MS + 1)
