"""Spark runs on a machine that has no Java of its own, and raylog.spark.session starts and ends cleanly there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

# Commands called by Spark's and Ray's start scripts; `java` is left out on purpose.
COMMANDS = (
    *(
        "bash",
        "basename",
        "cat",
        "cut",
        "dirname",
        "env",
        "grep",
        "head",
        "hostname",
        "id",
        "mkdir",
        "nice",
        "nohup",
        "ps",
    ),
    *("readlink", "realpath", "rm", "sed", "setsid", "sh", "sleep", "tr", "uname"),
)

LOCAL = """
import sys
from raylog.spark import java
assert ".cache/raylog/java-" in str(java.prepare()), java.find_java()
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
def interpreter(batches):
    import pyarrow
    for batch in batches:
        yield pyarrow.RecordBatch.from_pydict({"path": [sys.executable] * batch.num_rows})
rows = spark.range(3, numPartitions=1).mapInArrow(interpreter, "path string").collect()
print("ROWS", len(rows), {row.path for row in rows} == {sys.executable})
spark.stop()
"""

ON_RAY = """
import logging, os, signal, threading, time
from raylog.spark import java
warnings = []
class Kept(logging.Handler):
    def emit(self, record):
        warnings.append(record.getMessage())
logging.getLogger("raylog.spark").addHandler(Kept())
java.prepare()
import ray
ray.init(address="local", num_cpus=2, log_to_driver=False)
import raylog
from ray.util import list_named_actors
config = {"spark.ui.enabled": False}
with raylog.spark.session("session-test", executor_memory="512m", config=config) as spark:
    print("SUM", spark.range(1000).selectExpr("sum(id)").first()[0])
    print("PUSHDOWN", spark.conf.get("spark.sql.python.filterPushdown.enabled"))
    print("FREE", ray.available_resources()["CPU"])
    print("BESIDE", ray.get([ray.remote(lambda: 3).remote() for _ in range(2)], timeout=60))
    log = spark.conf.get("spark.raylog.log")
    contradictory = spark.read.format("raylog").option("subscribe", "t").option("startingTimestamp", 0)
    contradictory.option("startingOffsets", "earliest").load()
    deadline = time.monotonic() + 30
    while not warnings and time.monotonic() < deadline:
        time.sleep(0.05)
    print("WARNINGS", warnings)
    try:
        raylog.spark.session("second")
    except RuntimeError as error:
        print("SECOND", error)
print("LOG", os.path.getsize(log) > 0)
print("RAY GOES ON", ray.get(ray.remote(lambda: 7).remote(), timeout=60), list_named_actors())
raylog.spark.stop()

@ray.remote(num_cpus=2)
class Greedy:
    def ready(self):
        return True

@ray.remote(num_cpus=0)
class OtherMaster:
    def ready(self):
        return True

other = OtherMaster.options(name="RAY_APP_MASTER").remote()
ray.get(other.ready.remote(), timeout=60)
try:
    raylog.spark.session("same-namespace")
except raylog.SparkStartFailed as error:
    print("NAMESPACE", error)
ray.kill(other)
greedy = Greedy.remote()
ray.get(greedy.ready.remote(), timeout=60)
try:
    raylog.spark.session("starving", executor_memory="512m", config=config, start_timeout_s=1)
except raylog.SparkStartFailed as error:
    print("STARVING", error)
ray.kill(greedy)
interrupt = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
interrupt.start()
try:
    raylog.spark.session("interrupted", executor_memory="512m", config=config)
except KeyboardInterrupt:
    print("INTERRUPTED", list_named_actors())
began = time.monotonic()
try:
    raylog.spark.session("wrong", executor_memory="512m", config={**config, "spark.driver.memory": "lots"})
except raylog.SparkStartFailed as error:
    print("JVM", error, time.monotonic() - began)
deadline = time.monotonic() + 30
while ray.available_resources().get("CPU") != 2.0 and time.monotonic() < deadline:
    time.sleep(0.1)
print("CPUS", ray.available_resources()["CPU"])
import psutil
print("CHILDREN", [child.name() for child in psutil.Process().children() if "java" in child.name()])
ray.shutdown()
"""


@pytest.fixture
def no_java(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine without Java, with an empty home."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for command in COMMANDS:
        for place in ("/usr/bin", "/bin"):
            if Path(place, command).exists():
                (folder / command).symlink_to(Path(place, command))
                break
    home = tmp_path / "home"
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "XDG_CACHE_HOME")}
    return kept | {"PATH": f"{Path(sys.executable).parent}:{folder}", "HOME": str(home)}


def run(program: str, environ: dict[str, str], folder: Path) -> str:
    """Run a program in its own interpreter and return its output; its errors become the test's message."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environ,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def test_spark_runs_on_the_packaged_java(no_java: dict[str, str], tmp_path: Path) -> None:
    assert "ROWS 3 True" in run(LOCAL, no_java, tmp_path)


@pytest.mark.timeout(420)
def test_a_session_on_ray_starts_works_and_ends(no_java: dict[str, str], tmp_path: Path) -> None:
    printed = run(ON_RAY, {**no_java, "RAY_ADDRESS": "local"}, tmp_path)  # not in a Ray of another test
    assert "SUM 499500" in printed
    assert "PUSHDOWN true" in printed
    assert "SECOND This process has a Spark session already" in printed
    assert "FREE 1.0" in printed, "half of the CPUs, and none for RayDP's master"
    assert "BESIDE [3, 3]" in printed, "other users of Ray go on meanwhile"
    assert "WARNINGS ['startingTimestamp wins; startingOffsets is ignored.']" in printed
    assert "NAMESPACE Another program runs Spark in the Ray namespace" in printed
    assert "LOG True" in printed
    assert "RAY GOES ON 7 []" in printed
    starving = "STARVING After 1 s, 1 of 1 executors did not start: each needs 1 CPU on one node, and free are 0 of 2"
    assert starving in printed
    assert "INTERRUPTED []" in printed
    assert "JVM The JVM of Spark's driver failed; " in printed
    assert "lots" in printed.partition("JVM The JVM")[2], "the end of its log"
    assert "CPUS 2.0" in printed
    assert "CHILDREN []" in printed
