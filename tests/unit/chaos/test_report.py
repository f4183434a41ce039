"""The report's arithmetic, and the schedule of faults."""

import random
from itertools import islice

import pytest

from tests.chaos.evidence.checker import Analysis, Anomaly, Verdict
from tests.chaos.evidence.history import Fault, History, Send
from tests.chaos.evidence.report import Result, as_plain, longest_gap, percentile, summary, table, unavailable
from tests.chaos.injuries.faults import Schedule
from tests.chaos.injuries.processes import PROCESS_FAULTS


@pytest.mark.parametrize(
    ("times", "gap"),
    [
        ([1.0, 2.0, 3.0], 1.0),
        ([1.0, 1.5, 7.0], 5.5),  # begins in the span and ends behind it
        ([0.5, 6.0], 5.5),  # begins before it
        ([], 2.0),  # nothing at all: the whole span
        ([0.9, 1.1, 2.9, 3.1], 1.8),
    ],
)
def test_the_longest_gap_is_that_which_touches_the_span(times: list[float], gap: float) -> None:
    assert longest_gap(times, 1.0, 3.0) == pytest.approx(gap)


def test_the_partition_that_waited_longest_counts() -> None:
    fault = Fault("kill-leader", "t-0", at_s=10.0, healed_s=10.0, whole_s=12.0)
    assert unavailable(fault, {0: [9.9, 10.1, 12.2], 1: [9.9, 10.5, 11.0, 12.5]}) == pytest.approx(2.1)


def test_the_report_names_faults_outcomes_anomalies_and_the_verdict() -> None:
    analysis = Analysis()
    analysis.add(Anomaly("duplicate", "'a' is stored twice"))
    history = History(
        operations=[
            Send("p", 0, "a", "ok", 0, 0, 0.0, 9.0),
            Send("p", 1, "b", "unknown"),
            Fault("kill-leader", "t-0", 10.0, 10.0, 12.0),
            Fault("kill-controller", "controller", 20.0, 20.0, None),
        ]
    )
    text = table(as_plain(Result(Verdict.FAILED, analysis, history, hangs=["a thread"])))
    for part in ("kill-leader", "never", "1 ok, 0 fail, 1 unknown", "1 x duplicate", "stored twice", "a thread"):
        assert part in text
    assert text.endswith("FAILED")


def drawn(seed: int, count: int = 60) -> list[list[str]]:
    schedule = Schedule(list(PROCESS_FAULTS), random.Random(seed))
    return list(islice(iter(schedule.next, None), count))


def test_a_schedule_follows_its_seed_and_repeats_no_kind_before_all_came() -> None:
    assert drawn(7) == drawn(7) != drawn(8)
    kinds = [kind for together in drawn(7) for kind in together]
    assert set(kinds[: len(PROCESS_FAULTS) + 2]) == set(PROCESS_FAULTS)


def test_nothing_else_happens_while_all_is_stopped() -> None:
    assert all(
        together == ["restart-all"] for seed in range(5) for together in drawn(seed) if "restart-all" in together
    )


def test_the_worst_part_decides_and_everything_is_counted_together() -> None:
    history = History(operations=[Send("p", 0, "a", "ok", 0, 0, 0.0, 9.0), Fault("cut", "1", 1.0, 2.0, 3.0)])
    parts = [
        as_plain(Result(verdict, Analysis(), history, part=part))
        for part, verdict in (("processes", Verdict.PASSED), ("network", Verdict.HANG))
    ]
    text, worst = summary(parts)
    assert worst is Verdict.HANG
    assert "2 records acknowledged" in text
    assert "2 faults of 2 kinds" in text


def test_a_percentile_is_a_value_that_was_measured() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert percentile(list(map(float, range(1, 201))), 0.99) == 198.0
