"""Ray Data reads and writes topics: of Raylog with raylog.data, of Kafka with its own functions, in the same Ray.

Run by `workers.Worker`; its settings have the address of Ray.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.analytics.workers import Phase, Task, serve
from benchmarks.job import Outcome
from benchmarks.optional import module


def begin(settings: Task) -> Mapping[str, Callable[[Task], Outcome]]:
    """Join Ray."""
    # Ray presents the user's token only with "auto" as the address, or if configured to.
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    ray = module("ray")
    ray.init(address=settings["ray"], namespace="benchmarks", log_to_driver=False)
    context = module("ray.data").DataContext.get_current()
    context.enable_progress_bars = False
    return {"read": read, "write": write}


def read(task: Task) -> Outcome:
    """Read a topic and sum up the lengths of its values, as Arrow batches."""
    phase = Phase(task["server_pids"])
    records = size = 0
    for batch in dataset(task).iter_batches(batch_format="pyarrow", batch_size=None):
        values = batch.column("value")
        records += len(values)
        size += module("pyarrow.compute").sum(module("pyarrow.compute").binary_length(values)).as_py() or 0
    return {**phase.read(records, size), "once": records, "stored": task["records"]}


def dataset(task: Task) -> Any:
    """The topic as a dataset."""
    if task["peer"] == "kafka":
        return module("ray.data").read_kafka(task["topic"], bootstrap_servers=task["bootstrap"])
    return module("raylog.data").read(task["topic"], bootstrap_servers=task["bootstrap"], secret=task["secret"])


def write(task: Task) -> Outcome:
    """Write numbered rows as JSON, the default of both."""
    rows = module("ray.data").range(task["records"])
    phase = Phase(task["server_pids"])
    if task["peer"] == "kafka":
        rows.write_kafka(task["topic"], task["bootstrap"])
    else:
        address = {"bootstrap_servers": task["bootstrap"], "secret": task["secret"]}
        module("raylog.data").write(rows, task["topic"], **address)
    return phase.read(task["records"], 0)


if __name__ == "__main__":
    serve(begin)
