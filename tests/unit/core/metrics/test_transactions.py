"""Metrics of transaction coordinators."""

from raylog.core.metrics.exposition import render
from raylog.core.metrics.families import transaction_families
from raylog.protocol.transactions import TransactionMetricsReply


def test_each_coordinator_has_its_states_outcomes_and_oldest_transaction() -> None:
    counters = {"committed": 9, "timed_out": 1}
    states = {"Ongoing": 2, "Empty": 5}
    busy = TransactionMetricsReply(process={}, loaded=True, states=states, counters=counters, longest_open_ms=1_500)
    idle = TransactionMetricsReply(process={}, loaded=True, states={}, counters={})
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
