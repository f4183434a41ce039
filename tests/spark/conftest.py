"""One local Spark for the tests of the source, and a small cluster in memory for it to read from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.unit.client.toy_server import ToyCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session with two cores and little memory; its Python workers run this interpreter."""
    from raylog.spark import java, register

    java.prepare()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("raylog-tests")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "768m",
        # Tests are too short for the second compiler to pay: it took as much CPU as the tests themselves.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    yield session
    session.stop()


@pytest.fixture
def cluster() -> Iterator[ToyCluster]:
    """A cluster in memory with two brokers."""
    with ToyCluster(brokers=2) as running:
        yield running
