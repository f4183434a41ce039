"""A stream that found its cluster through Ray goes on when the clients' secret is changed: driver and tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raylog.client.cluster import cluster_client
from raylog.client.cluster.discovery import ClusterAddress
from raylog.client.ranges import planning
from raylog.rpc.auth.secret_files import CLIENT_FILE, SecretFiles, make_secrets, read_values, write_values
from raylog.spark.reading import live_logs
from raylog.spark.reading.admission import Limits
from raylog.spark.reading.options import parse_options
from raylog.spark.reading.planning import StreamPlanner
from tests.unit.client.toy_server import ToyCluster
from tests.unit.spark.support import fill, rows_of

ALL = Limits()
OLD, NEW = b"\x11" * 32, b"\x22" * 32


class Stream:
    """A stream on a cluster that Ray knows, and the file of the clients' secret at the brokers."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._file = folder / CLIENT_FILE
        make_secrets(folder)
        write_values(self._file, [OLD])
        self.cluster = ToyCluster(brokers=2, secret=SecretFiles(folder))
        self.lookups = 0
        self._options = parse_options({"subscribe": "orders", "startingOffsets": "earliest"}, is_stream=True)
        monkeypatch.setattr(planning, "find_cluster", self._through_ray)
        monkeypatch.setattr(planning, "_remembered", None)
        monkeypatch.setattr(cluster_client, "PROVED_S", 0.0)
        monkeypatch.setattr(live_logs, "METADATA_AGE_S", 0.0)

    async def _through_ray(self, *_: object, **__: object) -> ClusterAddress:
        """What the controller answers."""
        self.lookups += 1
        endpoints = tuple((broker.host, broker.port) for broker in self.cluster.brokers.values())
        return ClusterAddress(read_values(self._file)[0], endpoints, through_ray=True)

    def begin(self) -> None:
        self.cluster.create_topic("orders")
        self.planner = StreamPlanner(self._options)
        self._at = self.planner.initial()

    def batch(self) -> list[Any]:
        """Plan a batch of ten new records."""
        fill(self.cluster, "orders", 0, [10])
        start, self._at = self._at, self.planner.latest(self._at, ALL)
        return self.planner.ranges(start, self._at)

    def rows(self, ranges: list[Any]) -> int:
        """How many records the tasks of a batch read; each is a new process."""
        return sum(len(rows_of(each, self._options)) for each in ranges)

    def change(self) -> None:
        write_values(self._file, [NEW, OLD])

    def finish(self) -> None:
        """No connection ends: a driver may keep its own for days."""
        write_values(self._file, [NEW])


@pytest.fixture
def stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stream]:
    found = Stream(tmp_path, monkeypatch)
    with found.cluster:
        found.begin()
        yield found
        found.planner.close()


def test_tasks_get_tokens_of_the_new_secret_before_the_old_one_ends(stream: Stream) -> None:
    assert stream.rows(stream.batch()) == 10
    stream.change()
    planned = stream.batch()
    stream.finish()
    assert stream.rows(planned) == 10, "it was planned before the end of the old secret, and runs behind it"
    assert stream.rows(stream.batch()) == 10
    assert stream.lookups == 2, "once at the start, once when the secret was being changed"


def test_a_stream_that_slept_through_the_change_goes_on(stream: Stream) -> None:
    assert stream.rows(stream.batch()) == 10
    stream.change()
    stream.finish()
    assert stream.rows(stream.batch()) == 10
    assert stream.lookups == 2


def test_a_driver_whose_connections_end_gets_the_new_secret(stream: Stream) -> None:
    assert stream.rows(stream.batch()) == 10
    stream.change()
    stream.finish()
    stream.cluster.cut_connections()
    assert stream.rows(stream.batch()) == 10
