"""The scenarios by name. Each takes the harness and measures its cases; `--only` chooses among them."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.bench import Bench
from benchmarks.scenarios import crowds, flows, growth, limits, recovery, throughput

SCENARIOS: dict[str, Callable[[Bench], None]] = {
    "limits": limits.limits,
    "produce": throughput.produce,
    "consume": throughput.consume,
    "latency": flows.latency,
    "small": crowds.small,
    "create": recovery.create,
    "memory": recovery.memory,
    "growth": growth.growth,
    "failover": recovery.failover,
    "together": flows.together,
    "catchup": flows.catchup,
    "group": crowds.group,
    "restart": recovery.restart,
}
"""In the order in which they run: what the goals name comes first, for runs that have a limit."""
