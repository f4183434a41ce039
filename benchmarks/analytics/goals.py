"""The goals of the rows, each a comparison within one run. Pure."""

from __future__ import annotations

from benchmarks.analytics.contestants import (
    AT_LEAST_ONCE,
    CEILING,
    CONNECTOR,
    EXACTLY_ONCE,
    KAFKA_SINK,
    OURS,
    RATE_SOURCE,
    RAY_DATA,
    RAY_KAFKA,
    READER,
)
from benchmarks.report.results import Measured, Results
from benchmarks.report.verdict import Verdict, at_least, below, median_of, row_of, times

READER_M, WRITE_M = 5.0, 0.5
SOURCE_MS = 50.0
PART_READ = 0.01


def _spark_read(results: Results) -> list[Verdict]:
    found = []
    for size in ("100 B", "1,000 B"):
        ours, ceiling, theirs = (row_of(results, "spark-read", item.name, size) for item in (OURS, CEILING, CONNECTOR))
        found.append(times(f"Spark reads {size}: 0.9 x ready-made Arrow batches", ours, ceiling, 0.9))
        found.append(times(f"Spark reads {size}: 1 x its connector for Kafka", ours, theirs, 1.0))
    return found


def _reader(results: Results) -> list[Verdict]:
    rate = _millions(row_of(results, "reader-arrow", READER.name, "100 B"))
    return [
        at_least("reader alone to Arrow, 100 B: at least 5 M records/s a core", rate, READER_M, "{:.2f} M records/s")
    ]


def _filter(results: Results) -> list[Verdict]:
    found = []
    for place in ("middle", "end"):
        row = row_of(results, "time-filter", READER.name, place)
        goal = f"a thousandth of the time in the {place} of a topic: less than a hundredth of its bytes"
        for way, metric in (("the leader's files", ""), ("over the network", "part_over_network")):
            found.append(below(f"{goal}, {way}", median_of(row, metric), PART_READ, "{:.4f}"))
    return found


def _ray_data(results: Results) -> list[Verdict]:
    found = []
    for action, least in (("read", 5.0), ("write", 1.0)):
        ours, theirs = (row_of(results, "ray-data", item.name, action) for item in (RAY_DATA, RAY_KAFKA))
        found.append(times(f"Ray Data, {action}: {least:g} x its functions for Kafka", ours, theirs, least))
    return found


def _stream(results: Results) -> list[Verdict]:
    ours, rate = (median_of(row_of(results, "spark-stream", item.name)) for item in (OURS, RATE_SOURCE))
    goal = "a micro-batch: the source's phases at most 50 ms longer than those of Spark's rate source"
    more = None if ours is None or rate is None else ours - rate
    mine, theirs = (row_of(results, "spark-latency", item.name) for item in (OURS, RATE_SOURCE))
    latency = "from send to foreachBatch, which collects, at processingTime=0: within 1.3 x of Spark's rate source"
    return [below(goal, more, SOURCE_MS, "{:+.0f} ms"), times(latency, mine, theirs, 1 / 1.3)]


def _write(results: Results) -> list[Verdict]:
    once, least, kafka = (
        row_of(results, "spark-write", item.name) for item in (EXACTLY_ONCE, AT_LEAST_ONCE, KAFKA_SINK)
    )
    goal = "a stream writes 100 B at-least-once"
    rate = _millions(least)
    return [
        at_least(f"{goal}: at least 0.5 M records/s on 2 cores", rate, WRITE_M, "{:.2f} M records/s"),
        times(f"{goal}: 1 x Spark's sink for Kafka", least, kafka, 1.0),
        times("a stream writes 100 B exactly-once: 0.8 x at-least-once", once, least, 0.8),
    ]


def _millions(row: Measured | None) -> float | None:
    found = median_of(row)
    return None if found is None else found / 1e6


GOALS = (
    ("spark-read", _spark_read),
    ("reader-arrow", _reader),
    ("time-filter", _filter),
    ("ray-data", _ray_data),
    ("spark-stream", _stream),
    ("spark-write", _write),
)
"""The goals of each row."""
