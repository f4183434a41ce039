"""The JVM of Spark's driver: it starts while RayDP's master starts, and writes its messages to a file.

Used by raylog.spark.session. PySpark by itself would start this JVM only once the master runs, and show its messages on
the terminal.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

END_TIMEOUT_S = 10.0
"""How long the JVM may take to end by itself before it is killed."""
START_TIMEOUT_S = 120.0
TAIL_BYTES = 4_000
"""How much of the end of the log an error message shows."""

LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yy/MM/dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""


class DriverJvm:
    """Starts the JVM on a thread that holds PySpark's lock meanwhile, so that RayDP's SparkContext waits for it.

    It ends with the program, or by `end_jvm`.
    """

    def __init__(self, settings: Mapping[str, str], address: str, log: Path) -> None:
        """Prepare a JVM with the settings of SparkConf, for the Ray cluster at `address`; `start` starts it."""
        self.log = log
        self.error: Exception | None = None
        self.seconds = 0.0
        self._settings = dict(settings)
        self._address = address
        self._gateway: object = None
        self._is_locked = threading.Event()
        self._thread = threading.Thread(target=self._start, name="raylog-spark-driver", daemon=True)

    def start(self) -> None:
        """Begin the start; returns once PySpark's lock is held, so that PySpark starts no second JVM."""
        self._thread.start()
        self._is_locked.wait(START_TIMEOUT_S)

    def suits(self, settings: Mapping[str, str], address: str) -> bool:
        """Whether PySpark still has this JVM, and a session with these settings on this Ray cluster can use it."""
        from pyspark import SparkContext

        is_kept = self._gateway is not None and SparkContext._gateway is self._gateway
        return is_kept and (self._settings, self._address) == (settings, address)

    def wait(self) -> None:
        """Return when the JVM runs, or has failed: then `error` says why."""
        self._thread.join(START_TIMEOUT_S)

    def _start(self) -> None:
        from pyspark import SparkConf, SparkContext, java_gateway

        launch: Any = java_gateway.launch_gateway  # has no types
        began = time.monotonic()
        with SparkContext._lock:
            self._is_locked.set()
            conf = SparkConf()
            conf.setAll(list(self._settings.items()))
            try:
                with self.log.open("ab") as file:
                    gateway = launch(conf, {"stderr": file})
            except Exception as error:  # passed on to the caller of session(), on another thread
                self.error = error
                return
            SparkContext._gateway = self._gateway = gateway
            SparkContext._jvm = gateway.jvm
        self.seconds = time.monotonic() - began

    def log_to_file(self) -> None:
        """Direct log4j to the file; when Ray's part of the JVM starts, it directs log4j to standard output."""
        from pyspark import SparkContext

        jvm: Any = SparkContext._jvm
        config = self.log.with_suffix(".log4j2.properties")
        config.write_text(LOG4J.format(log=self.log), encoding="utf-8")
        jvm.org.apache.logging.log4j.core.config.Configurator.reconfigure(jvm.java.net.URI(config.as_uri()))

    def tail(self) -> str:
        """The last lines of the log, for an error message."""
        return self.log.read_bytes()[-TAIL_BYTES:].decode("utf-8", "replace").strip() if self.log.exists() else ""


def end_jvm() -> None:
    """End the JVM that PySpark has in this process, if any; a later session starts one of its own."""
    from pyspark import SparkContext

    with SparkContext._lock:
        gateway: Any = SparkContext._gateway
        SparkContext._gateway = None
        SparkContext._jvm = None
    if gateway is None:
        return
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    gateway.shutdown()
    if process is None:  # spark-submit has started the JVM, and ends it
        return
    if process.stdin is not None:
        process.stdin.close()  # the JVM ends when this pipe does
    try:
        process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(END_TIMEOUT_S)
