"""Runs jobs in processes of their own and returns their outcomes. Used by the scenarios."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.children import Child
from benchmarks.clients import java
from benchmarks.job import Job, Outcome

TIMEOUT_S = 180.0
"""Of each answer."""


class Running(Child):
    """A client process."""

    def __init__(self, job: Job) -> None:
        super().__init__("benchmarks.clients.worker", f"the client {job.client}", end_s=5.0)
        self.write(job.line())

    def wait_ready(self) -> None:
        """Wait until the client is connected and warm."""
        self.answer(TIMEOUT_S)

    def begin(self) -> None:
        """Start a client that waits for the signal."""
        self.write("")

    def outcome(self) -> Outcome:
        """Wait for the outcome."""
        found: Outcome = self.answer(TIMEOUT_S)["outcome"]
        return found


def run(job: Job) -> Outcome:
    """Run a job from beginning to end. Raises Unavailable with the reason when there is no outcome."""
    if job.client == "java":
        return java.produce(job) if job.load == "produce" else java.consume(job)
    with Running(job) as running:
        running.wait_ready()
        return running.outcome()


def run_both(reading: Job, sending: Job, settle_s: float = 0.0) -> tuple[Outcome, Outcome]:
    """Read what another client sends; `sending` waits until both are ready, and `settle_s` longer."""
    with Running(reading) as taking, Running(sending) as giving:
        taking.wait_ready()
        giving.wait_ready()
        time.sleep(settle_s)
        giving.begin()
        sent = giving.outcome()
        return taking.outcome(), sent


def with_sender(outcome: Outcome, sent: Outcome) -> dict[str, Any]:
    """The outcome of a reader with what its sender has used, and the server meanwhile."""
    return {**outcome, "producer_cpu_s": sent["client_cpu_s"], "server_cpu_s": sent["server_cpu_s"]}
