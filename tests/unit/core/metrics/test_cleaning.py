"""Metrics of cleaners: sums by topic, the worst log of a broker, and those that fail."""

from __future__ import annotations

import pytest

from raylog.base.ids import TopicPartition
from raylog.core.metrics.cleaning import CleanerFigures, cleaner_families, cleaner_from_wire
from raylog.core.metrics.totals import Reading, Totals

NOW_MS = 1_700_000_000_000
DIRTY = CleanerFigures(dirty_ratio=0.75, last_run_ms=NOW_MS - 5_000, is_failing=False)
FAILING = CleanerFigures(dirty_ratio=0.25, last_run_ms=0, is_failing=True)
LOGS = {TopicPartition("users", 0): DIRTY, TopicPartition("users", 1): FAILING}


def values(
    logs: dict[TopicPartition, CleanerFigures], totals: Totals, *, per_partition: bool = True
) -> dict[str, list[float]]:
    families = cleaner_families(3, totals, logs, NOW_MS, per_partition=per_partition)
    assert all(labels["broker"] == "3" for family in families for _, labels, _ in family.samples)
    return {family.name: [value for _, _, value in family.samples] for family in families}


def counted() -> Totals:
    totals = Totals(born_ms=0)
    counters = {"cleanings": 2, "cleaner_bytes_read": 400, "cleaner_bytes_written": 100, "cleaner_ms": 1500}
    totals.take("users", "a replica", Reading(born_ms=1, counters=counters, latencies={}))
    totals.take("flights", "another", Reading(born_ms=1, counters={"records_in": 1}, latencies={}))
    return totals


def test_counters_are_summed_by_topic_and_others_have_none() -> None:
    found = values(LOGS, counted())
    assert found["raylog_log_cleanings_total"] == [2]
    assert found["raylog_log_cleaner_read_bytes_total"] == [400]
    assert found["raylog_log_cleaner_seconds_total"] == [1.5]
    assert found["raylog_log_cleaner_failures_total"] == []
    assert found["kafka_log_logcleaner_cleaner_recopy_percent"] == [25]


def test_the_worst_log_and_the_latest_cleaning_stand_for_a_broker() -> None:
    found = values(LOGS, counted())
    assert found["kafka_log_logcleanermanager_max_dirty_percent"] == [75]
    assert found["kafka_log_logcleanermanager_uncleanable_partitions_count"] == [1]
    assert found["kafka_log_logcleanermanager_time_since_last_run_ms"] == [5_000]


def test_each_log_has_its_own_ratio_and_time_unless_they_are_off() -> None:
    found = values(LOGS, counted())
    assert found["raylog_log_dirty_ratio"] == [0.75, 0.25]
    assert found["raylog_log_last_cleaning_timestamp_seconds"] == [(NOW_MS - 5_000) / 1000]
    assert values(LOGS, counted(), per_partition=False)["raylog_log_dirty_ratio"] == []


def test_a_broker_without_compacted_topics_has_nothing_dirty() -> None:
    found = values({}, Totals(born_ms=0))
    assert found["kafka_log_logcleanermanager_max_dirty_percent"] == [0]
    assert found["kafka_log_logcleanermanager_time_since_last_run_ms"] == []
    assert found["kafka_log_logcleaner_cleaner_recopy_percent"] == []


def test_figures_go_over_the_wire_and_others_are_refused() -> None:
    assert cleaner_from_wire(DIRTY.to_wire()) == DIRTY
    assert cleaner_from_wire([*FAILING.to_wire(), "of a later release"]) == FAILING
    assert cleaner_from_wire(None) is None
    for row in ("no", [1], [1, "x", True]):
        with pytest.raises(ValueError, match=r"figures|invalid"):
            cleaner_from_wire(row)
