"""The client of the bare prototype: batches of the job's size, a few in flight, each answered after its append."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.clients.aiokafka_client import OnLoop
from benchmarks.clients.base import Unsupported
from benchmarks.prototype import Sender, records_of


class Measured(OnLoop):
    """One connection to a server of `benchmarks.prototype`."""

    _sender: Sender | None = None

    def open_producer(self) -> None:
        """Connect."""
        self._sender = self.run(Sender.connected(int(self.job.address[self.job.topic])))
        self._per_batch = records_of(self.job.batch_bytes, self.job.size)
        self._values: list[bytes] = []

    def _opened(self) -> Sender:
        if self._sender is None:
            raise Unsupported("the prototype's client only produces")
        return self._sender

    def send_chunk(self, payloads: Sequence[bytes]) -> None:
        """Send the batches that are full."""
        self._values += payloads
        while len(self._values) >= self._per_batch:
            batch, self._values = self._values[: self._per_batch], self._values[self._per_batch :]
            self.run(self._opened().send(batch))

    def flush(self) -> None:
        """Send the rest, and wait for the answers."""
        if self._values:
            self.run(self._opened().send(self._values))
            self._values = []
        self.run(self._opened().drain())

    def stored(self) -> int:
        """The number of answered records: the server keeps no count."""
        return self._opened().answered

    def open_consumer(self, *, group: str | None = None, at_end: bool = False) -> None:
        """It has none."""
        raise Unsupported("the prototype has no consumer")

    def take(self, timeout_s: float) -> tuple[int, int]:
        """It has no consumer."""
        raise Unsupported("the prototype has no consumer")

    def close(self) -> None:
        """Close the connection."""
        if self._sender is not None:
            self.run(self._sender.close())
            self.loop.close()
