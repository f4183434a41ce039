"""Metrics of transaction coordinators: ids by state, outcomes, markers, the oldest open transaction. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from raylog.core.metrics.exposition import Family

COUNTERS: Final = (
    ("begun", "raylog_transactions_begun_total", "Transactions that began."),
    ("committed", "raylog_transactions_committed_total", "Transactions that were committed."),
    ("aborted", "raylog_transactions_aborted_total", "Transactions that were aborted, for any reason."),
    ("timed_out", "raylog_transactions_timed_out_total", "Transactions that were aborted because of their timeout."),
    (
        "expired",
        "raylog_transactional_ids_expired_total",
        "Transactional ids that were forgotten, being unused.",
    ),
    (
        "claims_refused",
        "raylog_transaction_claims_refused_total",
        "First batches of transactions that were refused: none was open, or it did not have the partition.",
    ),
    ("markers_written", "raylog_transaction_markers_total", "Outcomes that a partition or a group has received."),
    ("markers_repeated", "raylog_transaction_marker_retries_total", "Outcomes that had to be sent again."),
)
"""Counter, name, help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorFigures:
    """What one transaction coordinator reports. ``longest_open_ms`` -1: no transaction is open."""

    states: Mapping[str, int]
    counters: Mapping[str, int]
    longest_open_ms: int


def transaction_families(coordinators: Mapping[str, CoordinatorFigures]) -> list[Family]:
    """Return the metrics of some coordinators, by their names."""
    states = Family("raylog_transactional_ids", "gauge", "Transactional ids in a state.")
    oldest = Family("raylog_transaction_longest_open_seconds", "gauge", "Age of the oldest open transaction; 0 = none.")
    counted = {counter: Family(name, "counter", text) for counter, name, text in COUNTERS}
    for coordinator, figures in coordinators.items():
        for state, number in sorted(figures.states.items()):
            states.add(number, coordinator=coordinator, state=state)
        oldest.add(max(0, figures.longest_open_ms) / 1000, coordinator=coordinator)
        for counter, family in counted.items():
            family.add(figures.counters.get(counter, 0), coordinator=coordinator)
    return [states, oldest, *counted.values()]
