"""One client process: reads a job, runs its load, answers with the outcome or with the reason for none."""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

from benchmarks.clients.base import Client, Unsupported
from benchmarks.delays.loads import LOADS as DELAY_LOADS
from benchmarks.job import Job
from benchmarks.loads import LOADS
from benchmarks.optional import Missing
from benchmarks.queues.loads import LOADS as QUEUE_LOADS

EVERY_LOAD = {**LOADS, **QUEUE_LOADS, **DELAY_LOADS}


def main() -> None:
    """Run the job on standard input. Output of libraries goes to standard error: standard output is for answers."""
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    job = Job.of_line(sys.stdin.readline())

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")

    def report_ready() -> None:
        say({"ready": True})
        if job.waits:
            sys.stdin.readline()

    def make(wanted: Job) -> Client:
        client: Client = importlib.import_module(f"benchmarks.clients.{wanted.client}_client").Measured(wanted)
        return client

    try:
        say({"outcome": EVERY_LOAD[job.load](job, make, report_ready)})
    except (Unsupported, Missing) as error:
        say({"left_out": str(error)})


if __name__ == "__main__":
    main()
