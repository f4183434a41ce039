"""Ray actors that end with records unsent: what is left is sent, and the worker's log says what was not stored."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterator
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

    def ready(self) -> bool:
        return True

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

    async def ready(self) -> bool:
        return True

    async def send(self) -> int:
        self._producer = raylog.AsyncProducer(**OPTIONS)
        await self._producer.start()
        self._futures = [await self._producer.send(self._topic, b"%d" % n, partition=0) for n in range(RECORDS)]
        return os.getpid()

    async def leave(self) -> None:
        import ray

        ray.actor.exit_actor()  # type: ignore[no-untyped-call]


KINDS: dict[str, type[Any]] = {"sync": Sender, "async": AsyncSender}
CASES = [(kind, way) for kind in KINDS for way in ("exit_actor", "scope")]
"""All at once in each test: what takes time is that they wait."""


def begun(topics: dict[tuple[str, str], str]) -> tuple[dict[tuple[str, str], Any], dict[tuple[str, str], int]]:
    """Actors with records unsent, and their processes; nothing else holds the actors."""
    import ray

    made: dict[str, Any] = {kind: ray.remote(each).options(num_cpus=0) for kind, each in KINDS.items()}
    actors = {case: made[case[0]].remote(topic) for case, topic in topics.items()}
    assert all(ray.get([actor.ready.remote() for actor in actors.values()]))
    pids = ray.get([actor.send.remote() for actor in actors.values()])
    return actors, dict(zip(actors, pids, strict=True))


@contextmanager
def stopped(topics: Collection[str]) -> Iterator[None]:
    """Within it, the processes of the topics' leaders stand still: nothing is stored."""
    with raylog.Producer() as producer:
        for sent in [producer.send(topic, b"before", partition=0) for topic in topics]:
            sent.result(WAIT_S)
    prefixes = tuple(f"replica:{topic}-0:" for topic in topics)
    pids = [call_actor(name, "status")["pid"] for name in actor_names() if name.startswith(prefixes)]
    assert len(pids) == len(topics)
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


def stored(topics: Collection[str]) -> list[int]:
    places = [raylog.TopicPartition(topic, 0) for topic in topics]
    with raylog.Consumer() as consumer:
        found = consumer.end_offsets(places)
    return [found[place] for place in places]


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


def end_all(actors: dict[tuple[str, str], Any], pids: dict[tuple[str, str], int]) -> None:
    """Have some actors leave and drop the others, all at once, and wait until their processes have ended."""
    import ray

    leaving = {case: actor for case, actor in actors.items() if case[1] == "exit_actor"}
    calls = [actor.leave.remote() for actor in leaving.values()]
    actors.clear()  # nothing holds the others any more
    for call in calls:
        with pytest.raises(ray.exceptions.ActorDiedError):
            ray.get(call)
    for pid in pids.values():
        wait_until_ended(pid)


def test_actors_that_end_send_what_is_left() -> None:
    topics = {(kind, way): topic_of(f"{kind}-{way[:4]}") for kind, way in CASES}
    actors, pids = begun(topics)
    assert stored(topics.values()) == [0] * len(CASES)
    end_all(actors, pids)
    assert dict(zip(topics, stored(topics.values()), strict=True)) == dict.fromkeys(topics, RECORDS)
    for case, pid in pids.items():
        assert "not stored" not in log_of(pid), case


def test_actors_that_end_say_how_many_were_not_stored() -> None:
    topics = {(kind, way): topic_of(f"stuck-{kind}-{way[:4]}") for kind, way in CASES}
    with stopped(topics.values()):
        actors, pids = begun(topics)
        end_all(actors, pids)
    for case, pid in pids.items():
        assert LOST in log_of(pid), case
        assert "the program ends when its records are stored, within 6 seconds" in log_of(pid), case
