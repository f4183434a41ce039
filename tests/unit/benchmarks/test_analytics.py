"""The rows of Spark and Ray Data without servers: options, sizes, workers, and what a query's reports come to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.analytics import arrow_worker
from benchmarks.analytics.command import arguments
from benchmarks.analytics.contestants import (
    CEILING,
    CONNECTOR,
    OURS,
    RATE_SOURCE,
    RAY_DATA,
    RAY_KAFKA,
    READER,
    present,
    servers_of,
)
from benchmarks.analytics.progress import Batch, batches_of, medians, throughput
from benchmarks.analytics.reads import able
from benchmarks.analytics.rows import ROWS
from benchmarks.analytics.workers import Worker, reason_of
from benchmarks.bench import QUICK as PACE
from benchmarks.bench import Bench, Contestant
from benchmarks.goals import verdicts
from benchmarks.peers.processes import Unavailable
from benchmarks.peers.spark_kafka import connector, version
from benchmarks.report.results import Measured, Results


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench([], replace(PACE, rounds=2, touched_bytes=0), Results({}, {}, {}), tmp_path)


def report(number: int, rows: int, **phases: int) -> dict[str, Any]:
    return {"batchId": number, "numInputRows": rows, "durationMs": phases}


def test_the_command_knows_its_rows_and_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = arguments(["spark-read", "--records", "5000000", "--seconds", "3"])
    assert (chosen.sizes.records, chosen.sizes.ray_records, chosen.sizes.stream_s) == (5_000_000, 500_000, 3.0)
    assert arguments(["all"]).rows == list(ROWS)
    with pytest.raises(SystemExit):
        arguments(["spark-raed"])
    assert "did you mean 'spark-read'?" in capsys.readouterr().err


def test_a_contestant_without_its_server_or_jars_takes_no_part(bench: Bench) -> None:
    assert present(bench, OURS, CEILING, RATE_SOURCE) == [CEILING, RATE_SOURCE]
    bench.peers = {"raylog": None, "kafka": None}  # type: ignore[dict-item]  # only its keys are looked at
    assert able(bench, [], OURS, CEILING, CONNECTOR) == [OURS, CEILING]
    assert able(bench, ["a.jar"], OURS, CONNECTOR) == [OURS, CONNECTOR]
    assert servers_of([OURS, CEILING, CONNECTOR]) == [OURS, CONNECTOR]


def test_micro_batches_are_counted_without_the_first_and_the_empty() -> None:
    reports = [report(0, 5), report(1, 5), report(1, 5), report(2, 0), report(3, 7, latestOffset=3, triggerExecution=9)]
    [batch] = batches_of(reports, warm=2)
    assert (batch.rows, batch.source_ms, batch.whole_ms) == (7, 3, 9)


def test_medians_and_rates_of_micro_batches() -> None:
    batches = [Batch(10, {"latestOffset": 4, "walCommit": 1, "triggerExecution": 100, "addBatch": 80})] * 3
    found = medians(batches)
    assert (found["source_ms"], found["batch_ms"], found["addBatch_ms"], found["batches"]) == (5, 100, 80, 3)
    assert throughput(batches) == {"records": 30, "seconds": 0.3, "rate": pytest.approx(100.0)}
    assert medians([]) == {}


def test_a_slice_of_time_is_a_thousandth_of_it() -> None:
    assert arrow_worker.slice_of(0, 10_000, "end") == (9_991, 10_001)
    low, end = arrow_worker.slice_of(0, 10_000, "middle")
    assert (low, end - low) == (5_000, 10)
    assert arrow_worker.slice_of(7, 7, "end") == (7, 8)


def test_the_connector_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / f"spark-kafka-{version()}"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="no mvn"):
        connector(tmp_path)
    folder.mkdir()
    for name in ("b.jar", "a.jar", "complete"):
        (folder / name).touch()
    assert [path.name for path in connector(tmp_path)] == ["a.jar", "b.jar"]


WORKER = """
from benchmarks.analytics.workers import serve

def begin(settings):
    def double(task):
        print("noise of a library")
        return {"rate": settings["factor"] * task["n"]}
    def fail(task):
        raise ValueError("no such topic")
    return {"double": double, "fail": fail, "end": lambda task: exit(3)}

serve(begin)
"""


def test_a_worker_stays_for_all_tasks_and_reports_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sample_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Worker("sample_worker", {"factor": 2}) as worker:
        assert worker.run({"do": "double", "n": 4}) == {"rate": 8}
        with pytest.raises(Unavailable, match="ValueError: no such topic"):
            worker.run({"do": "fail"})
        assert worker.run({"do": "double", "n": 5}) == {"rate": 10}
        with pytest.raises(Unavailable, match="sample_worker ended"):
            worker.run({"do": "end"})


def test_an_error_of_spark_is_reported_by_its_last_python_line() -> None:
    text = "[STREAM_FAILED] Query\nTraceback:\n  File x\nraylog.InvalidConfig: no topic\n\n\tat java.X"
    assert reason_of(RuntimeError(text)) == "raylog.InvalidConfig: no topic"
    assert reason_of(ValueError("too\nbad")) == "ValueError: too bad"


def test_goals_compare_rows_of_one_run(bench: Bench) -> None:
    assert verdicts(bench.results) == []

    def add(scenario: str, case: str, contestant: Contestant, metric: str, value: float) -> None:
        bench.results.measured.append(Measured(scenario, case, contestant.name, metric, [{metric: value}]))

    add("spark-read", "100 B, 6 partitions", OURS, "rate", 95.0)
    add("spark-read", "100 B, 6 partitions", CEILING, "rate", 100.0)
    add("spark-stream", "a stream", OURS, "source_ms", 130.0)
    add("spark-stream", "a stream", RATE_SOURCE, "source_ms", 70.0)
    add("reader-arrow", "100 B, 6 partitions", READER, "rate", 6e6)
    add("ray-data", "read 100 B", RAY_DATA, "rate", 8e5)
    add("ray-data", "read 100 B", RAY_KAFKA, "rate", 1e5)
    parts = {"part_read": 0.006, "part_over_network": 0.52}
    bench.results.measured.append(Measured("time-filter", "in the middle", READER.name, "part_read", [parts]))
    found = {verdict.goal: (verdict.found, verdict.reached) for verdict in verdicts(bench.results)}
    assert found["Spark reads 100 B: 0.9 x ready-made Arrow batches"] == ("0.95 x", True)
    assert found["Spark reads 1,000 B: 0.9 x ready-made Arrow batches"] == ("not measured", None)
    assert found["reader alone to Arrow, 100 B: at least 5 M records/s a core"] == ("6.00 M records/s", True)
    assert [text for goal, text in found.items() if "50 ms" in goal] == [("+60 ms", False)]
    goal = "a thousandth of the time in the middle of a topic: less than a hundredth of its bytes"
    assert found[f"{goal}, the leader's files"] == ("0.0060", True)
    assert found[f"{goal}, over the network"] == ("0.5200", False)
    assert found["Ray Data, read: 5 x its functions for Kafka"] == ("8.00 x", True)
    assert found["Ray Data, write: 1 x its functions for Kafka"] == ("not measured", None)
