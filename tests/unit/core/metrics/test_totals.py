"""Sums over processes that start and end never fall."""

from raylog.core.metrics.totals import MARK_MS, WINDOW_MS, Reading, Totals


def reading(born_ms: int, records: int, flushes: int = 0) -> Reading:
    return Reading(
        born_ms=born_ms, counters={"records_in": records}, latencies={"flush": ({12: flushes}, flushes * 10)}
    )


def test_what_a_process_did_since_the_last_look_is_added() -> None:
    totals = Totals(born_ms=0)
    totals.take("t", "t-0", reading(5, 10, 2))
    totals.take("t", "t-0", reading(5, 25, 3))
    assert totals.counters == {"t": {"records_in": 25}}
    assert totals.latencies["flush"].filled() == {12: 3}
    assert totals.latencies["flush"].sum_us == 30


def test_a_process_that_starts_again_begins_at_0_and_the_sum_goes_on() -> None:
    totals = Totals(born_ms=0)
    totals.take("t", "t-0", reading(5, 10))
    totals.take("t", "t-0", reading(90, 3))
    assert totals.counters["t"]["records_in"] == 13


def test_a_stopped_process_does_not_lower_the_sum() -> None:
    totals = Totals(born_ms=0)
    totals.take("t", "t-0", reading(5, 10))
    totals.take("t", "t-1", reading(5, 7))
    totals.forget({"t-1"})
    totals.take("t", "t-1", reading(5, 8))
    assert totals.counters["t"]["records_in"] == 18


def test_a_collector_that_starts_again_begins_at_0() -> None:
    """Prometheus takes a smaller figure for a restart, and adds all of it: the first figure must be 0."""
    totals = Totals(born_ms=1000)
    totals.take("t", "old", reading(5, 1_000_000, 50))
    totals.take("t", "new", reading(2000, 4))
    assert totals.counters["t"]["records_in"] == 4
    totals.take("t", "old", reading(5, 1_000_001, 51))
    assert totals.counters["t"]["records_in"] == 5
    assert totals.latencies["flush"].filled() == {12: 1}


def test_a_figure_that_goes_back_is_no_loss() -> None:
    totals = Totals(born_ms=0)
    totals.take("t", "t-0", reading(5, 10))
    totals.take("t", "t-0", reading(5, 4))
    assert totals.counters["t"]["records_in"] == 10


def test_a_deleted_topic_is_forgotten() -> None:
    totals = Totals(born_ms=0)
    totals.take("t", "t-0", reading(5, 10))
    totals.take("u", "u-0", reading(5, 1))
    totals.forget_groups({"u"})
    assert list(totals.counters) == ["u"]


def test_recent_is_what_the_last_five_minutes_brought() -> None:
    totals = Totals(born_ms=0)
    totals.take("t", "t-0", reading(5, 0, 10))
    assert totals.recent("flush").count == 10
    totals.mark(MARK_MS)
    totals.take("t", "t-0", reading(5, 0, 14))
    assert totals.recent("flush").count == 14  # the collector is not five minutes old
    totals.mark(MARK_MS + WINDOW_MS)
    assert totals.recent("flush").count == 4
    assert totals.recent("produce").count == 0
