"""Latency histograms: buckets, quantiles, and the output for Prometheus."""

import math

import pytest

from raylog.core.metrics.histogram import BUCKETS, LatencyHistogram, lower_us, merged, upper_us


def observed(*durations_us: int) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for us in durations_us:
        histogram.observe_ns(us * 1000 + 999)
    return histogram


@pytest.mark.parametrize("us", [0, 1, 2, 3, 4, 5, 7, 8, 127, 128, 129, 1000, 65_535, 65_536, 10**9, 2**39 - 1])
def test_a_duration_lies_between_the_edges_of_its_bucket(us: int) -> None:
    histogram = observed(us)
    (bucket,) = histogram.filled()
    assert lower_us(bucket) <= us < upper_us(bucket)
    assert upper_us(bucket) - lower_us(bucket) <= max(1, us // 4)
    assert (histogram.count, histogram.sum_us) == (1, us)


def test_durations_out_of_range_count_in_the_outermost_buckets() -> None:
    histogram = LatencyHistogram()
    histogram.observe_ns(2**60)
    histogram.observe_ns(-5)
    assert histogram.filled() == {0: 1, BUCKETS - 1: 1}


def test_quantiles_are_an_eighth_off_at_most() -> None:
    histogram = observed(*range(1, 10_001))
    for quantile in (0.01, 0.5, 0.99, 0.999):
        assert histogram.quantile_us(quantile) == pytest.approx(quantile * 10_000, rel=0.125)
    assert math.isnan(LatencyHistogram().quantile_us(0.5))


def test_prometheus_gets_exact_counts_below_powers_of_two() -> None:
    histogram = observed(127, 128, 255, 256, 40_000_000)
    rows = dict(histogram.cumulative())
    assert (rows[0.000128], rows[0.000256], rows[0.000512]) == (1, 3, 4)
    assert max(rows.values()) == 4  # the slowest is in the infinite bucket alone
    assert list(rows) == sorted(rows)


def test_differences_and_sums_hold_what_they_should() -> None:
    histogram = observed(10, 20)
    earlier = histogram.copy()
    histogram.observe_ns(30_000)
    assert histogram.since(earlier).filled() == observed(30).filled()
    assert merged([earlier, observed(30)]).counts == histogram.counts
    assert merged([earlier, observed(30)]).sum_us == histogram.sum_us
    added = LatencyHistogram()
    added.add({**histogram.filled(), 9999: 1}, histogram.sum_us)
    assert added.count == 4
