"""From the call of `raylog.spark.session()` to the first row of a topic, in a process of its own.

Run by `workers.Worker`; its settings have the address of Ray.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from benchmarks.analytics.workers import Task, serve
from benchmarks.job import Outcome
from benchmarks.optional import module


def begin(settings: Task) -> Mapping[str, Callable[[Task], Outcome]]:
    """Join Ray; that is not a part of the time."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ["RAY_ADDRESS"] = settings["ray"]
    module("ray").init(address=settings["ray"], log_to_driver=False)
    return {"session": session}


def session(task: Task) -> Outcome:
    """Start Spark on Ray, read one row, and end it."""
    began_s = time.monotonic()
    sparks = module("raylog.spark")
    spark = sparks.session("benchmark", num_executors=1, executor_cores=1, executor_memory="1g")
    try:
        session_s = time.monotonic() - began_s
        [row] = spark.read.format("raylog").options(**task["options"]).load().limit(1).collect()
        seconds = time.monotonic() - began_s
    finally:
        sparks.stop()
    return {"records": 1, "bytes": len(row.value), "seconds": seconds, "session_s": session_s}


if __name__ == "__main__":
    serve(begin)
