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
import ray
import raylog
config = {"spark.ui.enabled": False}
spark = raylog.spark.session("session-test", num_executors=1, executor_memory="512m", config=config)
print("SUM", spark.range(1000).selectExpr("sum(id)").first()[0])
print("PUSHDOWN", spark.conf.get("spark.sql.python.filterPushdown.enabled"))
try:
    raylog.spark.session("second")
except RuntimeError as error:
    print("SECOND", error)
raylog.spark.stop()
print("RAY GOES ON", ray.get(ray.remote(lambda: 7).remote(), timeout=60))
raylog.spark.stop()
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
    assert "RAY GOES ON 7" in printed
