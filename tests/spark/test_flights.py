"""The main job, as ``make demo`` runs it, on the first flights of the year; ``make demo`` itself takes them all."""

from __future__ import annotations

import re

import pytest

from tests.cluster.documents_support import Reader, reader
from tests.unit.style.sources import ROOT

FOREIGN = re.compile(r"\b(DEBUG|INFO|WARN|WARNING|ERROR)\b|pid=|jdk\.incubator")

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(460)]


def test_the_flights_go_through_a_kill_a_group_spark_and_a_restart() -> None:
    with reader() as user:
        demo = Reader(user.folder, {**user.environment, "PYTHONPATH": str(ROOT)})
        printed = demo.python(
            "-m", "examples.flights", "--limit", "20000", "--data-dir", str(user.folder / "data"), timeout_s=420
        )
        log = user.folder / "data" / "ray-and-spark.log"
        assert str(log) in printed.replace("\n", "")
        logged = log.read_text(errors="replace")
    assert "SecurityManager" in logged, "Spark's log is in the file"
    assert "FAILED" not in printed
    foreign = [line for line in printed.splitlines() if FOREIGN.search(line)]
    assert not foreign, "lines that Ray, Spark or Java wrote:\n" + "\n".join(foreign)
    assert printed.count("holds") == 13, printed
    assert "nothing was lost" in printed
