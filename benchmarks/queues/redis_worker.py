"""Redis Streams: XREADGROUP and XACK, both with many messages a call."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from benchmarks.optional import module
from benchmarks.queues.base import AHEAD, Worker


class Measured(Worker):
    """A consumer of the stream's group."""

    def open(self) -> None:
        """Connect, and make the group unless it is there."""
        redis = module("redis")
        self.connection: Any = redis.Redis(port=int(self.job.address["port"]))
        self._stream = f"{self.job.topic}-0"
        self._name = f"worker-{threading.get_ident()}"
        self._ids: list[bytes] = []
        with contextlib.suppress(redis.exceptions.ResponseError):  # it is there
            begin = "0" if self.job.load == "work" else "$"
            self.connection.xgroup_create(self._stream, self.job.group, id=begin, mkstream=True)

    def take(self, timeout_s: float) -> list[bytes]:
        """An XREADGROUP of messages that no consumer has had."""
        block_ms = max(1, int(timeout_s * 1000))
        found = self.connection.xreadgroup(self.job.group, self._name, {self._stream: ">"}, count=AHEAD, block=block_ms)
        entries = found[0][1] if found else []
        self._ids = [entry for entry, _ in entries]
        return [fields[b"v"] for _, fields in entries]

    def ack(self) -> None:
        """An XACK of all."""
        if self._ids:
            self.connection.xack(self._stream, self.job.group, *self._ids)

    def flush(self) -> None:
        """Each call was answered."""

    def close(self) -> None:
        """Disconnect."""
        self.connection.close()
