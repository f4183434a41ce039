"""One client process (`python -m benchmarks.clients.worker`): reads a job, runs its load, answers with the outcome."""

from __future__ import annotations

import importlib
import sys

from benchmarks.children import answering
from benchmarks.clients.base import Client, Unsupported
from benchmarks.delays.loads import LOADS as DELAY_LOADS
from benchmarks.job import Job
from benchmarks.loads import LOADS
from benchmarks.optional import Missing
from benchmarks.queues.loads import LOADS as QUEUE_LOADS

EVERY_LOAD = {**LOADS, **QUEUE_LOADS, **DELAY_LOADS}


def main() -> None:
    """Run the job on standard input; the answer is the outcome, or the reason for none."""
    say = answering()
    job = Job.of_line(sys.stdin.readline())

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
