"""One Spark session, one Ray and one Raylog cluster for all pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

import raylog
from examples.flights.checks import Checks
from examples.pipelines import data, rotations
from examples.pipelines.kills import Kills
from examples.pipelines.place import Place
from examples.pipelines.run import Run, Size
from tests.cluster.ray_support import own_ray
from tests.spark.conftest import spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]

FLIGHTS = 4_000
SIZE = Size(chunks=2, partitions=2, replication=2, batch=1_000)


@pytest.fixture(scope="module")  # its Ray ends with it, before that of another module starts in this process
def ran(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """All pipelines, after their run over the first flights of the year with kills meanwhile."""
    folder = tmp_path_factory.mktemp("pipelines")
    for name, value in rotations.STORE.items():
        spark.conf.set(name, value)
    with own_ray(), raylog.start(folder / "brokers", brokers=2) as cluster:
        options = {"raylog.bootstrap": cluster.bootstrap(), "raylog.secret": cluster.secret()}
        run = Run(
            Place(spark, Path(folder), options),
            Kills(cluster),
            Checks(Console()),
            lambda what: nullcontext(),
            data.load(FLIGHTS),
            SIZE,
        )
        run.all()
        yield run
