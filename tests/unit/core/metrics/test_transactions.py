"""Metrics of transaction coordinators."""

from raylog.core.metrics.exposition import render
from raylog.core.metrics.transactions import CoordinatorFigures, transaction_families


def test_each_coordinator_has_its_states_outcomes_and_oldest_transaction() -> None:
    busy = CoordinatorFigures(
        states={"Ongoing": 2, "Empty": 5}, counters={"committed": 9, "timed_out": 1}, longest_open_ms=1_500
    )
    idle = CoordinatorFigures(states={}, counters={}, longest_open_ms=-1)
    page = render(transaction_families({"transaction-0": busy, "transaction-1": idle}))
    for line in (
        'raylog_transactional_ids{coordinator="transaction-0",state="Ongoing"} 2',
        'raylog_transaction_longest_open_seconds{coordinator="transaction-0"} 1.5',
        'raylog_transaction_longest_open_seconds{coordinator="transaction-1"} 0',
        'raylog_transactions_committed_total{coordinator="transaction-0"} 9',
        'raylog_transactions_timed_out_total{coordinator="transaction-0"} 1',
        'raylog_transactions_aborted_total{coordinator="transaction-0"} 0',
    ):
        assert line in page
