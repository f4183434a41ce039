"""One real Ray with a Raylog of three brokers, and one Spark, for many trials. May touch: processes, files, Ray."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import raylog
from raylog.base.errors import RaylogError
from tests.cluster.ray_support import AWAKE, own_ray
from tests.readers import topics
from tests.readers.injuring import Injuries
from tests.readers.promises import Outcome, judge
from tests.readers.reading import Reading
from tests.readers.trials import Trial

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG = {
    **AWAKE,
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "log.retention.check.interval.ms": "300",
    "log.cleaner.backoff.ms": "200",
}
BLOCK_BYTES = 256 * 1024
AHEAD_BYTES = 2 << 20
"""Of a dataset: its tasks wait while so much was not taken, so that most faults come while they read."""
HANGS_S = 150.0
"""A read that has not ended by then hangs: above every timeout of a reader."""


@dataclass(frozen=True, slots=True)
class Result:
    """A trial and how it ended."""

    trial: Trial
    outcome: Outcome
    seconds: float
    rows: int
    killed: int
    """Workers that were killed while they read."""


@dataclass
class Lab:
    """The cluster."""

    cluster: raylog.Cluster
    root: Path
    admin: raylog.Admin
    _spark: list[SparkSession] = field(default_factory=list)

    def run(self, trial: Trial) -> Result:
        """Run one trial."""
        topic = f"trial-{trial.seed}-{int(time.time() * 1000) % 1_000_000}"
        topics.make(self.admin, trial, topic)
        promise, ends = topics.promise_of(trial, topic)
        folder = Path(tempfile.mkdtemp(prefix="trial-", dir=self.root))
        spark = self.spark() if trial.reader in ("spark", "stream") else None
        injuries = Injuries(trial, topic, promise, self.admin, self.root, time.monotonic())
        if "expire" in trial.kinds:
            promise.happened.add("expire")  # it may end at any time from now on
        faults, found, error = list(trial.faults), [], None
        began_s, since_s = time.monotonic(), time.time()

        def work() -> None:
            nonlocal error
            reading = Reading(trial, topic, ends, self.cluster, folder, spark)
            try:
                for rows in reading.rows(lambda count: injuries.due(faults, count)):
                    found.extend(rows)
            except BaseException as failure:  # whatever it is, it is judged
                error = failure

        thread = threading.Thread(target=work, name="trial", daemon=True)
        thread.start()
        thread.join(HANGS_S)
        if thread.is_alive():
            faulthandler.dump_traceback(all_threads=True)
            return Result(
                trial, Outcome("hangs", f"it has not ended after {HANGS_S:g} s"), HANGS_S, len(found), injuries.killed
            )
        seconds = time.monotonic() - began_s
        if promise.happened & {"delete", "retention"} and not promise.is_deleted:
            topics.note_log_starts(promise, topic)
        outcome = judge(promise, found, error)
        if trial.reader == "ray" and outcome.word == "WorkerCrashedError" and not _reasons(since_s):
            outcome = Outcome(outcome.word, "no worker has logged why it ended")
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(RaylogError):
            self.admin.delete_topic(topic)
        return Result(trial, outcome, seconds, len(found), injuries.killed)

    def spark(self) -> SparkSession:
        """The session; started when it is needed first. It repeats a task that fails three times."""
        if not self._spark:
            from raylog.spark import java, register

            java.prepare()
            from pyspark.sql import SparkSession

            builder: Any = SparkSession.builder.master("local[2,4]").appName("raylog-readers")
            settings = {
                "spark.ui.enabled": "false",
                "spark.driver.memory": "768m",
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
            session.sparkContext.setLogLevel("OFF")
            register(session)
            self._spark.append(session)
        return self._spark[0]

    def close(self) -> None:
        """End Spark."""
        for session in self._spark:
            session.stop()
        self._spark.clear()


def _reasons(since_s: float) -> list[Path]:
    """Where workers have logged since then why a repeated task failed: it is at the driver, too."""
    paths = Path(os.environ["RAY_TMPDIR"]).glob("**/worker-*.err")
    late = [path for path in paths if path.stat().st_mtime >= since_s - 1]
    return [path for path in late if "A repeated read task failed" in path.read_text(errors="replace")]


@contextlib.contextmanager
def lab(spark: SparkSession | None = None) -> Iterator[Lab]:
    """A running lab; with a session of the caller's, or one of its own once a trial needs it."""
    root = Path(tempfile.mkdtemp(prefix="rl-readers-", dir="/tmp"))
    try:
        with own_ray():
            from ray.data import DataContext, ExecutionResources

            context = DataContext.get_current()
            context.enable_progress_bars = False
            context.target_max_block_size = BLOCK_BYTES
            context.execution_options.resource_limits = ExecutionResources(object_store_memory=AHEAD_BYTES)
            cluster = raylog.start(root, brokers=3, config=CONFIG)
            try:
                with raylog.Admin() as admin:
                    found = Lab(cluster, root, admin, [] if spark is None else [spark])
                    try:
                        yield found
                    finally:
                        if spark is None:
                            found.close()
            finally:
                cluster.stop()
    finally:
        shutil.rmtree(root, ignore_errors=True)
