"""Redis Streams: one stream a partition, XADD in pipelines, XREAD."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from benchmarks.clients.base import Client
from benchmarks.optional import module


class Measured(Client):
    """The library redis; a pipeline of XADD is its batch."""

    def _connect(self) -> Any:
        return module("redis").Redis(port=int(self.job.address["port"]))

    def open_producer(self) -> None:
        """Connect."""
        self.producer = self._connect()
        if self.job.fresh:
            self.producer.delete(*(f"{self.job.topic}-{partition}" for partition in range(self.job.partitions)))
        self._streams = itertools.cycle([f"{self.job.topic}-{partition}" for partition in range(self.job.partitions)])

    def send_chunk(self, payloads: Sequence[bytes]) -> None:
        """One XADD a record, and one round trip for the chunk."""
        pipeline = self.producer.pipeline(transaction=False)
        stream = next(self._streams)
        for payload in payloads:
            pipeline.xadd(stream, {b"v": payload})
        pipeline.execute()

    def flush(self) -> None:
        """Every chunk has been answered."""

    def open_consumer(self, *, group: str | None = None, at_end: bool = False) -> None:
        """Read every stream."""
        self.consumer = self._connect()
        begin = b"$" if at_end else b"0"
        self._last = {f"{self.job.topic}-{partition}".encode(): begin for partition in range(self.job.partitions)}
        if at_end:
            for stream in self._last:
                newest = self.consumer.xrevrange(stream, count=1)
                self._last[stream] = newest[0][0] if newest else b"0"

    def values(self, timeout_s: float) -> list[bytes]:
        """The values of an XREAD."""
        values = []
        for stream, entries in self.consumer.xread(self._last, count=10_000, block=max(1, int(timeout_s * 1000))) or ():
            values += [fields[b"v"] for _, fields in entries]
            self._last[stream] = entries[-1][0]
        return values

    def rewind(self) -> None:
        """Go back to the first record."""
        self._last = dict.fromkeys(self._last, b"0")

    def stored(self) -> int:
        """The sum of the streams' lengths."""
        connection = self._connect()
        return int(sum(connection.xlen(f"{self.job.topic}-{partition}") for partition in range(self.job.partitions)))
