"""What Kafka's perf tools print is read as they print it."""

import subprocess

import pytest

from benchmarks.clients import java
from benchmarks.job import Job
from benchmarks.peers.processes import Unavailable

PRODUCED = """\
150000 records sent, 128832.775058 records/sec (12.29 MB/sec), 173.44 ms avg latency, 1269.00 ms max latency, \
35 ms 50th, 1031 ms 95th, 1198 ms 99th, 1267 ms 99.9th.
100000 steady state records sent, 160384.923817 records/sec (15.30 MB/sec), 245.23 ms avg latency, \
1269.00 ms max latency, 73 ms 50th, 1078 ms 95th, 1224 ms 99th, 1268 ms 99.9th.
"""
CONSUMED = """\
Warning: --messages is deprecated. Use --num-records instead.
2026-11-21 12:09:44:288, 2026-11-21 12:09:51:350, 143.0760, 20.2600, 1500261, 212441.3764, 4495, 2567, 55.7367, \
584441.3713
"""
JOB = Job(load="", client="java", topic="t", address={"bootstrap": "here", "jars": "jars", "log4j": "log4j"})


@pytest.fixture(autouse=True)
def _unknown_rates() -> None:
    java._rates.clear()


def tool(monkeypatch: pytest.MonkeyPatch, output: str, status: int = 0) -> list[list[str]]:
    """Stand in for the tool; gives the commands it was run with."""
    commands = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, status, output, "no such topic")

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_the_producers_rate_is_that_of_its_steady_state(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = tool(monkeypatch, PRODUCED)
    found = java.produce(JOB)
    assert (found["records"], found["rate"]) == (100_000, 160384.923817)
    assert "linger.ms=5" in commands[0]


def test_the_consumers_rate_is_that_of_fetching(monkeypatch: pytest.MonkeyPatch) -> None:
    tool(monkeypatch, CONSUMED)
    found = java.consume(JOB)
    assert (found["records"], found["rate"], found["seconds"]) == (1_500_261, 584441.3713, 2.567)


@pytest.mark.parametrize("load", [java.produce, java.consume])
def test_a_tool_that_fails_or_says_nothing_is_left_out(monkeypatch: pytest.MonkeyPatch, load) -> None:  # type: ignore[no-untyped-def]
    tool(monkeypatch, "", status=1)
    with pytest.raises(Unavailable, match="no such topic"):
        load(JOB)
    tool(monkeypatch, "nothing of the kind")
    with pytest.raises(Unavailable, match="Performance"):
        load(JOB)
