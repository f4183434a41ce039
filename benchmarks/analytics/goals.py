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
from benchmarks.bench import Contestant
from benchmarks.report.results import Measured, Results, ratio_to
from benchmarks.report.verdict import Verdict

NOT_MEASURED = "not measured"
READER_RATE = 5e6
WRITE_RATE = 0.5e6
SOURCE_MS = 50.0
PART_READ = 0.01


def verdicts(results: Results) -> list[Verdict]:
    """Every goal of these rows that the run has a measurement for; none of a run without them."""
    found = [*_reads(results), *_streams(results), *_writes(results)]
    return found if any(verdict.reached is not None for verdict in found) else []


def _row(results: Results, scenario: str, contestant: Contestant, *parts: str) -> Measured | None:
    for row in results.measured:
        wants = all(part in row.case for part in parts)
        if row.scenario == scenario and row.contestant == contestant.name and row.rounds and wants:
            return row
    return None


def _median(row: Measured | None, metric: str = "") -> float | None:
    summary = row.summary(metric) if row is not None else None
    return summary.median if summary is not None else None


def _times(goal: str, ours: Measured | None, theirs: Measured | None, least: float) -> Verdict:
    found = ratio_to(ours, theirs)
    return Verdict(goal, NOT_MEASURED, None) if found is None else Verdict(goal, f"{found:.2f} x", found >= least)


def _reads(results: Results) -> list[Verdict]:
    found = []
    for size in ("100 B", "1,000 B"):
        ours, ceiling, connector = (_row(results, "spark-read", item, size) for item in (OURS, CEILING, CONNECTOR))
        found.append(_times(f"Spark reads {size}: 0.9 x ready-made Arrow batches", ours, ceiling, 0.9))
        found.append(_times(f"Spark reads {size}: 1 x its connector for Kafka", ours, connector, 1.0))
    rate = _median(_row(results, "reader-arrow", READER, "100 B"))
    goal = "reader alone to Arrow, 100 B: at least 5 M records/s a core"
    found.append(_at_least(goal, rate, READER_RATE, 1e-6, "M records/s"))
    for place in ("middle", "end"):
        row = _row(results, "time-filter", READER, place)
        goal = f"a thousandth of the time in the {place} of a topic: less than a hundredth of its bytes"
        for way, metric in (("the leader's files", ""), ("over the network", "part_over_network")):
            part = _median(row, metric)
            text = NOT_MEASURED if part is None else f"{part:.4f}"
            found.append(Verdict(f"{goal}, {way}", text, None if part is None else part < PART_READ))
    for action, least in (("read", 5.0), ("write", 1.0)):
        ours, theirs = (_row(results, "ray-data", item, action) for item in (RAY_DATA, RAY_KAFKA))
        found.append(_times(f"Ray Data, {action}: {least:g} x its functions for Kafka", ours, theirs, least))
    return found


def _streams(results: Results) -> list[Verdict]:
    ours, rate = (_median(_row(results, "spark-stream", item)) for item in (OURS, RATE_SOURCE))
    goal = "a micro-batch: the source's phases at most 50 ms longer than those of Spark's rate source"
    more = None if ours is None or rate is None else ours - rate
    overhead = Verdict(
        goal, NOT_MEASURED if more is None else f"{more:+.0f} ms", None if more is None else more < SOURCE_MS
    )
    mine, theirs = (_row(results, "spark-latency", item) for item in (OURS, RATE_SOURCE))
    goal = "from send to foreachBatch, which collects, at processingTime=0: within 1.3 x of Spark's rate source"
    return [overhead, _times(goal, mine, theirs, 1 / 1.3)]


def _writes(results: Results) -> list[Verdict]:
    once, least, kafka = (_row(results, "spark-write", item) for item in (EXACTLY_ONCE, AT_LEAST_ONCE, KAFKA_SINK))
    goal = "a stream writes 100 B at-least-once"
    return [
        _at_least(f"{goal}: at least 0.5 M records/s on 2 cores", _median(least), WRITE_RATE, 1e-6, "M records/s"),
        _times(f"{goal}: 1 x Spark's sink for Kafka", least, kafka, 1.0),
        _times("a stream writes 100 B exactly-once: 0.8 x at-least-once", once, least, 0.8),
    ]


def _at_least(goal: str, found: float | None, least: float, scale: float, unit: str) -> Verdict:
    if found is None:
        return Verdict(goal, NOT_MEASURED, None)
    return Verdict(goal, f"{found * scale:.2f} {unit}", found >= least)
