"""What a peer has to offer to be measured at rest. Each method may raise `Unavailable`, or one of `LEFT_OUT`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, Generic, Protocol, TypeVar

from benchmarks.clients.base import Client
from benchmarks.peers.kafka import Kafka
from benchmarks.peers.processes import Unavailable
from benchmarks.peers.raylog_peer import Raylog

READ_S: Final = 1.0
LAST_CALL_S: Final = 0.1
"""What a call gets at least: one that fails in time names the reason."""


class Deadline:
    """Ends `seconds` after it was made."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._began_s = time.monotonic()

    @property
    def passed_s(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._began_s

    @property
    def left_s(self) -> float:
        """Seconds for the next call."""
        return max(LAST_CALL_S, self.seconds - self.passed_s)

    @property
    def is_over(self) -> bool:
        """Whether the time is used up."""
        return self.passed_s >= self.seconds

    def check(self, what: str) -> None:
        """Raise Unavailable, with what has not happened, when the time is used up."""
        if self.is_over:
            raise Unavailable(f"{what} within {self.seconds:.0f} s")


Request = Callable[[Deadline], float]
"""Requests something of all partitions; returns its seconds. Unavailable when the answer does not have all of them."""


class Writer(Protocol):
    """A producer with acks=all and no linger time, connected, with the topic's metadata."""

    def send(self, partition: int, value: bytes, timeout_s: float) -> None:
        """Send a record and wait until it is acknowledged."""

    def send_later(self, partition: int, value: bytes, done: Callable[[str], None]) -> None:
        """Send a record; `done` is called with "" when it is acknowledged, or with the reason why it is not."""

    def wait_until(self, moment_s: float) -> None:
        """Wait until this time of the monotonic clock, and have acknowledgements reported meanwhile."""

    def flush(self, timeout_s: float) -> None:
        """Wait until the outcome of every record is known."""

    def close(self) -> None:
        """Close the connections."""


class AtRest(Protocol):
    """A server on a directory of its own."""

    @property
    def name(self) -> str:
        """Its name in the table."""

    @property
    def notes(self) -> list[str]:
        """Sentences on what was done for this peer alone."""

    def start(self, deadline: Deadline) -> None:
        """Start it, or start it again on its data, and wait until it serves."""

    def stop(self, deadline: Deadline) -> None:
        """Stop it cleanly; Unavailable when that was not possible."""

    def end(self) -> None:
        """End it in any way; does nothing when it does not run."""

    def not_servers(self) -> set[int]:
        """Processes below this one that are no part of the server."""

    def create(self, topic: str, partitions: int, replication: int, deadline: Deadline) -> None:
        """Create the topic, and wait until a description shows every partition with a leader."""

    def serve(self, topic: str, partitions: int, deadline: Deadline) -> bool:
        """Wait until every leader answers; False where the leader in a description answers already."""

    def requests(self, topic: str, partitions: int) -> Mapping[str, Request]:
        """The requests for all partitions, by the names in `table.REQUESTS`. The connection is not measured."""

    def writer(self, topic: str) -> Writer:
        """A new producer."""

    def first_value(self, topic: str, deadline: Deadline) -> bytes:
        """The value of the first record of partition 0, by a new consumer."""

    def describe(self) -> dict[str, str]:
        """Version and settings."""


Server = TypeVar("Server", Kafka, Raylog)


class OnServer(Generic[Server]):
    """What all peers have of the server that they measure."""

    def __init__(self, server: Server) -> None:
        self._server: Server = server

    def start(self, deadline: Deadline) -> None:
        """Start it, or start it again on its data, and wait until it serves."""
        self._server.start()

    def stop(self, deadline: Deadline) -> None:
        """Stop it cleanly."""
        self._server.stop_within(deadline.left_s)

    def end(self) -> None:
        """End it in any way."""
        self._server.stop()

    def describe(self) -> dict[str, str]:
        """Version and settings."""
        return self._server.describe()


def wait_until_led(is_led: Callable[[], bool], topic: str, deadline: Deadline, look_s: float) -> None:
    """Look again and again until every partition of a topic is described with a leader."""
    while not is_led():
        deadline.check(f"not every partition of {topic} had a leader")
        time.sleep(look_s)


def first_of(client: Client, topic: str, deadline: Deadline) -> bytes:
    """The value of the first record of a topic's only reader."""
    try:
        client.open_consumer()
        while not (values := client.values(min(READ_S, deadline.left_s))):
            deadline.check(f"no record of {topic} could be read")
        return values[0]
    finally:
        client.close()


def expect(found: int, partitions: int, what: str) -> None:
    """Raise Unavailable when an answer does not have as many partitions as there are."""
    if found != partitions:
        raise Unavailable(f"{what} has {found:,} of {partitions:,} partitions")
