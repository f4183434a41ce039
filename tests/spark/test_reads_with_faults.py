"""Two trials of `tests.readers` with Spark's readers; the command runs hundreds, and kills Spark's workers as well."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.readers.lab import lab
from tests.readers.trials import Fault, draw, for_a_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray[.]data"),  # Ray warns of what it sets by itself
]

BATCHES = replace(
    for_a_cluster(draw(71)),
    reader="spark",
    kind="transactional",
    replicas=3,
    partitions=2,
    rows=60_000,
    value_bytes=100,
    faults=(Fault("leader", 0.1, 0.0), Fault("damage", 0.3, 0.0)),
)
STREAM = replace(BATCHES, seed=7, reader="stream", fails_on_loss=False, faults=(Fault("retention", 0.2, 0.0),))


def test_spark_reads_exact_rows_or_fails(spark: SparkSession) -> None:
    with lab(spark) as running:
        for trial in (BATCHES, STREAM):
            result = running.run(trial)
            assert not result.outcome.problem, f"{trial}: {result.outcome.problem}"
            assert result.outcome.word in ("exact", "part")
