"""Pulsar as a peer: how its server is set, and what its client sends and takes, against a stand-in for the library."""

import sys
import time
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import __main__ as entry
from benchmarks.clients.pulsar_client import Measured, received
from benchmarks.job import Job
from benchmarks.loads import STAMP
from benchmarks.peers import pulsar_peer
from benchmarks.peers.maven import version_in
from benchmarks.peers.processes import Unavailable
from benchmarks.queues.pulsar_worker import Measured as Worker

JOB = Job(load="work", client="pulsar", topic="t", address={"port": "1"}, group="g")


class NothingCameError(Exception):
    """The library's own time-out."""


class Result(Enum):
    """Outcomes of a send."""

    Ok = 0
    TopicTerminated = 1


class Library:
    """One topic in memory: what is sent is received, until it is acknowledged."""

    Timeout = NothingCameError
    Result = Result
    ConsoleLogger = int
    LoggerLevel = SimpleNamespace(Error=3)
    ConsumerType = SimpleNamespace(Shared="shared")
    InitialPosition = SimpleNamespace(Latest="latest", Earliest="earliest")

    def __init__(self) -> None:
        self.answer = Result.Ok
        self.waiting: list[bytes] = []
        self.acknowledged: list[bytes] = []
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        """Every other call is written down; what it makes, as a client, a producer or a consumer, is this again."""

        def called(*given: Any, **named: Any) -> "Library":
            self.calls.append((name, {**dict(enumerate(given)), **named}))
            return self

        return called

    def send_async(self, payload: bytes, answered: Any, **named: Any) -> None:
        """Answered at once."""
        self.calls.append(("send", named))
        self.waiting.append(payload)
        answered(self.answer, "a place")

    def receive(self, wait_ms: int) -> Any:
        """The next message."""
        self.calls.append(("receive", wait_ms))
        if not self.waiting:
            raise NothingCameError
        payload = self.waiting.pop(0)
        return SimpleNamespace(data=lambda: payload)

    def acknowledge(self, message: Any) -> None:
        """Remember it."""
        self.acknowledged.append(message.data())

    def named(self, name: str) -> list[Any]:
        """What was given to calls of this name."""
        return [given for called, given in self.calls if called == name]


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setitem(sys.modules, "pulsar", made)
    return made


def test_a_delayed_message_has_the_time_in_its_stamp(library: Library) -> None:
    client = Measured(Job(load="pace", client="pulsar", topic="t", address={"port": "1"}, delay_ms=3_000))
    client.open_producer()
    client.send_chunk([STAMP.pack(time.monotonic_ns() + 3_000_000_000, True)])
    (named,) = library.named("send")
    assert named["deliver_at"] / 1000 - time.time() == pytest.approx(3.0, abs=0.5)


def test_other_messages_have_no_time_and_go_in_batches(library: Library) -> None:
    client = Measured(JOB)
    client.open_producer()
    client.send_chunk([b"a", b"b"])
    client.flush()
    assert library.named("send") == [{}, {}]
    assert library.named("create_producer")[0]["batching_enabled"]


def test_a_refused_message_is_an_error_of_flush(library: Library) -> None:
    client = Measured(JOB)
    client.open_producer()
    library.answer = Result.TopicTerminated
    client.send_chunk([b"a"])
    with pytest.raises(Unavailable, match="TopicTerminated"):
        client.flush()


def test_one_wait_takes_what_is_there_and_no_more_than_fits(library: Library) -> None:
    library.waiting = [b"a", b"b", b"c"]
    assert len(received(library, 0.25, 2)) == 2
    assert len(received(library, 0.25, 2)) == 1
    assert received(library, 0.25, 2) == []
    assert library.named("receive") == [250, 0, 250, 0, 250]


def test_a_worker_begins_at_the_first_message_and_acknowledges_each(library: Library) -> None:
    library.waiting = [b"a", b"b"]
    worker = Worker(JOB)
    worker.open()
    assert worker.take(0.1) == [b"a", b"b"]
    assert library.acknowledged == []
    worker.ack()
    assert library.acknowledged == [b"a", b"b"]
    (given,) = library.named("subscribe")
    assert (given[1], given["consumer_type"], given["initial_position"]) == ("g", "shared", "earliest")


def test_a_reader_removes_its_subscription(library: Library) -> None:
    client = Measured(JOB)
    client.open_consumer(at_end=True)
    client.close()
    assert library.named("subscribe")[0]["initial_position"] == "latest"
    assert len(library.named("unsubscribe")) == len(library.named("close")) == 1


@pytest.fixture
def server(tmp_path: Path) -> pulsar_peer.Pulsar:
    return pulsar_peer.Pulsar(tmp_path, tmp_path)


def test_its_server_is_local_and_has_three_copies_of_each_message(server: pulsar_peer.Pulsar, tmp_path: Path) -> None:
    (tmp_path / "pulsar").mkdir()
    command = server._command(tmp_path / "jars")
    settings = dict(
        line.split("=") for line in (tmp_path / "pulsar" / "standalone.conf").read_text(encoding="utf-8").splitlines()
    )
    assert settings["bindAddress"] == settings["advertisedAddress"] == "127.0.0.1"
    assert settings["brokerServicePort"] == server.address()["port"]
    assert settings["managedLedgerDefaultWriteQuorum"] == command[command.index("--num-bookies") + 1] == "3"
    assert settings["journalSyncData"] == "false"


@pytest.mark.parametrize(("partitions", "replication", "fsync"), [(2, 3, False), (1, 1, False), (1, 3, True)])
def test_topics_of_other_kinds_are_not_measured(
    server: pulsar_peer.Pulsar, partitions: int, replication: int, fsync: bool
) -> None:
    with pytest.raises(Unavailable, match="one partition"):
        server.create_topic("t", partitions, replication, fsync=fsync)


def test_the_version_is_that_of_its_jars(server: pulsar_peer.Pulsar) -> None:
    assert server.describe()["version"] == version_in(pulsar_peer.POM, "pulsar")


def test_it_takes_part_in_delays_and_queues_alone() -> None:
    assert entry.arguments(["--only", "delays", "--peers", "pulsar"]).peers == ["pulsar"]
    assert entry.arguments(["--only", "queues", "--peers", "pulsar"]).peers == ["pulsar"]
    assert entry.arguments(["--only", "produce", "--peers", "pulsar"]).peers == []
