"""Spark's own connector for Kafka: the jars that a Spark session needs for `format("kafka")`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from benchmarks.peers.processes import Unavailable

POM = Path(__file__).with_name("spark-kafka-pom.xml")
FETCH_TIMEOUT_S = 600.0
ARTIFACTS = ("spark-sql-kafka-0-10_2.13", "spark-token-provider-kafka-0-10_2.13", "kafka-clients", "commons-pool2")
"""The connector, and those of its dependencies that the package pyspark does not bring along."""


def version() -> str:
    """The version of the connector in the list of jars."""
    return POM.read_text(encoding="utf-8").split("<connector.version>")[1].split("<")[0]


def connector(cache: Path) -> list[Path]:
    """The connector's jars; Maven copies them into the folder `cache` the first time. Raises Unavailable."""
    folder = cache.resolve() / f"spark-kafka-{version()}"  # Maven takes a relative path from the list of jars
    if not (folder / "complete").exists():
        if shutil.which("mvn") is None:
            raise Unavailable("there is no mvn on the path: install Maven, which fetches Spark's connector for Kafka")
        command = [
            "mvn", "--batch-mode", "--quiet", "--file", str(POM), "dependency:copy-dependencies",
            "-DincludeScope=runtime", f"-DincludeArtifactIds={','.join(ARTIFACTS)}", f"-DoutputDirectory={folder}",
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"Maven did not fetch Spark's connector within {FETCH_TIMEOUT_S:.0f} s") from None
        if done.returncode:
            reason = next((line for line in done.stdout.splitlines() if "ERROR" in line), "no reason given")
            raise Unavailable(f"Maven could not fetch Spark's connector for Kafka: {reason[:300]}")
        (folder / "complete").touch()
    return sorted(folder.glob("*.jar"))
