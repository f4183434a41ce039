"""Ray actors that end with records unsent: what is left is sent, and the worker's log says what was not stored."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import raylog
from tests.cluster.ray_support import actor_names, call_actor
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180), pytest.mark.usefixtures("three_brokers")]
RECORDS = 100
WAIT_S = 40.0
OPTIONS: dict[str, Any] = {"client_id": "unsent", "linger_ms": 3_000, "delivery_timeout_ms": 6_000}
LOST = f"{RECORDS} records of producer 'unsent' were not stored: it was not"


class Sender:
    """Sends, and is not closed."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._producer = raylog.Producer(**OPTIONS)

    def send(self) -> int:
        for number in range(RECORDS):
            self._producer.send(self._topic, b"%d" % number, partition=0)
        return os.getpid()

    def leave(self) -> None:
        import ray

        ray.actor.exit_actor()  # type: ignore[no-untyped-call]


class AsyncSender:
    """The same on the actor's event loop, which Ray stops when the actor ends."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    async def send(self) -> int:
        self._producer = raylog.AsyncProducer(**OPTIONS)
        await self._producer.start()
        self._futures = [await self._producer.send(self._topic, b"%d" % n, partition=0) for n in range(RECORDS)]
        return os.getpid()

    async def leave(self) -> None:
        import ray

        ray.actor.exit_actor()  # type: ignore[no-untyped-call]


KINDS: dict[str, type[Any]] = {"sync": Sender, "async": AsyncSender}


def begun(kind: str, topic: str) -> tuple[Any, int]:
    """An actor with records unsent, and its process; nothing else holds it."""
    import ray

    made: Any = ray.remote(KINDS[kind])
    actor = made.options(num_cpus=0).remote(topic)
    return actor, ray.get(actor.send.remote())


@contextmanager
def stopped(topic: str) -> Iterator[None]:
    """Within it, the process of the topic's leader stands still: nothing is stored."""
    with raylog.Producer() as producer:
        producer.send(topic, b"before", partition=0).result(WAIT_S)
    pids = [call_actor(name, "status")["pid"] for name in actor_names() if name.startswith(f"replica:{topic}-0:")]
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def topic_of(name: str) -> str:
    with raylog.Admin() as admin:
        admin.create_topic(name, 1, 1, {"replica.sleep.after.ms": -1, "replica.doze.after.ms": -1})
    return name


def stored(topic: str) -> int:
    with raylog.Consumer(topic, auto_offset_reset="earliest") as consumer:
        place = raylog.TopicPartition(topic, 0)
        return consumer.end_offsets([place])[place]


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_until_ended(pid: int) -> None:
    wait_for(lambda: has_ended(pid), f"the actor's process {pid} has ended", WAIT_S)


def log_of(pid: int) -> str:
    """What a worker has written to its standard error."""
    folder = Path(os.environ["RAY_TMPDIR"])
    return "".join(path.read_text() for path in folder.rglob(f"worker-*-{pid}.err") if not path.parent.is_symlink())


def end(actor: Any, way: str) -> None:
    import ray

    if way == "exit_actor":
        with pytest.raises(ray.exceptions.ActorDiedError):
            ray.get(actor.leave.remote())


@pytest.mark.parametrize("way", ["exit_actor", "scope"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_an_actor_that_ends_sends_what_is_left(kind: str, way: str) -> None:
    topic = topic_of(f"{kind}-{way[:4]}")
    actor, pid = begun(kind, topic)
    assert stored(topic) == 0
    end(actor, way)
    del actor
    wait_until_ended(pid)
    assert stored(topic) == RECORDS
    assert "not stored" not in log_of(pid)


@pytest.mark.parametrize("way", ["exit_actor", "scope"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_an_actor_that_ends_says_how_many_were_not_stored(kind: str, way: str) -> None:
    topic = topic_of(f"stuck-{kind}-{way[:4]}")
    with stopped(topic):
        actor, pid = begun(kind, topic)
        end(actor, way)
        del actor
        wait_until_ended(pid)
    assert LOST in log_of(pid)
    assert "the program ends when its records are stored, within 6 seconds" in log_of(pid)
