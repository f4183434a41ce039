"""ray.util.queue: an actor with a queue in memory, the alternative of a Ray user without a log.

Producer and consumer get the queue's name as an actor; nothing is stored and nothing is replicated.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.clients.base import Client
from benchmarks.optional import module

CHUNK_MAX = 10_000


class Measured(Client):
    """A queue whose records come in the chunks of `put_nowait_batch`."""

    queue: Any = None

    def _open(self) -> None:
        # Ray presents the user's token only with "auto" as the address, or if configured to.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        ray = module("ray")
        ray.init(address=self.job.address["ray"], namespace="benchmarks", log_to_driver=False)
        self._make()

    def _make(self) -> None:
        self.queue = module("ray.util.queue").Queue(
            actor_options={"name": self.job.topic, "get_if_exists": True, "lifetime": "detached", "num_cpus": 0}
        )

    def open_producer(self) -> None:
        """Connect to Ray and find the queue, or make it; a fresh one releases the memory of the last."""
        self._open()
        if self.job.fresh:
            self.queue.shutdown(force=True)
            self._make()

    def send_chunk(self, payloads: Sequence[bytes]) -> None:
        """One call for the chunk, which returns when the queue has it."""
        self.queue.put_nowait_batch(list(payloads))

    def flush(self) -> None:
        """Every chunk has been answered."""

    def open_consumer(self, *, group: str | None = None, at_end: bool = False) -> None:
        """Connect."""
        self._open()

    def values(self, timeout_s: float) -> list[bytes]:
        """All queued records; polls, because a blocking get returns only one record."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            waiting = min(self.queue.qsize(), CHUNK_MAX)
            if waiting:
                found: list[bytes] = self.queue.get_nowait_batch(waiting)
                return found
            if time.monotonic() > deadline_s:
                return []

    def stored(self) -> int:
        """The length of the queue."""
        return int(self.queue.qsize())

    def close(self) -> None:
        """Leave Ray."""
        if self.queue is not None:
            module("ray").shutdown()
