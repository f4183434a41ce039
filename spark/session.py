"""A Spark session on the Ray cluster, ready to read and write topics.

Called by users as `raylog.spark.session(...)`. It starts Spark's master and executors as Ray actors through RayDP,
with the Java that raylog.spark.java finds, and registers `format("raylog")`. Ray, RayDP and PySpark are imported
when a session is requested, not before.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import pkgutil
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raylog.base.errors import RaylogError, SparkStartFailed
from raylog.client.cluster.lasting_thread import in_lasting_thread
from raylog.spark import java
from raylog.spark.driver import DriverJvm, end_jvm
from raylog.spark.progress import Progress
from raylog.spark.sizes import Node, Sizes, choose, shortage
from raylog.spark.to_driver import passed_to_children

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

EXECUTOR_TIMEOUT_S = 60.0
"""Default of `start_timeout_s`: an executor takes five to ten seconds on an idle machine."""
CHECK_TIMEOUT_S = 60.0
"""Timeout of the check for Java on a node; a cold Ray worker replies within a few seconds."""
POLL_S = 0.05
END_TIMEOUT_S = 15.0
"""How long `stop` waits until Ray has the CPUs of the executors back."""
INTERRUPTED_TIMEOUT_S = 2.0
"""The same after a failed start. It is short: a master that was still starting may not receive the request to end."""

LOG = "spark.raylog.log"
"""The Spark setting that holds the path of the file with the messages of the driver's JVM."""

DEFAULTS: dict[str, str] = {
    # Partition, offset and time filters reach the source; Spark refuses a source with push-down while this is off.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Over TCP each task waits 40 ms for a delayed acknowledgement.
    "spark.python.unix.domain.socket.enabled": "true",
    # An executor's own folder has too long a name for a socket.
    "spark.python.unix.domain.socket.dir": "/tmp",
    # A progress bar redraws the terminal of a program that prints its own output.
    "spark.ui.showConsoleProgress": "false",
    # RayDP's master is two JVMs that hand out executors and do nothing else: they should start soon and stay small.
    "spark.ray.raydp_app_master.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # By default the master takes a CPU of Ray, and on a busy cluster waits for one without a limit.
    "spark.ray.raydp_spark_master.actor.resource.CPU": "0",
}
"""Settings of a session unless `config` overrides them."""


@dataclass(slots=True)
class _Running:
    """The session of this process: the name of its master actor, its JVM, and the phases of its start."""

    master: str
    jvm: DriverJvm
    spark: SparkSession | None = None
    phases: list[tuple[str, float]] = field(default_factory=list)


_running: _Running | None = None
_jvm: DriverJvm | None = None
_numbers = itertools.count(1)


def session(
    app_name: str = "raylog",
    *,
    num_executors: int | None = None,
    executor_cores: int | None = None,
    executor_memory: str | None = None,
    config: Mapping[str, object] | None = None,
    start_timeout_s: float = EXECUTOR_TIMEOUT_S,
) -> SparkSession:
    """Start Spark on Ray and return its session, with the data source "raylog" registered.

    The executors are `num_executors` Ray actors, each with `executor_cores` CPUs and a heap of `executor_memory` ("1g",
    "512m"). By default they take half of the CPUs that are free in the Ray cluster, at least one, as executors of up to
    four cores with 1 GiB for each core. When some executors have not started after `start_timeout_s` (60 s by default),
    a warning says what is missing; when none has started, SparkStartFailed says it.

    `config` adds Spark settings, or overrides DEFAULTS. If this process has not joined Ray yet, Ray is joined, or
    started on this machine. One process has one session at a time: `raylog.spark.stop()`, `spark.stop()` or the end of
    `with raylog.spark.session() as spark:` ends it with all its processes, and leaves Ray running. Messages of the
    driver's JVM go to a file in Ray's log folder; `spark.conf.get("spark.raylog.log")` is its path. The executors' logs
    are in the same folder on their nodes.

    Raises JavaNotFound when there is no usable Java, ImportError when the extra `spark` is not installed, WrongVersions
    when its packages do not work together, InvalidConfig for impossible sizes, RuntimeError when a session is running
    already, and SparkStartFailed when Ray's nodes have no Java, no executor started, or a JVM failed.
    """
    from raylog.spark import versions

    versions.require()
    with Progress("Starting Spark on Ray") as progress:
        progress.phase("Java")
        java.prepare()
        _require_no_session()
        progress.phase("Ray")
        has_started_ray = _join_ray()
        with _cleaned_up_after_errors():
            spark, sizes = _start(
                app_name,
                lambda: choose(_nodes(), executors=num_executors, cores=executor_cores, memory=executor_memory),
                {name: _spell(value) for name, value in (config or {}).items()},
                progress,
                start_timeout_s,
                checks_java=not has_started_ray,
            )
        progress.phase("")
        progress.done(f"Spark on Ray: {sizes}; log in {spark.conf.get(LOG)};")
    if _running is not None:
        _running.phases = progress.phases
    return spark


def stop() -> None:
    """End the session of this process, and give its CPUs back to Ray, which continues. Does nothing without a session.

    Returns when the actors of the master have ended, after END_TIMEOUT_S at most. The JVM of the driver stays for the
    next session, and ends with the program.
    """
    _end(END_TIMEOUT_S)


def _end(patience_s: float) -> None:
    """Stop the session. A master that has not ended after `patience_s` is killed, which ends its executors."""
    global _running
    raydp = sys.modules.get("raydp")
    if raydp is None:
        return
    running, _running = _running, None
    if running is not None and running.spark is not None:
        vars(running.spark).pop("stop", None)  # RayDP calls `spark.stop`, which has to be PySpark's own then
    try:
        raydp.stop_spark()
    finally:
        if running is not None:
            _await_end(running.master, patience_s)


def phases() -> list[tuple[str, float]]:
    """The phases of the running session's start, as (name, seconds); empty without a session."""
    return list(_running.phases) if _running is not None else []


def register(spark: SparkSession) -> None:
    """Register `format("raylog")` in a Spark session, unless Spark finds it by itself.

    Spark looks for `pyspark_raylog` in the folders of `sys.path`, where an editable install does not put it. Raises
    WrongVersions, or ImportError when a package is missing.
    """
    from raylog.spark import versions

    versions.require(versions.WITHOUT_RAY, "The data source raylog")
    if any(module.name == "pyspark_raylog" for module in pkgutil.iter_modules()):
        return
    from raylog.spark.source import RaylogDataSource

    spark.dataSource.register(RaylogDataSource)


def _start(
    app_name: str,
    sized: Callable[[], Sizes],
    config: dict[str, str],
    progress: Progress,
    timeout_s: float,
    *,
    checks_java: bool,
) -> tuple[SparkSession, Sizes]:
    """Start everything on the Ray that was joined; returns once executors have registered, see `_await_executors`."""
    global _running
    import ray
    import raydp

    java_on_ray = _request_java() if checks_java else None
    sizes = sized()
    address = ray.get_runtime_context().gcs_address
    with _ray_address_for_children(address), passed_to_children():
        jvm = _driver_jvm(DEFAULTS | config, sizes, address)
        _running = running = _Running(master=f"{app_name}_SPARK_MASTER", jvm=jvm)
        try:
            if java_on_ray is not None:
                _require_java_on_ray(java_on_ray)
            progress.phase("RayDP's master and the driver")
            settings = DEFAULTS | {LOG: str(jvm.log)} | config
            spark: SparkSession = raydp.init_spark(
                app_name, sizes.executors, sizes.cores, sizes.memory, configs=settings
            )
            running.spark = spark
            jvm.log_to_file()
            progress.phase("data source")
            register(spark)
            _await_executors(spark, sizes, progress, timeout_s)
        except Exception as error:
            raise _explained(error, jvm) from None
    progress.beside("driver JVM", jvm.seconds)
    vars(spark)["stop"] = stop  # spark.stop() and `with session() as spark:` end the processes as well
    return spark, sizes


def _driver_settings(settings: Mapping[str, str], sizes: Sizes) -> dict[str, str]:
    """The settings that RayDP would give the driver's JVM, whose classpath and options are fixed at its start."""
    from raydp.spark import SparkCluster

    cluster: Any = SparkCluster.__new__(SparkCluster)  # its constructor starts the master, and waits for it
    cluster._configs = dict(settings)
    cluster._num_executors, cluster._executor_cores = sizes.executors, sizes.cores
    cluster._executor_memory = sizes.memory
    cluster._prepare_spark_configs()
    return {name: str(value) for name, value in cluster._configs.items()}


def _await_executors(spark: SparkSession, sizes: Sizes, progress: Progress, timeout_s: float) -> None:
    """Wait until all executors have registered and a first query has run on them.

    After the timeout: a warning when some executors have registered, else SparkStartFailed; both say what is missing.
    """
    deadline = time.monotonic() + timeout_s
    warm_up = threading.Thread(target=_warm_up, args=(spark, sizes), name="raylog-spark-warm-up", daemon=True)
    warm_up.start()
    context = spark.sparkContext._jsc.sc()
    progress.phase("executors")
    while (started := context.getExecutorMemoryStatus().size() - 1) < sizes.executors:
        if time.monotonic() > deadline:
            sentence = f"After {timeout_s:g} s, {shortage(_nodes(), sizes, started)}"
            if started == 0:
                raise SparkStartFailed(sentence)
            warnings.warn(sentence, stacklevel=5)
            break
        progress.say(f"executors, {started} of {sizes.executors}")
        time.sleep(POLL_S)
    progress.phase("first query")
    warm_up.join(max(0.0, deadline - time.monotonic()))


def _warm_up(spark: SparkSession, sizes: Sizes) -> None:
    from raylog.spark import warm_up

    # The query only saves time. Where it fails, the user's own query meets the same error, and shows it.
    with suppress(Exception):
        warm_up.run(spark, sizes.executors * sizes.cores)


def _join_ray() -> bool:
    """Join Ray, or start it here; returns whether it was started. Raises SparkStartFailed where Spark cannot run."""
    import ray
    from ray.util import client, list_named_actors

    has_started = False
    api: Any = client.ray
    if api.is_connected():
        raise SparkStartFailed(
            "Spark on Ray needs a program on a node of the Ray cluster; this one is connected through Ray Client "
            "(ray://...). Run it on a node, for example with `ray job submit`."
        )
    if not ray.is_initialized():
        # The executors' JVMs log into Ray's log folder, not over the program's output.
        in_lasting_thread(lambda: ray.init(log_to_driver=False))
        node: Any = ray._private.worker._global_node
        has_started = node.is_head()
        if has_started:
            logger.warning(
                "No Ray runs here, so one was started for Spark, without a Raylog cluster. Call raylog.start() before "
                "raylog.spark.session(), or raylog.connect() where a cluster runs."
            )
    if "RAY_APP_MASTER" in list_named_actors():
        namespace = ray.get_runtime_context().namespace
        raise SparkStartFailed(
            f"Another program runs Spark in the Ray namespace {namespace!r}, and RayDP takes one a namespace: call "
            "ray.init(namespace=...) with another name first."
        )
    return has_started


def _nodes() -> list[Node]:
    """The nodes that are alive, with the CPUs and memory that no actor or task holds."""
    from ray._private.state import state

    cluster: Any = state  # what `ray.nodes()` and `ray.available_resources()` use
    free = cluster.available_resources_per_node()
    return [
        Node(
            name=node["NodeManagerAddress"],
            cpus=node["Resources"].get("CPU", 0.0),
            free_cpus=free.get(node["NodeID"], {}).get("CPU", 0.0),
            free_memory=int(free.get(node["NodeID"], {}).get("memory", 0)),
        )
        for node in cluster.node_table()
        if node["Alive"]
    ]


def _driver_jvm(config: Mapping[str, str], sizes: Sizes, address: str) -> DriverJvm:
    """The JVM of an earlier session in this process if it suits, else one that starts now.

    PySpark keeps its JVM until the program ends: errors of an ended session could not be printed without it.
    """
    global _jvm
    settings = _driver_settings(config, sizes)
    if _jvm is None or not _jvm.suits(settings, address):
        end_jvm()
        _jvm = DriverJvm(settings, address, _log_file())
        _jvm.start()
    return _jvm


def _explained(error: Exception, jvm: DriverJvm) -> Exception:
    """The error to raise instead of one from a JVM: the JVM ends now, and such an error needs it to be printed."""
    jvm.wait()
    if isinstance(error, RaylogError):
        return error
    if jvm.error is not None:
        return SparkStartFailed(f"The JVM of Spark's driver failed; {jvm.log} has the reason:\n{jvm.tail()}")
    first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return SparkStartFailed(f"Spark did not start on Ray: {first} ({jvm.log} and the logs beside it may say more.)")


def _log_file() -> Path:
    """The file for a driver's JVM's messages, in Ray's log folder of this node, else in the temporary folder."""
    import ray

    node = ray._private.worker._global_node
    folder = Path(node.get_logs_dir_path()) if node is not None else Path(tempfile.gettempdir())
    if not os.access(folder, os.W_OK):
        folder = Path(tempfile.gettempdir())
    return folder / f"raylog-spark-{os.getpid()}-{next(_numbers)}.log"


@contextmanager
def _cleaned_up_after_errors() -> Iterator[None]:
    """If the block fails, also by Ctrl-C, end what was started: executors left behind would hold the cluster's CPUs."""
    try:
        yield
    except BaseException:
        try:
            _end(INTERRUPTED_TIMEOUT_S)
        finally:
            end_jvm()
        raise


def _await_end(master: str, patience_s: float) -> None:
    """Wait until the actors that started the executors have ended; after `patience_s` kill them."""
    import ray
    from ray.util import list_named_actors

    if not ray.is_initialized():
        return
    deadline = time.monotonic() + patience_s
    while names := {master, "RAY_APP_MASTER"} & set(list_named_actors()):
        if time.monotonic() > deadline:
            for name in names:
                with suppress(ValueError):  # it has ended in this moment
                    ray.kill(ray.get_actor(name))
            return
        time.sleep(POLL_S)


@contextmanager
def _ray_address_for_children(address: str) -> Iterator[None]:
    """Pass the address of this Ray to a JVM that the block starts, and so to its Python processes for planning.

    They look for the Raylog cluster there; by default they would use the Ray that was started last on the machine.
    """
    before = os.environ.get("RAY_ADDRESS")
    os.environ["RAY_ADDRESS"] = address
    try:
        yield
    finally:
        if before is None:
            del os.environ["RAY_ADDRESS"]
        else:
            os.environ["RAY_ADDRESS"] = before


def _spell(value: object) -> str:
    """Write a setting as Spark reads it: booleans in small letters."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _require_no_session() -> None:
    from pyspark.sql import SparkSession

    if SparkSession.getActiveSession() is not None or _running is not None:
        raise RuntimeError("This process has a Spark session already: call raylog.spark.stop() before another one.")


def _request_java() -> Any:
    """Request from a worker of Ray the `java` that nodes start executors with.

    Ray takes it from the PATH a node was started with; a worker inherits that PATH, so checking one worker is enough to
    detect a cluster that was started without it.
    """
    import ray

    return ray.remote(num_cpus=0)(shutil.which).remote("java")


def _require_java_on_ray(answer: Any) -> None:
    """Raise SparkStartFailed where Ray's nodes have no Java, so executors could never start."""
    import ray

    if ray.get(answer, timeout=CHECK_TIMEOUT_S) is None:
        raise SparkStartFailed(
            "Ray was started without Java on its PATH, so it cannot run Spark executors: restart it after "
            '`eval "$(python -m raylog.spark.java)"`, or call raylog.spark.java.prepare() before ray.init().'
        )


atexit.register(stop)
