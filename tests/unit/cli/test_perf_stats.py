"""The output of `raylog perf` has the form of Kafka's tools, and its numbers are right."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raylog.cli.perf import stats as perf_stats
from raylog.cli.perf.stats import Latencies, consumer_detail, consumer_total, metric_lines

# What tools that read the output of kafka-producer-perf-test look for.
FINAL = re.compile(
    r"(\d+) records sent, ([\d.]+) records/sec \(([\d.]+) MB/sec\), ([\d.]+) ms avg latency, ([\d.]+) ms max latency, "
    r"(\d+) ms 50th, (\d+) ms 95th, (\d+) ms 99th, (\d+) ms 99\.9th\.$"
)
WINDOW = re.compile(
    r"(\d+) records sent, ([\d.]+) records/sec \(([\d.]+) MB/sec\), ([\d.]+) ms avg latency, ([\d.]+) ms max latency\.$"
)


def test_the_last_line_reads_as_kafkas() -> None:
    lines: list[str] = []
    stats = Latencies(1000, 100.0, lines.append)
    stats.add_run([100.0 + n / 1000 for n in range(1000)], 101.0, 1000 * 1024)
    stats.print_total(102.0)
    assert lines == [
        "1000 records sent, 500.000000 records/sec (0.49 MB/sec), 500.50 ms avg latency, 1000.00 ms max latency, "
        "501 ms 50th, 951 ms 95th, 991 ms 99th, 1000 ms 99.9th."
    ]
    assert FINAL.match(lines[0])


def test_a_line_every_five_seconds_counts_only_its_own_window() -> None:
    lines: list[str] = []
    stats = Latencies(100, 0.0, lines.append)
    for second in range(1, 13):
        stats.add_run([second - 0.25] * 10, float(second), 10 << 20)
    assert lines == [
        "50 records sent, 10.0 records/sec (10.00 MB/sec), 250.0 ms avg latency, 250.0 ms max latency.",
        "50 records sent, 10.0 records/sec (10.00 MB/sec), 250.0 ms avg latency, 250.0 ms max latency.",
    ]
    assert all(WINDOW.match(line) for line in lines)


def test_percentiles_have_decimals_on_request() -> None:
    lines: list[str] = []
    stats = Latencies(4, 0.0, lines.append, name=" steady state", digits=2)
    stats.add_run([0.0, 0.0, 0.0, 0.0], 0.00025, 400)
    stats.print_total(1.0)
    assert lines[0].startswith("4 steady state records sent, 4.000000 records/sec (0.00 MB/sec), 0.25 ms avg latency")
    assert lines[0].endswith("0.25 ms 50th, 0.25 ms 95th, 0.25 ms 99th, 0.25 ms 99.9th.")


def test_nothing_stored_has_no_latency() -> None:
    lines: list[str] = []
    Latencies(10, 0.0, lines.append).print_total(1.0)
    assert lines == ["0 records sent, 0.000000 records/sec (0.00 MB/sec)."]


@settings(max_examples=50)
@given(st.lists(st.lists(st.floats(0, 10), min_size=1, max_size=20), min_size=1, max_size=20), st.integers(1, 5))
def test_runs_of_any_length_give_the_numbers_of_their_records(runs: list[list[float]], every: int) -> None:
    samples_max, perf_stats.SAMPLES_MAX = perf_stats.SAMPLES_MAX, 1
    try:
        stats = Latencies(every, 0.0, lambda _: None)
    finally:
        perf_stats.SAMPLES_MAX = samples_max
    for run in runs:
        stats.add_run(sorted(run), 10.0, len(run))
    latencies = [10.0 - sent for run in runs for sent in sorted(run)]
    assert stats.count == stats.bytes == len(latencies)
    assert stats._sum_s == pytest.approx(sum(latencies))
    assert stats._max_s == max(latencies)
    assert stats._samples == latencies[::every], "an even sample, whatever the runs are"


def test_the_consumers_line_has_kafkas_columns() -> None:
    assert perf_stats.CONSUMER_HEADER == (
        "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, "
        "rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
    )
    fields = consumer_total(1_700_000_000_123, 1_700_000_002_123, 4 << 20, 1000, 1000).split(", ")
    assert fields[2:] == ["4.0000", "2.0000", "1000", "500.0000", "1000", "1000", "4.0000", "1000.0000"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:123", fields[0])
    assert len(fields) == len(perf_stats.CONSUMER_HEADER.split(", "))
    detail = consumer_detail(1_700_000_000_000, 2000, 4 << 20, 1000, (1 << 20, 100), 2000).split(", ")
    assert detail[1:] == ["0", "4.0000", "0.5000", "1000", "50.0000", "2000", "0", "0.0000", "0.0000"]
    assert len(detail) == len(perf_stats.CONSUMER_DETAIL_HEADER.split(", "))


def test_metrics_stand_in_two_columns() -> None:
    assert metric_lines("g", "c", {"b": 2.0, "aa": 1}) == [
        "",
        "Metric Name          Value",
        "g:aa:{client-id=c} : 1.000",
        "g:b:{client-id=c}  : 2.000",
    ]
