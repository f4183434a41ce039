"""What the time from `raylog.spark.session()` to the first row consists of.

    python -m tools.spark_start --runs 5

Every run is a program of its own with a Ray and a Raylog cluster of its own, which are up before the clock starts. It
prints the median, lowest and highest seconds of every step. Indented steps are parts of the one above them, and
"(beside)" ran at the same time as others. Run by hand; takes about a minute a run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RECORDS = 1_000
TOPIC = "first-rows"
RUN_TIMEOUT_S = 300.0
MARK = "SECONDS "


def main() -> None:
    """Measure as often as wanted and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--once", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.once is not None:
        print(MARK + json.dumps(measure(arguments.once)))
        return
    runs = [_in_a_process() for _ in range(arguments.runs)]
    for name in runs[0]:
        found = sorted(run[name] for run in runs if name in run)
        print(f"{name:<40} {statistics.median(found):7.2f}   {found[0]:6.2f} to {found[-1]:6.2f}")


def measure(folder: Path) -> dict[str, float]:
    """One run in this process: start clusters, then take the time of each step."""
    from raylog.spark import java

    java.prepare()
    import ray

    import raylog

    ray.init(address="local", num_cpus=4, object_store_memory=120_000_000, include_dashboard=False, log_to_driver=False)
    with raylog.start(folder, brokers=1):
        with raylog.Admin() as admin:
            admin.create_topic(TOPIC, 2, 1)
        with raylog.Producer() as producer:
            for number in range(RECORDS):
                producer.send(TOPIC, b"%d" % number)
            producer.flush(30)
        return _steps()


def _steps() -> dict[str, float]:
    import raylog

    inner: dict[str, float] = {}
    _time_raydp(inner)
    from raylog.spark.session import phases

    clock = _Clock()
    spark = raylog.spark.session("first-row", executor_memory="512m", config={"spark.ui.enabled": False})
    clock.over("session()")
    for name, seconds in phases():
        clock.steps[f"  {name}"] = seconds
        if name.startswith("RayDP"):
            clock.steps.update(inner)
    rows = spark.read.format("raylog").option("subscribe", TOPIC).load()
    clock.over("load()")
    rows.limit(1).collect()
    clock.over("first row")
    total = clock.total
    spark.read.format("raylog").option("subscribe", TOPIC).load().limit(1).collect()
    clock.over("the next query, first row")
    spark.stop()
    clock.over("stop()")
    return {**clock.steps, "from call to first row": total}


class _Clock:
    """Seconds of steps that follow each other."""

    def __init__(self) -> None:
        self.steps: dict[str, float] = {}
        self.total = 0.0
        self._last = time.monotonic()

    def over(self, name: str) -> None:
        """The step that began with the one before has ended."""
        now = time.monotonic()
        self.steps[name] = now - self._last
        self.total += now - self._last
        self._last = now


def _time_raydp(inner: dict[str, float]) -> None:
    """Take the time of RayDP's own steps, which have no other way out."""
    from raydp.spark import SparkCluster

    for name, step in (
        ("_set_up_master", "master: actor and its JVM"),
        ("get_cluster_url", "master: RayAppMaster"),
        ("get_spark_session", "master, then SparkContext"),
        ("connect_spark_driver_to_ray", "driver joins Ray"),
    ):
        setattr(SparkCluster, name, _timed(getattr(SparkCluster, name), f"    {step}", inner))


def _timed(method: Callable[..., Any], step: str, inner: dict[str, float]) -> Callable[..., Any]:
    def called(*given: Any, **named: Any) -> Any:
        began = time.monotonic()
        try:
            return method(*given, **named)
        finally:
            inner[step] = time.monotonic() - began

    return called


def _in_a_process() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tools.spark_start", "--once", f"{folder}/data"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode != 0 or not lines:
        raise SystemExit(f"A run failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    found: dict[str, float] = json.loads(lines[0].removeprefix(MARK))
    return found


if __name__ == "__main__":
    main()
