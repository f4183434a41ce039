"""The main job, as ``make demo`` runs it, on the first flights of the year; ``make demo`` itself takes them all."""

from __future__ import annotations

import re

import pytest

from tests.cluster.commands.documents_support import Reader, reader
from tests.unit.style.sources import ROOT

AFTERWARDS = """
import sys, time
import raylog
often = {"log.retention.check.interval.ms": 200}
with raylog.start(sys.argv[1], address="local", config=often), raylog.Admin() as admin:
    admin.create_topic("aged", partitions=1)
    with raylog.Producer() as producer:
        producer.send("aged", b"x", timestamp_ms=1357034400000).result(timeout=30)
    with raylog.Consumer() as consumer:
        aged = raylog.TopicPartition("aged", 0)
        deadline = time.monotonic() + 60
        while consumer.beginning_offsets([aged])[aged] == 0:
            assert time.monotonic() < deadline, "a record of 2013 is removed from a topic that keeps records for a week"
        flights = [raylog.TopicPartition("flights", partition) for partition in range(3)]
        begin, end = consumer.beginning_offsets(flights), consumer.end_offsets(flights)
        print(sum(end[place] - begin[place] for place in flights))
"""
"""Counts the demo's records once retention has run, as shown by another topic."""
FOREIGN = re.compile(r"\b(DEBUG|INFO|WARN|WARNING|ERROR)\b|pid=|jdk\.incubator")

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(460)]


def test_the_flights_go_through_a_kill_a_group_spark_and_a_restart() -> None:
    with reader() as user:
        demo = Reader(user.folder, {**user.environment, "PYTHONPATH": str(ROOT)})
        printed = demo.python(
            "-m", "examples.flights", "--limit", "20000", "--data-dir", str(user.folder / "data"), timeout_s=420
        )
        log = user.folder / "data" / "ray-and-spark.log"
        assert str(log) in printed.replace("\n", "")
        logged = log.read_text(errors="replace")
        assert "20000" in demo.python("-c", AFTERWARDS, str(user.folder / "data")).splitlines()
    assert "SecurityManager" in logged, "Spark's log is in the file"
    assert "FAILED" not in printed
    foreign = [line for line in printed.splitlines() if FOREIGN.search(line)]
    assert not foreign, "lines that Ray, Spark or Java wrote:\n" + "\n".join(foreign)
    assert printed.count("holds") == 13, printed
    assert "nothing was lost" in printed
