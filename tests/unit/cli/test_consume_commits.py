"""`raylog consume --group` commits what it has written and flushed, and nothing else."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raylog.base.ids import TopicPartition
from raylog.cli.records import consume
from raylog.client.consumer.consumer import Consumer
from raylog.client.producer.producer import Producer
from tests.unit.cli.support import Outcome, raylog
from tests.unit.client.consumer_support import fill, numbers, with_coordinator
from tests.unit.client.toy_server import SECRET, ToyCluster
from tests.unit.style.sources import ROOT

HERE = TopicPartition("t", 0)


@pytest.fixture
def cluster() -> Iterator[ToyCluster]:
    with ToyCluster(brokers=1) as running:
        with_coordinator(running)
        running.create_topic("t")
        fill(running, "t", 0, numbers(0, 20))
        yield running


def run(cluster: ToyCluster, *arguments: str) -> Outcome:
    given = ["consume", "--topic", "t", "--group", "g", "--from-beginning", *arguments]
    return raylog(*given, "--bootstrap", cluster.bootstrap, RAYLOG_SECRET=SECRET.hex())


def committed(cluster: ToyCluster) -> int | None:
    with Consumer(**cluster.options, group_id="g") as consumer:
        return consumer.committed(HERE)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_was_not_flushed_is_not_committed(
    cluster: ToyCluster, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    write, calls = consume.write_out, [0]

    def fails(stream: object, lines: object) -> None:
        calls[0] += 1
        if calls[0] == 3:
            raise error("amid the output")
        write(stream, lines)  # type: ignore[arg-type]

    monkeypatch.setattr(consume, "POLL_RECORDS", 4)
    monkeypatch.setattr(consume, "write_out", fails)
    outcome = run(cluster)
    assert len(outcome.out.splitlines()) == 8
    assert committed(cluster) == 8
    monkeypatch.undo()
    assert len(run(cluster, "--timeout-ms", "500").out.splitlines()) == 12
    assert committed(cluster) == 20


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_signal_that_ends_it_commits_what_was_written(cluster: ToyCluster, number: signal.Signals) -> None:
    """Ctrl-C, a service manager, a terminal that closes."""
    given = ["consume", "--topic", "t", "--group", "g", "--from-beginning", "--bootstrap", cluster.bootstrap]
    program = "from raylog.cli.app import cli; cli()"
    with subprocess.Popen(
        [sys.executable, "-c", program, *given],
        env={**os.environ, "RAYLOG_SECRET": SECRET.hex()},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert len([process.stdout.readline() for _ in range(20)]) == 20
            with Producer(**cluster.options) as producer:
                producer.send("t", b"the next").result(30)
            assert process.stdout.readline() == b"the next\n"  # so the twenty before are behind it
            process.send_signal(number)
            assert process.wait(30) == 0
        finally:
            process.kill()
    assert committed(cluster) in (20, 21)


def test_what_a_full_disk_did_not_take_is_not_committed(cluster: ToyCluster) -> None:
    program = "from raylog.cli import main; main()"
    words = ["consume", "--topic", "t", "--group", "g", "--from-beginning", "--bootstrap", cluster.bootstrap]
    environment = {**os.environ, "RAYLOG_SECRET": SECRET.hex()}
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-c", program, *words]
        run = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, env=environment, text=True, timeout=60, check=False
        )
    line = "raylog: standard output: No space left on device. Free some space, and try again.\n"
    assert (run.returncode, run.stderr) == (1, line)
    assert not committed(cluster)
