"""Metrics of the scrub: sums by topic, and the log of a broker that has waited longest."""

from __future__ import annotations

import pytest

from raylog.base.ids import TopicPartition
from raylog.core.metrics.scrubbing import ScrubFigures, scrub_families, scrub_from_wire
from raylog.core.metrics.totals import Reading, Totals

NOW_MS = 1_700_000_000_000
LOGS = {
    TopicPartition("users", 0): ScrubFigures(last_ms=NOW_MS, offset=-1),
    TopicPartition("users", 1): ScrubFigures(last_ms=0, offset=12),
}


def values(logs: dict[TopicPartition, ScrubFigures], *, per_partition: bool = True) -> dict[str, list[float]]:
    totals = Totals(born_ms=0)
    counters = {"scrub_bytes": 400, "scrub_passes": 2, "scrub_damages": 1, "scrub_remade": 3}
    totals.take("users", "a replica", Reading(born_ms=1, counters=counters, latencies={}))
    families = scrub_families(3, totals, logs, per_partition=per_partition)
    assert all(labels["broker"] == "3" for family in families for _, labels, _ in family.samples)
    return {family.name: [value for _, _, value in family.samples] for family in families}


def test_the_counters_and_the_oldest_pass() -> None:
    found = values(LOGS)
    assert found["raylog_log_scrubbed_bytes_total"] == [400]
    assert found["raylog_log_scrub_passes_total"] == [2]
    assert found["raylog_log_scrub_damages_total"] == [1]
    assert found["raylog_log_scrub_remade_files_total"] == [3]
    assert found["raylog_log_oldest_scrub_timestamp_seconds"] == [0], "one was never scrubbed"
    assert found["raylog_log_last_scrub_timestamp_seconds"] == [NOW_MS / 1000]


def test_without_figures_of_partitions_the_oldest_stays() -> None:
    found = values(LOGS, per_partition=False)
    assert found["raylog_log_last_scrub_timestamp_seconds"] == []
    assert found["raylog_log_oldest_scrub_timestamp_seconds"] == [0]
    assert values({})["raylog_log_oldest_scrub_timestamp_seconds"] == []


def test_figures_pass_between_processes() -> None:
    for figures in LOGS.values():
        assert scrub_from_wire(figures.to_wire()) == figures
    assert scrub_from_wire(None) is None, "a release that does not scrub"
    with pytest.raises(ValueError, match="no figures"):
        scrub_from_wire([1])
