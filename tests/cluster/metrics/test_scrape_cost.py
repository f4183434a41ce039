"""Cost of reading the page of a node with 200 replicas, in CPU time, so that a busy machine changes it little."""

import pytest

from benchmarks.scrape import measure

pytestmark = pytest.mark.cluster


def test_a_scrape_of_200_replicas_takes_less_than_50_ms_of_cpu_time() -> None:
    costs = measure(200, scrapes=20)
    assert min(cost.collector_ms for cost in costs) < 50, costs
    assert min(cost.lines for cost in costs) > 2000
