"""A Spark that Raylog did not start: `spark-submit` on a standalone cluster finds the source and reads by address."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.client.toy_server import SECRET, ToyCluster
from tests.unit.spark.support import fill
from tests.unit.style.sources import ROOT
from tests.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(420)]

JOB = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("job").getOrCreate()
rows = spark.read.format("raylog").option("raylog.bootstrap", sys.argv[1]).option("raylog.secret", sys.argv[2])
print("MASTER", spark.sparkContext.master.partition(":")[0])
print("COUNT", rows.option("subscribe", "orders").load().count())
try:
    rows.option("subscribe", "ordres").load().count()
except Exception as error:
    print("MISTAKE", str(error).splitlines()[-2])
spark.stop()
"""
QUIET = ("--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1", "--driver-memory", "512m")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with Raylog's wheel: `pyspark_raylog` lies in a folder of the path."""
    from raylog.spark import java

    site = tmp_path / "site"
    site.mkdir()
    (site / "pyspark_raylog").symlink_to(ROOT / "pyspark_raylog")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAYLOG_", "RAY_", "SPARK_"))}
    return kept | java.spark_environment() | {"PYTHONPATH": str(site), "SPARK_LOCAL_IP": "127.0.0.1"}


@contextmanager
def daemon(kind: str, *arguments: str, environment: dict[str, str], log: Path) -> Iterator[re.Match[str]]:
    """Run a standalone cluster's Master or Worker; yields where it is reached, from its log."""
    spark = Path(str(__import__("pyspark").__file__)).parent
    command = [str(spark / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind.lower()}.{kind}", *arguments]
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment, cwd=log.parent, stdout=file, stderr=file)
        try:
            sign = re.compile(r"(?:Starting Spark master at|Successfully registered with master) (spark://\S+)")
            wait_for(lambda: sign.search(log.read_text()), f"{kind} runs", timeout_s=60)
            found = sign.search(log.read_text())
            assert found is not None
            yield found
        finally:
            process.terminate()
            process.wait(20)


def test_a_job_on_a_standalone_cluster_reads_by_address(
    cluster: ToyCluster, environment: dict[str, str], tmp_path: Path
) -> None:
    cluster.create_topic("orders", 2)
    for partition in (0, 1):
        fill(cluster, "orders", partition, [700, 800])
    job = tmp_path / "job.py"
    job.write_text(JOB, encoding="utf-8")
    where = "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"
    with (
        daemon("Master", *where, environment=environment, log=tmp_path / "master.log") as master,
        daemon(
            "Worker",
            *where,
            "--cores",
            "1",
            "--memory",
            "1g",
            "--work-dir",
            str(tmp_path / "work"),
            master[1],
            environment=environment,
            log=tmp_path / "worker.log",
        ),
    ):
        submit = Path(sys.executable).with_name("spark-submit")
        command = [str(submit), "--master", master[1], *QUIET, "--executor-memory", "512m", str(job)]
        done = subprocess.run(
            [*command, cluster.bootstrap, SECRET.hex()],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    assert "MASTER spark" in done.stdout
    assert "COUNT 3000" in done.stdout
    assert (
        "MISTAKE raylog.core.errors.partition.UnknownTopicOrPartition: Unknown topic 'ordres'; did you" in done.stdout
    )
