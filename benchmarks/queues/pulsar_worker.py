"""Pulsar: a shared subscription, whose messages are acknowledged one by one."""

from __future__ import annotations

import time
from typing import Any, Final

from benchmarks.clients.pulsar_client import connect, received, subscribe
from benchmarks.queues.base import AHEAD, Worker

GROUPED_S: Final = 0.1
"""The library's own default, which its Python interface cannot change."""


class Measured(Worker):
    """A consumer of the group's subscription."""

    def open(self) -> None:
        """Connect and join."""
        self.client = connect(self.job)
        self.consumer: Any = subscribe(self.client, self.job, self.job.group, AHEAD, at_end=self.job.load != "work")
        self._taken: list[Any] = []

    def take(self, timeout_s: float) -> list[bytes]:
        """What was pushed."""
        self._taken = received(self.consumer, timeout_s, AHEAD)
        return [message.data() for message in self._taken]

    def ack(self) -> None:
        """One call a message."""
        for message in self._taken:
            self.consumer.acknowledge(message)

    def flush(self) -> None:
        """Wait until the last are on their way: the library sends them in groups, and says neither when nor if."""
        time.sleep(GROUPED_S)

    def close(self) -> None:
        """Disconnect."""
        self.client.close()
