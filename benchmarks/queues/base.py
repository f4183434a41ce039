"""The interface of a measured consumer of a work queue."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod

from benchmarks.job import Job

AHEAD = 500
"""Messages that a consumer holds at most without having acknowledged them: Raylog's default, for all alike."""


class Worker(ABC):
    """One consumer of a queue. Used by one thread, which also opens and closes it."""

    def __init__(self, job: Job) -> None:
        """`job.group` names the group whose members share the work."""
        self.job = job

    @abstractmethod
    def open(self) -> None:
        """Connect and join."""

    @abstractmethod
    def take(self, timeout_s: float) -> list[bytes]:
        """The values of messages that were handed to this consumer; [] when none came in time."""

    @abstractmethod
    def ack(self) -> None:
        """Acknowledge each message of the last `take`, in the library's fastest form; the answer may be outstanding."""

    @abstractmethod
    def flush(self) -> None:
        """Wait for the answers, where the library has any."""

    @abstractmethod
    def close(self) -> None:
        """Give back what is not acknowledged, and disconnect."""


def make_worker(job: Job) -> Worker:
    """The worker of the job's client library."""
    worker: Worker = importlib.import_module(f"benchmarks.queues.{job.client}_worker").Measured(job)
    return worker
