"""Spark's own connector for Kafka: the jars that a Spark session needs for `format("kafka")`."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers.maven import fetched, version_in

POM = Path(__file__).with_name("spark-kafka-pom.xml")
ARTIFACTS = ("spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13", "kafka-clients", "commons-pool2")
"""The connector, and those of its dependencies that the package pyspark does not bring along."""


def version() -> str:
    """The version of the connector in the list of jars."""
    return version_in(POM, "connector")


def connector(cache: Path) -> list[Path]:
    """The connector's jars; Maven copies them into the folder `cache` the first time. Raises Unavailable."""
    folder = fetched(cache / f"spark-kafka-{version()}", POM, "Spark's connector for Kafka", ARTIFACTS)
    return sorted(folder.glob("*.jar"))
