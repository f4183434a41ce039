"""The main job, as ``make demo`` runs it, on the first flights of the year; ``make demo`` itself takes them all."""

from __future__ import annotations

import pytest

from tests.cluster.documents_support import Reader, reader
from tests.unit.style.sources import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(460)]


def test_the_flights_go_through_a_kill_a_group_spark_and_a_restart() -> None:
    with reader() as user:
        demo = Reader(user.folder, {**user.environment, "PYTHONPATH": str(ROOT)})
        printed = demo.python(
            "-m", "examples.flights", "--limit", "20000", "--data-dir", str(user.folder / "data"), timeout_s=420
        )
    assert "FAILED" not in printed
    assert printed.count("holds") == 13, printed
    assert "nothing was lost" in printed
