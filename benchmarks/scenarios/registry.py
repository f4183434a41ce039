"""The scenarios by name, in the order of a run; `--only` chooses among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.analytics.rows import ROWS, as_scenario
from benchmarks.bench import Bench
from benchmarks.scenarios import crowds, delays, flows, growth, limits, queues, recovery, throughput, transactions

SCENARIOS: dict[str, Callable[[Bench], None]] = {
    "limits": limits.limits,
    "latency": flows.latency,
    "small": crowds.small,
    "produce": throughput.produce,
    "transactions": transactions.transactions,
    "together": flows.together,
    "memory": recovery.memory,
    "consume": throughput.consume,
    "catchup": flows.catchup,
    "group": crowds.group,
    "queues": queues.queues,
    "delays": delays.delays,
    "rebalance": crowds.rebalance,
    **{name: as_scenario(row) for name, row in ROWS.items()},
    "create": recovery.create,
    "growth": growth.growth,
    "failover": recovery.failover,
    "restart": recovery.restart,
}
"""In run order: scenarios sensitive to idle replicas first, those that kill servers last."""
WEIGHTS = {
    "limits": 6, "latency": 50, "small": 30, "produce": 115, "together": 25, "memory": 3, "consume": 65, "catchup": 22,
    "group": 22, "rebalance": 60, "create": 40, "growth": 90, "failover": 40, "restart": 40, "transactions": 50,
    "queues": 120, "delays": 120,
    **dict.fromkeys(ROWS, 60),
}  # fmt: skip
"""Approximate seconds of each in a quick run, which define its share of the run's time."""
SHARES_TOPICS_WITH_LAST = {"small", "transactions", "together", "memory"}
"""Scenarios that reuse the topics of the previous one, in a quick run."""


LEFT_TO_FULL_RUNS = frozenset(ROWS) - {"spark-read"} | {"queues", "delays"}
"""Scenarios that a quick run has only when they are named: each starts a JVM, Ray, or servers of its own."""


def share_of(name: str, still_to_run: Sequence[str]) -> float:
    """A scenario's share of the time left for it and those behind it."""
    return WEIGHTS[name] / sum(WEIGHTS[item] for item in (name, *still_to_run))
