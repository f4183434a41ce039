"""A Spark session on the Ray cluster, ready to read and write topics.

Called by users as `raylog.spark.session(...)`. It starts Spark's master and executors as Ray actors through RayDP,
with the Java that raylog.spark.java finds, and registers `format("raylog")`. Ray, RayDP and PySpark are imported
when a session is requested, not before.
"""

import os
import pkgutil
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from raylog.spark import java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECK_TIMEOUT_S = 60.0
"""Timeout of the check for Java on a node; a cold Ray worker replies within a few seconds."""

DEFAULTS: dict[str, str] = {
    # Partition, offset and time filters reach the source; Spark refuses a source with push-down while this is off.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A progress bar redraws the terminal of a program that prints its own output.
    "spark.ui.showConsoleProgress": "false",
}
"""Settings of a session unless `config` overrides them."""


def session(
    app_name: str,
    *,
    num_executors: int = 1,
    executor_cores: int = 1,
    executor_memory: str = "1g",
    config: Mapping[str, object] | None = None,
) -> "SparkSession":
    """Start Spark on Ray and return its session, with the data source "raylog" registered.

    `num_executors` Ray actors with `executor_cores` CPUs and `executor_memory` ("1g", "512m") each hold the executors;
    they wait for free CPUs of the Ray cluster. `config` adds Spark settings or replaces DEFAULTS. Ray is joined, or
    started on this machine, when this process has not done so. Starting takes about 20 seconds; one process has one
    session, so end it with `raylog.spark.stop()` before starting another.

    Raises JavaNotFound when there is no usable Java, ImportError when the extra `spark` is not installed, and
    RuntimeError when a session is running already or Ray's nodes were started without Java.
    """
    _require_extra()
    java.prepare()
    import ray
    import raydp
    from pyspark.sql import SparkSession

    if SparkSession.getActiveSession() is not None:
        raise RuntimeError("This process has a Spark session already: call raylog.spark.stop() before another one.")
    if not ray.is_initialized():
        ray.init(log_to_driver=False)  # the executors' JVMs log into Ray's log folder, not over the program's output
    _require_java_on_ray()
    settings = DEFAULTS | {name: _spell(value) for name, value in (config or {}).items()}
    with _ray_address_for_children(ray.get_runtime_context().gcs_address):
        spark: SparkSession = raydp.init_spark(
            app_name, num_executors, executor_cores, executor_memory, configs=settings
        )
    try:
        register(spark)
    except BaseException:
        # After any error, executors without an owner would hold the cluster's CPUs.
        stop()
        raise
    return spark


def stop() -> None:
    """End the session of this process and give its CPUs back to Ray; Ray itself goes on. Harmless without a session."""
    raydp = sys.modules.get("raydp")
    if raydp is not None:
        raydp.stop_spark()


def register(spark: "SparkSession") -> None:
    """Register `format("raylog")` in a Spark session, unless Spark finds `pyspark_raylog` by itself.

    It looks for modules of that name in the folders of `sys.path`; an editable install puts none there.
    """
    if any(module.name == "pyspark_raylog" for module in pkgutil.iter_modules()):
        return
    from raylog.spark.source import RaylogDataSource

    spark.dataSource.register(RaylogDataSource)


@contextmanager
def _ray_address_for_children(address: str) -> Iterator[None]:
    """Pass the address of this Ray to the JVM that is started meanwhile, and to its Python processes for planning.

    They look for the Raylog cluster there; by default they would take the Ray that was started last on the machine.
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


def _require_extra() -> None:
    missing = [name for name in ("ray", "pyspark", "raydp", "pyarrow") if find_spec(name) is None]
    if missing:
        names = ", ".join(missing)
        raise ImportError(f"Spark on Ray needs {names}: run `pip install 'raylog[spark]'`.", name=missing[0])


def _require_java_on_ray() -> None:
    """Refuse at once where Spark's executors could never start, instead of letting the first job wait without a limit.

    Ray takes `java` from the PATH a node was started with; a worker inherits that PATH, so checking one worker is
    enough to detect a cluster that was started without it.
    """
    import ray

    find = ray.remote(num_cpus=0)(shutil.which)
    if ray.get(find.remote("java"), timeout=CHECK_TIMEOUT_S) is None:
        raise RuntimeError(
            "Ray was started without Java on its PATH, so it cannot run Spark executors: restart it after "
            '`eval "$(python -m raylog.spark.java)"`, or call raylog.spark.java.prepare() before ray.init().'
        )
