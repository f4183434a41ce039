"""Work of reading the page of a node with 200 replicas, in calls of functions: no clock is involved."""

import pytest

from benchmarks.scrape import REPLICAS, measure

pytestmark = pytest.mark.cluster
CALLS_PER_REPLICA = 370
"""The most that one replica may cost the collecting thread."""


def test_a_replica_costs_a_scrape_no_more_calls_than_its_budget() -> None:
    costs = measure(REPLICAS, scrapes=5, counts_calls=True)
    fewest = min(cost.calls for cost in costs) / REPLICAS
    assert fewest <= CALLS_PER_REPLICA <= 2.5 * fewest, costs
    assert min(cost.lines for cost in costs) > 2000
