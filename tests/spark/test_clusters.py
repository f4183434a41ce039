"""Sparks that Raylog did not start, on a standalone cluster and by Spark Connect, find the source and read by token."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from raylog.client.admin.admin import Admin
from tests.unit.client.toy_server import ToyCluster
from tests.unit.spark.support import fill
from tests.unit.style.sources import ROOT
from tests.waiting import free_port, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(420)]

JOB = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("job").getOrCreate()
rows = spark.read.format("raylog").option("raylog.bootstrap", sys.argv[1]).option("raylog.token", sys.argv[2])
print("MASTER", spark.sparkContext.master.partition(":")[0])
print("COUNT", rows.option("subscribe", "orders").load().count())
place = {"raylog.bootstrap": sys.argv[1], "raylog.token": sys.argv[2]}
values = spark.range(10).selectExpr("cast(id as string) as value")
values.write.format("raylog").options(**place, topic="copies").mode("append").save()
rows.option("subscribe", "orders").option("startingTimestamp", 0).option("startingOffsets", "earliest").load()
try:
    rows.option("subscribe", "ordes").load().count()
except Exception as error:
    print("MISTAKE", str(error).splitlines()[-2])
spark.stop()
"""
CONNECT = """
import sys
from pyspark.sql import SparkSession
from raylog.spark.source import RaylogDataSource

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
rows = spark.read.format("raylog").option("raylog.bootstrap", sys.argv[2]).option("raylog.token", sys.argv[3])
print("KIND", type(spark).__module__)
print("FOUND", rows.option("subscribe", "orders").load().count())
spark.dataSource.register(RaylogDataSource)
print("REGISTERED", rows.option("subscribe", "orders").load().count())
spark.stop()
"""
LEVELS = """
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %p %c{1}: %m%n
"""
HOME = Path(pyspark.__file__).parent
QUIET = ("--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1", "--driver-memory", "512m")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with Raylog's wheel: `pyspark_raylog` lies in a folder of the path."""
    from raylog.spark import java

    site = tmp_path / "site"
    site.mkdir()
    (site / "pyspark_raylog").symlink_to(ROOT / "pyspark_raylog")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAYLOG_", "RAY_", "SPARK_"))}
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    return kept | java.spark_environment() | {"PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}


@contextmanager
def running(command: list[str], sign: str, environment: dict[str, str], log: Path) -> Iterator[str]:
    """Run a program until the end of the block; yields what the first group of `sign` matches in its log."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment, cwd=log.parent, stdout=file, stderr=file)
        try:
            wait_for(lambda: re.search(sign, log.read_text()), f"{sign} in {log}", timeout_s=120)
            found = re.search(sign, log.read_text())
            assert found is not None
            yield found[1]
        finally:
            process.terminate()
            process.wait(30)


def run(command: list[str], environment: dict[str, str], folder: Path) -> str:
    """Run a program to its end and return what it printed, on standard output and as its errors."""
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr[:3000] + done.stderr[-3000:]
    return done.stdout + done.stderr


def token(cluster: ToyCluster) -> str:
    """A token that reads `orders` and writes `copies`."""
    with Admin(**cluster.options) as admin:
        return admin.create_token(read=["orders"], write=["copies"])


@pytest.fixture
def orders(cluster: ToyCluster) -> ToyCluster:
    """The cluster with 1,500 records in each of the two partitions of `orders`, and an empty `copies`."""
    cluster.create_topic("orders", 2)
    cluster.create_topic("copies", 1)
    for partition in (0, 1):
        fill(cluster, "orders", partition, [700, 800])
    return cluster


def test_a_job_on_a_standalone_cluster_reads_and_writes_with_a_token(
    orders: ToyCluster, environment: dict[str, str], tmp_path: Path
) -> None:
    job = tmp_path / "job.py"
    job.write_text(JOB, encoding="utf-8")
    anywhere = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    deploy = "org.apache.spark.deploy"
    start = [str(HOME / "bin" / "spark-class"), f"{deploy}.master.Master", *anywhere]
    with running(start, r"Starting Spark master at (spark://\S+)", environment, tmp_path / "master.log") as master:
        sizes = ["--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path / "work")]
        start = [str(HOME / "bin" / "spark-class"), f"{deploy}.worker.Worker", *anywhere, *sizes, master]
        with running(start, r"registered with master (spark://\S+)", environment, tmp_path / "worker.log"):
            submit = [str(HOME / "bin" / "spark-submit"), "--master", master, *QUIET, "--executor-memory", "512m"]
            printed = run([*submit, str(job), orders.bootstrap, token(orders)], environment, tmp_path)
    assert "MASTER spark" in printed
    assert "COUNT 3000" in printed
    assert "MISTAKE raylog.base.errors." in printed
    assert "startingTimestamp wins; startingOffsets is ignored." in printed
    assert orders.partitions["copies", 0].log_end == 10


def test_a_client_of_spark_connect_reads_with_a_token(
    orders: ToyCluster, environment: dict[str, str], tmp_path: Path
) -> None:
    server = [
        *(str(HOME / "bin" / "spark-submit"), "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--master", "local[1]", *QUIET, "--conf", "spark.connect.grpc.binding.address=127.0.0.1"),
        *("--conf", f"spark.connect.grpc.binding.port={free_port()}", "spark-internal"),
    ]
    levels = tmp_path / "log4j2.properties"
    levels.write_text(LEVELS, encoding="utf-8")
    environment |= {"SPARK_CONF_DIR": str(tmp_path)}
    with running(server, r"Spark Connect server started at: \S*?:(\d+)", environment, tmp_path / "server.log") as port:
        command = [sys.executable, "-c", CONNECT, f"sc://127.0.0.1:{port}", orders.bootstrap, token(orders)]
        printed = run(command, environment, tmp_path)
    assert "KIND pyspark.sql.connect.session" in printed
    assert "FOUND 3000" in printed
    assert "REGISTERED 3000" in printed
