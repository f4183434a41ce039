"""The interface of a measured client library: the fewest calls that let each library use its own fastest form."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.job import Job

SPIN_S = 0.0002
"""Below this much time a sleep would end too late, so the rest is a busy wait on the clock."""

Stamp = Callable[[int], bytes]
"""Makes the payload of a record from its due time in nanoseconds."""


class Unsupported(Exception):
    """This client lacks the feature; the message is the reason in the table."""


class Client(ABC):
    """One producer or consumer of a library."""

    def __init__(self, job: Job) -> None:
        self.job = job

    # Producing

    @abstractmethod
    def open_producer(self) -> None:
        """Connect, and fetch the topic's metadata."""

    @abstractmethod
    def send_chunk(self, payloads: Sequence[bytes]) -> None:
        """Send these records; they may still be in flight on return."""

    def send_chunk_to(self, partition: int, payloads: Sequence[bytes]) -> None:
        """The same to one partition."""
        raise Unsupported("records to a named partition are not measured with this client")

    @abstractmethod
    def flush(self) -> None:
        """Wait until everything is acknowledged; raises when a record was not."""

    def begin(self) -> None:
        """Begin a transaction."""
        raise Unsupported("transactions are not measured with this client")

    def commit(self) -> None:
        """Commit everything sent since `begin`."""
        raise Unsupported("transactions are not measured with this client")

    def pace(self, stamp: Stamp, began_ns: int, count: int) -> None:
        """Send `count` records at the job's rate, each with the time at which it is due."""
        step_ns = 1e9 / self.job.rate
        for number in range(count):
            due_ns = began_ns + int(number * step_ns)
            self.sleep_until(due_ns)
            self.send_chunk([stamp(due_ns)])

    def due_ms(self, payload: bytes) -> int:
        """The due time in a delayed record's stamp, in milliseconds since 1970."""
        ahead_ns = int.from_bytes(payload[:8], "big") - time.monotonic_ns()
        return (time.time_ns() + ahead_ns) // 1_000_000

    def sleep_until(self, due_ns: int) -> None:
        """Wait until a point of the monotonic clock."""
        while (left_s := (due_ns - time.monotonic_ns()) / 1e9) > 0:
            if left_s > SPIN_S:
                time.sleep(left_s - SPIN_S)

    # Consuming

    @abstractmethod
    def open_consumer(self, *, group: str | None = None, at_end: bool = False) -> None:
        """Connect and start at the first record, or behind the last; with a group, share the topic with it."""

    def take(self, timeout_s: float) -> tuple[int, int]:
        """Take received records, in the job's form: number of records, and bytes of their values."""
        values = self.values(timeout_s)
        return len(values), sum(map(len, values))

    def values(self, timeout_s: float) -> list[bytes]:
        """Take received records as values, for latency."""
        raise Unsupported("latency is not measured with this client")

    def rewind(self) -> None:
        """Go back to the first record."""
        raise Unsupported("this client cannot go back")

    # Both

    def stored(self) -> int:
        """Records in the topic, as reported by the server; -1 when it cannot report them."""
        return -1

    def is_assigned(self) -> bool:
        """Whether the group has assigned partitions to this consumer."""
        return True

    def close(self) -> None:
        """Close what was opened."""
        for item in (getattr(self, "producer", None), getattr(self, "consumer", None)):
            if item is not None:
                item.close()


class Polling(Client):
    """A client whose consumer gives records by partition."""

    consumer: Any

    @abstractmethod
    def polled(self, timeout_s: float) -> Mapping[Any, Sequence[Any]]:
        """A poll."""

    def take(self, timeout_s: float) -> tuple[int, int]:
        """A poll, with the values touched."""
        count = size = 0
        for records in self.polled(timeout_s).values():
            for record in records:
                size += len(record.value)
            count += len(records)
        return count, size

    def values(self, timeout_s: float) -> list[bytes]:
        """The values alone."""
        return [record.value for records in self.polled(timeout_s).values() for record in records]

    def is_assigned(self) -> bool:
        """Whether the group has assigned partitions."""
        return bool(self.consumer.assignment())
